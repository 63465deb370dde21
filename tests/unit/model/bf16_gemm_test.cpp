// Products by the kernels for AVX512_BF16 against sums in double, in every layout. On a CPU without the instructions the
// tests of kernels are skipped, and that of blas::gemm tests MKL's.
#include "model/tensor/bf16_gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/tensor/blas.h"

namespace mortise {
namespace {

using blas::Trans;

// [rows][k] bfloat16 numbers, stored in either order.
struct ProductMatrix {
  int64_t rows, k;
  bool k_contiguous;
  std::vector<c10::BFloat16> rounded;

  ProductMatrix(int64_t num_rows, int64_t num_k, bool contiguous, uint32_t seed)
      : rows(num_rows), k(num_k), k_contiguous(contiguous) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * k; ++i) rounded.emplace_back(normal(generator));
  }
  int64_t stride() const { return k_contiguous ? k : rows; }
  size_t place(int64_t i, int64_t j) const { return static_cast<size_t>(k_contiguous ? i * k + j : j * rows + i); }
  double at(int64_t i, int64_t j) const { return static_cast<double>(static_cast<float>(rounded[place(i, j)])); }
  Bf16Operand operand() const { return {rounded.data(), stride(), k_contiguous}; }
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

TEST(Bf16Gemm, EveryLayoutIsTheProduct) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  for (const auto& [m, n, k] : kProductSizes) {
    for (int form = 0; form < 8; ++form) {
      const ProductMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
      const bool add = (form & 4) != 0;
      std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
      bf16_gemm(*kernels, m, n, k, a.operand(), b.operand(), add, c.data(), n + kGap);
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
  bf16_gemm(*kernels, m, n, k, a.operand(), b.operand(), false, two.data(), n);
  at::set_num_threads(1);
  bf16_gemm(*kernels, m, n, k, a.operand(), b.operand(), false, one.data(), n);
  EXPECT_EQ(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)), 0);
  for (const int64_t row : {0, 13, 2299}) {
    float alone = 0.0F;
    Bf16Operand left = a.operand(), right = b.operand();
    left.data = a.rounded.data() + row * k;
    right.data = b.rounded.data() + 69 * k;
    bf16_gemm(*kernels, 1, 1, k, left, right, false, &alone, 1);
    EXPECT_EQ(alone, one[static_cast<size_t>(row * n + 69)]) << row;
  }
}

// A panel word has an even k in its low half and the next one in its high half. An odd last k and rows that the operand
// lacks are zeros, whatever the panel held before.
TEST(Bf16Gemm, PackingPairsTheNumbersOfARow) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  for (const bool k_contiguous : {true, false}) {
    const ProductMatrix from(3, 11, k_contiguous, 1);
    std::vector<uint32_t> panel(static_cast<size_t>(6 * kBf16TileRows), ~0U);
    kernels->pack(from.operand(), 0, from.rows, kBf16TileRows, 0, from.k, panel.data());
    for (int64_t row = 0; row < kBf16TileRows; ++row) {
      for (int64_t k = 0; k < 12; ++k) {
        const auto half =
            static_cast<uint16_t>(panel[static_cast<size_t>(k / 2 * kBf16TileRows + row)] >> (k % 2 * 16));
        const bool is_there = row < from.rows && k < from.k;
        EXPECT_EQ(half, is_there ? from.rounded[from.place(row, k)].x : 0) << row << ", " << k;
      }
    }
  }
}

}  // namespace
}  // namespace mortise
