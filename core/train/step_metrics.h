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
void add_advantage_metrics(const ScoredBatch& scored, const AdvantageBatch& advantages, MetricSet& metrics);

// [B] messages of each row's prompt but the system's, and the completion: 2 for a plain prompt.
std::vector<double> turns_of(const PromptBatch& prompts, const SampleBatch& samples);

// How many updates older than weights of version `now` those are that sampled the rows: 0 but for groups kept from an
// earlier step.
void add_staleness_metrics(const SampleBatch& samples, int64_t now, MetricSet& metrics);

// critic/values/* and how much of the returns' variance the critic explains.
void add_critic_metrics(std::span<const float> values, std::span<const float> returns, std::span<const uint8_t> mask,
                        MetricSet& metrics);

// training/rollout_probs_diff_*: how far the sampler's probabilities lie from the trainer's, over unmasked tokens.
void add_rollout_probs_metrics(std::span<const float> rollout_log_prob, std::span<const float> log_prob,
                               std::span<const uint8_t> mask, MetricSet& metrics);

// The updates of a step together: means over updates, sums of counts, the last learning rate.
void add_update_metrics(const std::vector<UpdateReport>& updates, const ActorObjective& objective, MetricSet& metrics);

// variance_proxy/*: what the squared gradients of the rows come to, from their logits' side (verl's optimal token
// baseline, whose names they have). With W = sum over a row's tokens of 1 - 2 p + sum of squared probabilities, A the
// row's mean advantage and w its mean correction weight: proxy2 = mean of w^2 A^2 W, the signal and the noise of a
// row's gradient; once the updates are done, proxy1 = grad_norm^2, the signal, and proxy3 = (proxy2 - proxy1) / (rows -
// 1), the noise of their mean.
struct VarianceProxyInput {
  std::span<const float> old_log_prob;    // [N]
  std::span<const float> sum_pi_squared;  // [N], or empty: the estimator did not ask for it, and nothing is told
  std::span<const float> weights;         // [N] of the correction, or empty: 1
};
void add_variance_proxies(const AdvantageBatch& batch, const VarianceProxyInput& input, MetricSet& metrics);
void finish_variance_proxies(int64_t num_rows, MetricSet& metrics);

// One line of updates.jsonl: what section 9 of the contract names, over the whole update.
std::vector<MetricValue> update_row(const UpdateReport& update, bool with_kl);

// Tokens of prompts (one per completion) and completions.
int64_t count_tokens(const PromptBatch& prompts, const SampleBatch& samples);

}  // namespace mortise
