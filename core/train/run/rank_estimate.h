// How the ranks of a run share a step, and what each of them sends, for `--dry-run`. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/check.h"
#include "config/run_config.h"
#include "model/weights/model_config.h"
#include "train/run/memory_estimate.h"

namespace mortise {

// How a step is shared, and what a rank sends for it.
struct RankEstimate {
  int num_ranks = 1;
  bool samples = true;                           // false: a supervised run, whose step is an update
  int64_t most_prompts = 0, fewest_prompts = 0;  // that a rank samples (with those of its group) and scores
  int64_t most_passes = 0;                       // micro-batches of an update; ranks beyond them have nothing to do
  double gradient_bytes = 0;                     // sent by each rank in an update
  double weight_bytes = 0;                       // the same of new weights, with ranks.zero_stage
  double step_weight_bytes = 0;  // the same for the rollout and the log-prob passes of a step, with stage 3
  double row_bytes = 0;          // sent by each rank in a step for its completions and log-probs, at most
  int64_t sequence_size = 1;     // ranks that share the tokens of a pass
  double sequence_bytes = 0;     // sent by each of them in an update for the policy's heads of each other's tokens
  int64_t tensor_size = 1;       // ranks that share the layers
  double tensor_bytes =
      0;  // sent by each of them in an update for the sums of the policy's layers, and for whole heads
  int64_t rollout_size = 1;  // ranks that sample the same rows together
  double rollout_bytes = 0;  // sent by each of them in a step for the sums of the layers, at most
  double critic_bytes = 0;   // sent by each rank in a step for the critic's passes and updates

  [[nodiscard]] int64_t num_groups() const { return num_ranks / (sequence_size * tensor_size); }
  [[nodiscard]] double bytes_of_update() const { return gradient_bytes + weight_bytes + sequence_bytes + tensor_bytes; }
  [[nodiscard]] double bytes_of_step(const BatchPlan& plan) const {
    return bytes_of_update() * plan.mean_updates_per_step() + step_weight_bytes + row_bytes + rollout_bytes +
           critic_bytes;
  }
};

// Micro-batches of an update of the critic.
[[nodiscard]] int64_t critic_passes(const RunConfig& config, const BatchPlan& plan, bool by_operators);

// `units` and `trained`: of the policy.
RankEstimate estimate_ranks(const RunConfig& config, const ModelConfig& model, const BatchPlan& plan,
                            const UnitBytes& units, const TrainedSize& trained, int num_ranks);

// A critic, and what is trained of it.
struct CriticSize {
  ModelConfig model;
  std::optional<LoraSize> lora;
  TrainedSize trained;
  UnitBytes units;
};
// RankEstimate::critic_bytes.
double critic_bytes_sent(const RunConfig& config, const BatchPlan& plan, const CriticSize& critic, int num_ranks);

// Lines for people; none for one process.
std::string ranks_text(const RankEstimate& ranks, const BatchPlan& plan);

}  // namespace mortise
