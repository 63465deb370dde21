// Comparing numbers with the tolerance rule of the goldens: the error is measured against the largest element.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace mortise::test {

// Largest |a - b| / max(|b|, floor); infinite where the sizes differ or exactly one side is not finite. Equal NaNs and
// equal infinities count as equal.
template <class A, class B>
double relative_to_max(std::span<const A> actual, std::span<const B> expected, double floor = 1e-30) {
  if (actual.size() != expected.size()) return INFINITY;
  double largest = floor, error = 0;
  for (const B value : expected) {
    if (std::isfinite(static_cast<double>(value))) largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!std::isfinite(a) || !std::isfinite(b)) return INFINITY;
    error = std::max(error, std::abs(a - b));
  }
  return error / largest;
}

// EXPECT_TRUE(all_close(actual, expected, 1e-5)) names the worst element.
template <class A, class B>
::testing::AssertionResult all_close(const A& actual, const B& expected, double tolerance) {
  const std::span a(actual.data(), actual.size());
  const std::span b(expected.data(), expected.size());
  using X = typename decltype(a)::element_type;
  using Y = typename decltype(b)::element_type;
  const double error = relative_to_max<std::remove_const_t<X>, std::remove_const_t<Y>>(a, b);
  if (error <= tolerance) return ::testing::AssertionSuccess();
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " values, expected " << b.size();
  size_t worst = 0;
  double worst_error = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    const double e = x == y || (std::isnan(x) && std::isnan(y)) ? 0 : std::isfinite(x - y) ? std::abs(x - y) : INFINITY;
    if (e > worst_error) worst_error = e, worst = i;
  }
  return ::testing::AssertionFailure() << "element " << worst << " is " << a[worst] << ", expected " << b[worst]
                                       << "; error relative to the largest element " << error << " > " << tolerance;
}

}  // namespace mortise::test
