// The numbers of a step, by verl's and TRL's names (foundation/metrics/names.h), from the stage structs.
// Pure functions: they add to a MetricSet and read nothing else.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/memory.h"
#include "foundation/base/result.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/batch/step_table.h"
#include "foundation/metrics/registry.h"
#include "learn/update/actor_learner.h"
#include "plugin/pack/pack_info.h"
#include "train/resume/run_state.h"

namespace mortise {

void add_length_metrics(const PromptBatch& prompts, const SampleBatch& samples, int64_t max_prompt_length,
                        MetricSet& metrics);
void add_reward_metrics(const SampleBatch& samples, const ScoredBatch& scored, MetricSet& metrics);
void add_advantage_metrics(const ScoredBatch& scored, const StepTable& table, MetricSet& metrics);

// [B] messages of each row's prompt but the system's, and the completion: 2 for a plain prompt.
std::vector<double> turns_of(const PromptBatch& prompts, const SampleBatch& samples);

// How many updates older than version `now` the weights are that sampled the rows: 0 except for groups kept from an
// earlier step.
void add_staleness_metrics(const SampleBatch& samples, int64_t now, MetricSet& metrics);

// critic/values/* and how much of the returns' variance the critic explains.
void add_critic_metrics(const StepTable& table, MetricSet& metrics);

// training/rollout_probs_diff_*: how far the sampler's probabilities lie from the trainer's, over the tokens
// that the samples came with.
void add_rollout_probs_metrics(const StepTable& table, MetricSet& metrics);

// The updates of a step together: means over updates, sums of counts, the last learning rate.
void add_update_metrics(const std::vector<UpdateReport>& updates, const ActorObjective& objective, MetricSet& metrics);

// variance_proxy/*: what the squared gradients of the rows come to, from their logits' side (verl's optimal token
// baseline, whose names they have). With W = sum over a row's tokens of 1 - 2 p + sum of squared probabilities, A the
// row's mean advantage and w its mean correction weight: proxy2 = mean of w^2 A^2 W, the signal and the noise of a
// row's gradient; once the updates are done, proxy1 = grad_norm^2, the signal, and proxy3 = (proxy2 - proxy1) / (rows -
// 1), the noise of their mean.
// Nothing is added unless the table has sum_pi_squared, which some estimators ask for.
void add_variance_proxies(const StepTable& table, MetricSet& metrics);
void finish_variance_proxies(int64_t num_rows, MetricSet& metrics);

// One line of updates.jsonl, over the whole update; with the metrics that `loss` declares for it.
std::vector<MetricValue> update_row(const UpdateReport& update, bool with_kl, const PluginInfo& loss);

// Where the run is after a step, under the names that `train` and `sft` share.
struct StepTally {
  int64_t step = 0, epoch = 0, steps_per_epoch = 1;
  int64_t num_tokens = 0;  // tokens of the step, prompts included
  double seconds = 0.0;    // that it took
  int64_t num_failed_saves = 0;
  double memory_gib = resident_memory_gib();  // this rank's
};
// A collective of all ranks.
Result<> add_run_metrics(const RunCounters& counters, const StepTally& tally, Communicator& ranks, MetricSet& metrics);

// global_seqlen/*: the tokens of the step's rows, prompts included, by rank. Without balancing a rank would have a block
// of neighbouring rows; balanced, it has the micro-batches of `options` that it computes in an update of the step.
// `shares_gradients`: ZeRO 2 or 3.
void add_rank_metrics(const StepTable& table, const LearnerOptions& options, bool shares_gradients, MetricSet& metrics);

// The times per token of the stages of `train`.
void add_timing_metrics(const SampleBatch& samples, const StepTally& tally, MetricSet& metrics);

// Tokens of prompts (one per completion) and completions.
int64_t count_tokens(const PromptBatch& prompts, const SampleBatch& samples);

}  // namespace mortise
