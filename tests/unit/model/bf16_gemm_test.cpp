// Products by the kernels for AVX512_BF16 against sums in double, in every layout. On a CPU without the instructions the
// tests of kernels are skipped, and that of blas::gemm tests MKL's.
#include "model/tensor/bf16_gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "model/tensor/blas.h"

namespace mortise {
namespace {

using blas::Trans;

// [rows][k] numbers, stored in either order, as float and rounded to bfloat16.
struct ProductMatrix {
  int64_t rows, k;
  bool k_contiguous;
  std::vector<float> exact;
  std::vector<c10::BFloat16> rounded;

  ProductMatrix(int64_t num_rows, int64_t num_k, bool contiguous, uint32_t seed)
      : rows(num_rows), k(num_k), k_contiguous(contiguous) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * k; ++i) {
      exact.push_back(normal(generator));
      rounded.emplace_back(exact.back());
    }
  }
  int64_t stride() const { return k_contiguous ? k : rows; }
  size_t place(int64_t i, int64_t j) const { return static_cast<size_t>(k_contiguous ? i * k + j : j * rows + i); }
  double at(int64_t i, int64_t j) const { return static_cast<double>(static_cast<float>(rounded[place(i, j)])); }
  Bf16Operand operand(bool is_float) const {
    return {is_float ? static_cast<const void*>(exact.data()) : rounded.data(), stride(), k_contiguous, is_float};
  }
};

double product_at(const ProductMatrix& a, const ProductMatrix& b, int64_t i, int64_t j) {
  double sum = 0.0;
  for (int64_t k = 0; k < a.k; ++k) sum += a.at(i, k) * b.at(j, k);
  return sum;
}

constexpr float kBefore = 3.0F;
constexpr int64_t kGap = 3;  // numbers between the rows of the result, which must stay

void expect_product(const ProductMatrix& a, const ProductMatrix& b, bool add, const std::vector<float>& c) {
  const int64_t stride = b.rows + kGap;
  const double limit = 2e-6 * (1.0 + static_cast<double>(a.k));
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const double want = j >= b.rows ? kBefore : product_at(a, b, i, j) + (add ? kBefore : 0.0F);
      ASSERT_NEAR(c[static_cast<size_t>(i * stride + j)], want, j >= b.rows ? 0.0 : limit)
          << a.rows << " x " << b.rows << " x " << a.k << ": row " << i << ", column " << j;
    }
  }
}

// Fewer rows than a tile, tiles and a rest, more than one task; odd and even k, more than one block of k.
constexpr int64_t kProductSizes[][3] = {{1, 1, 1},      {5, 40, 3},   {14, 32, 64}, {70, 141, 33},
                                        {29, 65, 1027}, {3, 7, 2050}, {3, 5, 0}};

TEST(Bf16Gemm, EveryLayoutIsTheProductOfTheRoundedNumbers) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  for (const auto& [m, n, k] : kProductSizes) {
    for (int form = 0; form < 16; ++form) {
      const ProductMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
      const bool is_float = (form & 4) != 0, add = (form & 8) != 0;
      std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
      bf16_gemm(*kernels, m, n, k, a.operand(is_float), b.operand(!is_float), add, c.data(), n + kGap);
      expect_product(a, b, add, c);
    }
  }
}

TEST(Bf16Gemm, BlasGemmIsTheSameProductOnEveryCpu) {
  for (const auto& [m, n, k] : kProductSizes) {
    for (int form = 0; form < 8; ++form) {
      const ProductMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
      const bool add = (form & 4) != 0;
      std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
      blas::gemm(a.k_contiguous ? Trans::kNo : Trans::kYes, b.k_contiguous ? Trans::kYes : Trans::kNo, m, n, k, 1.0F,
                 a.rounded.data(), a.stride(), b.rounded.data(), b.stride(), add ? 1.0F : 0.0F, c.data(), n + kGap);
      expect_product(a, b, add, c);
    }
  }
}

// A number of the result is the same alone and among others, and for any number of threads.
TEST(Bf16Gemm, BitsDependNeitherOnThreadsNorOnOtherRows) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  const int64_t m = 2300, n = 70, k = 1100;  // more than one block of rows and of k
  const ProductMatrix a(m, k, true, 1), b(n, k, true, 2);
  std::vector<float> two(static_cast<size_t>(m * n)), one = two;
  at::set_num_threads(2);
  bf16_gemm(*kernels, m, n, k, a.operand(false), b.operand(false), false, two.data(), n);
  at::set_num_threads(1);
  bf16_gemm(*kernels, m, n, k, a.operand(false), b.operand(false), false, one.data(), n);
  EXPECT_EQ(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)), 0);
  for (const int64_t row : {0, 13, 2299}) {
    float alone = 0.0F;
    Bf16Operand left = a.operand(false), right = b.operand(false);
    left.data = a.rounded.data() + row * k;
    right.data = b.rounded.data() + 69 * k;
    bf16_gemm(*kernels, 1, 1, k, left, right, false, &alone, 1);
    EXPECT_EQ(alone, one[static_cast<size_t>(row * n + 69)]) << row;
  }
}

// What packing rounds is what c10::BFloat16 rounds: ties and infinities as well.
TEST(Bf16Gemm, PackingRoundsToTheNearest) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers = {1.00390625F, 1.01171875F, -1.00390625F, 1.0040F, 3.4e38F, infinity,
                                      -infinity,   0.0F,        -0.0F,        1e-30F,  -7.77F};
  const auto k = static_cast<int64_t>(numbers.size());
  std::vector<uint32_t> panel(static_cast<size_t>((k + 1) / 2 * kTileRows), ~0U);
  kernels->pack({numbers.data(), k, true, true}, 0, 1, kTileRows, 0, k, panel.data());
  for (int64_t i = 0; i < k + 1; ++i) {
    const auto half = static_cast<uint16_t>(panel[static_cast<size_t>(i / 2 * kTileRows)] >> (i % 2 * 16));
    EXPECT_EQ(half, i == k ? 0 : c10::BFloat16(numbers[static_cast<size_t>(i)]).x) << i;
    EXPECT_EQ(panel[static_cast<size_t>(i / 2 * kTileRows + 1)], 0U) << "a row that the operand does not have";
  }
}

}  // namespace
}  // namespace mortise
