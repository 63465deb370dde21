// The stages of a step. Each one calls the room that does the work, and times it.
#include "train/loop/stages.h"

#include <fmt/core.h>

#include <algorithm>

#include "config/check.h"
#include "experience/selection/row_choice.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "generate/decode/given_tokens.h"
#include "train/report/stage_timer.h"
#include "train/report/step_metrics.h"
#include "train/run/policy_folder.h"
#include "train/run/run_options.h"

namespace mortise {

namespace {

// KL(old || reference) per token times the coefficient, and the controller's next coefficient.
Result<std::vector<float>> reward_penalty(AdvantageParts& parts, const StepTable& table, int64_t step,
                                          MetricSet& metrics) {
  const auto num_tokens = static_cast<size_t>(table.num_tokens());
  std::vector<float> kl(num_tokens);
  const std::vector<float> weight(num_tokens, 1.0F);
  const auto mask = table.get<column::SampleMask>();
  StepView input;
  input.layout = table.layout();
  input.step = step;
  input.set<column::LogProb>(table.get<column::OldLogProb>()).set<column::RefLogProb>(table.get<column::RefLogProb>());
  input.set<column::ResponseMask>(mask).set<column::Weight>(weight);
  TRY(parts.reward_kl->compute(input, {kl, {}}, &metrics));
  double mean_over_rows = 0.0;
  int64_t num_rows = 0;
  const auto offsets = table.row_offsets();
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    double sum = 0.0, count = 0.0;
    for (auto t = static_cast<size_t>(offsets[i]); t < static_cast<size_t>(offsets[i + 1]); ++t) {
      if (mask[t] == 0) continue;
      sum += static_cast<double>(kl[t]);
      count += 1.0;
    }
    if (count == 0.0) continue;
    mean_over_rows += sum / count;
    ++num_rows;
  }
  if (num_rows > 0) mean_over_rows /= static_cast<double>(num_rows);
  const double coefficient = parts.kl_controller->kl_coef();
  metrics.add_mean("actor/reward_kl_penalty", mean_over_rows, 1.0);
  metrics.add("actor/reward_kl_penalty_coeff", coefficient);
  parts.kl_controller->update(mean_over_rows, table.num_rows());
  for (float& value : kl) value = static_cast<float>(coefficient * static_cast<double>(value));
  return kl;
}

ScoreContext score_context(const RunSettings& run, int64_t step) {
  ScoreContext context;
  context.step = step;
  context.max_response_length = response_length(run.config);
  return context;
}

// Whatever corrects by the sampler's log-probs cannot do without them.
Result<> check_sampler_log_probs(const RunSettings& run, const StepTable& table) {
  if (table.has<column::RolloutLogProb>() || table.num_tokens() == 0) return {};
  return Error{
      ErrorKind::kConfig,
      fmt::format("'algorithm.rollout_correction' needs the log-probs of the sampler, and the rollout backend '{}' "
                  "gave none",
                  run.config.rollout.name),
      run.loaded.where("algorithm.rollout_correction"),
      "take a backend that gives them (native does), or remove the table"};
}

Result<Experience> sample_and_score(const RunSettings& run, PromptSource& source, Sampler& sampler,
                                    RewardRunner& reward, int64_t step, int64_t batch, int64_t weight_version,
                                    MetricSet& metrics) {
  Experience out;
  out.prompts = TRY(source.next(step));
  const ScoreContext context = score_context(run, step);
  out.samples = TRY(sampler.sample(out.prompts, batch, weight_version, reward, context, metrics));
  TRY(reward_stage(run, source, reward, out, step, metrics));
  return out;
}

}  // namespace

Result<> reward_stage(const RunSettings& run, PromptSource& source, RewardRunner& reward, Experience& experience,
                      int64_t step, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/reward");
  experience.scored = TRY(reward.score(experience.prompts, experience.samples, score_context(run, step), &metrics));
  source.note_rewards(experience.prompts, experience.scored.rewards);
  return {};
}

void read_given_rows(SampledForward* sampled, const StepTable& table) {
  if (sampled == nullptr || sampled->is_current()) return;
  log_info(fmt::format("decodes the tokens of {} again: the first update of the step reads what sampling had computed",
                       counted(table.num_rows(), "row")));
  sampled->begin_filled();
}

Result<> sample_again(const RunConfig& config, const Model& policy, const StepTable& table,
                      std::span<const int64_t> rows) {
  std::vector<GivenRow> given;
  for (const int64_t i : rows) {
    const TableRow& row = table.row(i);
    given.push_back({row.prompt_ids, row.response_ids, table.layout().row_id[static_cast<size_t>(i)], row.group});
  }
  return fill_sampled_forward(policy, given, rollout_engine_options(config, nullptr).isa);
}

Result<Experience> experience_stage(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                                    int64_t step, int64_t weight_version, MetricSet& metrics) {
  if (data.over_sampling) {
    Experience out = TRY(data.over_sampling->sample(*data.source, sampler, step, weight_version, metrics));
    TRY(reward_stage(run, *data.source, reward, out, step, metrics));
    return out;
  }
  const auto next = [&](int64_t batch) {
    return sample_and_score(run, *data.source, sampler, reward, step, batch, weight_version, metrics);
  };
  if (!data.filter) return next(0);
  GroupFilter& filter = *data.filter;
  SampledForward* const store = sampler.sampled_forward();
  filter.begin_step(step);
  while (!filter.is_full()) {
    if (filter.num_batches() > 0) TRY(filter.check_more(data.train->size()));
    const Experience batch = TRY(next(filter.num_batches()));
    TRY(at_place(run.loaded.where("algorithm.filter_groups.metric"), filter.add(batch)));
    if (store != nullptr) store->keep_rows(filter.sampled_rows());
  }
  if (store != nullptr)
    store->number_rows(std::span(filter.sampled_rows()).first(static_cast<size_t>(run.plan.rows_per_step)));
  return filter.take(metrics);
}

Result<Experience> experience_ahead(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                                    int64_t step, int64_t weight_version, MetricSet& metrics) {
  Experience experience = TRY(experience_stage(run, data, sampler, reward, step, weight_version, metrics));
  if (data.filter) data.filter->commit();
  return experience;
}

void commit_groups(DataParts& data, bool samples_ahead) {
  if (data.filter && !samples_ahead) data.filter->commit();
  if (data.replay_buffer) data.replay_buffer->commit();
  if (data.over_sampling) data.over_sampling->commit();
}

Result<> greedy_baseline_stage(const RunSettings& run, Sampler& sampler, RewardRunner& reward,
                               const Experience& experience, StepTable& table, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/gen_max");
  MetricSet unused;  // nothing is learned from these rows
  const SampleBatch greedy = TRY(sampler.greedy(experience.prompts, unused));
  const ScoreContext context = score_context(run, experience.prompts.step);
  const ScoredBatch scored = TRY(reward.score(experience.prompts, greedy, context, &unused));
  std::vector<float> baselines;
  for (const Sample& sample : experience.samples.rows)
    baselines.push_back(static_cast<float>(scored.rewards[static_cast<size_t>(sample.prompt_index)]));
  table.put<column::RewardBaselines>(std::move(baselines));
  return {};
}

Result<> kept_tokens_stage(const RolloutPlan& plan, const ActorLearner& learner, StepTable& table, MetricSet& metrics) {
  if (!plan.is_filtered) return {};
  const StageTimer timer(metrics, "timing_s/kept_tokens");
  const KeptCount count = TRY(learner.keep_tokens(table, plan.sampling));
  if (count.num_tokens == 0) return {};
  const auto tokens = static_cast<double>(count.num_tokens);
  metrics.add("training/kept_tokens/mean", static_cast<double>(count.num_kept) / tokens);
  metrics.add("training/kept_tokens/missing_frac", static_cast<double>(count.num_missing) / tokens);
  return {};
}

Result<> squared_probs_stage(const PolicyParts& policy, const ActorLearner& learner, StepTable& table,
                             MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/sum_pi_squared");
  table.put<column::SumPiSquared>(TRY(learner.sums_of_squared_probs(*policy.model, table)));
  return {};
}

LogProbNeeds log_prob_needs(const RunSettings& run, const PolicyParts& policy, const AdvantageParts& advantage,
                            const LearnerParts& learning) {
  const bool penalizes = advantage.reward_kl.has_value();
  const ActorObjective& objective = *learning.objective;
  LogProbNeeds needs;
  needs.teacher = policy.teacher && run.config.teacher.advantage_coef != 0;
  // One update over the whole batch starts where the batch was sampled: its own log-probs are the old ones.
  needs.old = run.plan.updates_per_step > 1 || penalizes || objective.correction().is_active() || needs.teacher ||
              run.config.algorithm.use_pf_ppo || run.config.algorithm.replay_buffer.enable ||
              advantage.estimator->info().requires_input(column::OldLogProb::name);
  needs.reference = policy.reference && (penalizes || objective.needs_ref_log_prob());
  return needs;
}

Result<> log_prob_stage(const RunSettings& run, const PolicyParts& policy, const LearnerParts& learning,
                        LogProbNeeds needs, StepTable& table, MetricSet& metrics) {
  const ActorLearner& learner = *learning.learner;
  if (learning.objective->correction().is_bypass()) {
    TRY(check_sampler_log_probs(run, table));
    // A row that waits is not measured by an update of this step.
    if (run.plan.carries_rows) table.put<column::FirstLogProb>(TRY(learner.log_probs(*policy.model, table)));
    const auto sampler = table.get<column::RolloutLogProb>();
    table.put<column::OldLogProb>({sampler.begin(), sampler.end()});
  } else if (needs.old) {
    const ComputeTimer timer(metrics, "timing_s/old_log_prob", "perf/mfu/actor_infer", learning.compute);
    // The first update is at these weights still: one that looks at all its rows at once need not run them again.
    std::vector<float> entropy;
    std::vector<float>* const measured = learner.sees_whole_update() ? &entropy : nullptr;
    ExpertChoices experts;
    const bool records = run.config.actor.router_replay.mode == RouterReplay::kR2;
    table.put<column::OldLogProb>(
        TRY(learner.log_probs(*policy.model, table, nullptr, measured, records ? &experts : nullptr)));
    if (records) table.replay(std::move(experts));
    table.put<column::OldEntropy>(std::move(entropy));
  }
  if (needs.reference) {
    const StageTimer timer(metrics, "timing_s/ref");
    const MicroBatchOptions passes = reference_pass_options(run.config, run.device.by_operators);
    table.put<column::RefLogProb>(TRY(learner.log_probs(*policy.reference, table, &passes)));
  }
  if (needs.teacher) {
    const StageTimer timer(metrics, "timing_s/teacher");
    table.put<column::TeacherLogProb>(TRY(learner.log_probs(*policy.teacher, table)));
  }
  return {};
}

Result<> correction_stage(const RunSettings& run, const RolloutCorrection& correction, StepTable& table,
                          MetricSet& metrics) {
  if (correction.is_bypass() || !correction.is_active()) return {};
  TRY(check_sampler_log_probs(run, table));
  CorrectedBatch corrected = correction.apply({table.row_offsets(), table.get<column::SampleMask>(),
                                               table.get<column::OldLogProb>(), table.get<column::RolloutLogProb>()},
                                              &metrics);
  table.put<column::RolloutIsWeights>(std::move(corrected.weights));
  table.put<column::ResponseMask>(std::move(corrected.mask));
  return {};
}

Result<> advantage_stage(const RunSettings& run, AdvantageParts& advantage, const Experience& experience, int64_t step,
                         StepTable& table, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/adv");
  AdvantageOptions options;
  options.step = step;
  options.normalize_then_sum = run.config.algorithm.multi_objective_aggregation == RewardAggregation::kNormalizeThenSum;
  std::vector<float> penalty;
  if (advantage.reward_kl) penalty = TRY(reward_penalty(advantage, table, step, metrics));
  TRY(advantage.estimator->compute(table, experience.samples, experience.scored, options, penalty, &metrics));
  add_teacher_advantages(run.config.teacher.advantage_coef, table, metrics);
  return {};
}

void row_choice_stage(const RunSettings& run, const ScoredBatch& scored, int64_t step, StepTable& table) {
  const AlgorithmConfig& algorithm = run.config.algorithm;
  if (algorithm.best_of_n > 0) {
    const std::vector<uint8_t> best = best_rows(scored.rewards, run.config.rollout.n, algorithm.best_of_n);
    std::vector<uint8_t> mask(table.get<column::ResponseMask>().begin(), table.get<column::ResponseMask>().end());
    for (int64_t row = 0; row < table.num_rows(); ++row) {
      if (best[static_cast<size_t>(row)] != 0) continue;
      const auto begin = mask.begin() + table.row_offsets()[static_cast<size_t>(row)];
      std::fill_n(begin, table.row_tokens(row), uint8_t{0});
    }
    table.put<column::ResponseMask>(std::move(mask));
  }
  if (algorithm.use_pf_ppo)
    table.put<column::DrawnRow>(draw_rows(scored.rewards, algorithm.pf_ppo, run.key.seed, step));
}

const StepTable& learnt_rows(const StepTable& table, StepTable& drawn) {
  if (!table.has<column::DrawnRow>()) return table;
  std::vector<int64_t> rows;
  for (const float row : table.get<column::DrawnRow>()) rows.push_back(static_cast<int64_t>(row));
  drawn = table.take(rows, {});
  return drawn;
}

bool put_first_log_prob(const RunSettings& run, const RolloutCorrection& correction, bool is_first, StepTable& table) {
  if (is_first && !table.has<column::FirstLogProb>())
    std::ranges::copy(table.get<column::OldLogProb>(), table.make<column::FirstLogProb>().begin());
  return run.plan.carries_rows || (table.has<column::OldLogProb>() && !correction.is_bypass());
}

std::vector<std::string> columns_of_updates(const ActorObjective& objective) {
  std::vector<std::string> columns = objective.loss_info().requires_inputs;
  columns.emplace_back(column::RefLogProb::name);
  columns.emplace_back(column::RolloutIsWeights::name);
  return columns;
}

void compare_with_sampler(const RunConfig& config, const RolloutCorrection& correction, const StepTable& table,
                          MetricSet& metrics) {
  if (!table.has<column::RolloutLogProb>() || !config.rollout.calculate_log_probs) return;
  add_rollout_probs_metrics(table, metrics);
  if (correction.is_active()) return;
  const LogRatios ratios{table.row_offsets(), table.get<column::SampleMask>(), table.get<column::FirstLogProb>(),
                         table.get<column::RolloutLogProb>()};
  (void)RolloutCorrection().apply(ratios, &metrics);
}

}  // namespace mortise
