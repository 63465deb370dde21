// model.dtype = "bfloat16": layers that multiply by rounded matrices against ATen operations that round in the same
// places, models without masters, and stochastic rounding.
#include "model/weights/rounded_matrices.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <limits>

#include "gradient_fixture.h"
#include "model/tensor/bf16_product.h"
#include "model/tensor/product.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using blas::Trans;

at::Tensor rounded(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); }

TEST(Bf16Product, SumsExactProductsInFloat32) {
  const at::Tensor a = random_tensor({9, 70}, 1, at::kFloat), b = random_tensor({5, 70}, 2, at::kFloat);
  const at::Tensor added = random_tensor({5}, 3, at::kFloat), kept = added.clone();
  const at::Tensor want = rounded(a).matmul(rounded(b).t());
  EXPECT_CLOSE(bf16_product(a, Trans::kNo, b, Trans::kYes), want, 1e-5);
  EXPECT_CLOSE(bf16_product(a.t(), Trans::kYes, b.t(), Trans::kNo), want, 1e-5);
  for (const int64_t rows : {9, 1})
    EXPECT_CLOSE(bf16_product(a.narrow(0, 0, rows), Trans::kNo, b, Trans::kYes, added), want.narrow(0, 0, rows) + added,
                 1e-5);
  EXPECT_TRUE(added.equal(kept)) << "the row itself was added to";
  EXPECT_TRUE(bf16_product(a.narrow(1, 0, 0), Trans::kNo, b.narrow(1, 0, 0), Trans::kYes).equal(at::zeros({9, 5})));
  EXPECT_EQ(bf16_product(a.narrow(0, 0, 0), Trans::kNo, b, Trans::kYes).size(0), 0);
}

// Also with the operators that tests record.
TEST(Bf16Product, AddsToAMatrix) {
  const at::Tensor a = random_tensor({9, 70}, 1, at::kFloat), b = random_tensor({5, 70}, 2, at::kFloat);
  const at::Tensor start = random_tensor({11, 5}, 3, at::kFloat), want = start.clone();
  want.narrow(0, 1, 9).add_(rounded(a).matmul(rounded(b).t()));
  const auto sum = [&](Trans trans, const at::Tensor& left, const at::Tensor& right) {
    const at::Tensor out = start.clone();
    add_bf16_product(out.narrow(0, 1, 9), left, trans, right, trans == Trans::kYes ? Trans::kNo : Trans::kYes);
    return out;
  };
  EXPECT_CLOSE(sum(Trans::kNo, a, b), want, 1e-5);
  EXPECT_CLOSE(sum(Trans::kYes, a.t(), b.t()), want, 1e-5);
  const OperatorProducts operators;
  EXPECT_CLOSE(sum(Trans::kYes, a.t(), b.t()), want, 1e-5);
}

class RoundedModel : public testing::TestWithParam<Family> {};

Fixture bfloat16_setup(Family family) {
  Fixture setup = make_setup(family, /*tied=*/false, "bfloat16");
  setup.model.weights_changed();
  return setup;
}

// A last bit of float32 rarely turns a rounding over, which is a change of 2^-9 of one number among thousands.
TEST_P(RoundedModel, IsTheReferenceThatRoundsInTheSamePlaces) {
  Fixture setup = bfloat16_setup(GetParam());
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const auto parameters = setup.model.parameters();
  const PathPass fast = pass_by(LayerPath::kFast, setup.model, batch, parameters);
  const PathPass plain = pass_by(LayerPath::kPlain, setup.model, batch, parameters);
  EXPECT_LT(relative_l2(fast.loss.log_prob, plain.loss.log_prob), 2e-4);
  for (size_t i = 0; i < parameters.size(); ++i) {
    ASSERT_EQ(fast.gradients[i].scalar_type(), at::kFloat);
    EXPECT_LT(relative_l2(fast.gradients[i], plain.gradients[i]), 2e-3) << parameters[i].name;
  }
  // The same weights in float32: near, and not the same.
  Fixture exact = make_setup(GetParam(), false, "float32");
  const Loss unrounded = forward_backward(exact.model, batch, LayerPath::kFast);
  const double distance = relative_l2(fast.loss.log_prob, unrounded.log_prob);
  EXPECT_GT(distance, 5e-4);
  EXPECT_LT(distance, 5e-2);
}

TEST_P(RoundedModel, TheSamePassWithoutMasters) {
  Fixture setup = bfloat16_setup(GetParam());
  Model& model = setup.model;
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const Loss with_masters = forward_backward(model, batch, LayerPath::kFast);
  const auto want = gradients_of(model.parameters());
  const Model copy = model.clone_frozen();
  model.zero_grad();
  model.drop_masters();
  const Loss without = forward_backward(model, batch, LayerPath::kFast);
  EXPECT_TRUE(without.log_prob.equal(with_masters.log_prob));
  const auto got = gradients_of(model.parameters());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << model.parameters()[i].name;
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(model.forward_hidden(batch).equal(copy.forward_hidden(batch)));
  // Saved, read again, and copied, it has the same numbers.
  const test::TempDir dir;
  ASSERT_OK(model.save(default_env(), dir.path(), {}));
  if (GetParam() == Family::kQwen2) {  // the other configurations are not whole families
    ASSERT_OK_AND_ASSIGN(const Model read, Model::load(default_env(), dir.path(), "bfloat16"));
    EXPECT_TRUE(read.forward_hidden(batch).equal(copy.forward_hidden(batch)));
  }
  Model other = model.frozen_shape();
  other.drop_masters();
  other.copy_numbers(model);
  EXPECT_TRUE(other.forward_hidden(batch).equal(copy.forward_hidden(batch)));
  const std::vector<NamedParameter> numbers = model.numbers(), masters = copy.parameters();
  int64_t num_rounded = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    num_rounded += numbers[i].tensor.scalar_type() == at::kBFloat16 ? numbers[i].tensor.numel() : 0;
    EXPECT_TRUE(numbers[i].tensor.to(at::kBFloat16).equal(masters[i].tensor.to(at::kBFloat16))) << numbers[i].name;
  }
  EXPECT_EQ(num_rounded, rounded_numbers(model.weights()));
  EXPECT_GT(num_rounded, 1000);
}

INSTANTIATE_TEST_SUITE_P(Families, RoundedModel,
                         testing::Values(Family::kQwen2, Family::kQwen3, Family::kLlama, Family::kGemma2, Family::kPhi3,
                                         Family::kQwen2Moe, Family::kMixtral, Family::kGptOss));

// The merged matrices are rounded; the adapter itself stays float32.
TEST(RoundedLora, IsTheMergedModel) {
  Fixture setup = bfloat16_setup(Family::kQwen2);
  LoraChoice choice;
  choice.rank = 3;
  start_adapter(setup.model, choice);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const Loss adapted = forward_backward(setup.model, batch, LayerPath::kFast);
  const test::TempDir dir;
  ASSERT_OK(setup.model.save(default_env(), dir.path(), {}));
  ASSERT_OK_AND_ASSIGN(Model merged, Model::load(default_env(), dir.path(), "bfloat16"));
  EXPECT_TRUE(forward_backward(merged, batch, LayerPath::kFast, false).log_prob.equal(adapted.log_prob));
  // The gradients are those of a float32 model, but for the rounding of what is multiplied.
  Fixture exact = make_setup(Family::kQwen2, false, "float32");
  start_adapter(exact.model, choice);
  forward_backward(exact.model, batch, LayerPath::kFast);
  const auto got = gradients_of(setup.model.trainable()), want = gradients_of(exact.model.trainable());
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double distance = relative_l2(got[i], want[i]);
    EXPECT_GT(distance, 1e-5);
    EXPECT_LT(distance, 0.1) << setup.model.trainable()[i].name;
  }
}

// One layer whose masters have these numbers, rounded in update `step`.
at::Tensor round_with(const at::Tensor& masters, uint64_t step) {
  DecoderWeights weights;
  weights.layers.resize(1);
  weights.layers[0].o_weight_HQ = masters.clone();
  allocate_rounded(weights);
  round_stochastically(weights, 0, derive_philox_key(3, RandomPurpose::kRounding, step));
  return weights.rounded[0].o_HQ.to(at::kFloat);
}

TEST(StochasticRounding, IsTheNumberOnAverage) {
  constexpr double kStep = 0x1.0p-7;  // between bfloat16 numbers from 1 to 2
  for (const double sign : {1.0, -1.0}) {
    for (const double share : {0.1, 0.5, 0.93}) {
      const double x = sign * (1.0 + share * kStep);
      const at::Tensor got = round_with(at::full({100, 400}, x, at::kFloat), 1).to(at::kDouble);
      EXPECT_TRUE(((got == sign) | (got == sign * (1.0 + kStep))).all().item<bool>());
      // Four standard deviations of the mean of 40,000 numbers.
      EXPECT_NEAR(got.mean().item<double>(), x, 4.0 * kStep * std::sqrt(share * (1.0 - share) / 40000.0)) << share;
    }
  }
}

TEST(StochasticRounding, KeepsNumbersOfBfloat16) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = random_tensor({3, 200}, 5, at::kFloat).to(at::kBFloat16).to(at::kFloat);
  x[0][0] = kInfinity;
  x[0][1] = -kInfinity;
  x[0][2] = 0.0F;
  x[0][3] = -0.0F;
  EXPECT_TRUE(round_with(x, 1).equal(x));
  x[0][4] = std::numeric_limits<float>::quiet_NaN();
  x[0][5] = std::bit_cast<float>(0x7F800001U);  // its upper half alone would be an infinity
  const at::Tensor got = round_with(x, 1);
  EXPECT_TRUE(got[0][4].isnan().item<bool>() && got[0][5].isnan().item<bool>());
}

TEST(StochasticRounding, DependsOnTheUpdateAndNotOnThreads) {
  const at::Tensor x = random_tensor({130, 301}, 6, at::kFloat);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = round_with(x, 1), two = round_with(x, 2);
  at::set_num_threads(3);
  EXPECT_TRUE(round_with(x, 1).equal(one));
  at::set_num_threads(threads);
  EXPECT_GT((one != two).to(at::kFloat).mean().item<double>(), 0.2);
}

// Ranks that share a matrix round pieces of it, which begin anywhere.
TEST(StochasticRounding, PiecesHaveTheBitsOfTheWhole) {
  const at::Tensor x = random_tensor({40, 301}, 7, at::kFloat);
  const at::Tensor whole = round_with(x, 3).view({-1});
  DecoderWeights weights;
  weights.layers.resize(1);
  weights.layers[0].o_weight_HQ = x.clone();
  allocate_rounded(weights);
  const PhiloxKey key = derive_philox_key(3, RandomPurpose::kRounding, 3);
  const int64_t row = 11;
  const at::Tensor rows = weights.layers[0].o_weight_HQ.narrow(0, row, 20);  // a parameter in a fused matrix
  for (const auto& [begin, size] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 20 * 301}, {1, 3}, {53, 64}, {117, 5000}}) {
    const at::Tensor from = rows.reshape({-1}).narrow(0, begin, size), to = at::empty({size}, at::kBFloat16);
    const at::Tensor expected = whole.narrow(0, row * 301 + begin, size);
    round_piece(weights, rows, begin, from, to, key);
    EXPECT_TRUE(to.to(at::kFloat).equal(expected)) << begin;
    round_by_operators(from, to, {0, 0, 1, 0}, key, /*most=*/128, row * 301 + begin);
    EXPECT_TRUE(to.to(at::kFloat).equal(expected)) << begin << ", by operators";
  }
}

}  // namespace
}  // namespace mortise
