// The stages of a step that has a replay buffer (algorithm.replay_buffer). Without one they do nothing.
#pragma once

#include "train/loop/parts.h"

namespace mortise {

// The metrics of the step's completions and their rewards. A step with a replay buffer adds those of the groups that it
// sampled, before it replaces some of them.
void add_sample_metrics(const RunSettings& run, const Experience& experience, MetricSet& metrics);

// Replaces the step's groups whose rewards do not differ by groups of the buffer.
Result<> replay_stage(const RunSettings& run, DataParts& data, Experience& experience, MetricSet& metrics);

// old_log_prob of replayed rows: the log-probs that they were sampled with, unless something else corrects for them
// (rollout correction, or a loss that reads them). The policy's own log-probs stay in first_log_prob.
Result<> replayed_log_prob_stage(const RunSettings& run, ActorObjective& objective, const PromptBatch& prompts,
                                 StepTable& table);

}  // namespace mortise
