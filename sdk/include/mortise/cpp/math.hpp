/* exp and log that a compiler can vectorise, and the other building blocks of a loss, for double and for float.
 *
 * Everything here is branch-free (select, not if), so that a loop over tokens turns into SIMD at whatever width its
 * function is compiled for.
 * exp: x = k ln2 + r, |r| <= ln2/2, 11 powers of r (float: 6); log: x = 2^k m, m in [sqrt 1/2, sqrt 2), 15 powers of
 * (m - 1) / (m + 1) (float: 7); coefficients of the least greatest error (Remez), 3.7e-18 and 1.3e-18 of the value
 * (float: 3.1e-9 and 8.1e-10). All within 2 ulp of the true value; infinities, zeros and NaN as in <cmath> (exp flushes
 * to 0 below -708, float: -86.5; log of a float takes those below 1.2e-38 for 0).
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

MORTISE_HD MORTISE_INLINE std::int32_t bits_of(float x) {
  std::int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
MORTISE_HD MORTISE_INLINE float from_bits(std::int32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// `yes` if the condition holds, else `no`, from bits. A compiler makes branches of `?:` and then does not vectorise the
// loop.
MORTISE_HD MORTISE_INLINE double select_of(bool condition, double yes, double no) {
  const std::int64_t chosen = -std::int64_t(condition);
  return from_bits((bits_of(yes) & chosen) | (bits_of(no) & ~chosen));
}

MORTISE_HD MORTISE_INLINE float select_of(bool condition, float yes, float no) {
  const std::int32_t chosen = -std::int32_t(condition);
  return from_bits((bits_of(yes) & chosen) | (bits_of(no) & ~chosen));
}

// x where the mask is all ones, 0 where it is 0, whatever x is.
MORTISE_HD MORTISE_INLINE double masked(double x, std::int64_t mask) { return from_bits(bits_of(x) & mask); }
MORTISE_HD MORTISE_INLINE float masked(float x, std::int32_t mask) { return from_bits(bits_of(x) & mask); }

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr float kInfinityF = std::numeric_limits<float>::infinity();
inline constexpr float kNaNF = std::numeric_limits<float>::quiet_NaN();
// 1.5 * 2^52: adding it leaves the nearest integer in the low bits of the sum.
inline constexpr double kToInteger = 6755399441055744.0;
inline constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;

MORTISE_HD MORTISE_INLINE double abs_of(double x) { return from_bits(bits_of(x) & std::int64_t(0x7fffffffffffffff)); }

MORTISE_HD MORTISE_INLINE float abs_of(float x) { return from_bits(bits_of(x) & 0x7fffffff); }

// exp of a number that is far from the ends of its type's range.
MORTISE_HD MORTISE_INLINE double exp_inside(double x) {
  const double shifted = x * 1.4426950408889634 + kToInteger;
  const double k = shifted - kToInteger;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  // 2 exp(r) = 2 + 2r + r^2 q(r), with the even and the odd powers of q computed in parallel.
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
  return p * from_bits(std::int64_t((std::uint64_t(bits_of(shifted)) + 1022) << 52));
}

MORTISE_HD MORTISE_INLINE float exp_inside(float x) {
  constexpr float kToNearest = 12582912.0F;  // 1.5 * 2^23
  const float shifted = x * 1.44269504F + kToNearest;
  const float k = shifted - kToNearest;
  const float r = (x - k * 0x1.63p-1F) - k * -0x1.bd0106p-13F;  // ln2 in two parts, the product with the first exact
  const float r2 = r * r;
  const float low = r * 0x1.555492p-2F + 0x1.fffffcp-1F;
  const float high = r2 * 0x1.6a242cp-9F + (r * 0x1.1239e2p-6F + 0x1.5558f2p-4F);
  const float p = r2 * (r2 * high + low) + (r * 2.0F + 2.0F);
  return p * from_bits(std::int32_t((std::uint32_t(bits_of(shifted)) + 126) << 23));
}

MORTISE_HD MORTISE_INLINE double exp_of(double x) {
  return select_of(x < -708.0, 0.0, select_of(x > 709.782712893384, kInfinity, exp_inside(x)));
}
MORTISE_HD MORTISE_INLINE float exp_of(float x) {
  return select_of(x < -86.5F, 0.0F, select_of(x > 88.72283F, kInfinityF, exp_inside(x)));
}

MORTISE_HD MORTISE_INLINE double log_of(double x) {
  constexpr double kTiny = 2.2250738585072014e-308;
  const bool denormal = x < kTiny;  // first scaled into the normal range; 54 is subtracted at the end
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
  return select_of(x > 0.0, value, select_of(x == 0.0, -kInfinity, kNaN));
}

MORTISE_HD MORTISE_INLINE float log_of(float x) {
  constexpr float kTiny = 1.17549435e-38F;
  const std::uint32_t bits = std::uint32_t(bits_of(x));
  const std::uint32_t offset = bits - 0x3f3504f3U;  // that of sqrt 1/2
  const std::uint32_t mantissa = bits - (offset & 0xff800000U);
  const float k = float(std::int32_t(offset) >> 23);
  const float m = from_bits(std::int32_t(mantissa));
  const float s = (m - 1.0F) / (m + 1.0F);
  const float s2 = s * s;
  const float p = (s2 * 0x1.31e34cp-2F + 0x1.995eb6p-2F) * s2 + 0x1.55557ap-1F;
  float value = k * 0x1.63p-1F + (2.0F * s + (s * s2 * p + k * -0x1.bd0106p-13F));
  value = select_of(x == kInfinityF, kInfinityF, value);
  return select_of(x >= kTiny, value, select_of(x >= 0.0F, -kInfinityF, kNaNF));
}

MORTISE_HD MORTISE_INLINE double sqrt_of(double x) { return __builtin_sqrt(x); }
MORTISE_HD MORTISE_INLINE float sqrt_of(float x) { return __builtin_sqrtf(x); }
// The functions of the C library, one number at a time.
MORTISE_HD MORTISE_INLINE double tanh_of(double x) { return __builtin_tanh(x); }
MORTISE_HD MORTISE_INLINE float tanh_of(float x) { return __builtin_tanhf(x); }
MORTISE_HD MORTISE_INLINE double log1p_of(double x) { return __builtin_log1p(x); }
MORTISE_HD MORTISE_INLINE float log1p_of(float x) { return __builtin_log1pf(x); }
MORTISE_HD MORTISE_INLINE double expm1_of(double x) { return __builtin_expm1(x); }
MORTISE_HD MORTISE_INLINE float expm1_of(float x) { return __builtin_expm1f(x); }
MORTISE_HD MORTISE_INLINE double pow_of(double x, double exponent) { return __builtin_pow(x, exponent); }
MORTISE_HD MORTISE_INLINE float pow_of(float x, float exponent) { return __builtin_powf(x, exponent); }

}  // namespace detail

// `yes` if the condition holds, else `no`. Both are computed.
MORTISE_HD MORTISE_INLINE double select(bool condition, double yes, double no) {
  return detail::select_of(condition, yes, no);
}

}  // namespace mortise

#endif  // MORTISE_CPP_MATH_HPP_
