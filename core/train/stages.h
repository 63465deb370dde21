// The stages of a step, one function each: each takes what the one before made and returns its own.
#pragma once

#include <functional>
#include <vector>

#include "train/run_parts.h"

namespace mortise {

// The next prompts, sampled on the current weights and scored: one batch of them, or with algorithm.filter_groups as
// many as it takes.
Result<Experience> experience_stage(RunParts& parts, int64_t step, MetricSet& metrics);

// SampleBatch -> LogProbBatch.
Result<LogProbBatch> log_prob_stage(RunParts& parts, const PromptBatch& prompts, const SampleBatch& samples,
                                    MetricSet& metrics);

// What the rollout correction makes of the samples, before the advantages; empty where it has nothing to do by step.
Result<CorrectedBatch> correction_stage(const RunParts& parts, const SampleBatch& samples,
                                        const LogProbBatch& log_probs, MetricSet& metrics);

// What some advantage estimators compare with; empty where the estimator does not ask for it.
struct BaselineBatch {
  std::vector<float> values;          // [N] of the critic
  std::vector<float> rewards;         // [B] of the prompt's greedy completion
  std::vector<float> sum_pi_squared;  // [N] sum of the squared probabilities of the vocabulary
};
Result<BaselineBatch> baseline_stage(RunParts& parts, const Experience& experience, MetricSet& metrics);

// Experience -> AdvantageBatch, the KL penalty in the reward included.
Result<AdvantageBatch> advantage_stage(RunParts& parts, const Experience& experience, const LogProbBatch& log_probs,
                                       const CorrectedBatch& corrected, const BaselineBatch& baselines, int64_t step,
                                       MetricSet& metrics);

// AdvantageBatch -> the updates of the step that are still to do: mini-batches of prompts, ppo_epochs passes.
// `before_update` is called ahead of each.
Result<> update_stage(RunParts& parts, StepWork& work, const std::function<Result<>()>& before_update);

// Counts an optimizer update, which `skipped` where its gradient was not finite, and tells of one that was.
void record_update(RunParts& parts, bool skipped);

// An Error of kind kNumerics once more updates were skipped than trainer.nonfinite_update_limit allows.
Result<> check_skipped_updates(const RunParts& parts);

}  // namespace mortise
