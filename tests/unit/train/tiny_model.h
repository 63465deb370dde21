// The smallest model that the tests of the training room make: one layer, a function of the seed.
#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"

namespace mortise {

inline Model tiny_model(uint64_t seed, const std::string& dtype = "float64") {
  const ModelConfig config = make_qwen2_config({.vocab_size = 11,
                                                .hidden_size = 8,
                                                .intermediate_size = 12,
                                                .num_layers = 1,
                                                .num_heads = 2,
                                                .num_kv_heads = 1,
                                                .initializer_range = 0.3})
                                 .value();
  return Model::random(config, seed, dtype).value();
}

}  // namespace mortise
