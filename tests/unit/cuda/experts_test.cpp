// The kernels of a mixture of experts against the same formulas in float64, in three orders of their threads: the choice of
// experts, the tiles of each, products with their matrices, a token's sum, and the gate of gpt-oss with its gradient. Every
// barrier is needed.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cuda/kernels/dialect.cuh"
#include "emulated.h"

namespace mortise::cuda {
namespace {

using Numbers = std::vector<double>;

// ---- the router ----

struct Chosen {
  std::vector<int64_t> experts;
  std::vector<float> weights;
};

Chosen route(const std::vector<float>& logits, int64_t tokens, int32_t num_experts, int32_t each, bool over_all) {
  Chosen out{std::vector<int64_t>(static_cast<size_t>(tokens * each), -1),
             std::vector<float>(static_cast<size_t>(tokens * each), NAN)};
  EXPECT_EQ(mortise_cuda_route(logits.data(), tokens, num_experts, each, over_all ? 1 : 0, out.experts.data(),
                               out.weights.data(), nullptr),
            0);
  return out;
}

void check_route(int64_t tokens, int32_t num_experts, int32_t each, bool over_all) {
  SCOPED_TRACE(std::to_string(num_experts) + " experts, " + std::to_string(each) + " each");
  std::vector<float> logits = normal(static_cast<size_t>(tokens * num_experts), 2, 5);
  for (size_t i = 0; i < logits.size(); i += 3) logits[i] = logits[i / 2];  // equal ones
  const Chosen got = route(logits, tokens, num_experts, each, over_all);
  for (int64_t token = 0; token < tokens; ++token) {
    const float* const row = logits.data() + token * num_experts;
    std::vector<int64_t> order(static_cast<size_t>(num_experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int64_t>(e);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return row[a] > row[b]; });
    std::vector<int64_t> want(order.begin(), order.begin() + each);
    double sum = 0;
    for (const int64_t e : over_all ? order : want) sum += std::exp(double(row[e]));
    std::ranges::sort(want);
    for (int32_t j = 0; j < each; ++j) {
      const auto at = static_cast<size_t>(token * each + j), place = static_cast<size_t>(j);
      EXPECT_EQ(got.experts[at], want[place]);
      EXPECT_NEAR(got.weights[at], std::exp(double(row[want[place]])) / sum, 1e-6);
    }
  }
}

TEST(Experts, RoutersChooseTheLargestLogits) {
  in_three_orders([] {
    for (const bool over_all : {false, true}) {
      check_route(1, 1, 1, over_all);
      check_route(11, 4, 2, over_all);
      check_route(3, 33, 32, over_all);
      check_route(9, 128, 8, over_all);
    }
  });
  EXPECT_EQ(mortise_cuda_route(nullptr, 1, 64, 33, 0, nullptr, nullptr, nullptr), 1);
  EXPECT_EQ(mortise_cuda_route(nullptr, 1, 4, 5, 0, nullptr, nullptr, nullptr), 1);
}

TEST(Experts, ALogitThatIsNotANumberMakesAllWeightsSuch) {
  for (const bool over_all : {false, true}) {
    std::vector<float> logits = normal(10, 1, 3);
    logits[7] = NAN;
    const Chosen got = route(logits, 2, 5, 2, over_all);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::isnan(got.weights[i]), i >= 2);
      EXPECT_TRUE(got.experts[i] >= 0 && got.experts[i] < 5);
    }
    std::ranges::fill(logits, NAN);
    for (const int64_t expert : route(logits, 2, 5, 2, over_all).experts) EXPECT_TRUE(expert >= 0 && expert < 5);
  }
}

// ---- pairs by expert ----

struct Grouped {
  std::vector<int64_t> experts;
  std::vector<int32_t> order;
  std::vector<MortiseCudaExpertTile> tiles;
  MortiseCudaExpertPairs pairs{};

  Grouped(std::vector<int64_t> given, int32_t num_experts, int32_t tile_rows)
      : experts(std::move(given)), order(experts.size(), -1), tiles(experts.size() / tile_rows + num_experts) {
    for (MortiseCudaExpertTile& tile : tiles) tile = {-1, -1, -1};
    pairs = {order.data(), tiles.data(), static_cast<int32_t>(experts.size()), num_experts, tile_rows};
    EXPECT_EQ(mortise_cuda_group_experts(experts.data(), pairs, nullptr), 0);
  }
};

// Expert 1 has most, and the last one nothing.
std::vector<int64_t> uneven_experts(size_t count, int64_t num_experts) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back(i % 3 == 0 ? static_cast<int64_t>(i * 7) % std::max<int64_t>(1, num_experts - 1) : num_experts > 1);
  return out;
}

void check_groups(size_t count, int32_t num_experts, int32_t tile_rows) {
  SCOPED_TRACE(std::to_string(count) + " pairs, " + std::to_string(num_experts) + " experts");
  const Grouped got(uneven_experts(count, num_experts), num_experts, tile_rows);
  std::vector<int32_t> want(count);
  for (size_t i = 0; i < count; ++i) want[i] = static_cast<int32_t>(i);
  std::ranges::stable_sort(want, {}, [&](int32_t pair) { return got.experts[static_cast<size_t>(pair)]; });
  EXPECT_EQ(got.order, want);
  std::set<int32_t> covered;
  for (const MortiseCudaExpertTile& tile : got.tiles) {
    ASSERT_TRUE(tile.count >= 0 && tile.count <= tile_rows);
    for (int32_t place = tile.first; place < tile.first + tile.count; ++place) {
      EXPECT_TRUE(covered.insert(place).second);
      EXPECT_EQ(got.experts[static_cast<size_t>(got.order[static_cast<size_t>(place)])], tile.expert);
    }
  }
  EXPECT_EQ(covered.size(), count);
}

TEST(Experts, PairsLieByExpertInTiles) {
  in_three_orders([] {
    for (const int32_t tile_rows : {MORTISE_CUDA_FEW_TILE_ROWS, MORTISE_CUDA_TILE_ROWS}) {
      check_groups(1, 1, tile_rows);
      check_groups(16, 1, tile_rows);
      check_groups(3, 40, tile_rows);
      check_groups(600, 7, tile_rows);
    }
  });
}

// ---- products ----

struct Product {
  int32_t num_experts, divisor, tile_rows;
  int64_t depth, columns;
  bool is_stacked, has_bias;

  // The place of a weight.
  [[nodiscard]] size_t at(int64_t expert, int64_t column, int64_t term) const {
    return static_cast<size_t>(expert * columns * depth +
                               (is_stacked ? term * columns + column : column * depth + term));
  }
};

// 16 bytes aligned, as a device's memory is.
template <class T>
struct Aligned {
  struct alignas(16) Block {
    unsigned char bytes[16];
  };
  std::vector<Block> blocks;
  explicit Aligned(const std::vector<T>& numbers) : blocks(numbers.size() * sizeof(T) / 16 + 1) {
    std::memcpy(blocks.data(), numbers.data(), numbers.size() * sizeof(T));
  }
  [[nodiscard]] const void* data() const { return blocks.data(); }
};

void check_product(Product p, size_t num_pairs, bool in_bfloat16) {
  if (in_bfloat16)
    p.tile_rows = p.tile_rows == MORTISE_CUDA_TILE_ROWS ? MORTISE_CUDA_TILE_ROWS_BF16 : MORTISE_CUDA_FEW_TILE_ROWS_BF16;
  SCOPED_TRACE(std::to_string(p.depth) + " terms, " + std::to_string(p.columns) + " columns, tiles of " +
               std::to_string(p.tile_rows) + (p.is_stacked ? ", stacked" : "") + (in_bfloat16 ? ", bfloat16" : ""));
  const Grouped grouped(uneven_experts(num_pairs, p.num_experts), p.num_experts, p.tile_rows);
  const size_t num_rows = (num_pairs + static_cast<size_t>(p.divisor) - 1) / static_cast<size_t>(p.divisor);
  std::vector<float> x = normal(num_rows * static_cast<size_t>(p.depth), 1, 1);
  std::vector<float> weight = normal(static_cast<size_t>(p.num_experts * p.columns * p.depth), 1, 2);
  const std::vector<float> bias = normal(static_cast<size_t>(p.num_experts * p.columns), 1, 3);
  std::vector<uint16_t> x_bits, weight_bits;
  for (float& number : x)
    x_bits.push_back(bfloat16_of(number)), number = in_bfloat16 ? number_of(x_bits.back()) : number;
  for (float& number : weight)
    weight_bits.push_back(bfloat16_of(number)), number = in_bfloat16 ? number_of(weight_bits.back()) : number;
  const Aligned<float> wide(weight), wide_x(x);
  const Aligned<uint16_t> rounded(weight_bits), rounded_x(x_bits);
  const MortiseCudaIn in{in_bfloat16 ? rounded_x.data() : wide_x.data(), in_bfloat16 ? 1 : 0};
  std::vector<float> y(num_pairs * static_cast<size_t>(p.columns), NAN);
  EXPECT_EQ(mortise_cuda_expert_product(in, p.divisor, in_bfloat16 ? rounded.data() : wide.data(), p.is_stacked ? 1 : 0,
                                        p.has_bias ? bias.data() : nullptr, grouped.pairs, p.depth, p.columns, y.data(),
                                        nullptr),
            0);
  for (size_t pair = 0; pair < num_pairs; ++pair) {
    const int64_t expert = grouped.experts[pair];
    const float* const row = x.data() + pair / static_cast<size_t>(p.divisor) * static_cast<size_t>(p.depth);
    for (int64_t column = 0; column < p.columns; ++column) {
      double want = p.has_bias ? double(bias[static_cast<size_t>(expert * p.columns + column)]) : 0.0;
      for (int64_t term = 0; term < p.depth; ++term)
        want += double(row[term]) * double(weight[p.at(expert, column, term)]);
      ASSERT_NEAR(y[pair * static_cast<size_t>(p.columns) + static_cast<size_t>(column)], want, 1e-4) << pair;
    }
  }
}

TEST(Experts, ProductsAreThoseOfEachExpert) {
  in_three_orders([] {
    for (const int32_t tile_rows : {MORTISE_CUDA_FEW_TILE_ROWS, MORTISE_CUDA_TILE_ROWS}) {
      for (const bool is_stacked : {false, true}) {
        for (const bool in_bfloat16 : {false, true}) {
          check_product({3, 2, tile_rows, 160, 80, is_stacked, is_stacked}, 30, in_bfloat16);  // loads of 16 bytes
          if (in_bfloat16 && !is_stacked)
            check_product({2, 1, tile_rows, 32, 8, false, true}, 140, true);  // several tiles
          if (takes_few_cases()) continue;
          check_product({4, 1, tile_rows, 75, 67, is_stacked, !is_stacked}, 9, in_bfloat16);
          check_product({1, 1, tile_rows, 1, 1, is_stacked, false}, 1, in_bfloat16);
        }
      }
    }
  });
  for (const auto& [is_bfloat16, rows] :
       {std::pair{0, 8}, {0, MORTISE_CUDA_TILE_ROWS_BF16}, {1, MORTISE_CUDA_FEW_TILE_ROWS}}) {
    EXPECT_EQ(mortise_cuda_expert_product({nullptr, is_bfloat16}, 1, nullptr, 0, nullptr,
                                          {nullptr, nullptr, 1, 1, rows}, 1, 1, nullptr, nullptr),
              1);
  }
  alignas(16) const uint16_t numbers[16] = {};
  for (const auto& [x, weight] : {std::pair{numbers + 1, numbers}, {numbers, numbers + 4}}) {  // not at 16 bytes
    EXPECT_EQ(
        mortise_cuda_expert_product({x, 1}, 1, weight, 0, nullptr,
                                    {nullptr, nullptr, 1, 1, MORTISE_CUDA_FEW_TILE_ROWS_BF16}, 1, 1, nullptr, nullptr),
        1);
  }
}

TEST(Experts, ATokensSumIsInTheOrderOfItsPairs) {
  in_three_orders([] {
    constexpr size_t kTokens = 5, kEach = 3, kWidth = 300;
    const std::vector<float> y = normal(kTokens * kEach * kWidth, 1, 1), weights = normal(kTokens * kEach, 1, 2);
    std::vector<float> out(kTokens * kWidth, NAN);
    EXPECT_EQ(mortise_cuda_sum_experts(y.data(), weights.data(), kTokens, kEach, kWidth, out.data(), nullptr), 0);
    for (size_t i = 0; i < out.size(); ++i) {
      float want = 0;
      for (size_t k = 0; k < kEach; ++k) {
        const size_t pair = i / kWidth * kEach + k;
        want += weights[pair] * y[pair * kWidth + i % kWidth];
      }
      EXPECT_EQ(out[i], want);
    }
  });
}

// ---- the gate of gpt-oss ----

constexpr double kAlpha = 1.702, kLimit = 1.5;

double clamped(double gate, double up) {
  gate = std::min(gate, kLimit);
  up = std::clamp(up, -kLimit, kLimit);
  return (up + 1) * gate / (1 + std::exp(-kAlpha * gate));
}

TEST(Experts, TheClampedGateAndItsGradient) {
  in_three_orders([] {
    for (const bool in_bfloat16 : {false, true}) {
      constexpr size_t kRows = 7, kWidth = 301, kCount = kRows * kWidth;
      const std::vector<float> pairs = normal(2 * kCount, 2, 1);
      std::vector<float> d_out = normal(kCount, 1, 2), out(kCount, NAN), d_pairs(2 * kCount, NAN);
      std::vector<uint16_t> out_bits(kCount, 0x7FC0), d_bits, d_pair_bits(2 * kCount, 0x7FC0);
      for (float& number : d_out)
        d_bits.push_back(bfloat16_of(number)), number = in_bfloat16 ? number_of(d_bits.back()) : number;
      const MortiseCudaClamp clamp{static_cast<float>(kAlpha), static_cast<float>(kLimit)};
      const int is_bfloat16 = in_bfloat16 ? 1 : 0;
      EXPECT_EQ(mortise_cuda_clamped_gate(pairs.data(), kRows, kWidth, clamp,
                                          {in_bfloat16 ? static_cast<void*>(out_bits.data()) : out.data(), is_bfloat16},
                                          nullptr),
                0);
      EXPECT_EQ(mortise_cuda_clamped_gate_backward(
                    pairs.data(), kRows, kWidth, clamp,
                    {in_bfloat16 ? static_cast<const void*>(d_bits.data()) : d_out.data(), is_bfloat16},
                    in_bfloat16 ? static_cast<void*>(d_pair_bits.data()) : d_pairs.data(), nullptr),
                0);
      const double tolerance = in_bfloat16 ? 5e-3 : 2e-6;
      for (size_t i = 0; i < kCount; ++i) {
        const double gate = double(pairs[2 * i]), up = double(pairs[2 * i + 1]), step = 1e-6;
        const double want = clamped(gate, up);
        const double by_gate = (clamped(gate + step, up) - clamped(gate - step, up)) / (2 * step);
        const double by_up = (clamped(gate, up + step) - clamped(gate, up - step)) / (2 * step);
        const auto near = [&](float wide, uint16_t bits, double number) {
          EXPECT_NEAR(in_bfloat16 ? number_of(bits) : wide, number, tolerance * std::max(1.0, std::abs(number))) << i;
        };
        near(out[i], out_bits[i], want);
        near(d_pairs[2 * i], d_pair_bits[2 * i], double(d_out[i]) * by_gate);
        near(d_pairs[2 * i + 1], d_pair_bits[2 * i + 1], double(d_out[i]) * by_up);
      }
    }
  });
}

// Far numbers give finite gradients, and NaN stays.
TEST(Experts, TheClampedGateOfFarNumbers) {
  const std::vector<float> pairs = {-3e38F, 1, 3e38F, -3e38F, NAN, 1, 1, NAN};
  const std::vector<float> d_out(4, 1);
  std::vector<float> out(4), d_pairs(8);
  const MortiseCudaClamp clamp{1.702F, 7};
  EXPECT_EQ(mortise_cuda_clamped_gate(pairs.data(), 1, 4, clamp, {out.data(), 0}, nullptr), 0);
  EXPECT_EQ(mortise_cuda_clamped_gate_backward(pairs.data(), 1, 4, clamp, {d_out.data(), 0}, d_pairs.data(), nullptr),
            0);
  EXPECT_EQ(out[0], 0);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(d_pairs[i])) << i;
  EXPECT_TRUE(std::isnan(out[2]) && std::isnan(out[3]) && std::isnan(d_pairs[4]) && std::isnan(d_pairs[6]));
}

TEST(Experts, EveryBarrierIsNeeded) {
  expect_every_barrier_is_needed(
      [] {
        check_product({2, 1, MORTISE_CUDA_FEW_TILE_ROWS, 100, 70, false, false}, 5, false);
        check_product({2, 1, MORTISE_CUDA_TILE_ROWS, 100, 70, false, false}, 5, false);
        check_product({2, 1, MORTISE_CUDA_FEW_TILE_ROWS, 100, 70, false, false}, 5, true);
      },
      {"experts.cuh", "expert_tensors.cuh"});
}

}  // namespace
}  // namespace mortise::cuda
