// Layers that are computed again in backward: the same bits, the memory they were to save, and how many a budget asks
// for.
#include "model/layers/recompute.h"

#include <ATen/core/grad_mode.h>

#include "kept_memory.h"

namespace mortise {
namespace {

std::vector<at::Tensor> gradients(Model& model, const PackedBatch& batch, int64_t recomputed_layers) {
  model.zero_grad();
  ForwardOptions options;
  options.recomputed_layers = recomputed_layers;
  const at::Tensor hidden = model.forward_hidden(batch, options);
  hidden.backward(random_tensor(hidden.sizes().vec(), 9, hidden.scalar_type()));
  std::vector<at::Tensor> out;
  for (const NamedParameter& p : model.parameters()) {
    if (p.tensor.grad().defined()) out.push_back(p.tensor.grad().clone());
  }
  return out;
}

class Recompute : public testing::TestWithParam<Family> {};

void expect_the_same_bits(Family family) {
  for (const std::string dtype : {"float32", "float64", "bfloat16"}) {
    Model model = Model::random(config_of(family), 4, dtype).value();
    const PackedBatch batch = batch_of(5, 9);
    const auto kept = gradients(model, batch, 0);
    ASSERT_GE(kept.size(), static_cast<size_t>(kLayers) * 9);
    for (const int64_t layers : {int64_t{1}, int64_t{3}, kLayers, kLayers + 5}) {
      const auto again = gradients(model, batch, layers);
      ASSERT_EQ(again.size(), kept.size());
      for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(again[i].equal(kept[i])) << layers << " " << i;
    }
  }
}

TEST_P(Recompute, GivesTheSameBits) { expect_the_same_bits(GetParam()); }
TEST(RecomputedExperts, GiveTheSameBits) { expect_the_same_bits(Family::kGptOss); }

// The estimate that a budget goes by is what libtorch's allocator sees.
TEST_P(Recompute, KeepsWhatTheEstimateSays) {
  for (const int64_t product_bytes : {4, 2}) {
    const Model model = Model::random(config_of(GetParam()), 4, product_bytes == 2 ? "bfloat16" : "float32").value();
    const PackedBatch batch = batch_of(24, 40);
    const LayerMemory estimate = layer_memory(model.config(), {4, product_bytes});
    const auto held = [&](int64_t recomputed_layers) { return held_per_token(model, batch, recomputed_layers); };
    const double all = held(0), half = held(kLayers / 2), none = held(kLayers);
    const double per_layer = (half - none) / (kLayers / 2.0);
    // The last layer keeps its own end too, which is one more hidden state.
    EXPECT_NEAR((all - half) / (kLayers / 2.0), per_layer, 0.06 * per_layer);
    const auto saved = static_cast<double>(estimate.kept - estimate.recomputed);
    EXPECT_NEAR(per_layer, saved, 0.05 * saved) << product_bytes;
  }
}

// The same for the operations of a device. On CPU tensors attention has no fused operators: in bfloat16 it keeps float32
// copies of k and v for each query head, where those of a GPU keep rounded ones. The sequences are short, because it
// also keeps a number for each pair of tokens.
TEST_P(Recompute, OnADeviceKeepsWhatTheEstimateSays) {
  for (const int64_t product_bytes : {4, 2}) {
    Model model = Model::random(config_of(GetParam()), 4, product_bytes == 2 ? "bfloat16" : "float32").value();
    ASSERT_TRUE(model.move_to({.by_operators = true}).ok());
    const PackedBatch batch = batch_of(2, 1);
    NumberSizes sizes(4, product_bytes);
    sizes.by_operators = true;
    const LayerMemory estimate = layer_memory(model.config(), sizes);
    const auto held = [&](int64_t recomputed_layers) { return held_per_token(model, batch, recomputed_layers); };
    const double per_layer = (held(kLayers / 2) - held(kLayers)) / (kLayers / 2.0);
    const int64_t q = model.config().q_size(), kv = model.config().kv_size();
    const int64_t copies = product_bytes == 2 ? 3 * q * 4 - (2 * q + 2 * kv) * 2 : 0;
    const auto saved = static_cast<double>(estimate.kept - estimate.recomputed + copies);
    EXPECT_NEAR(per_layer, saved, 0.15 * saved) << product_bytes;
  }
}

TEST_P(Recompute, LowersThePeakOfAPass) {
  CountingAllocator& allocator = CountingAllocator::install();
  Model model = Model::random(config_of(GetParam()), 4).value();
  const PackedBatch batch = batch_of(24, 40);
  const auto peak = [&](int64_t layers) {
    gradients(model, batch, layers);  // the gradients exist from here on
    const int64_t before = allocator.bytes();
    allocator.reset_peak();
    gradients(model, batch, layers);
    return allocator.peak() - before;
  };
  EXPECT_LT(static_cast<double>(peak(kLayers)), 0.75 * static_cast<double>(peak(0)));
}

INSTANTIATE_TEST_SUITE_P(Families, Recompute, testing::Values(Family::kQwen2, Family::kQwen3, Family::kGemma2));

TEST(LayersToRecompute, FollowTheBudget) {
  const ModelConfig config = config_of(Family::kQwen2);
  const LayerMemory layer = layer_memory(config, 4);
  ASSERT_GT(layer.kept, 2 * layer.recomputed);
  const auto needed = [&](int64_t kept_layers) {
    return 100 * (kept_layers * layer.kept + (kLayers - kept_layers) * layer.recomputed);
  };
  EXPECT_EQ(layers_to_recompute(config, 4, 100, 0), kLayers);
  EXPECT_EQ(layers_to_recompute(config, 4, 100, needed(0) - 1), kLayers);
  for (int64_t kept = 0; kept <= kLayers; ++kept) {
    EXPECT_EQ(layers_to_recompute(config, 4, 100, needed(kept)), kLayers - kept);
    if (kept > 0) {
      EXPECT_EQ(layers_to_recompute(config, 4, 100, needed(kept) - 1), kLayers - kept + 1);
    }
  }
  EXPECT_EQ(layers_to_recompute(config, 4, 100, int64_t{1} << 40), 0);
  // Elements twice as wide: the same bytes hold half.
  EXPECT_EQ(layers_to_recompute(config, 8, 50, needed(2)), kLayers - 2);
}

}  // namespace
}  // namespace mortise
