// exp and log against <cmath>; dual numbers against finite differences and torch's conventions at kinks.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "mortise/cpp/autodiff.hpp"

namespace mortise {
namespace {

double ulps(double got, double want) {
  return std::abs(got - want) / (std::nextafter(std::abs(want), INFINITY) - std::abs(want));
}

TEST(Exp, IsWithinTwoUlp) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> wide(-707, 709.7), narrow(-1, 1);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? wide(random) : narrow(random);
    worst = std::max(worst, ulps(detail::exp_of(x), std::exp(x)));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(detail::exp_of(0.0), 1.0);
}

TEST(Exp, Edges) {
  EXPECT_EQ(detail::exp_of(INFINITY), INFINITY);
  EXPECT_EQ(detail::exp_of(-INFINITY), 0.0);
  EXPECT_TRUE(std::isnan(detail::exp_of(NAN)));
  EXPECT_EQ(detail::exp_of(710), INFINITY);
  EXPECT_EQ(detail::exp_of(1e300), INFINITY);
  EXPECT_EQ(detail::exp_of(-1e300), 0.0);
  EXPECT_EQ(detail::exp_of(-709), 0.0) << "below the normal numbers";
  EXPECT_LE(ulps(detail::exp_of(-708), std::exp(-708)), 2.0);
  EXPECT_EQ(detail::exp_of(709.8), INFINITY);
  EXPECT_LE(ulps(detail::exp_of(709.78), std::exp(709.78)), 2.0);
}

TEST(Log, IsWithinTwoUlp) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> exponent(-700, 700), near_one(0.5, 2);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? std::exp(exponent(random)) : near_one(random);
    worst = std::max(worst, ulps(detail::log_of(x), std::log(x)));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(detail::log_of(1.0), 0.0);
}

TEST(Log, Edges) {
  EXPECT_EQ(detail::log_of(0.0), -INFINITY);
  EXPECT_EQ(detail::log_of(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(detail::log_of(-1.0)));
  EXPECT_TRUE(std::isnan(detail::log_of(NAN)));
  EXPECT_NEAR(detail::log_of(5e-324), std::log(5e-324), 1e-12);
  EXPECT_NEAR(detail::log_of(1e-310), std::log(1e-310), 1e-12);
}

// Every function of the header at many places: slope against the central difference of the value.
template <class F>
void expect_slope(const char* what, const F& f, double low, double high) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> place(low, high);
  for (int i = 0; i < 500; ++i) {
    const double x = place(random), h = 1e-6 * std::max(1.0, std::abs(x));
    const Dual y = f(Dual{x, 1});
    const double slope = (f(Dual{x + h, 1}).value - f(Dual{x - h, 1}).value) / (2 * h);
    ASSERT_NEAR(y.slope, slope, 1e-7 * std::max(1.0, std::abs(slope)) + 1e-8) << what << " at " << x;
  }
}

TEST(Dual, SlopesAreDerivatives) {
  expect_slope(
      "exp", [](Dual x) { return exp(x); }, -5, 5);
  expect_slope(
      "log", [](Dual x) { return log(x); }, 0.1, 9);
  expect_slope(
      "sigmoid", [](Dual x) { return sigmoid(3.0 * x); }, -4, 4);
  expect_slope(
      "quotient", [](Dual x) { return (x * x + 1) / (2 - x); }, -5, 1.5);
  expect_slope(
      "reciprocal", [](Dual x) { return 3.0 / (x * 2.0); }, 0.5, 5);
  expect_slope(
      "minus", [](Dual x) { return -(x - 1.0) * (4.0 - x) / 2.0 + 1.0; }, -5, 5);
  expect_slope(
      "abs", [](Dual x) { return abs(x) * x; }, 0.01, 3);
  expect_slope(
      "clamp", [](Dual x) { return clamp(x * x, 1.0, 4.0) + x; }, 1.1, 1.9);
  expect_slope(
      "clamp_max", [](Dual x) { return clamp_max(x * x, 9.0) + clamp_max(x, 1.0) * x; }, 1.1, 2.9);
  expect_slope(
      "max", [](Dual x) { return max(x, x * x) + max(x, -9.0) + min(8.0, x); }, 1.1, 1.9);
  expect_slope(
      "select", [](Dual x) { return select(x > 1.0, x * x, 2.0 - x) + select(x < 0.0, 1.0, x); }, 1.1, 3);
  expect_slope(
      "ppo", [](Dual x) { return max(-0.7 * exp(x), -0.7 * clamp(exp(x), 0.8, 1.2)); }, 0.3, 1);
}

TEST(Dual, KinksFollowTorch) {
  const Dual x{2, 1};
  EXPECT_EQ(max(x, 3.0 * x - 4.0).slope, 2.0) << "a tie: the mean of 1 and 3";
  EXPECT_EQ(min(x, 2.0).slope, 0.5);
  EXPECT_EQ(clamp(x, 2.0, 5.0).slope, 1.0) << "the edge itself lets the gradient through";
  EXPECT_EQ(clamp(x, 2.1, 5.0).slope, 0.0);
  EXPECT_EQ(clamp_max(x, 2.0).slope, 1.0);
  EXPECT_EQ(clamp_max(x, 1.9).slope, 0.0);
  EXPECT_EQ(max(3.0 * x - 4.0, x).slope, 2.0);
  EXPECT_EQ(max(2.0, x).slope, 0.5);
  EXPECT_EQ(min(1.0, x).slope, 0.0);
  EXPECT_EQ(max(1.0, x).slope, 1.0);
  EXPECT_EQ(clamp(x, 2.1, 5.0).value, 2.1);
  EXPECT_EQ(abs(Dual{0, 1}).slope, 0.0);
  EXPECT_EQ(detach(x), 2.0);
}

TEST(Dual, NaNComesThroughMinAndMax) {
  const Dual bad{NAN, 1}, good{1, 1};
  EXPECT_TRUE(std::isnan(max(bad, good).value));
  EXPECT_TRUE(std::isnan(max(good, bad).value));
  EXPECT_TRUE(std::isnan(min(bad, 1.0).value));
  EXPECT_TRUE(std::isnan(min(1.0, bad).value));
  EXPECT_TRUE(std::isnan(max(good, NAN).value));
  EXPECT_TRUE(std::isnan(min(NAN, good).value));
  EXPECT_TRUE(std::isnan(clamp_max(bad, 1).value));
  EXPECT_TRUE(std::isnan(clamp(bad, 0, 1).value));
}

}  // namespace
}  // namespace mortise
