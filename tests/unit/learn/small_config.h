// The small dense model of the learner's tests.
#pragma once

#include "model/weights/model_config.h"

namespace mortise {

inline ModelConfig small_config(int64_t vocab_size, int64_t num_layers) {
  return make_qwen2_config({.vocab_size = vocab_size,
                            .hidden_size = 16,
                            .intermediate_size = 24,
                            .num_layers = num_layers,
                            .num_heads = 4,
                            .num_kv_heads = 2,
                            .initializer_range = 0.3})
      .value();
}

}  // namespace mortise
