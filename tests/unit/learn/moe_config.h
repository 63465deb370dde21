// A small mixture of experts with a dense layer, for tests of the learner.
#pragma once

#include "small_config.h"

namespace mortise {

inline ModelConfig moe_config() {
  ModelConfig config = small_config(29, 3);
  config.moe = {.num_experts = 3, .experts_per_token = 2, .expert_size = 12, .is_dense = {false, true, false}};
  config.moe.normalizes = true;
  return config;
}

// With a shared expert.
inline ModelConfig shared_moe_config() {
  ModelConfig config = moe_config();
  config.moe.shared_size = 8;
  return config;
}

// The form of gpt-oss, with a window and sinks.
inline ModelConfig stacked_moe_config() {
  ModelConfig config = moe_config();
  config.moe.is_dense = {false, false, false};
  config.moe.is_gpt_oss = config.attention_sinks = config.qkv_bias = config.o_bias = true;
  config.moe.swiglu_limit = 0.8;
  config.windows = {5, 0, 5};
  return config;
}

}  // namespace mortise
