// Small models of the tests of learning and training.
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

// A model of many layers, each of which is a small part of it.
inline ModelConfig many_layers() {
  return make_qwen2_config({.vocab_size = 288,
                            .hidden_size = 64,
                            .intermediate_size = 192,
                            .num_layers = 12,
                            .num_heads = 4,
                            .num_kv_heads = 2,
                            .tie_word_embeddings = true})
      .value();
}

// The small one with fused projections, as in Phi-3.
inline ModelConfig fused_config(int64_t vocab_size, int64_t num_layers) {
  ModelConfig config = small_config(vocab_size, num_layers);
  config.fused_projections = true;
  config.qkv_bias = false;
  return config;
}

}  // namespace mortise
