// Whether libtorch's own operations in an update are too short for more than one thread. Private to this folder.
#pragma once

#include <algorithm>

#include "learn/update/learner_options.h"
#include "model/model.h"

namespace mortise {

// For LibtorchAlone. The layers' own kernels still use all threads; the other paths are made of libtorch's operations.
inline bool has_small_weights(const Model& model, const PassOptions& pass) {
  constexpr int64_t kSmall = 1 << 18;  // numbers of a parameter: 0.1 ms to add one to another
  const ComputeDevice& device = model.device();
  if (pass.path != LayerPath::kFast || device.by_operators || !device.device.is_cpu()) return false;
  return std::ranges::all_of(model.parameters(),
                             [](const auto& parameter) { return parameter.tensor.numel() <= kSmall; });
}

}  // namespace mortise
