// How much memory a run needs, part by part, for `--dry-run`.
#pragma once

#include <algorithm>
#include <optional>

#include "config/run_config.h"
#include "model/adapters/trained_lora.h"
#include "model/weights/model_config.h"

namespace mortise {

// Bytes.
struct MemoryEstimate {
  double weights = 0, gradients = 0, moments = 0, reference = 0, activations = 0, rollout = 0, kv_cache = 0;
  double head = 0, critic = 0, reward_models = 0, teacher = 0;
  double experts = 0;   // that the tokens of a step took (actor.router_replay.mode)
  double gathered = 0;  // ranks.zero_stage = 3: parts of other ranks during updates
  double whole = 0;     // ... and all weights during rollouts, when there are no gradients and activations
  [[nodiscard]] double total() const {
    const double update = gradients + activations + head + gathered;
    return weights + moments + reference + rollout + kv_cache + critic + reward_models + teacher + experts +
           std::max(update, whole);
  }
};

// How the weights of a model are there (model.dtype).
enum class WeightCopies { kMasters, kNoMasters };  // without masters: the layers' matrices in bfloat16 alone
double weight_bytes(const ModelConfig& model, ModelDtype dtype, WeightCopies copies);
// The same for a model that `optim` steps.
double trained_weight_bytes(const ModelConfig& model, ModelDtype dtype, const OptimConfig& optim);

// `lora`: of the adapter that is trained, if there is one.
MemoryEstimate estimate_memory(const ModelConfig& model, const std::optional<LoraSize>& lora, const RunConfig& config);

// Bytes of the optimizer's state of a model, or of its adapter.
double optimizer_bytes(const ModelConfig& model, const std::optional<LoraSize>& lora, const OptimConfig& optim,
                       ModelDtype dtype);

// Bytes of a critic, all of whose weights are trained.
struct CriticBytes {
  double weights = 0, gradients = 0, moments = 0;
};

// The units in which ranks.zero_stage = 3 spreads a model, in bytes.
struct UnitBytes {
  double all = 0, layer = 0, layers = 0;  // bytes of matrices: all of them, the largest layer, all layers
  double ends = 0;                        // embedding and head
  double largest_end = 0;
};

UnitBytes unit_bytes(const ModelConfig& model, double element);

// Takes off what the ranks share: ranks.zero_stage.
void share_memory(const UnitBytes& units, const RunConfig& config, bool has_lora, int num_ranks,
                  const CriticBytes& critic, MemoryEstimate& memory);

}  // namespace mortise
