// The loop, read top to bottom: one step is sample, score, log-probs, advantages, updates; then it is counted, logged,
// validated and saved. What each stage does is in stages.cpp; what exists, in run_parts.h.
#include "train/loop/trainer.h"

#include <algorithm>
#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "learn/objective/loss_settings.h"
#include "train/loop/replay_stages.h"
#include "train/loop/run_loop.h"
#include "train/loop/stages.h"
#include "train/report/journal.h"
#include "train/report/step_metrics.h"
#include "train/resume/checkpointing.h"
#include "train/run/ahead_rules.h"
#include "train/run/policy_parts.h"
#include "train/run/run_options.h"
#include "train/sampling/ahead_round.h"
#include "train/sampling/router_replay.h"

namespace mortise {

namespace {

RunJournal::Plan journal_plan(const RunSettings& run, PolicyParts& policy, std::optional<Validator>& validator,
                              const RunCounters& counters) {
  RunJournal::Plan plan;
  plan.total_steps = run.total_steps;
  plan.test_freq = run.config.trainer.test_freq;
  plan.validate = validation_of(run.config, policy, validator, counters);
  plan.on_validation = [](const ValidationReport&, double seconds, MetricSet& metrics) {
    metrics.add("timing_s/testing", seconds);
  };
  return plan;
}

class Trainer {
 public:
  explicit Trainer(OpenRun& open)
      : open_(open),
        parts_(*open.parts),
        run_(parts_.run),
        progress_(parts_.progress),
        counters_(progress_.counters),
        saver_(parts_.checkpoint_source(), *open.log),
        journal_(run_.env, progress_, *open.log, journal_plan(run_, parts_.policy, parts_.validator, counters_)) {}

  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() { progress_.ahead.wait(); }  // its thread uses this object

  Result<TrainSummary> run() {
    const bool is_fresh = counters_.step == 0 && progress_.step.work.step == 0;
    if (run_.config.trainer.val_before_train && parts_.validator && is_fresh) TRY(journal_.write_first_validation());
    if (TRY(journal_.write_owed())) TRY(saver_.save_changed_step());
    return run_steps(open_, saver_, progress_.best.is_over(), [this](int64_t number) -> Result<bool> {
      TRY(step(number));
      return progress_.best.is_over();
    });
  }

 private:
  // The step with this number, or what a resume has left of it.
  Result<> step(int64_t number) {
    const Stopwatch watch(run_.env);
    StepWork& work = progress_.step.work;
    if (work.step == 0)
      work = TRY(sample_and_score(number));
    else if (work.updates.empty())
      read_given_rows(parts_.learning.sampled_forward, work.table);
    TRY(learn(work, watch));
    count(work);
    run_.ranks.enter("report", number);
    TRY(report(work));
    Result<> validated;
    TRY(journal_.write_step(number, work.metrics, validated));
    Result<> good = progress_.limits.check(number, work.metrics, has_learnt(work));
    if (!good.ok() && !validated.ok()) log_warn("the validation failed too: " + validated.error().to_string());
    if (good.ok()) good = std::move(validated);
    work = {};
    if (!good.ok()) {
      saver_.keep_last_step(good.error());
      return good;
    }
    TRY(saver_.save_if_due());
    return check_skipped_updates(run_.config, counters_);
  }

  // Everything before the first update: completions with their rewards, and the columns of the table that updates
  // read. The critic learns here, before the policy.
  Result<StepWork> sample_and_score(int64_t number) {
    saver_.step_begins();
    StepWork work;
    MetricSet& metrics = work.metrics;
    run_.ranks.enter("rollout", number);
    work.experience = TRY(next_experience(number, metrics));
    TRY(replay_stage(run_, parts_.data, work.experience, metrics));
    const auto& [prompts, samples, scored] = work.experience;
    add_staleness_metrics(samples, counters_.weight_version, metrics);
    StepTable& table = work.table = make_step_table(prompts, samples);
    TRY(replay_stage(run_, parts_.policy.model->config(), work.experience, table));
    read_given_rows(parts_.learning.sampled_forward, table);
    run_.ranks.enter("log-probs", number);
    TRY(kept_tokens_stage(parts_.sampler->plan(), *parts_.learning.learner, table, metrics));
    TRY(put_baselines(work.experience, table, metrics));
    TRY(log_prob_stage(run_, parts_.policy, parts_.learning,
                       log_prob_needs(run_, parts_.policy, parts_.advantage, parts_.learning), table, metrics));
    TRY(correction_stage(run_, parts_.learning.objective->correction(), table, metrics));
    TRY(replayed_log_prob_stage(run_, *parts_.learning.objective, prompts, table));
    TRY(advantage_stage(run_, parts_.advantage, work.experience, number, table, metrics));
    add_variance_proxies(table, metrics);
    row_choice_stage(run_, scored, number, table);
    StepTable drawn;
    if (parts_.critic) saver_.learning_begins();
    if (parts_.critic) TRY(parts_.sampler->rest());
    run_.ranks.enter("updates", number);
    TRY(critic_stage(run_.config, parts_.critic.get(), parts_.learning.compute, learnt_rows(table, drawn), number,
                     progress_, metrics));
    commit_groups(parts_.data, parts_.policy.sampled.has_value());
    work.step = number;
    return work;
  }

  // The completions of the step with their rewards. Those of next steps begin at once if trainer.mode says so.
  Result<Experience> next_experience(int64_t number, MetricSet& metrics) {
    RolloutAhead& ahead = progress_.ahead;
    const bool is_there = TRY(ahead.has(number));
    if (!parts_.policy.sampled) return is_there ? ahead.take(number, metrics) : sample(number, metrics);
    TRY(refresh_sampled(run_.config, parts_.policy));
    TRY(parts_.sampler->prepare(counters_.weight_version, metrics));
    if (!is_there) TRY(ahead.make_now(round_of(number - 1, number)));
    Experience experience = TRY(ahead.take(number, metrics));
    if (number < run_.total_steps) TRY(ahead.begin(round_of(number, number + run_.config.trainer.steps_ahead())));
    return experience;
  }

  // What is sampled next to the updates of step `number`, with the weights that it begins with.
  RolloutAhead::Round round_of(int64_t number, int64_t last_step) {
    const AheadRound round{number, std::min(last_step, run_.total_steps), counters_.weight_version};
    return [this, round](RolloutAhead::Rollouts& rollouts) {
      return sample_round(run_, parts_.data, *parts_.sampler, *parts_.reward, round, rollouts);
    };
  }

  // Backends and rewards may sample with the policy meanwhile.
  Result<Experience> sample(int64_t number, MetricSet& metrics) {
    const auto whole = TRY(weights_to_sample(run_.config, *parts_.policy.model));
    return experience_stage(run_, parts_.data, *parts_.sampler, *parts_.reward, number, counters_.weight_version,
                            metrics);
  }

  // What the advantage estimator compares with, as far as it asks for it.
  Result<> put_baselines(const Experience& experience, StepTable& table, MetricSet& metrics) {
    const PluginInfo& estimator = parts_.advantage.estimator->info();
    TRY(value_stage(parts_.critic.get(), table, metrics));
    if (estimator.requires_input(column::RewardBaselines::name)) {
      const auto whole = TRY(weights_to_sample(run_.config, *parts_.policy.model));
      TRY(greedy_baseline_stage(run_, *parts_.sampler, *parts_.reward, experience, table, metrics));
    }
    if (estimator.requires_input(column::SumPiSquared::name))
      TRY(squared_probs_stage(parts_.policy, *parts_.learning.learner, table, metrics));
    return {};
  }

  // The updates; work.seconds is then the time that the step took, in all processes.
  Result<> learn(StepWork& work, const Stopwatch& watch) {
    const double seconds_before = work.seconds;
    const auto before_update = [&](const std::function<void()>& settle) {
      work.seconds = seconds_before + watch.elapsed_s();
      return saver_.save_inside_if_due(settle);
    };
    TRY(parts_.sampler->rest());
    const auto after = [&] { refresh_if_due(run_, parts_.policy, ScheduleUnit::kUpdate, counters_.num_updates); };
    TRY(update_stage(run_, parts_.data, parts_.policy, parts_.learning, progress_, {before_update, after}));
    refresh_if_due(run_, parts_.policy, ScheduleUnit::kStep, work.step);
    progress_.ahead.wait();
    work.seconds = seconds_before + watch.elapsed_s();
    return {};
  }

  void count(const StepWork& work) {
    counters_.step = work.step;
    counters_.num_tokens += count_tokens(work.experience.prompts, work.experience.samples);
    counters_.train_seconds += work.seconds;
  }

  // The numbers of a step whose updates are done, to the logs but for the step's own line.
  Result<> report(StepWork& work) {
    MetricSet& metrics = work.metrics;
    const auto& [prompts, samples, scored] = work.experience;
    int64_t update = counters_.num_updates - static_cast<int64_t>(work.updates.size());
    const ActorObjective& objective = *parts_.learning.objective;
    for (const UpdateReport& done : work.updates) {
      TRY(open_.log->write_update(++update, work.step,
                                  update_row(done, objective.uses_kl_loss(), objective.loss_info())));
      TRY(metrics.merge(done.metrics));
    }
    const Stopwatch dump(run_.env);
    TRY(open_.log->write_samples(work.step, prompts, samples, scored, &work.table));
    if (run_.config.trainer.rollout_data_dir) metrics.add("timing_s/dump_rollout_generations", dump.elapsed_s());
    if (!parts_.data.replay_buffer) add_sample_metrics(run_, work.experience, metrics);
    add_advantage_metrics(scored, work.table, metrics);
    add_update_metrics(work.updates, objective, metrics);
    finish_variance_proxies(work.table.num_rows(), metrics);
    StepTally tally{prompts.step, prompts.epoch};
    tally.steps_per_epoch = run_.steps_per_epoch;
    tally.num_tokens = count_tokens(prompts, samples);
    tally.seconds = work.seconds;
    tally.num_failed_saves = saver_.num_failed();
    TRY(add_run_metrics(counters_, tally, run_.ranks, metrics));
    add_timing_metrics(samples, tally, metrics);
    LearnerOptions options = learner_options(run_.config, run_.device.by_operators, run_.ranks);
    if (run_.plan.rows_per_update == run_.plan.rows_per_step) options.sampled = parts_.learning.sampled_forward;
    add_rank_metrics(work.table, options, parts_.learning.optimizer->shares_gradients(), metrics);
    if (const double saving = saver_.take_seconds(); saving > 0) metrics.add("timing_s/save_checkpoint", saving);
    return {};
  }

  static bool has_learnt(const StepWork& work) {
    return !work.updates.empty() && std::ranges::all_of(work.updates, [](const UpdateReport& update) {
      return !update.skipped && update.sums.num_tokens > 0;
    });
  }

  OpenRun& open_;
  RunParts& parts_;
  const RunSettings& run_;
  RunProgress& progress_;
  RunCounters& counters_;
  RunSaver saver_;
  RunJournal journal_;
};

// trainer.val_only: the parts of `eval` on the run's latest weights. What the run has written is added to, never cut.
Result<TrainSummary> validate_only(Env& env, const LoadedConfig& loaded, Communicator& ranks, PluginRegistry registry,
                                   const std::optional<Checkpoint>& checkpoint) {
  const auto parts = TRY(assemble(env, loaded, ranks, std::move(registry), RunKind::kEval, resume_weights(checkpoint)));
  RunCounters& counters = parts->progress.counters;
  if (checkpoint) {
    const std::string where = checkpoint->path().string();
    StateReader run(counters.state_name(), &checkpoint->state(), where);
    StateReader plugins(parts->saved.plugins.state_name(), &checkpoint->state(), where);
    TRY(counters.load(run, "train"));
    TRY(parts->saved.plugins.load_own(plugins));
    TRY(load_policy_state(*checkpoint, *parts->policy.model));
  }
  RunLogOptions options;
  options.first_step = counters.step;
  options.only_validates = true;
  RunLog log = TRY(open_log_on_ranks(parts->run, &*parts->registry, options));
  log.keep_failed_batches_of(*parts->reward);
  const ValidationReport report = TRY(parts->validator->validate(counters.step, counters.weight_version));
  log.log_validation(counters.step, report.metrics);
  for (const ValidatedSet& set : report.sets)
    TRY(log.write_validation(counters.step, set.name, set.prompts, set.samples, set.scored));
  TRY(log.write_step(counters.step, report.metrics));
  TRY(log.close());
  return TrainSummary{counters.step, "", false};
}

}  // namespace

Result<TrainSummary> train(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume, Communicator& ranks) {
  TRY(meet_ranks(ranks, loaded, RunKind::kTrain));
  PluginRegistry registry = TRY(open_registry(loaded));
  const std::optional<Checkpoint> checkpoint = TRY(find_resume(env, loaded, ranks, registry, RunKind::kTrain, resume));
  if (loaded.config.trainer.val_only) return validate_only(env, loaded, ranks, std::move(registry), checkpoint);
  OpenRun run =
      TRY(open_run(env, loaded, ranks, std::move(registry), RunKind::kTrain, checkpoint, resume.allow_change));
  if (run.finished_in) return close_finished(run);
  tell_ahead(loaded, *run.parts->learning.objective);
  log_info(describe_loss(run.parts->learning.objective->policy_loss().info(), loaded));
  return Trainer(run).run();
}

Result<Json> evaluate(Env& env, const LoadedConfig& loaded, Communicator& ranks) {
  TRY(meet_ranks(ranks, loaded, RunKind::kEval));
  PluginRegistry registry = TRY(open_registry(loaded));
  const auto parts = TRY(assemble(env, loaded, ranks, std::move(registry), RunKind::kEval, std::nullopt));
  if (ranks.is_main()) {
    parts->reward->keep_failed_batches(
        [&](const auto& prompts, const auto& samples, const auto& scored, const ScoreContext& context) {
          return write_eval_completions(env, loaded.config.trainer, context.val_set, prompts, samples, scored);
        });
  }
  const ValidationReport report = TRY(parts->validator->validate(0, parts->progress.counters.weight_version));
  for (const ValidatedSet& set : report.sets) {
    if (!ranks.is_main()) break;
    TRY(write_eval_completions(env, loaded.config.trainer, set.name, set.prompts, set.samples, set.scored));
  }
  Json out = Json::object();
  for (const MetricValue& metric : report.metrics.values()) out[metric.name] = metric.value;
  out["num_rows"] = report.num_rows;
  return out;
}

}  // namespace mortise
