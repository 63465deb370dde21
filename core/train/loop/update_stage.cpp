// The updates of a step. See stages.h.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/base/shown_text.h"
#include "train/loop/sft_mix.h"
#include "train/loop/stages.h"
#include "train/report/stage_timer.h"
#include "train/report/step_metrics.h"
#include "train/run/offloading.h"

namespace mortise {

namespace {

// The rows of each update: mini-batches of whole prompts, in order, or in a new order each pass.
std::vector<int64_t> row_order(const RunSettings& run, int64_t step, int64_t pass) {
  const bool shuffles_rows = run.config.actor.rows_per_update.has_value();
  const int64_t rows_together = shuffles_rows ? 1 : run.config.rollout.n;
  std::vector<int64_t> order(static_cast<size_t>(run.plan.rows_per_step / rows_together));
  std::iota(order.begin(), order.end(), 0);
  if (run.config.actor.shuffle) {
    const auto key = static_cast<uint64_t>(step * run.config.actor.ppo_epochs + pass);
    order = random_permutation(std::ssize(order), run.key.seed, RandomPurpose::kMinibatchShuffle, key);
  }
  std::vector<int64_t> rows;
  for (const int64_t place : order) {
    for (int64_t j = 0; j < rows_together; ++j) rows.push_back(place * rows_together + j);
  }
  if (!shuffles_rows || run.plan.carries_rows) return rows;
  // Rows of a group that are in one update stand together in it, as everywhere.
  for (auto part = rows.begin(); part != rows.end(); part += run.plan.rows_per_update)
    std::sort(part, part + run.plan.rows_per_update);
  return rows;
}

// One update with the entropy coefficient of now, which moves on by what the update measured.
Result<UpdateReport> update_once(LearnerParts& learning, const StepTable& table, std::span<const int64_t> rows,
                                 const UpdatePlace& place) {
  EntropyController& entropy = *learning.entropy_controller;
  learning.objective->set_entropy_coeff(entropy.applied_coeff());
  UpdateReport done = TRY(learning.learner->update(table, rows, place));
  if (entropy.is_adaptive() && place.open_step != nullptr) report_step(*place.open_step, done);
  if (entropy.is_adaptive()) done.metrics.add("actor/entropy_coeff", learning.objective->entropy_coeff());
  if (done.sums.num_bonus_tokens > 0 && !done.skipped)
    entropy.update(done.sums.bonus_entropy / static_cast<double>(done.sums.num_bonus_tokens));
  if (entropy.is_on()) {  // by TRL's names: also of an update that applied none
    done.metrics.add_mean("policy_loss", done.sums.pg_loss, 1.0);
    done.metrics.add("entropy_coef", entropy.coeff());
  }
  return done;
}

SupervisedMix mix_of(const SftMixConfig& config, const DrawnMix& drawn) {
  return {{&drawn.rows.table, config.phi, config.rows_per_mean.value_or(0)}, drawn.mu};
}

// Room for what the updates of the step see of tokens, where completion files have it. Not a number: no update did.
TokenTrace token_trace(const TrainerConfig& trainer, StepWork& work) {
  StepTable& table = work.table;
  if (trainer.rollout_data_dir && trainer.rollout_data_tokens > 0 && work.updates.empty()) {
    for (const std::span<float> seen :
         {table.make<column::LastLogProb>(), table.make<column::LastEntropy>(), table.make<column::LastClipped>()})
      std::ranges::fill(seen, std::numeric_limits<float>::quiet_NaN());
  }
  return {table.edit<column::LastLogProb>(), table.edit<column::LastEntropy>(), table.edit<column::LastClipped>()};
}

// The updates of one step, one after the other.
class StepUpdates {
 public:
  StepUpdates(const RunSettings& run, DataParts& data, LearnerParts& learning, RunProgress& progress,
              const UpdateHooks& hooks)
      : run_(run),
        data_(data),
        learning_(learning),
        counters_(progress.counters),
        carried_(progress.carried),
        rate_(progress.policy_rate),
        work_(progress.step.work),
        hooks_(hooks),
        timer_(work_.metrics, "timing_s/update_actor", "perf/mfu/actor", learning.compute) {}

  Result<> make() {
    StepTable& table = work_.table;
    const RolloutCorrection& correction = learning_.objective->correction();
    const bool measures_old = !put_first_log_prob(run_, correction, work_.updates.empty(), table);
    if (measures_old) first_log_prob_ = table.edit<column::FirstLogProb>();
    trace_ = token_trace(run_.config.trainer, work_);
    StepTable drawn;
    const StepTable& learnt = learnt_rows(table, drawn);
    Result<> learned = run_.plan.carries_rows ? learn_carried(learnt) : learn(learnt);
    settle();
    TRY(std::move(learned));
    // A skipped update has measured nothing, and one with dropout another policy than the one that sampled.
    const bool measured = !measures_old || (!is_cut_ && !learning_.learner->has_dropout() &&
                                            std::ranges::none_of(work_.updates, &UpdateReport::skipped));
    if (measured) compare_with_sampler(run_.config, correction, table, work_.metrics);
    return {};
  }

 private:
  // trainer.total_training_updates: the run ends here.
  [[nodiscard]] bool is_over() const {
    return run_.config.trainer.total_training_updates && counters_.num_updates >= run_.total_updates;
  }

  // At the first update of the step, the log-probs of its rows are still the policy's.
  [[nodiscard]] bool old_is_current() const {
    return !learning_.objective->correction().is_bypass() && !run_.config.algorithm.replay_buffer.enable;
  }

  Result<> learn(const StepTable& learnt) {
    size_t index = 0;
    for (int64_t pass = 0; pass < run_.config.actor.ppo_epochs; ++pass) {
      const std::vector<int64_t> rows = row_order(run_, work_.step, pass);
      for (int64_t begin = 0; begin < std::ssize(rows); begin += run_.plan.rows_per_update) {
        if (index++ < work_.updates.size()) continue;  // done before a resume
        is_cut_ = is_over();
        if (is_cut_) return {};
        UpdatePlace place;
        place.old_is_current = pass == 0 && begin == 0 && old_is_current();
        place.reads_sampled = pass == 0 && begin == 0 && learning_.sampled_forward != nullptr;
        if (pass == 0) place.log_prob_out = first_log_prob_;
        place.trace = trace_;
        TRY(learn_from(
            learnt, std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(run_.plan.rows_per_update)),
            place));
      }
    }
    return {};
  }

  // A resume with other settings may make updates read what the rows that wait lack.
  void drop_what_does_not_fit(const StepTable& learnt) {
    if (carried_.fit(learnt, columns_of_updates(*learning_.objective))) return;
    log_warn(
        fmt::format("step {} does not learn {} that waited for it (actor.carry_rows): updates read other columns "
                    "since the settings changed",
                    work_.step, counted(carried_.size(), "row")));
    carried_ = {};
  }

  // The same with the rows that wait ahead of this step's. What is left waits, or at the end of an epoch is an update.
  Result<> learn_carried(const StepTable& learnt) {
    if (work_.updates.empty()) drop_what_does_not_fit(learnt);
    const int64_t num_waiting = carried_.size();
    std::vector<int64_t> places(static_cast<size_t>(num_waiting));
    std::iota(places.begin(), places.end(), 0);
    for (int64_t pass = 0; pass < run_.config.actor.ppo_epochs; ++pass) {
      for (const int64_t row : row_order(run_, work_.step, pass)) places.push_back(num_waiting + row);
    }
    const bool ends_epoch = work_.step % run_.steps_per_epoch == 0;
    auto rest = std::span<const int64_t>(places);
    for (size_t index = 0; !rest.empty(); ++index) {
      const auto count = std::min(rest.size(), static_cast<size_t>(run_.plan.rows_per_update));
      if (static_cast<int64_t>(count) < run_.plan.rows_per_update && !ends_epoch) break;
      const std::span<const int64_t> part = rest.first(count);
      rest = rest.subspan(count);
      if (index < work_.updates.size()) continue;  // done before a resume
      if (is_over()) {
        rest = {};
        break;
      }
      TRY(learn_part(learnt, {part.begin(), part.end()}, index == 0 && num_waiting == 0 && old_is_current()));
    }
    carried_.keep(learnt, rest);
    work_.metrics.add("training/carried_rows", static_cast<double>(carried_.size()));
    return {};
  }

  // Rows of a group stand together, as everywhere.
  Result<> learn_part(const StepTable& learnt, std::vector<int64_t> places, bool is_current) {
    carried_.sort_by_group(places);
    const StepTable part = carried_.take(learnt, places);
    UpdatePlace place;
    place.old_is_current = is_current;
    std::vector<float> seen[3];
    if (!trace_.log_prob.empty()) {
      for (std::vector<float>& values : seen) values.resize(static_cast<size_t>(part.num_tokens()));
      place.trace = {seen[0], seen[1], seen[2]};
    }
    TRY(learn_from(part, all_rows(part), place));
    if (trace_.log_prob.empty()) return {};
    const std::span<float> kept[] = {trace_.log_prob, trace_.entropy, trace_.clipped};
    for (int64_t r = 0; r < part.num_rows(); ++r) {
      const int64_t row = places[static_cast<size_t>(r)] - carried_.size();
      if (row < 0) continue;  // its step is written
      const auto from = part.row_offsets()[static_cast<size_t>(r)], to = learnt.row_offsets()[static_cast<size_t>(row)];
      for (size_t i = 0; i < std::size(kept); ++i)
        std::copy_n(seen[i].begin() + from, part.row_tokens(r), kept[i].begin() + to);
    }
    return {};
  }

  // One update on these rows of `table`. `place` has what depends on the rows.
  Result<> learn_from(const StepTable& table, std::span<const int64_t> rows, UpdatePlace place) {
    const Stopwatch aside;  // a checkpoint may be saved
    TRY(hooks_.before([this] { settle(); }));
    timer_.leave_out(aside.elapsed_s());
    const bool counts_steps = run_.config.actor.optim.schedule_unit == ScheduleUnit::kStep;
    const int64_t unit = counts_steps ? work_.step - 1 : counters_.num_updates;
    place.lr = rate_.rate(learning_.schedule, unit);
    place.step = work_.step;
    place.update_index = counters_.num_updates + 1;
    DrawnMix mix;
    if (data_.sft_mix) {
      const int64_t num_rows = num_mix_rows(run_.config.sft_mix, std::ssize(rows), run_.plan.rows_per_update);
      mix = TRY(draw_mix(run_.config.sft_mix, num_rows, *data_.sft_mix, unit, work_.step));
    }
    if (mix.mu > 0.0) place.mix = mix_of(run_.config.sft_mix, mix);
    FiniteStep step;
    place.open_step = &step;
    UpdateReport report = TRY(update_once(learning_, table, rows, place));
    settle();  // the update before: the device has its norm by now
    work_.updates.push_back(std::move(report));
    open_step_ = step;
    ++counters_.num_updates;
    if (data_.sft_mix) work_.updates.back().metrics.add_mean("actor/sft_mix_mu", mix.mu, 1.0);
    if (place.reads_sampled) learning_.sampled_forward->forget();
    hooks_.after();
    return {};
  }

  // What became of the last update. Waits for the device.
  void settle() {
    if (!open_step_) return;
    report_step(*open_step_, work_.updates.back());
    record_outcome(counters_, counters_.num_updates, work_.updates.back().skipped);
    open_step_.reset();
  }

  const RunSettings& run_;
  DataParts& data_;
  LearnerParts& learning_;
  RunCounters& counters_;
  CarriedRows& carried_;
  const MetricSchedule& rate_;
  StepWork& work_;
  const UpdateHooks& hooks_;
  ComputeTimer timer_;
  std::span<float> first_log_prob_;  // to be measured; empty: known
  TokenTrace trace_;
  std::optional<FiniteStep> open_step_;  // the last update: the device may still compute its norm
  bool is_cut_ = false;                  // some rows are not learnt
};

}  // namespace

Result<> update_stage(const RunSettings& run, DataParts& data, PolicyParts& policy, LearnerParts& learning,
                      RunProgress& progress, const UpdateHooks& hooks) {
  if (progress.step.work.step < run.config.trainer.critic_warmup) return {};
  TRY(fetch_state(*learning.optimizer, *policy.model));
  TRY(StepUpdates(run, data, learning, progress, hooks).make());
  return rest_state(*learning.optimizer, *policy.model, progress.step.work.metrics);
}

void record_outcome(RunCounters& counters, int64_t update, bool skipped) {
  if (!skipped) {
    ++counters.weight_version;
    return;
  }
  ++counters.num_skipped;
  log_warn(fmt::format("update {} was skipped: its log-probs or its gradient are not finite ({} so far)", update,
                       counters.num_skipped));
}

Result<> check_skipped_updates(const RunConfig& config, const RunCounters& counters) {
  const int64_t limit = config.trainer.nonfinite_update_limit;
  if (counters.num_skipped <= limit) return {};
  return Error{ErrorKind::kNumerics,
               fmt::format("{} had gradients that are not finite, more than trainer.nonfinite_update_limit = {}",
                           counted(counters.num_skipped, "update"), limit),
               "step " + std::to_string(counters.step),
               "lower actor.optim.lr, or look at the rewards and log-probs of that step"};
}

}  // namespace mortise
