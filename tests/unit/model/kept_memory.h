// Models of four layers and passes of one shared prompt, and what these keep for backward.
#pragma once

#include "gradient_fixture.h"
#include "support/counting_allocator.h"

namespace mortise {

inline constexpr int64_t kLayers = 4;

inline ModelConfig config_of(Family family) {
  ModelConfig config = make_qwen2_config({.vocab_size = 31,
                                          .hidden_size = 32,
                                          .intermediate_size = 80,
                                          .num_layers = kLayers,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .initializer_range = 0.2})
                           .value();
  config.qkv_bias = family == Family::kQwen2;
  config.qk_norm = family == Family::kQwen3;
  if (family == Family::kGemma2) {
    config.norm_plus_one = config.sandwich_norm = true;
    config.activation = Activation::kGeluTanh;
    config.windows = {4, 0, 4, 0};
    config.attention_softcap = 5.0;
  }
  if (family == Family::kGptOss) {
    config.moe = {
        .num_experts = 3, .experts_per_token = 2, .expert_size = 24, .is_dense = {false, false, false, false}};
    config.qkv_bias = config.o_bias = config.attention_sinks = config.moe.normalizes = config.moe.is_gpt_oss = true;
    config.windows = {4, 0, 4, 0};
  }
  return config;
}

// Rows of one shared prompt.
inline PackedBatch batch_of(int64_t rows, int64_t length) {
  static std::vector<std::vector<int64_t>> ids;
  ids.clear();
  RandomStream stream({3, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t i = 0; i <= rows; ++i) {
    ids.emplace_back();
    for (int64_t t = 0; t < (i == 0 ? 6 : length); ++t)
      ids.back().push_back(static_cast<int64_t>(stream.next_below(31)));
  }
  std::vector<PackRow> pack;
  for (int64_t i = 1; i <= rows; ++i) pack.push_back({ids[0], ids[static_cast<size_t>(i)], 0});
  return pack_rows(pack, {.vocab_size = 31}).value();
}

// Bytes that a forward pass keeps for backward, for each token.
inline double held_per_token(const Model& model, const PackedBatch& batch, int64_t recomputed_layers) {
  const CountingAllocator& allocator = CountingAllocator::install();
  const int64_t before = allocator.bytes();
  ForwardOptions options;
  options.recomputed_layers = recomputed_layers;
  const at::Tensor hidden = model.forward_hidden(batch, options);
  return static_cast<double>(allocator.bytes() - before) / static_cast<double>(batch.num_tokens());
}

}  // namespace mortise
