// Sampler: the completions of a step, from the configured backend with the policy's newest weights. Every rank samples
// its share, and gets the whole batch (shared_rollout.h).
//
// Thread rule: one thread.
#pragma once

#include <span>
#include <utility>

#include "config/run_config.h"
#include "experience/reward/reward_runner.h"
#include "experience/rollout/row_segments.h"
#include "model/model.h"
#include "train/sampling/round_ranks.h"

namespace mortise {

class Sampler {
 public:
  // `plan` is that of a step's first batch. `model` is what samples, a copy of `policy` or itself. Borrows both, the
  // tokenizer, the config and the ranks.
  Sampler(RolloutRunner runner, RolloutPlan plan, const Tokenizer& tokenizer, const Model& model, const Model& policy,
          const RunConfig& config, RoundRanks& ranks)
      : runner_(std::move(runner)),
        plan_(std::move(plan)),
        tokenizer_(&tokenizer),
        model_(&model),
        policy_(&policy),
        config_(&config),
        ranks_(&ranks) {}

  // Before something learns while this samples with weights of this version: sends what learning changes.
  Result<> prepare(int64_t version, MetricSet& metrics);
  // The `batch`-th of the step, from 0: its rows have random streams of their own. `reward` begins with the rows of a
  // prompt while others are still being sampled. `weight_version` is that of the model's weights.
  Result<SampleBatch> sample(const PromptBatch& prompts, int64_t batch, int64_t weight_version, RewardRunner& reward,
                             const ScoreContext& context, MetricSet& metrics);
  // The rows of the step's first batch before their first piece, and then the next piece of rows of several batches.
  [[nodiscard]] SampleBatch unsampled(const PromptBatch& prompts) const;
  Result<> sample_pieces(std::span<const OpenRows> batches, int64_t weight_version, MetricSet& metrics);
  // One greedy completion of each prompt, after sample().
  Result<SampleBatch> greedy(const PromptBatch& prompts, MetricSet& metrics);
  // Completions of a validation's plan, with the weights of this version.
  Result<SampleBatch> validate(const PromptBatch& prompts, const RolloutPlan& plan, int64_t weight_version);
  // Nothing is sampled before the next step (rollout.sleep_while_training).
  Result<> rest();

  [[nodiscard]] RolloutBackend& backend() { return runner_.backend(); }
  [[nodiscard]] const RolloutPlan& plan() const { return plan_; }
  // What it has computed of the step's rows, which have their places among all that were sampled for it; null: not kept.
  [[nodiscard]] SampledForward* sampled_forward() const { return model_->sampled_forward(); }

 private:
  Result<> make_ready(int64_t version, MetricSet& metrics);
  Result<> send_weights(int64_t version, MetricSet& metrics);

  RolloutRunner runner_;
  RolloutPlan plan_;
  const Tokenizer* tokenizer_;
  const Model* model_;
  const Model* policy_;
  const RunConfig* config_;
  RoundRanks* ranks_;
  int64_t sent_version_ = -1;  // version of the weights that the backend holds, where it holds any
};

}  // namespace mortise
