// What servers get: the numbers that the model multiplies by, or the LoRA adapter in training, which they load next to
// their base (rollout.send_adapter).
//
// The adapter goes through update_weight like weights do, under PEFT's names: base_model.model.MODULE.lora_A.weight and
// .lora_B.weight. B is multiplied by the adapter's scale, so that the sum is W + B A. Cost: a copy of the adapter.
// Thread rule: one thread, while nothing learns.
#pragma once

#include <vector>

#include "config/load.h"
#include "model/model.h"
#include "plugin/host/kinds/rollout_backend.h"

namespace mortise {

// An Error of kind kConfig if the run has no such adapter, or a backend that takes no weights. `may_lack`: without any
// adapter all weights are sent, as where a checkpoint is evaluated.
Result<> check_sent_adapter(const LoadedConfig& loaded, const Model& policy, const RolloutBackend& backend,
                            bool may_lack);

// All weights, in the precision of the model's passes: the rounded matrices where it has them. To read.
[[nodiscard]] std::vector<NamedParameter> sampled_numbers(const Model& model);

// What is sent of the adapter: copies of B, and A itself.
Result<std::vector<NamedParameter>> sent_tensors(const Model& policy);

}  // namespace mortise
