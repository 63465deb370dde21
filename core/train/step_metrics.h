// The numbers of a step, by verl's and TRL's names (foundation/metrics/names.h), from the stage structs.
// Pure functions: they add to a MetricSet and read nothing else.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "foundation/batch/advantage_batch.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/metrics/registry.h"
#include "learn/update/actor_learner.h"

namespace mortise {

void add_length_metrics(const PromptBatch& prompts, const SampleBatch& samples, int64_t max_prompt_length,
                        MetricSet& metrics);
void add_reward_metrics(const SampleBatch& samples, const ScoredBatch& scored, MetricSet& metrics);
void add_advantage_metrics(const AdvantageBatch& advantages, MetricSet& metrics);

// critic/values/* and how much of the returns' variance the critic explains.
void add_critic_metrics(std::span<const float> values, std::span<const float> returns, std::span<const uint8_t> mask,
                        MetricSet& metrics);

// training/rollout_probs_diff_*: how far the sampler's probabilities lie from the trainer's, over unmasked tokens.
void add_rollout_probs_metrics(std::span<const float> rollout_log_prob, std::span<const float> log_prob,
                               std::span<const uint8_t> mask, MetricSet& metrics);

// The updates of a step together: means over updates, sums of counts, the last learning rate.
void add_update_metrics(const std::vector<UpdateReport>& updates, const ActorObjective& objective, MetricSet& metrics);

// One line of updates.jsonl: what section 9 of the contract names, over the whole update.
std::vector<MetricValue> update_row(const UpdateReport& update, bool with_kl);

// Tokens of prompts (one per completion) and completions.
int64_t count_tokens(const PromptBatch& prompts, const SampleBatch& samples);

}  // namespace mortise
