// Products by the kernels for AVX512_BF16 against sums in double, in every layout. On a CPU without the instructions the
// tests of kernels are skipped, and that of blas::gemm tests MKL's.
#include "model/tensor/bf16_gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "model/tensor/blas.h"
#include "product_matrix.h"

namespace mortise {
namespace {

using blas::Trans;

using RoundedMatrix = ProductMatrix<c10::BFloat16>;

Bf16Operand operand(const RoundedMatrix& matrix) {
  return {matrix.numbers.data(), matrix.stride(), matrix.k_contiguous};
}

TEST(Bf16Gemm, EveryLayoutIsTheProduct) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  for (const auto& [m, n, k] : kProductSizes) {
    for (int form = 0; form < 8; ++form) {
      const RoundedMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
      const bool add = (form & 4) != 0;
      std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
      bf16_gemm(*kernels, m, n, k, operand(a), operand(b), add, c.data(), n + kGap);
      expect_product(a, b, 1.0, add, c);
    }
  }
}

TEST(Bf16Gemm, BlasGemmIsTheSameProductOnEveryCpu) {
  for (const auto& [m, n, k] : kProductSizes) {
    for (int form = 0; form < 8; ++form) {
      const RoundedMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
      const bool add = (form & 4) != 0;
      std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
      blas::gemm(a.k_contiguous ? Trans::kNo : Trans::kYes, b.k_contiguous ? Trans::kYes : Trans::kNo, m, n, k, 1.0F,
                 a.numbers.data(), a.stride(), b.numbers.data(), b.stride(), add ? 1.0F : 0.0F, c.data(), n + kGap);
      expect_product(a, b, 1.0, add, c);
    }
  }
}

// A number of the result is the same alone and among others, and for any number of threads.
TEST(Bf16Gemm, BitsDependNeitherOnThreadsNorOnOtherRows) {
  const Bf16Kernels* const kernels = find_bf16_kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  const int64_t m = 2300, n = 70, k = 1100;  // more than one block of rows and of k
  const RoundedMatrix a(m, k, true, 1), b(n, k, true, 2);
  std::vector<float> two(static_cast<size_t>(m * n)), one = two;
  at::set_num_threads(2);
  bf16_gemm(*kernels, m, n, k, operand(a), operand(b), false, two.data(), n);
  at::set_num_threads(1);
  bf16_gemm(*kernels, m, n, k, operand(a), operand(b), false, one.data(), n);
  EXPECT_EQ(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)), 0);
  for (const int64_t row : {0, 13, 2299}) {
    float alone = 0.0F;
    Bf16Operand left = operand(a), right = operand(b);
    left.data = a.numbers.data() + row * k;
    right.data = b.numbers.data() + 69 * k;
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
    const RoundedMatrix from(3, 11, k_contiguous, 1);
    std::vector<uint32_t> panel(static_cast<size_t>(6 * kBf16TileRows), ~0U);
    kernels->pack(operand(from), 0, from.rows, kBf16TileRows, 0, from.k, panel.data());
    for (int64_t row = 0; row < kBf16TileRows; ++row) {
      for (int64_t k = 0; k < 12; ++k) {
        const auto half =
            static_cast<uint16_t>(panel[static_cast<size_t>(k / 2 * kBf16TileRows + row)] >> (k % 2 * 16));
        const bool is_there = row < from.rows && k < from.k;
        EXPECT_EQ(half, is_there ? from.numbers[from.place(row, k)].x : 0) << row << ", " << k;
      }
    }
  }
}

}  // namespace
}  // namespace mortise
