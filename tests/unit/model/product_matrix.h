// Operands for the tests of matrix products, and the sums in double that the products are compared with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace mortise {

// [rows][k] random numbers, stored in either order.
template <class Number>
struct ProductMatrix {
  int64_t rows, k;
  bool k_contiguous;
  std::vector<Number> numbers;

  ProductMatrix(int64_t num_rows, int64_t num_k, bool contiguous, uint32_t seed)
      : rows(num_rows), k(num_k), k_contiguous(contiguous) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * k; ++i) numbers.emplace_back(normal(generator));
  }
  int64_t stride() const { return k_contiguous ? k : rows; }
  size_t place(int64_t i, int64_t j) const { return static_cast<size_t>(k_contiguous ? i * k + j : j * rows + i); }
  double at(int64_t i, int64_t j) const { return static_cast<double>(static_cast<float>(numbers[place(i, j)])); }
};

template <class Number>
double product_at(const ProductMatrix<Number>& a, const ProductMatrix<Number>& b, int64_t i, int64_t j) {
  double sum = 0.0;
  for (int64_t k = 0; k < a.k; ++k) sum += a.at(i, k) * b.at(j, k);
  return sum;
}

inline constexpr float kBefore = 3.0F;
inline constexpr int64_t kGap = 3;  // numbers between the rows of the result, which must stay

template <class Number>
void expect_product(const ProductMatrix<Number>& a, const ProductMatrix<Number>& b, double alpha, bool add,
                    const std::vector<float>& c) {
  const int64_t stride = b.rows + kGap;
  const double limit = 2e-6 * (1.0 + static_cast<double>(a.k));
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const double want = j >= b.rows ? kBefore : alpha * product_at(a, b, i, j) + (add ? kBefore : 0.0F);
      ASSERT_NEAR(c[static_cast<size_t>(i * stride + j)], want, j >= b.rows ? 0.0 : limit)
          << a.rows << " x " << b.rows << " x " << a.k << ": row " << i << ", column " << j;
    }
  }
}

// Fewer rows than a tile, tiles and a rest, more than one task; odd and even k, more than one block of k.
inline constexpr int64_t kProductSizes[][3] = {{1, 1, 1},      {5, 40, 3},   {14, 32, 64}, {70, 141, 33},
                                               {29, 65, 1027}, {3, 7, 2050}, {3, 5, 0}};

}  // namespace mortise
