// Every fast layer against its plain version: values and gradients, float64 to rounding and float32 to its precision.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "model/layers/attention.h"
#include "model/layers/clamped_gate.h"
#include "model/layers/gated.h"
#include "model/layers/gated_mlp.h"
#include "model/layers/linear.h"
#include "model/layers/rms_norm.h"
#include "model/layers/select_rows.h"
#include "model/tensor/f32_gemm.h"
#include "model/tensor/vector_math.h"
#include "support/counting_allocator.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

using Inputs = std::vector<at::Tensor>;
using Layer = std::function<std::vector<at::Tensor>(const Inputs&)>;

// Values and gradients of sum(out * probe) for both layers on copies of the inputs.
struct Outcome {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;
};

Outcome run(const Layer& layer, const Inputs& inputs, at::ScalarType dtype) {
  Inputs leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.to(dtype).clone().requires_grad_(true));
  Outcome outcome;
  outcome.outputs = layer(leaves);
  at::Tensor loss;
  uint64_t seed = 100;
  for (const at::Tensor& output : outcome.outputs) {
    const at::Tensor term = (output * random_tensor(output.sizes().vec(), seed++, dtype)).sum();
    loss = loss.defined() ? loss + term : term;
  }
  loss.backward();
  for (const at::Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  return outcome;
}

void expect_same(const Layer& fast, const Layer& plain, const Inputs& inputs) {
  const Outcome judge = run(plain, inputs, at::kDouble);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Outcome got = run(fast, inputs, dtype);
    const double tolerance = dtype == at::kDouble ? 1e-10 : 3e-5;
    ASSERT_EQ(got.outputs.size(), judge.outputs.size());
    for (size_t i = 0; i < judge.outputs.size(); ++i) EXPECT_CLOSE(got.outputs[i], judge.outputs[i], tolerance) << i;
    for (size_t i = 0; i < judge.gradients.size(); ++i) {
      const double scale = std::max(1.0, judge.gradients[i].abs().max().item<double>());
      EXPECT_CLOSE(got.gradients[i], judge.gradients[i], tolerance * scale) << "gradient " << i;
    }
  }
}

TEST(VectorMath, ExpIsAccurateAndSafe) {
  double worst_float = 0.0;
  double worst_double = 0.0;
  for (int i = -8700; i <= 8800; ++i) {
    const double x = 0.01 * i + 0.000123;
    const double exact = std::exp(static_cast<double>(static_cast<float>(x)));
    worst_float = std::max(worst_float, std::abs(static_cast<double>(fast_exp(static_cast<float>(x))) / exact - 1.0));
    worst_double = std::max(worst_double, std::abs(fast_exp(x) / std::exp(x) - 1.0));
  }
  EXPECT_LT(worst_float, 2e-7);
  EXPECT_LT(worst_double, 1e-15);
  EXPECT_EQ(fast_exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(fast_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(fast_exp(-1000.0f), 0.0f);
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(std::isfinite(fast_exp(1e9f)));
}

TEST(VectorMath, TanhIsAccurateAndSafe) {
  double worst_float = 0.0;
  double worst_double = 0.0;
  for (int i = -2000; i <= 2000; ++i) {
    const double x = 0.01 * i + 0.000123;
    const double exact = std::tanh(static_cast<double>(static_cast<float>(x)));
    worst_float = std::max(worst_float, std::abs(static_cast<double>(fast_tanh(static_cast<float>(x))) / exact - 1.0));
    worst_double = std::max(worst_double, std::abs(fast_tanh(x) - std::tanh(x)));
  }
  EXPECT_LT(worst_float, 3e-7);
  EXPECT_LT(worst_double, 1e-15);
  EXPECT_EQ(fast_tanh(1e9f), 1.0f);
  EXPECT_EQ(fast_tanh(-1e9f), -1.0f);
  EXPECT_TRUE(std::isnan(fast_tanh(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Layers, RmsNorm) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 5}, {3, 48}, {131, 64}}) {
    expect_same([](const Inputs& in) { return Inputs{rms_norm(in[0], in[1], 1e-6)}; },
                [](const Inputs& in) { return Inputs{rms_norm_plain(in[0], in[1], 1e-6)}; },
                {random_tensor({rows, width}, 1), random_tensor({width}, 2)});
  }
}

TEST(Layers, AddRmsNorm) {
  const auto fast = [](const Inputs& in) {
    const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], 1e-5);
    return Inputs{sum, normed};
  };
  const auto plain = [](const Inputs& in) {
    const at::Tensor sum = in[0] + in[1];
    return Inputs{sum, rms_norm_plain(sum, in[2], 1e-5)};
  };
  expect_same(fast, plain, {random_tensor({70, 24}, 1), random_tensor({70, 24}, 2), random_tensor({24}, 3)});
  // Only the normed output is used: the last layer of a model.
  expect_same([&](const Inputs& in) { return Inputs{fast(in)[1]}; },
              [&](const Inputs& in) { return Inputs{plain(in)[1]}; },
              {random_tensor({7, 24}, 1), random_tensor({7, 24}, 2), random_tensor({24}, 3)});
}

TEST(Layers, QkNorm) {
  expect_same([](const Inputs& in) { return Inputs{qk_norm(in[0], in[1], in[2], 3, 1, 1e-6)}; },
              [](const Inputs& in) { return Inputs{qk_norm_plain(in[0], in[1], in[2], 3, 1, 1e-6)}; },
              {random_tensor({67, 5 * 8}, 1), random_tensor({8}, 2), random_tensor({8}, 3)});
}

TEST(Layers, GatedActivations) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    expect_same([&](const Inputs& in) { return Inputs{gated(in[0], activation)}; },
                [&](const Inputs& in) { return Inputs{gated_plain(in[0], activation)}; },
                {random_tensor({33, 2 * 19}, 1, at::kDouble, 4.0)});
  }
}

TEST(Layers, FusedLinearGivesEachLeafItsSlice) {
  const at::Tensor weight = random_tensor({9, 6}, 1);
  const at::Tensor bias = random_tensor({9}, 2);
  const Inputs inputs = {random_tensor({5, 6}, 3), weight.narrow(0, 0, 4), weight.narrow(0, 4, 5), bias.narrow(0, 0, 4),
                         bias.narrow(0, 4, 5)};
  const auto fast = [&](const Inputs& in) {
    return Inputs{fused_linear(in[0], weight.to(in[0].scalar_type()), bias.to(in[0].scalar_type()), {in[1], in[2]},
                               {in[3], in[4]})};
  };
  const auto plain = [](const Inputs& in) {
    const at::Tensor first = in[0].matmul(in[1].t()) + in[3];
    const at::Tensor second = in[0].matmul(in[2].t()) + in[4];
    at::Tensor out = at::empty({5, 9}, in[0].options());
    out.narrow(1, 0, 4).copy_(first);
    out.narrow(1, 4, 5).copy_(second);
    return Inputs{out};
  };
  expect_same(fast, plain, inputs);
}

// Rows without a selection, and rows with several.
TEST(Layers, SelectedRows) {
  const at::Tensor places = at::tensor({3, 0, 3, 1, 3, 6}, at::kLong);
  expect_same([&](const Inputs& in) { return Inputs{select_rows(in[0], places)}; },
              [&](const Inputs& in) { return Inputs{in[0].index_select(0, places)}; }, {random_tensor({7, 5}, 1)});
  EXPECT_THROW(select_rows(random_tensor({3, 5}, 1), places), c10::Error);
}

// Threads share the rows of the matrix. The order of a row's sum is that of the selection all the same.
TEST(Layers, SelectedRowsDoNotDependOnThreads) {
  const at::Tensor places = at::arange(4000, at::kLong).remainder(1000);
  const Layer layer = [&](const Inputs& in) { return Inputs{select_rows(in[0], places)}; };
  const Inputs inputs = {random_tensor({1000, 64}, 1)};
  const int num_threads = at::get_num_threads();
  std::vector<Outcome> outcomes;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    outcomes.push_back(run(layer, inputs, at::kFloat));
  }
  at::set_num_threads(num_threads);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.outputs[0].equal(outcomes[0].outputs[0]));
    EXPECT_TRUE(outcome.gradients[0].equal(outcomes[0].gradients[0]));
  }
}

// x, gate, up, down. Frozen ones get no gradient.
Layer whole_mlp(Activation activation, size_t frozen) {
  return [=](const Inputs& in) {
    Inputs leaves = in;
    if (frozen < in.size()) leaves[frozen] = in[frozen].detach();
    return Inputs{gated_mlp(leaves[0], at::cat({in[1], in[2]}).detach(), in[3].detach(), {leaves[1], leaves[2]},
                            leaves[3], activation)};
  };
}
Layer mlp_in_steps(Activation activation, size_t frozen) {
  return [=](const Inputs& in) {
    Inputs leaves = in;
    if (frozen < in.size()) leaves[frozen] = in[frozen].detach();
    const at::Tensor both = fused_linear(leaves[0], at::cat({in[1], in[2]}).detach(), {}, {leaves[1], leaves[2]}, {});
    return Inputs{fused_linear(gated(both, activation), in[3].detach(), {}, {leaves[3]}, {})};
  };
}

// Rows around the size of a block and of a task, and every number of threads.
TEST(Layers, TheWholeMlpHasTheBitsOfItsSteps) {
  const int num_threads = at::get_num_threads();
  for (const auto& [rows, width, units] :
       {std::array<int64_t, 3>{1, 5, 7}, {193, 64, 256}, {1500, 32, 40}, {70, 128, 300}}) {
    const Inputs inputs = {random_tensor({rows, width}, 1), random_tensor({units, width}, 2),
                           random_tensor({units, width}, 3), random_tensor({width, units}, 4)};
    if (!fits_gated_mlp(inputs[0].to(at::kFloat), at::cat({inputs[1], inputs[2]}).to(at::kFloat),
                        inputs[3].to(at::kFloat)))
      GTEST_SKIP() << "this CPU has no float32 kernels of Mortise's";
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      for (size_t frozen = 0; frozen <= inputs.size(); ++frozen) {
        at::set_num_threads(2);
        const Outcome steps = run(mlp_in_steps(activation, frozen), inputs, at::kFloat);
        for (const int threads : {1, 2, 3}) {
          at::set_num_threads(threads);
          const Outcome whole = run(whole_mlp(activation, frozen), inputs, at::kFloat);
          EXPECT_TRUE(whole.outputs[0].equal(steps.outputs[0])) << rows << ", frozen " << frozen;
          for (size_t i = 0; i < inputs.size(); ++i) {
            ASSERT_EQ(whole.gradients[i].defined(), i != frozen) << i;
            ASSERT_EQ(steps.gradients[i].defined(), i != frozen) << i;
            if (i == frozen) continue;
            EXPECT_TRUE(whole.gradients[i].equal(steps.gradients[i])) << rows << ", gradient " << i;
          }
        }
      }
    }
  }
  at::set_num_threads(num_threads);
}

// With known gates and ups no product is read, and the gradients are those of the whole MLP but for rounding, with the same
// bits for every number of threads.
TEST(Layers, TheMlpOfKnownGatesHasTheGradientsOfTheWholeMlp) {
  const int num_threads = at::get_num_threads();
  const Inputs inputs = {random_tensor({1300, 64}, 1), random_tensor({48, 64}, 2), random_tensor({48, 64}, 3),
                         random_tensor({64, 48}, 4)};
  if (find_f32_kernels() == nullptr) GTEST_SKIP() << "this CPU has no float32 kernels of Mortise's";
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (size_t frozen = 0; frozen <= inputs.size(); ++frozen) {
      const Layer known = [=](const Inputs& in) {
        Inputs leaves = in;
        if (frozen < in.size()) leaves[frozen] = in[frozen].detach();
        const at::Tensor both = at::cat({in[1], in[2]}).detach();
        return Inputs{known_gated_mlp(leaves[0], both, in[3].detach(), {leaves[1], leaves[2]}, leaves[3], activation,
                                      {linear_product(in[0].detach(), both, {})})};
      };
      const Outcome whole = run(whole_mlp(activation, frozen), inputs, at::kFloat);
      std::vector<Outcome> outcomes;
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        outcomes.push_back(run(known, inputs, at::kFloat));
      }
      at::set_num_threads(num_threads);
      for (size_t i = 0; i < inputs.size(); ++i) {
        for (const Outcome& outcome : outcomes) {
          ASSERT_EQ(outcome.gradients[i].defined(), i != frozen) << i;
          if (i == frozen) continue;
          EXPECT_TRUE(outcome.gradients[i].equal(outcomes[0].gradients[i])) << i;
          EXPECT_CLOSE(outcome.gradients[i], whole.gradients[i], 3e-5 * whole.gradients[i].abs().max().item<double>());
        }
      }
    }
  }
}

TEST(Layers, TheWholeMlpIsForFewInputsInFloat32) {
  const auto fits = [](int64_t width, at::ScalarType dtype) {
    return fits_gated_mlp(random_tensor({3, width}, 1, dtype), random_tensor({8, width}, 2, dtype),
                          random_tensor({width, 4}, 3, dtype));
  };
  EXPECT_EQ(fits(128, at::kFloat), fits(8, at::kFloat));
  EXPECT_FALSE(fits(129, at::kFloat));
  EXPECT_FALSE(fits(8, at::kDouble));
}

// Segments: two groups with shared prompts, one prompt without completions, one single row; lengths around the block
// size.
struct AttentionCase {
  std::vector<PackedSegment> segments;
  at::Tensor positions;
  int64_t num_tokens = 0;
};

AttentionCase make_attention_case(const std::vector<std::pair<int64_t, int64_t>>& lengths_and_prefixes) {
  AttentionCase out;
  for (const auto& [length, prefix] : lengths_and_prefixes) {
    const int64_t position = prefix < 0 ? 0 : out.segments[static_cast<size_t>(prefix)].length;
    out.segments.push_back({out.num_tokens, length, prefix, position});
    out.num_tokens += length;
  }
  out.positions = at::empty({out.num_tokens}, at::kLong);
  for (const PackedSegment& s : out.segments) {
    for (int64_t i = 0; i < s.length; ++i) out.positions.mutable_data_ptr<int64_t>()[s.begin + i] = s.position + i;
  }
  return out;
}

void expect_same_attention(const AttentionCase& c, const AttentionShape& shape, const RopeConfig& rope = {},
                           bool has_sinks = false) {
  const at::Tensor segments = segments_tensor(c.segments);
  const auto layer = [&](bool is_fast) {
    return [&, is_fast](const Inputs& in) {
      const RopeTable table = make_rope_table(rope, shape.head_dim, 400, in[0].scalar_type());
      AttentionShape own = shape;
      if (has_sinks) own.sinks_A = in[1];
      // The fast layer rotates its input in place: give it a producer, as in the decoder.
      return Inputs{is_fast ? rope_attention(in[0] * 1.0, segments, c.positions, table, own)
                            : rope_attention_plain(in[0], segments, c.positions, table, own)};
    };
  };
  const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  Inputs inputs = {random_tensor({c.num_tokens, width}, 7)};
  if (has_sinks) inputs.push_back(random_tensor({shape.num_heads}, 8));
  expect_same(layer(true), layer(false), inputs);
}

TEST(Layers, AttentionWithSharedPrompts) {
  const AttentionCase groups =
      make_attention_case({{5, -1}, {3, 0}, {1, 0}, {7, 0}, {4, -1}, {6, 4}, {2, -1}, {9, -1}});
  expect_same_attention(groups, {4, 2, 8, 0.35});
  expect_same_attention(groups, {3, 1, 4, 0.5});
  expect_same_attention(groups, {2, 2, 6, 0.4});
}

TEST(Layers, AttentionOverSeveralQueryBlocks) {
  expect_same_attention(make_attention_case({{130, -1}, {128, 0}, {129, 0}, {257, -1}}), {2, 1, 4, 0.5});
}

// Heads of several panels of the kernels, a last panel that is not full, and heads that only BLAS multiplies.
TEST(Layers, AttentionOfLongHeads) {
  const AttentionCase c = make_attention_case({{260, -1}, {40, 0}, {33, -1}});
  for (const int64_t dim : {40, 64, 264}) expect_same_attention(c, {2, 1, dim, 0.1});
  expect_same_attention(c, {2, 1, 40, 0.1, 100});
}

// Windows shorter and longer than rows, than prompts and than a block of queries; caps that bite.
TEST(Layers, AttentionWithWindowsAndCaps) {
  const AttentionCase small = make_attention_case({{5, -1}, {3, 0}, {1, 0}, {7, 0}, {4, -1}, {6, 4}, {2, -1}, {9, -1}});
  const AttentionCase large = make_attention_case({{130, -1}, {128, 0}, {129, 0}, {257, -1}});
  for (const double cap : {0.0, 2.0}) {
    for (const int64_t window : {1, 2, 5, 8, 100}) expect_same_attention(small, {4, 2, 8, 0.35, window, cap});
    for (const int64_t window : {1, 100, 129, 200}) expect_same_attention(large, {2, 1, 4, 0.5, window, cap});
  }
  expect_same_attention(large, {2, 1, 4, 0.5, 0, 2.0});
}

TEST(Layers, AttentionWithSinks) {
  const AttentionCase small = make_attention_case({{5, -1}, {3, 0}, {1, 0}, {7, 0}, {4, -1}, {6, 4}, {2, -1}, {9, -1}});
  const AttentionCase large = make_attention_case({{130, -1}, {128, 0}, {129, 0}, {257, -1}});
  for (const int64_t window : {0, 1, 5}) expect_same_attention(small, {4, 2, 8, 0.35, window, 0.0}, {}, true);
  expect_same_attention(small, {4, 2, 8, 0.35, 0, 2.0}, {}, true);
  for (const int64_t window : {0, 129}) expect_same_attention(large, {2, 1, 4, 0.5, window, 0.0}, {}, true);
}

TEST(Layers, ClampedGate) {
  const auto layer = [](bool is_fast) {
    return [is_fast](const Inputs& in) {
      return Inputs{is_fast ? clamped_gate(in[0], 1.702, 0.7) : clamped_gate_plain(in[0], 1.702, 0.7)};
    };
  };
  expect_same(layer(true), layer(false), {random_tensor({37, 26}, 3)});
}

TEST(Layers, AttentionWithPartlyRotatedHeads) {
  RopeConfig rope;
  rope.partial_rotary_factor = 0.5;
  const AttentionCase groups =
      make_attention_case({{5, -1}, {3, 0}, {1, 0}, {7, 0}, {4, -1}, {6, 4}, {2, -1}, {9, -1}});
  expect_same_attention(groups, {4, 2, 8, 0.35}, rope);
  rope.partial_rotary_factor = 0.75;
  expect_same_attention(groups, {2, 1, 8, 0.35}, rope);
}

TEST(Layers, TheRestOfAPartlyRotatedHeadStays) {
  RopeConfig rope;
  rope.partial_rotary_factor = 0.5;
  const RopeTable table = make_rope_table(rope, 8, 16, at::kDouble);
  EXPECT_EQ(table.cos_PR2.size(1), 2);
  const at::Tensor x = random_tensor({1, 2 * 8}, 1);
  const at::Tensor positions = at::empty({1}, at::kLong);
  positions.mutable_data_ptr<int64_t>()[0] = 3;
  const at::Tensor y = x.clone();
  rope_rotate_(y, positions, table, 2, 8, false);
  const double* in = x.const_data_ptr<double>();
  const double* out = y.const_data_ptr<double>();
  for (int64_t head = 0; head < 2; ++head, in += 8, out += 8) {
    for (int64_t i = 0; i < 2; ++i) {  // pairs (i, i + 2) turn by 3 theta^(-2i/4)
      const double angle = 3.0 * std::pow(10000.0, -0.5 * static_cast<double>(i));
      EXPECT_NEAR(out[i], in[i] * std::cos(angle) - in[i + 2] * std::sin(angle), 1e-14);
      EXPECT_NEAR(out[i + 2], in[i + 2] * std::cos(angle) + in[i] * std::sin(angle), 1e-14);
    }
    for (int64_t i = 4; i < 8; ++i) EXPECT_EQ(out[i], in[i]);
  }
}

TEST(Layers, DynamicRopeChangesOnlyBeyondTheTrainedLength) {
  RopeConfig rope;
  rope.type = RopeType::kDynamic;
  rope.factor = 2.0;
  rope.original_max_position_embeddings = 10;
  EXPECT_EQ(rope_inverse_frequencies(rope, 8, 10), rope_inverse_frequencies(RopeConfig{}, 8));
  // base 10000 (2 * 20 / 10 - 1)^(8/6), to the power of -1/4
  EXPECT_NEAR(rope_inverse_frequencies(rope, 8, 20)[1], std::pow(10000.0 * std::pow(3.0, 8.0 / 6.0), -0.25), 1e-12);
}

TEST(Layers, RotationsUndoThemselves) {
  const RopeTable table = make_rope_table(RopeConfig{}, 8, 16, at::kDouble);
  const at::Tensor x = random_tensor({4, 3 * 8}, 1);
  const at::Tensor positions = at::empty({4}, at::kLong);
  for (int64_t i = 0; i < 4; ++i) positions.mutable_data_ptr<int64_t>()[i] = 5 * i;
  const at::Tensor y = x.clone();
  rope_rotate_(y, positions, table, 2, 8, false);
  EXPECT_GT(max_difference(x, y), 0.1);
  EXPECT_CLOSE(y.narrow(1, 16, 8), x.narrow(1, 16, 8), 0.0);  // the third head does not change
  rope_rotate_(y, positions, table, 2, 8, true);
  EXPECT_CLOSE(x, y, 1e-14);
}

// The bytes that a linear map keeps for its backward pass, without its output.
int64_t kept_bytes(bool weight_learns) {
  CountingAllocator& tensors = CountingAllocator::install();
  const at::Tensor x = random_tensor({64, 32}, 1, at::kFloat).requires_grad_(true);
  const at::Tensor leaf = random_tensor({16, 32}, 2, at::kFloat).requires_grad_(weight_learns);
  const int64_t before = tensors.bytes();
  at::Tensor hidden = x + x;
  const at::Tensor y = fused_linear(hidden, leaf.detach(), {}, {leaf}, {});
  hidden.reset();
  const int64_t kept = tensors.bytes() - before - static_cast<int64_t>(y.nbytes());
  y.sum().backward();
  EXPECT_EQ(leaf.grad().defined(), weight_learns);
  EXPECT_LT(relative_l2(x.grad(), 2.0 * leaf.new_ones({64, 16}).mm(leaf.detach())), 1e-6);
  return kept;
}

// Such as the matrices next to those of an adapter.
TEST(Linear, AFrozenWeightKeepsNoInput) {
  EXPECT_EQ(kept_bytes(/*weight_learns=*/false), 0);
  EXPECT_EQ(kept_bytes(/*weight_learns=*/true), 64 * 32 * 4);
}

}  // namespace
}  // namespace mortise
