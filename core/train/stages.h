// The stages of a step, one function each: each takes what the one before made and returns its own.
#pragma once

#include <vector>

#include "train/run_parts.h"

namespace mortise {

// PromptBatch -> SampleBatch, through the rollout backend on the current weights.
Result<SampleBatch> sample_stage(RunParts& parts, const PromptBatch& prompts, MetricSet& metrics);

// SampleBatch -> ScoredBatch, through the reward plugins.
Result<ScoredBatch> score_stage(RunParts& parts, const PromptBatch& prompts, const SampleBatch& samples,
                                MetricSet& metrics);

// Log-probs taken before the advantages: of the policy that sampled (where more than one update uses them, or something
// else asks) and of the reference. Empty where not needed.
struct LogProbBatch {
  std::vector<float> old_log_prob;
  std::vector<float> ref_log_prob;
};
Result<LogProbBatch> log_prob_stage(RunParts& parts, const PromptBatch& prompts, const SampleBatch& samples,
                                    MetricSet& metrics);

// ScoredBatch -> AdvantageBatch, the KL penalty in the reward included.
Result<AdvantageBatch> advantage_stage(RunParts& parts, const SampleBatch& samples, const ScoredBatch& scored,
                                       const LogProbBatch& log_probs, int64_t step, MetricSet& metrics);

// AdvantageBatch -> the updates of the step: mini-batches of prompts, ppo_epochs passes.
Result<std::vector<UpdateReport>> update_stage(RunParts& parts, const PromptBatch& prompts, const SampleBatch& samples,
                                               const AdvantageBatch& advantages, const LogProbBatch& log_probs,
                                               int64_t step, MetricSet& metrics);

// Counts an optimizer update, which `skipped` where its gradient was not finite, and tells of one that was.
void record_update(RunParts& parts, bool skipped);

// An Error of kind kNumerics once more updates were skipped than trainer.nonfinite_update_limit allows.
Result<> check_skipped_updates(const RunParts& parts);

}  // namespace mortise
