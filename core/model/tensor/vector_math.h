// exp and tanh without branches or calls, so that every CPU clone can vectorise a loop over them.
//
// Argument reduction x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 split in two parts, Cody and Waite 1980), a Taylor
// polynomial in r, and 2^n built from bits. Relative error below 2e-7 (float) and 1e-15 (double) on the supported
// range. Below it the result is 0 (also for -inf), above it that of the upper bound. NaN stays NaN.
// Do not compile a file that uses it with -fassociative-math. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

namespace mortise {

inline __attribute__((always_inline)) float fast_exp(float x) {
  constexpr float kMin = -87.3f;
  constexpr float kMax = 88.3f;
  const float clamped = x < kMin ? kMin : (x > kMax ? kMax : x);
  const float n = __builtin_nearbyintf(clamped * 1.44269504088896341f);
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return x < kMin ? 0.0f : p * scale;
}

inline __attribute__((always_inline)) double fast_exp(double x) {
  constexpr double kMin = -708.0;
  constexpr double kMax = 709.0;
  const double clamped = x < kMin ? kMin : (x > kMax ? kMax : x);
  const double n = __builtin_nearbyint(clamped * 1.4426950408889634074);
  const double r = (clamped - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // through int32: AVX2 has no conversion from double to int64
  const int64_t bits = (static_cast<int64_t>(static_cast<int32_t>(n)) + 1023) << 52;
  double scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return x < kMin ? 0.0 : p * scale;
}

// tanh x = 1 - 2 / (exp 2|x| + 1) with the sign of x; near 0, where that cancels, a polynomial (Moshier, Cephes).
inline __attribute__((always_inline)) float fast_tanh(float x) {
  const float size = x < 0.0f ? -x : x;
  const float far = 1.0f - 2.0f / (fast_exp(2.0f * size) + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = x + x * z * p;
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

inline __attribute__((always_inline)) double fast_tanh(double x) {
  const double size = x < 0.0 ? -x : x;
  const double far = 1.0 - 2.0 / (fast_exp(2.0 * size) + 1.0);  // absolute error 2e-16 is enough next to a cap
  return x < 0.0 ? -far : far;
}

}  // namespace mortise
