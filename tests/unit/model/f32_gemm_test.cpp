// Products by the float32 kernels against sums in double, in every layout and for every instruction set that this CPU has.
#include "model/tensor/f32_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "model/tensor/blas.h"
#include "model/tensor/product.h"
#include "product_matrix.h"

namespace mortise {
namespace {

using blas::Trans;
using FloatMatrix = ProductMatrix<float>;

F32Operand operand(const FloatMatrix& matrix) { return {matrix.numbers.data(), matrix.stride(), matrix.k_contiguous}; }

std::vector<const F32Kernels*> kernels_of_this_cpu() {
  std::vector<const F32Kernels*> out;
#ifdef __x86_64__
  if (find_f32_kernels() != nullptr) out.push_back(&isa_avx2::kF32Kernels);
  if (find_f32_kernels() == &isa_avx512::kF32Kernels) out.push_back(find_f32_kernels());
#endif
  return out;
}

constexpr float kAlpha = 0.5F;

TEST(F32Gemm, EveryLayoutIsTheProduct) {
  if (kernels_of_this_cpu().empty()) GTEST_SKIP() << "this CPU lacks AVX2 and FMA";
  for (const F32Kernels* const kernels : kernels_of_this_cpu()) {
    for (const auto& [m, n, k] : kProductSizes) {
      for (int form = 0; form < 8; ++form) {
        const FloatMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
        const bool add = (form & 4) != 0;
        std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
        f32_gemm(*kernels, m, n, k, operand(a), operand(b), kAlpha, add, c.data(), n + kGap);
        expect_product(a, b, kAlpha, add, c);
      }
    }
  }
}

TEST(F32Gemm, BlasGemmIsTheSameProductOnEveryCpu) {
  std::vector<std::array<int64_t, 3>> sizes{{40, 200, 150}, {4, 200, 150}};  // wide and long enough for MKL
  for (const auto& [m, n, k] : kProductSizes) sizes.push_back({m, n, k});
  for (const auto& [m, n, k] : sizes) {
    for (int form = 0; form < 8; ++form) {
      const FloatMatrix a(m, k, (form & 1) == 0, 1), b(n, k, (form & 2) == 0, 2);
      const bool add = (form & 4) != 0;
      std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
      blas::gemm(a.k_contiguous ? Trans::kNo : Trans::kYes, b.k_contiguous ? Trans::kYes : Trans::kNo, m, n, k, kAlpha,
                 a.numbers.data(), a.stride(), b.numbers.data(), b.stride(), add ? 1.0F : 0.0F, c.data(), n + kGap);
      expect_product(a, b, kAlpha, add, c);
    }
  }
}

// Rows a multiple of 512 bytes apart, of which the kernels copy tiles.
TEST(F32Gemm, RowsThatShareThePlacesOfTheCacheAreMultipliedToo) {
  for (const F32Kernels* const kernels : kernels_of_this_cpu()) {
    for (const int64_t m : {128, 256}) {
      const int64_t n = 40, k = 70;
      const FloatMatrix a(m, k, false, 1), b(n, k, false, 2);
      ASSERT_EQ(a.stride(), m);
      for (const bool add : {true, false}) {
        std::vector<float> c(static_cast<size_t>(m * (n + kGap)), kBefore);
        f32_gemm(*kernels, m, n, k, operand(a), operand(b), kAlpha, add, c.data(), n + kGap);
        expect_product(a, b, kAlpha, add, c);
      }
    }
  }
}

// The numbers before a product are not read where it does not add: they may be anything.
TEST(F32Gemm, AProductThatDoesNotAddReadsNothingOfTheResult) {
  for (const F32Kernels* const kernels : kernels_of_this_cpu()) {
    for (const int64_t n : {5, 16, 32, 70}) {
      const FloatMatrix a(9, 3, true, 1), b(n, 3, true, 2);
      std::vector<float> c(static_cast<size_t>(9 * n), std::numeric_limits<float>::quiet_NaN());
      f32_gemm(*kernels, 9, n, 3, operand(a), operand(b), 1.0F, false, c.data(), n);
      for (const float number : c) ASSERT_TRUE(std::isfinite(number)) << n;
    }
  }
}

// A number of the result is the same alone and among others, and for any number of threads: also in columns that fill
// vectors, and with a factor that rounds.
TEST(F32Gemm, BitsDependNeitherOnThreadsNorOnOtherNumbers) {
  if (kernels_of_this_cpu().empty()) GTEST_SKIP() << "this CPU lacks AVX2 and FMA";
  const int64_t m = 1100, n = 330, k = 600;  // more than one block of k
  constexpr float kFactor = 0.3F;
  for (const F32Kernels* const kernels : kernels_of_this_cpu()) {
    for (const bool k_contiguous : {true, false}) {
      const FloatMatrix a(m, k, k_contiguous, 1), b(n, k, k_contiguous, 2);
      std::vector<float> two(static_cast<size_t>(m * n)), one = two;
      at::set_num_threads(2);
      f32_gemm(*kernels, m, n, k, operand(a), operand(b), kFactor, false, two.data(), n);
      at::set_num_threads(1);
      f32_gemm(*kernels, m, n, k, operand(a), operand(b), kFactor, false, one.data(), n);
      EXPECT_EQ(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)), 0);
      for (const int64_t row : {0, 13, 1099}) {
        for (const int64_t column : {0, 40, 77, 329}) {
          float alone = 0.0F;
          F32Operand left = operand(a), right = operand(b);
          left.data = a.numbers.data() + a.place(row, 0);
          right.data = b.numbers.data() + b.place(column, 0);
          f32_gemm(*kernels, 1, 1, k, left, right, kFactor, false, &alone, 1);
          EXPECT_EQ(alone, one[static_cast<size_t>(row * n + column)]) << row << ", " << column;
        }
      }
    }
  }
}

// Sums of all lengths are cut into blocks of at most kF32BlockK terms, without gaps; more than one block are an even number.
TEST(F32Gemm, BlocksOfASumCoverItAndAreEvenInNumber) {
  for (int64_t k = 0; k <= 5000; ++k) {
    const int64_t count = num_f32_blocks(k);
    EXPECT_TRUE(count == 1 || count % 2 == 0) << k;
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
      const BlockRange block = f32_block(k, i);
      ASSERT_EQ(block.begin, next) << k;
      ASSERT_LE(block.size(), kF32BlockK) << k;
      ASSERT_GE(block.size(), k == 0 ? 0 : 1) << k;
      next = block.end;
    }
    ASSERT_EQ(next, k);
  }
}

// A block of a product of transposed rows is what f32_gemm() makes of it, alone and added.
TEST(F32Gemm, TransposedProductsHaveTheBitsOfTheProduct) {
  for (const F32Kernels* const kernels : kernels_of_this_cpu()) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {70, 33, 256}, {9, 64, 200}}) {
      const FloatMatrix a(m, k, false, 1), b(n, k, false, 2);
      std::vector<float> expected(static_cast<size_t>(m * n), 0.5F), out = expected;
      std::vector<float> panels(static_cast<size_t>((n + kF32Columns - 1) / kF32Columns * kF32Columns * k));
      for (const bool add : {true, false}) {
        f32_gemm(*kernels, m, n, k, operand(a), operand(b), 0.3F, add, expected.data(), n);
        f32_transposed_product(*kernels, m, n, k, a.numbers.data(), a.stride(), b.numbers.data(), b.stride(), 0.3F,
                               panels.data(), out.data(), add);
        EXPECT_EQ(out, expected) << m << ", " << n << ", " << k;
      }
    }
  }
}

// Slices of wider matrices, matrices that are no rows in memory, and float64: each is libtorch's product.
TEST(MatrixProduct, IsTheProductOfLibtorchForEveryKindOfTensor) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::TensorOptions options = at::TensorOptions().dtype(dtype);
    const at::Tensor wide = at::randn({20, 50}, options), added = at::randn({7}, options);
    const at::Tensor matrices[] = {wide.narrow(1, 3, 20), wide.narrow(1, 0, 20).t(),
                                   wide.narrow(0, 0, 1).expand({20, 50}).narrow(1, 0, 20)};
    const at::Tensor right = at::randn({20, 7}, options);
    for (const at::Tensor& left : matrices) {
      EXPECT_TRUE(matrix_product(left, Trans::kNo, right, Trans::kNo).allclose(at::mm(left, right), 1e-5, 1e-5));
      EXPECT_TRUE(matrix_product(left, Trans::kYes, right, Trans::kNo).allclose(at::mm(left.t(), right), 1e-5, 1e-5));
      EXPECT_TRUE(
          matrix_product(right, Trans::kYes, left, Trans::kYes).allclose(at::mm(right.t(), left.t()), 1e-5, 1e-5));
      EXPECT_TRUE(matrix_product(left, Trans::kNo, right, Trans::kNo, added)
                      .allclose(at::addmm(added, left, right), 1e-5, 1e-5));
    }
  }
}

// The same with an added matrix, in its own memory and in another one. The result may be columns of a wider matrix.
TEST(MatrixProduct, IsAddedToEveryKindOfTensor) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::TensorOptions options = at::TensorOptions().dtype(dtype);
    const at::Tensor a = at::randn({20, 9}, options), b = at::randn({9, 7}, options),
                     base = at::randn({20, 7}, options);
    const at::Tensor expected = at::addmm(base, a, b, 1.0, 0.5);
    const at::Tensor wide = at::full({20, 12}, 4.0, options), columns = wide.narrow(1, 2, 7);
    add_product(columns, base, a, Trans::kNo, b, Trans::kNo, 0.5);
    EXPECT_TRUE(columns.allclose(expected, 1e-5, 1e-5));
    EXPECT_TRUE(wide.narrow(1, 0, 2).eq(4.0).all().item<bool>() && wide.narrow(1, 9, 3).eq(4.0).all().item<bool>());
    for (const at::Tensor& out : {base.clone(), base.t().contiguous().t()}) {
      add_product(out, out, a.t(), Trans::kYes, b.t().contiguous(), Trans::kYes, 0.5);
      EXPECT_TRUE(out.allclose(expected, 1e-5, 1e-5));
    }
  }
}

// The same call for the same numbers in memory, however they are named.
TEST(MatrixProduct, OfATransposedTensorHasTheBitsOfTheMatrix) {
  const at::Tensor a = at::randn({300, 200}), b = at::randn({300, 150});
  const at::Tensor expected = matrix_product(a, Trans::kYes, b, Trans::kNo);
  EXPECT_TRUE(matrix_product(a.t(), Trans::kNo, b, Trans::kNo).equal(expected));
  EXPECT_TRUE(matrix_product(a, Trans::kYes, b.t(), Trans::kYes).equal(expected));
}

}  // namespace
}  // namespace mortise
