// NEFTune's noise: its range, what it depends on, and that it is added to the embeddings.
#include "model/layers/embedding_noise.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <cmath>

#include "gradient_fixture.h"

namespace mortise {
namespace {

at::Tensor same_ids(int64_t size, int64_t value) { return at::full({size}, value, at::kLong); }
at::Tensor same_bounds(int64_t size, double value) { return at::full({size}, value, at::kDouble); }

TEST(EmbeddingNoise, IsUniformBetweenItsBounds) {
  const int64_t tokens = 400, width = 203;  // not a multiple of the blocks
  const EmbeddingNoise noise{3, 8, same_ids(tokens, 5), at::arange(tokens, at::kLong), same_bounds(tokens, 0.25)};
  const at::Tensor got = embedding_noise(noise, width, at::kDouble);
  const double num = static_cast<double>(got.numel());
  EXPECT_LE(got.abs().max().item<double>(), 0.25);
  EXPECT_GT(got.abs().max().item<double>(), 0.2499);
  EXPECT_NEAR(got.mean().item<double>(), 0.0, 5.0 * 0.25 / std::sqrt(3.0 * num));
  EXPECT_NEAR(got.square().mean().item<double>(), 0.25 * 0.25 / 3.0, 5.0 * 0.25 * 0.25 * std::sqrt(4.0 / 45.0 / num));
  // No token and no number is treated unlike the others.
  EXPECT_LT(got.mean(0).abs().max().item<double>(), 5.0 * 0.25 / std::sqrt(3.0 * tokens));
  EXPECT_LT(got.mean(1).abs().max().item<double>(), 5.0 * 0.25 / std::sqrt(3.0 * width));
  EXPECT_CLOSE(embedding_noise(noise, width, at::kFloat).to(at::kDouble), got, 1e-7);
}

TEST(EmbeddingNoise, EveryPartOfTheCountMatters) {
  const auto noise = [](uint64_t seed, uint64_t update, int64_t row, int64_t position, int64_t width = 64) {
    return embedding_noise({seed, update, same_ids(1, row), same_ids(1, position), same_bounds(1, 1.0)}, width,
                           at::kDouble);
  };
  const at::Tensor first = noise(1, 1, 1, 1);
  EXPECT_CLOSE(first, noise(1, 1, 1, 1), 0.0);
  EXPECT_CLOSE(noise(1, 1, 1, 1, 100).narrow(1, 0, 64), first, 0.0);
  for (const at::Tensor& other : {noise(2, 1, 1, 1), noise(1, 2, 1, 1), noise(1, 1, 2, 1), noise(1, 1, 1, 2),
                                  noise(1, 1, (int64_t{1} << 32) + 1, 1)})
    EXPECT_GT((first - other).abs().mean().item<double>(), 0.4);  // 2/3 is expected
  const at::Tensor one = embedding_noise({1, 1, same_ids(1, 1), same_ids(1, 1), same_bounds(1, 2.0)}, 64, at::kDouble);
  EXPECT_CLOSE(one, 2.0 * first, 1e-15);
}

// Where each token occurs once, noise is another embedding.
TEST(EmbeddingNoise, IsAddedToTheEmbeddings) {
  for (const LayerPath path : {LayerPath::kFast, LayerPath::kPlain}) {
    Fixture setup = make_setup(Family::kQwen2, false);
    const std::vector<int64_t> prompt{3, 1, 4}, response{5, 9, 2, 6};
    const PackRow row{prompt, response, -1, 7};
    const PackedBatch batch = *pack_rows(std::span(&row, 1), {.share_prefix = false, .vocab_size = 23});
    const int64_t tokens = batch.num_tokens();
    ForwardOptions noisy, plain;
    noisy.path = plain.path = path;
    noisy.embedding_noise = EmbeddingNoise{17, 2, same_ids(tokens, 7), batch.positions_N, same_bounds(tokens, 0.05)};
    const at::NoGradGuard no_grad;
    const at::Tensor with = setup.model.forward_hidden(batch, noisy),
                     without = setup.model.forward_hidden(batch, plain);
    EXPECT_GT(max_difference(with, without), 1e-4);
    at::Tensor table = setup.model.embedding_weight();
    table.index_add_(0, batch.token_ids_N, embedding_noise(*noisy.embedding_noise, table.size(1), table.options()));
    setup.model.weights_changed();
    EXPECT_CLOSE(setup.model.forward_hidden(batch, plain), with, 1e-12);
  }
}

}  // namespace
}  // namespace mortise
