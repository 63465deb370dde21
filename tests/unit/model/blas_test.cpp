// Sizes that BLAS cannot count, and bits that do not depend on threads.
#include "model/tensor/blas.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace mortise {
namespace {

using blas::Trans;

TEST(Blas, ASizeAboveIntIsAnErrorAndNotAnotherSize) {
  constexpr int64_t kBig = int64_t{std::numeric_limits<int>::max()} + 1;  // as an int: negative
  constexpr int64_t kWraps = (int64_t{1} << 32) + 2;                      // as an int: 2
  float a[4] = {1, 2, 3, 4}, c[4] = {};
  for (const int64_t bad : {kBig, kWraps, int64_t{-1}}) {
    int64_t sizes[6] = {2, 2, 2, 2, 2, 2};  // m, n, k, lda, ldb, ldc
    for (int64_t& size : sizes) {
      size = bad;
      EXPECT_THROW(blas::gemm(Trans::kNo, Trans::kNo, sizes[0], sizes[1], sizes[2], 1.0F, a, sizes[3], a, sizes[4],
                              0.0F, c, sizes[5]),
                   c10::Error);
      size = 2;
    }
  }
  blas::gemm(Trans::kNo, Trans::kNo, 2, 2, 2, 1.0F, a, 2, a, 2, 0.0F, c, 2);
  EXPECT_EQ(c[3], 22.0F);
}

template <class T>
std::vector<T> product_by(int num_threads, Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k,
                          const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> c(static_cast<size_t>(m * n), T(1));
  const int before = at::get_num_threads();
  at::set_num_threads(num_threads);
  blas::gemm(trans_a, trans_b, m, n, k, T(0.3), a.data(), trans_a == Trans::kNo ? k : m, b.data(),
             trans_b == Trans::kNo ? n : k, T(1), c.data(), n);
  at::set_num_threads(before);
  return c;
}

template <class T>
void expect_same_bits(int64_t m, int64_t n, int64_t k) {
  std::mt19937 generator(1);
  std::normal_distribution<double> normal;
  std::vector<T> a, b;
  for (int64_t i = 0; i < m * k; ++i) a.push_back(static_cast<T>(normal(generator)));
  for (int64_t i = 0; i < n * k; ++i) b.push_back(static_cast<T>(normal(generator)));
  for (const Trans trans_a : {Trans::kNo, Trans::kYes}) {
    for (const Trans trans_b : {Trans::kNo, Trans::kYes}) {
      SCOPED_TRACE(testing::Message() << sizeof(T) << " bytes, " << m << " x " << n << " x " << k);
      const std::vector<T> one = product_by(1, trans_a, trans_b, m, n, k, a, b);
      for (const int num_threads : {2, 3}) EXPECT_EQ(product_by(num_threads, trans_a, trans_b, m, n, k, a, b), one);
      const auto at = [](const std::vector<T>& from, bool is_first, int64_t i, int64_t j, int64_t rows,
                         int64_t columns) {
        return static_cast<double>(from[static_cast<size_t>(is_first ? i * columns + j : j * rows + i)]);
      };
      double sum = 0.0;  // the last number: of the last tile
      for (int64_t i = 0; i < k; ++i)
        sum += at(a, trans_a == Trans::kNo, m - 1, i, m, k) * at(b, trans_b == Trans::kNo, i, n - 1, k, n);
      EXPECT_NEAR(one.back(), 1.0 + 0.3 * sum, 1e-3);
    }
  }
}

// Also of products that MKL computes: of few rows, and of float64. Some have more than one tile in each direction.
TEST(Blas, BitsDoNotDependOnThreads) {
  for (const int64_t m : {1, 5, 40}) {
    expect_same_bits<float>(m, 900, 300);
    expect_same_bits<double>(m, 900, 300);
  }
  expect_same_bits<double>(8, 16, 300);
  expect_same_bits<double>(600, 700, 200);
}

}  // namespace
}  // namespace mortise
