// Moves the reference model towards the policy: ref = (1 - alpha) ref + alpha policy.
//
// alpha 1 copies; every step with a small alpha is a moving average (TRL: sync_ref_model, ref_model_mixup_alpha).
#pragma once

#include <ATen/core/grad_mode.h>

#include <vector>

#include "learn/optim/weight_shards.h"
#include "model/model.h"

namespace mortise {

// Both have the same parameters, and are spread over ranks alike. If ranks share the layers, each moves its part.
inline void refresh_reference(const Model& policy, Model& reference, double alpha) {
  const at::NoGradGuard no_grad;
  const ModelPart* const part = policy.model_part();
  const std::vector<NamedParameter> from = part != nullptr ? part->numbers() : policy.numbers();
  auto& to = part != nullptr ? reference.model_part()->parameters() : reference.parameters();
  if (WeightShards* const shards = shards_of(policy); shards != nullptr) {
    shards_of(reference)->move_towards(*shards, alpha);
    for (const size_t i : shards->units().whole) to[i].tensor.lerp_(from[i].tensor.detach(), alpha);
    return;
  }
  for (size_t i = 0; i < to.size(); ++i)
    reference.change_numbers(
        to[i].tensor, [&](const at::Tensor& own) { own.lerp_(from[i].tensor.detach().to(own.options()), alpha); });
  reference.weights_changed();
}

// The same as alpha 1, with the bits of whatever the policy holds. Neither is spread over ranks.
inline void copy_weights(const Model& policy, Model& copy) { copy.copy_numbers(policy); }

}  // namespace mortise
