// Small models of three layers, one for each kind of layer that ranks share in a way of its own.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "unit/learn/moe_config.h"

namespace mortise {

inline std::vector<std::pair<std::string, ModelConfig>> layer_kinds(int64_t vocab_size) {
  const ModelConfig plain = small_config(vocab_size, 3);
  ModelConfig norms = plain, biases = plain, sandwich = plain, one_head = plain;
  norms.qk_norm = true;
  norms.attention_softcap = 2.0;
  norms.windows = {5, 0, 3};
  biases.o_bias = biases.mlp_bias = biases.attention_sinks = true;
  sandwich.qkv_bias = false;
  sandwich.sandwich_norm = sandwich.norm_plus_one = sandwich.tie_word_embeddings = true;
  one_head.num_kv_heads = 1;
  return {{"plain", plain},
          {"norms of q and k, windows, caps", norms},
          {"biases everywhere, sinks", biases},
          {"no biases, norms behind the layers, tied", sandwich},
          {"one key-value head", one_head},
          {"fused projections", fused_config(vocab_size, 3)},
          {"experts", moe_config()},
          {"the experts of gpt-oss", stacked_moe_config()},
          {"a shared expert", shared_moe_config()}};
}

}  // namespace mortise
