/* exp and log that a compiler can vectorise, and the other building blocks of a loss, for plain doubles.
 *
 * Losses are computed in double: float32 inputs keep all their digits, clip edges are exact, and the loop is still near
 * the memory's speed. Everything here is branch-free (select, not if), so that a loop over tokens turns into SIMD at
 * whatever width its function is compiled for.
 * exp: x = k ln2 + r, |r| <= ln2/2, 11 powers of r; log: x = 2^k m, m in [sqrt 1/2, sqrt 2), 15 powers of
 * (m - 1) / (m + 1); coefficients of the least greatest error (Remez), 3.7e-18 and 1.3e-18 of the value. Both within
 * 2 ulp of the true value; infinities, zeros and NaN as in <cmath> (exp flushes to 0 below -708).
 */
#ifndef MORTISE_CPP_MATH_HPP_
#define MORTISE_CPP_MATH_HPP_

#include <cstdint>
#include <limits>

#define MORTISE_INLINE inline __attribute__((always_inline))
#define MORTISE_LAMBDA_INLINE __attribute__((always_inline))
#if defined(__CUDACC__)
#define MORTISE_HD __host__ __device__
#else
#define MORTISE_HD
#endif

namespace mortise {

namespace detail {

MORTISE_HD MORTISE_INLINE std::int64_t bits_of(double x) {
  std::int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
MORTISE_HD MORTISE_INLINE double from_bits(std::int64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// `yes` where the condition holds, else `no`, from bits: a compiler makes branches of `?:` and then no SIMD of the
// loop.
MORTISE_HD MORTISE_INLINE double select_of(bool condition, double yes, double no) {
  const std::int64_t chosen = -std::int64_t(condition);
  return from_bits((bits_of(yes) & chosen) | (bits_of(no) & ~chosen));
}

// x where the mask is all ones, 0 where it is 0, whatever x is.
MORTISE_HD MORTISE_INLINE double masked(double x, std::int64_t mask) { return from_bits(bits_of(x) & mask); }

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
// 1.5 * 2^52: adding it leaves the nearest integer in the low bits of the sum.
inline constexpr double kToInteger = 6755399441055744.0;
inline constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;

MORTISE_HD MORTISE_INLINE double abs_of(double x) { return from_bits(bits_of(x) & 0x7fffffffffffffffLL); }

MORTISE_HD MORTISE_INLINE double exp_of(double x) {
  constexpr double kHigh = 709.782712893384, kLow = -708.0;
  const double shifted = x * 1.4426950408889634 + kToInteger;
  const double k = shifted - kToInteger;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  // 2 exp(r) = 2 + 2r + r^2 q(r), the even and the odd powers of q side by side.
  const double r2 = r * r;
  double even = r2 * 0x1.28ad7268ca8edp-21 + 0x1.a0199a0cdab44p-15;
  even = even * r2 + 0x1.6c16c18429e42p-9;
  even = even * r2 + 0x1.555555555087dp-4;
  even = even * r2 + 0x1.000000000000ap+0;
  double odd = r2 * 0x1.ad7f57fb72ecdp-25 + 0x1.71df255ea59bep-18;
  odd = odd * r2 + 0x1.a01a012a533edp-12;
  odd = odd * r2 + 0x1.1111111127befp-6;
  odd = odd * r2 + 0x1.55555555554fap-2;
  const double p = r2 * (odd * r + even) + (r * 2.0 + 2.0);
  // 2^(k-1), so that k = 1024 does not overflow the exponent field.
  const double value = p * from_bits(std::int64_t((std::uint64_t(bits_of(shifted)) + 1022) << 52));
  // At the end, where the comparisons have long been made: every step above waits for the one before.
  return select_of(x < kLow, 0.0, select_of(x > kHigh, kInfinity, value));
}

MORTISE_HD MORTISE_INLINE double log_of(double x) {
  constexpr double kTiny = 2.2250738585072014e-308;
  const bool denormal = x < kTiny;  // scaled into the normal range first, 54 taken off at the end
  const std::uint64_t bits = std::uint64_t(bits_of(select_of(denormal, x * 18014398509481984.0, x)));
  // k = the exponent that leaves the mantissa in [sqrt 1/2, sqrt 2); biased by 1024 to stay unsigned.
  const std::uint64_t offset = bits - 0x3fe6a09e667f3bcdULL + (1024ULL << 52);
  const std::uint64_t mantissa = bits - (offset & 0xfff0000000000000ULL) + (1024ULL << 52);
  // As an integer in the low bits of 2^52, read back as a double.
  const double biased = from_bits(std::int64_t((offset >> 52) | 0x4330000000000000ULL)) - 4503599627370496.0;
  const double k = biased - select_of(denormal, 1078.0, 1024.0);
  const double m = from_bits(std::int64_t(mantissa));
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s, s4 = s2 * s2;
  double even = s4 * 0x1.2f06fee7be127p-3 + 0x1.7466405775bafp-3;
  even = even * s4 + 0x1.24924941f8c59p-2;
  even = even * s4 + 0x1.5555555555592p-1;
  double odd = s4 * 0x1.39a193c5e5efbp-3 + 0x1.c71c5202c266ep-3;
  odd = odd * s4 + 0x1.999999997fd37p-2;
  const double p = odd * s2 + even;
  double value = k * kLn2High + (2.0 * s + (s * s2 * p + k * kLn2Low));
  value = select_of(x == kInfinity, kInfinity, value);
  return select_of(x > 0.0, value, select_of(x == 0.0, -kInfinity, std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace detail

// `yes` where the condition holds, else `no`. Both are computed.
MORTISE_HD MORTISE_INLINE double select(bool condition, double yes, double no) {
  return detail::select_of(condition, yes, no);
}

}  // namespace mortise

#endif  // MORTISE_CPP_MATH_HPP_
