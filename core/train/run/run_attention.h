// Chooses for a run which code computes attention in training on a GPU (model.attention_backend). The main rank tries both on
// calls as long as the run's, and all ranks take its choices, so that their bits do not depend on a rank's clock. What a
// checkpoint has chosen stays.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>

#include "config/load.h"
#include "dist/communicator.h"
#include "model/device/compute_device.h"
#include "model/layers/attention_choice.h"
#include "model/weights/model_config.h"

namespace mortise {

// Layers of a model that trains, or whose log-probs training needs.
struct AttendingModel {
  const ModelConfig& config;
  int64_t num_ranks = 1;  // that share its heads in a pass
};

// How to reach cuDNN, where to try it, and the clock. Tests give their own.
struct AttentionTools {
  std::function<Result<CudnnAttention*>()> open;
  at::Device device;
  WorkTimer seconds;
};
AttentionTools attention_tools(const ComputeDevice& device);

// Does this run choose? Only on a GPU, with a bfloat16 model.
[[nodiscard]] bool chooses_attention(const RunConfig& config, const ComputeDevice& device);
// The setting that choices are for (AttentionChoices::choose_for).
[[nodiscard]] std::string attention_setting(const RunConfig& config);

// Makes those of `choices` that a checkpoint has not made, and logs each in one line. A collective of the ranks. `longest`:
// tokens of the run's longest sequence. An error of kind config says why cuDNN, which the settings or the checkpoint name,
// cannot be used.
Result<> choose_attention(const LoadedConfig& loaded, Communicator& ranks, std::span<const AttendingModel> models,
                          int64_t longest, const AttentionTools& tools, AttentionChoices& choices);

}  // namespace mortise
