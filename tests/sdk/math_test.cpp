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
double ulps_f32(float got, double want) {
  const float size = std::abs(static_cast<float>(want));
  return std::abs(static_cast<double>(got) - want) / static_cast<double>(std::nextafter(size, INFINITY) - size);
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
  EXPECT_EQ(detail::exp_of(710.0), INFINITY);
  EXPECT_EQ(detail::exp_of(1e300), INFINITY);
  EXPECT_EQ(detail::exp_of(-1e300), 0.0);
  EXPECT_EQ(detail::exp_of(-709.0), 0.0) << "below the normal numbers";
  EXPECT_LE(ulps(detail::exp_of(-708.0), std::exp(-708)), 2.0);
  EXPECT_EQ(detail::exp_of(709.8), INFINITY);
  EXPECT_LE(ulps(detail::exp_of(709.78), std::exp(709.78)), 2.0);
}

TEST(Exp, OfFloats) {
  double worst = 0;
  for (float x = -86.49F; x < 88.7F; x += 0.00037F) worst = std::max(worst, ulps_f32(detail::exp_of(x), std::exp(x)));
  for (float x = -1.0F; x < 1.0F; x += 0.0000071F) {
    worst = std::max(worst, ulps_f32(detail::exp_of(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(detail::exp_of(0.0F), 1.0F);
  EXPECT_EQ(detail::exp_of(INFINITY), INFINITY);
  EXPECT_EQ(detail::exp_of(88.73F), INFINITY);
  EXPECT_EQ(detail::exp_of(1e38F), INFINITY);
  EXPECT_EQ(detail::exp_of(-INFINITY), 0.0F);
  EXPECT_EQ(detail::exp_of(-1e38F), 0.0F);
  EXPECT_EQ(detail::exp_of(-87.5F), 0.0F) << "below the normal numbers";
  EXPECT_TRUE(std::isnan(detail::exp_of(std::nanf(""))));
  EXPECT_LE(ulps_f32(detail::exp_of(88.72F), std::exp(static_cast<double>(88.72F))), 2.0);
}

TEST(Log, OfFloats) {
  double worst = 0;
  for (float x = 1e-37F; x < 1e37F; x *= 1.00071F) {
    worst = std::max(worst, ulps_f32(detail::log_of(x), std::log(static_cast<double>(x))));
  }
  for (float x = 0.5F; x < 2.0F; x += 0.0000071F) {
    worst = std::max(worst, ulps_f32(detail::log_of(x), std::log(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(detail::log_of(1.0F), 0.0F);
  EXPECT_EQ(detail::log_of(0.0F), -INFINITY);
  EXPECT_EQ(detail::log_of(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(detail::log_of(-1.0F)));
  EXPECT_TRUE(std::isnan(detail::log_of(std::nanf(""))));
  EXPECT_EQ(detail::log_of(1e-40F), -INFINITY) << "below the normal numbers";
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
      "exp_inside", [](Dual x) { return exp_inside(x); }, -5, 5);
  expect_slope(
      "log", [](Dual x) { return log(x); }, 0.1, 9);
  expect_slope(
      "sigmoid", [](Dual x) { return sigmoid(3.0 * x); }, -4, 4);
  expect_slope(
      "sqrt", [](Dual x) { return sqrt(x); }, 0.1, 9);
  expect_slope(
      "tanh", [](Dual x) { return tanh(2.0 * x); }, -3, 3);
  expect_slope(
      "log1p", [](Dual x) { return log1p(x * x); }, -3, 3);
  expect_slope(
      "expm1", [](Dual x) { return expm1(x) * x; }, -2, 2);
  expect_slope(
      "pow", [](Dual x) { return pow(x, 2.5) + pow(x, -1.0) + pow(x, 0.0) + pow(-x, 3.0); }, 0.2, 3);
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
  EXPECT_EQ(sqrt(Dual{0, 1}).slope, INFINITY);
  EXPECT_EQ(pow(Dual{0, 1}, 0.0).slope, 0.0);
  EXPECT_EQ(pow(Dual{0, 1}, 1.0).slope, 1.0);
  EXPECT_TRUE(std::isnan(pow(Dual{-1, 1}, 0.5).value));
  EXPECT_EQ(detach(x), 2.0);
}

// One function of both kinds of numbers, with literals, parameters in double, constants and every operation.
template <class Real, class Number>
Real everything(Real x, Number c) {
  const double parameter = 0.7;
  const Real r = exp(clamp(x - c, -20.0, 20.0)) * parameter + 1 - c / (2.0 + abs(x));
  const Real gate = select(c > 0.5, sigmoid(3 * r), log(r + 4.0));
  const Real late = tanh(r) + log1p(abs(x)) * 0.5 - expm1(0.1 * x) + pow(sqrt(abs(r) + 0.1), 1.5);
  return max(-parameter * gate, min(r, 1.5)) - detach(x) * clamp_max(x, parameter) + 0.1 * late;
}

TEST(Single, IsTheSameFunctionInFloat32) {
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> place(-3, 3);
  for (int i = 0; i < 2000; ++i) {
    const auto x = static_cast<float>(place(random)), c = static_cast<float>(place(random));
    const Dual exact = everything(Dual{x, 1}, double(c));
    const BasicDual<Single> got = everything(BasicDual<Single>{Single::of(x), 1.0}, Single::of(c));
    ASSERT_NEAR(got.value.value, exact.value, 4e-6 * (1 + std::abs(exact.value))) << x << ' ' << c;
    ASSERT_NEAR(got.slope.value, exact.slope, 4e-6 * (1 + std::abs(exact.slope))) << x << ' ' << c;
  }
}

// As authors' code has them, too: with their namespace.
TEST(Dual, FunctionsAreFoundByName) {
  const Dual x{0.5, 1};
  EXPECT_EQ(mortise::value_of(mortise::exp(x)), mortise::detail::exp_of(0.5));
  EXPECT_EQ(mortise::value_of(mortise::select(true, mortise::clamp(x, 0, 1), mortise::max(x, 2))), 0.5);
  EXPECT_EQ(mortise::detach(mortise::min(1.0, x)), 0.5);
}

// Values at which the naive formulas lose digits.
TEST(Dual, Log1pAndExpm1AreExactNearZero) {
  EXPECT_EQ(log1p(Dual{1e-20, 1}).value, 1e-20);
  EXPECT_EQ(expm1(Dual{1e-20, 1}).value, 1e-20);
  EXPECT_EQ(tanh(Dual{1e-20, 1}).value, 1e-20);
  EXPECT_EQ(tanh(Dual{1e3, 1}).slope, 0.0);
}

// A double in the expression must not turn it into a double, and there is no implicit conversion back.
TEST(Single, StaysOne) {
  const Single x = 0.1;
  static_assert(std::is_same_v<decltype(-x * 2.0), Single> && std::is_same_v<decltype(1 - x), Single>);
  static_assert(!std::is_convertible_v<Single, double> && !std::is_convertible_v<Single, float>);
  EXPECT_EQ((x + 0.2).value, 0.1F + 0.2F);
  EXPECT_EQ(exp(x).value, detail::exp_of(0.1F));
  EXPECT_EQ(select(x > 0.05, x, 0.0).value, 0.1F);
  EXPECT_EQ(abs(-x).value, 0.1F);
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
