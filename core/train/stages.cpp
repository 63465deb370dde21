#include "train/stages.h"

#include <algorithm>
#include <numeric>

#include "config/check.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "train/critic.h"
#include "train/stage_timer.h"
#include "train/step_metrics.h"

namespace mortise {

namespace {

// KL(old || reference) per token times the coefficient, and the controller's next coefficient.
Result<std::vector<float>> reward_penalty(RunParts& parts, const AdvantageBatch& layout, const LogProbBatch& log_probs,
                                          int64_t step, MetricSet& metrics) {
  const auto num_tokens = static_cast<size_t>(layout.num_tokens());
  std::vector<float> kl(num_tokens), weight(num_tokens, 1.0F);
  std::vector<int64_t> row_id(static_cast<size_t>(layout.num_rows()));
  std::iota(row_id.begin(), row_id.end(), 0);
  KlEstimatorInput input;
  input.layout = {layout.row_offsets, row_id, layout.group_index};
  input.log_prob = log_probs.old_log_prob;
  input.ref_log_prob = log_probs.ref_log_prob;
  input.response_mask = layout.response_mask;
  input.weight = weight;
  input.step = step;
  TRY(parts.reward_kl->compute(input, {kl, {}}, &metrics));
  double mean_over_rows = 0.0;
  int64_t num_rows = 0;
  for (size_t i = 0; i < row_id.size(); ++i) {
    double sum = 0.0, count = 0.0;
    for (auto t = static_cast<size_t>(layout.row_offsets[i]); t < static_cast<size_t>(layout.row_offsets[i + 1]); ++t) {
      if (layout.response_mask[t] == 0) continue;
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
  parts.kl_controller->update(mean_over_rows, layout.num_rows());
  for (float& value : kl) value = static_cast<float>(coefficient * static_cast<double>(value));
  return kl;
}

ScoreContext score_context(const RunParts& parts, int64_t step) {
  ScoreContext context;
  context.step = step;
  context.max_response_length = response_length(parts.config);
  return context;
}

// The rows of each update: mini-batches of whole prompts, in order, or in a new order each pass.
std::vector<int64_t> row_order(const RunParts& parts, int64_t step, int64_t pass) {
  const int64_t prompts = parts.plan.prompts_per_step;
  const int64_t n = parts.config.rollout.n;
  std::vector<int64_t> order(static_cast<size_t>(prompts));
  std::iota(order.begin(), order.end(), 0);
  if (parts.config.actor.shuffle) {
    const auto key = static_cast<uint64_t>(step * parts.config.actor.ppo_epochs + pass);
    order = random_permutation(prompts, parts.key.seed, RandomPurpose::kMinibatchShuffle, key);
  }
  std::vector<int64_t> rows;
  for (const int64_t prompt : order) {
    for (int64_t j = 0; j < n; ++j) rows.push_back(prompt * n + j);
  }
  return rows;
}

// A backend with a copy of the weights gets those of today.
Result<> send_weights(RunParts& parts, MetricSet& metrics) {
  RolloutBackend& backend = parts.rollout->backend();
  const int64_t version = parts.counters.weight_version;
  if (!backend.holds_weights() || parts.backend_weights == version) return {};
  const StageTimer timer(metrics, "timing_s/update_weights");
  TRY(backend.begin_update(version));
  for (const NamedParameter& parameter : parts.model->parameters()) {
    const at::Tensor values = parameter.tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    const std::vector<int64_t> shape = values.sizes().vec(), offset(shape.size(), 0);
    const std::span<const float> data(values.const_data_ptr<float>(), static_cast<size_t>(values.numel()));
    TRY(backend.update_weight({parameter.name, data, shape, shape, offset}));
  }
  TRY(backend.end_update());
  parts.backend_weights = version;
  return {};
}

// Nothing is sampled before the next step.
Result<> let_backend_sleep(RunParts& parts) {
  if (!parts.config.rollout.sleep_while_training) return {};
  const bool gets_weights = parts.rollout->backend().holds_weights();
  if (gets_weights) parts.backend_weights = -1;  // it may forget them
  return parts.rollout->sleep(gets_weights ? 2 : 1);
}

bool is_bypass(const RunParts& parts) { return parts.objective->correction().is_bypass(); }

// The sampler's log-probs of all tokens, which whatever corrects by them cannot do without.
Result<std::vector<float>> rollout_log_probs(const RunParts& parts, const SampleBatch& samples) {
  std::vector<float> out;
  for (const Sample& sample : samples.rows) {
    if (sample.log_prob.size() != sample.token_ids.size()) {
      return Error{ErrorKind::kConfig,
                   "'algorithm.rollout_correction' needs the log-probs of the sampler, and the rollout backend '" +
                       parts.config.rollout.name + "' gave none",
                   parts.loaded.where("algorithm.rollout_correction"),
                   "take a backend that gives them (native does), or remove the table"};
    }
    out.insert(out.end(), sample.log_prob.begin(), sample.log_prob.end());
  }
  return out;
}

// The reward of each prompt's greedy completion, on all its rows (ReMax).
Result<std::vector<float>> greedy_rewards(RunParts& parts, const Experience& experience, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/gen_max");
  RolloutPlan plan = train_plan(parts);
  plan.num_samples = 1;
  plan.sampling.temperature = 0.0;
  MetricSet unused;  // of rows that are not learnt from
  const SampleBatch greedy = TRY(parts.rollout->collect(experience.prompts, plan, parts.folder->tokenizer, &unused));
  const ScoreContext context = score_context(parts, experience.prompts.step);
  const ScoredBatch scored = TRY(parts.reward->score(experience.prompts, greedy, context, &unused));
  std::vector<float> out;
  for (const Sample& sample : experience.samples.rows)
    out.push_back(static_cast<float>(scored.rewards[static_cast<size_t>(sample.prompt_index)]));
  return out;
}

// The `batch`-th of the step, from 0: its rows have random streams of their own.
Result<SampleBatch> sample(RunParts& parts, const PromptBatch& prompts, int64_t batch, MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/gen");
  RolloutPlan plan = train_plan(parts);
  plan.first_row_id = batch * static_cast<int64_t>(prompts.prompts.size()) * plan.num_samples;
  TRY(parts.rollout->wake());
  TRY(send_weights(parts, metrics));
  TRY(parts.rollout->set_version(parts.counters.weight_version));
  // Rewards in workers score a prompt's rows while others are still being sampled.
  TRY(parts.reward->begin(prompts, plan.num_samples, score_context(parts, prompts.step)));
  SampleBatch samples = TRY(parts.rollout->collect(
      prompts, plan, parts.folder->tokenizer, &metrics, {},
      [&](const SampleBatch& rows, int64_t prompt) { return parts.reward->feed(prompts, rows, prompt); },
      [&] { return parts.reward->tend(); }));
  samples.mask_truncated = parts.config.algorithm.mask_truncated_completions;
  return samples;
}

Result<Experience> sample_and_score(RunParts& parts, int64_t step, int64_t batch, MetricSet& metrics) {
  Experience out;
  out.prompts = parts.source->next(step);
  out.samples = TRY(sample(parts, out.prompts, batch, metrics));
  const StageTimer timer(metrics, "timing_s/reward");
  out.scored = TRY(parts.reward->score(out.prompts, out.samples, score_context(parts, step), &metrics));
  return out;
}

}  // namespace

Result<Experience> experience_stage(RunParts& parts, int64_t step, MetricSet& metrics) {
  if (!parts.filter) return sample_and_score(parts, step, 0, metrics);
  GroupFilter& filter = *parts.filter;
  filter.begin_step(step);
  while (!filter.is_full()) {
    if (filter.num_batches() > 0) TRY(filter.check_more(parts.train_data->size()));
    const Experience batch = TRY(sample_and_score(parts, step, filter.num_batches(), metrics));
    TRY(at_place(parts.loaded.where("algorithm.filter_groups.metric"), filter.add(batch)));
  }
  return filter.take(metrics);
}

Result<LogProbBatch> log_prob_stage(RunParts& parts, const PromptBatch& prompts, const SampleBatch& samples,
                                    MetricSet& metrics) {
  LogProbBatch out;
  const TrainBatch batch = make_train_batch(prompts, samples, make_layout(samples));
  // One update over the whole batch starts where the batch was sampled: its own log-probs are the old ones.
  const RolloutCorrection& correction = parts.objective->correction();
  const bool needs_old = parts.plan.updates_per_step > 1 || parts.reward_kl.has_value() || correction.is_active() ||
                         parts.advantage->info().requires_input("old_log_prob");
  if (correction.is_bypass()) {
    out.old_log_prob = TRY(rollout_log_probs(parts, samples));
  } else if (needs_old) {
    const ComputeTimer timer(metrics, "timing_s/old_log_prob", "perf/mfu/actor_infer", parts.compute);
    // The first update is at these weights still: one that looks at all its rows at once need not run them again.
    std::vector<float>* entropy = parts.learner->sees_whole_update() ? &out.old_entropy : nullptr;
    out.old_log_prob = TRY(parts.learner->log_probs(*parts.model, batch, nullptr, entropy));
  }
  if (takes_ref_log_prob(parts)) {
    const StageTimer timer(metrics, "timing_s/ref");
    const MicroBatchOptions passes = reference_pass_options(parts.config);
    out.ref_log_prob = TRY(parts.learner->log_probs(*parts.reference, batch, &passes));
  }
  return out;
}

Result<CorrectedBatch> correction_stage(const RunParts& parts, const SampleBatch& samples,
                                        const LogProbBatch& log_probs, MetricSet& metrics) {
  const RolloutCorrection& correction = parts.objective->correction();
  if (correction.is_bypass() || !correction.is_active()) return CorrectedBatch{};
  const AdvantageBatch layout = make_layout(samples);
  const std::vector<float> sampled = TRY(rollout_log_probs(parts, samples));
  return correction.apply({layout.row_offsets, layout.response_mask, log_probs.old_log_prob, sampled}, &metrics);
}

Result<BaselineBatch> baseline_stage(RunParts& parts, const Experience& experience, MetricSet& metrics) {
  BaselineBatch out;
  const PluginInfo& estimator = parts.advantage->info();
  out.values = TRY(value_stage(parts, experience, metrics));
  if (estimator.requires_input("reward_baselines")) out.rewards = TRY(greedy_rewards(parts, experience, metrics));
  if (estimator.requires_input("sum_pi_squared")) {
    const StageTimer timer(metrics, "timing_s/sum_pi_squared");
    const AdvantageBatch layout = make_layout(experience.samples);
    const TrainBatch batch = make_train_batch(experience.prompts, experience.samples, layout);
    out.sum_pi_squared = TRY(parts.learner->sums_of_squared_probs(*parts.model, batch));
  }
  return out;
}

Result<AdvantageBatch> advantage_stage(RunParts& parts, const Experience& experience, const LogProbBatch& log_probs,
                                       const CorrectedBatch& corrected, const BaselineBatch& baselines, int64_t step,
                                       MetricSet& metrics) {
  const StageTimer timer(metrics, "timing_s/adv");
  const auto& [prompts, samples, scored] = experience;
  AdvantageContext context;
  context.step = step;
  context.normalize_then_sum = parts.config.algorithm.multi_objective_aggregation == "normalize_then_sum";
  context.values = baselines.values;
  context.reward_baselines = baselines.rewards;
  context.sum_pi_squared = baselines.sum_pi_squared;
  context.old_log_prob = log_probs.old_log_prob;
  context.rollout_is_weights = corrected.weights;
  context.response_mask = corrected.mask;
  std::vector<float> penalty;
  if (parts.reward_kl) {
    penalty = TRY(reward_penalty(parts, make_layout(samples), log_probs, step, metrics));
    context.token_penalty = penalty;
  }
  return parts.advantage->compute(samples, scored, context, &metrics);
}

Result<> update_stage(RunParts& parts, StepWork& work, const std::function<Result<>()>& before_update) {
  TRY(let_backend_sleep(parts));
  if (work.step < parts.config.trainer.critic_warmup) return {};
  ComputeTimer timer(work.metrics, "timing_s/update_actor", "perf/mfu/actor", parts.compute);
  const LogProbBatch& log_probs = work.log_probs;
  TrainBatch batch = make_train_batch(work.experience.prompts, work.experience.samples, work.advantages);
  batch.old_log_prob = log_probs.old_log_prob;
  batch.ref_log_prob = log_probs.ref_log_prob;
  batch.rollout_is_weights = work.corrected.weights;
  batch.old_entropy = log_probs.old_entropy;
  // The policy's own log-probs before it learns: known, or read off the first pass over the rows.
  const bool measures_old = log_probs.old_log_prob.empty() || is_bypass(parts);
  std::vector<float>& first_log_prob = work.first_log_prob;
  if (work.updates.empty()) first_log_prob = log_probs.old_log_prob;
  first_log_prob.resize(static_cast<size_t>(batch.num_tokens()));

  RunCounters& counters = parts.counters;
  size_t index = 0;
  for (int64_t pass = 0; pass < parts.config.actor.ppo_epochs; ++pass) {
    const std::vector<int64_t> rows = row_order(parts, work.step, pass);
    for (int64_t begin = 0; begin < static_cast<int64_t>(rows.size()); begin += parts.plan.rows_per_update) {
      if (index++ < work.updates.size()) continue;  // done before a resume
      const Stopwatch aside;                        // a checkpoint may be saved
      TRY(before_update());
      timer.leave_out(aside.elapsed_s());
      const auto part =
          std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(parts.plan.rows_per_update));
      const int64_t unit = parts.config.actor.optim.schedule_unit == "step" ? work.step - 1 : counters.num_updates;
      batch.old_is_current = pass == 0 && begin == 0 && !is_bypass(parts);
      parts.objective->set_entropy_coeff(parts.entropy_controller->applied_coeff());
      work.updates.push_back(TRY(
          parts.learner->update(batch, part, learning_rate(parts.schedule, unit), work.step, counters.num_updates + 1,
                                measures_old && pass == 0 ? std::span(first_log_prob) : std::span<float>{})));
      UpdateReport& done = work.updates.back();
      if (parts.entropy_controller->is_adaptive())
        done.metrics.add("actor/entropy_coeff", parts.objective->entropy_coeff());
      if (done.sums.num_tokens > 0 && !done.skipped)
        parts.entropy_controller->update(done.sums.entropy / static_cast<double>(done.sums.num_tokens));
      if (parts.entropy_controller->is_on()) {  // by TRL's names: also of an update that applied none
        done.metrics.add_mean("policy_loss", done.sums.pg_loss, 1.0);
        done.metrics.add("entropy_coef", parts.entropy_controller->coeff());
      }
      record_update(parts, done.skipped);
    }
  }
  // A skipped update has measured nothing.
  const bool measured =
      !measures_old || std::none_of(work.updates.begin(), work.updates.end(), [](const auto& r) { return r.skipped; });
  if (measured && !batch.rollout_log_prob.empty() && parts.config.rollout.calculate_log_probs) {
    const AdvantageBatch layout = make_layout(work.experience.samples);  // with what a correction has masked out
    add_rollout_probs_metrics(batch.rollout_log_prob, first_log_prob, layout.response_mask, work.metrics);
    if (!parts.objective->correction().is_active()) {
      const LogRatios ratios{layout.row_offsets, layout.response_mask, first_log_prob, batch.rollout_log_prob};
      (void)RolloutCorrection().apply(ratios, &work.metrics);
    }
  }
  return {};
}

void record_update(RunParts& parts, bool skipped) {
  RunCounters& counters = parts.counters;
  ++counters.num_updates;
  if (!skipped) {
    ++counters.weight_version;
    return;
  }
  ++counters.num_skipped;
  log_warn("update " + std::to_string(counters.num_updates) +
           " was skipped: its log-probs or its gradient are not finite (" + std::to_string(counters.num_skipped) +
           " so far)");
}

Result<> check_skipped_updates(const RunParts& parts) {
  const int64_t limit = parts.config.trainer.nonfinite_update_limit;
  if (parts.counters.num_skipped <= limit) return {};
  return Error{ErrorKind::kNumerics,
               std::to_string(parts.counters.num_skipped) +
                   " updates had gradients that are not finite, more than trainer.nonfinite_update_limit = " +
                   std::to_string(limit),
               "step " + std::to_string(parts.counters.step),
               "lower actor.optim.lr, or look at the rewards and log-probs of that step"};
}

}  // namespace mortise
