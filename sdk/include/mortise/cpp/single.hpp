/* Single: a float32 that stays one. Losses whose function takes Number in place of double run on it, twice as many to a
 * SIMD register.
 *
 * A double or int in the same expression (a parameter, a literal) is rounded to float32 first; with plain floats the expression
 * would silently turn to double and halve the speed. No way back: what must be exact is computed in double to begin
 * with.
 */
#ifndef MORTISE_CPP_SINGLE_HPP_
#define MORTISE_CPP_SINGLE_HPP_

#include <type_traits>

#include "math.hpp"

namespace mortise {

#define MORTISE_FN friend MORTISE_HD MORTISE_INLINE constexpr
// For clang's -Wbitwise-instead-of-logical, which takes a call after | or & for one with side effects.
#define MORTISE_PURE __attribute__((const))

struct Single {
  float value = 0;

  Single() = default;
  MORTISE_HD MORTISE_INLINE constexpr Single(double x) : value(float(x)) {}  // NOLINT: a literal is one

  MORTISE_FN Single operator-(Single a) { return of(-a.value); }
  MORTISE_FN Single operator+(Single a, Single b) { return of(a.value + b.value); }
  MORTISE_FN Single operator-(Single a, Single b) { return of(a.value - b.value); }
  MORTISE_FN Single operator*(Single a, Single b) { return of(a.value * b.value); }
  MORTISE_FN Single operator/(Single a, Single b) { return of(a.value / b.value); }
// Also with a plain number: converting it to a Single would be a call, and a call triggers the warning.
#define MORTISE_SINGLE_COMPARE(op)                                                                          \
  MORTISE_FN MORTISE_PURE bool operator op(Single a, Single b) { return a.value op b.value; }               \
  MORTISE_FN MORTISE_PURE bool operator op(Single a, double b) { return a.value op static_cast<float>(b); } \
  MORTISE_FN MORTISE_PURE bool operator op(double a, Single b) { return static_cast<float>(a) op b.value; }
  MORTISE_SINGLE_COMPARE(<)
  MORTISE_SINGLE_COMPARE(<=)
  MORTISE_SINGLE_COMPARE(>)
  MORTISE_SINGLE_COMPARE(>=)
  MORTISE_SINGLE_COMPARE(==)
  MORTISE_SINGLE_COMPARE(!=)
#undef MORTISE_SINGLE_COMPARE

  static MORTISE_HD MORTISE_INLINE constexpr Single of(float x) {
    Single out;
    out.value = x;
    return out;
  }
};

#undef MORTISE_FN

MORTISE_HD MORTISE_INLINE Single value_of(Single x) { return x; }
MORTISE_HD MORTISE_INLINE Single exp(Single x) { return Single::of(detail::exp_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single exp_inside(Single x) { return Single::of(detail::exp_inside(x.value)); }
MORTISE_HD MORTISE_INLINE Single log(Single x) { return Single::of(detail::log_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single abs(Single x) { return Single::of(detail::abs_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single select(bool condition, Single yes, Single no) {
  return Single::of(detail::select_of(condition, yes.value, no.value));
}

namespace detail {
// All ones or 0, as wide as the number.
template <class N>
using MaskOf = std::conditional_t<std::is_same_v<N, Single>, std::int32_t, std::int64_t>;

MORTISE_HD MORTISE_INLINE double double_of(double x) { return x; }
MORTISE_HD MORTISE_INLINE double double_of(Single x) { return double(x.value); }
// The type of the tensors' elements.
template <class N>
MORTISE_HD MORTISE_INLINE N number_of(float x) {
  if constexpr (std::is_same_v<N, Single>) {
    return Single::of(x);
  } else {
    return double(x);
  }
}
MORTISE_HD MORTISE_INLINE float float_of(double x) { return float(x); }
MORTISE_HD MORTISE_INLINE float float_of(Single x) { return x.value; }

MORTISE_HD MORTISE_INLINE Single exp_of(Single x) { return exp(x); }
MORTISE_HD MORTISE_INLINE Single exp_inside(Single x) { return mortise::exp_inside(x); }
MORTISE_HD MORTISE_INLINE Single log_of(Single x) { return log(x); }
MORTISE_HD MORTISE_INLINE Single abs_of(Single x) { return abs(x); }
MORTISE_HD MORTISE_INLINE Single sqrt_of(Single x) { return Single::of(sqrt_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single tanh_of(Single x) { return Single::of(tanh_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single log1p_of(Single x) { return Single::of(log1p_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single expm1_of(Single x) { return Single::of(expm1_of(x.value)); }
MORTISE_HD MORTISE_INLINE Single pow_of(Single x, Single exponent) {
  return Single::of(pow_of(x.value, exponent.value));
}
MORTISE_HD MORTISE_INLINE Single masked(Single x, std::int32_t mask) { return Single::of(masked(x.value, mask)); }
// x if the mask is all ones, NaN if it is 0.
MORTISE_HD MORTISE_INLINE double unless_masked(double x, std::int64_t mask) { return from_bits(bits_of(x) | ~mask); }
MORTISE_HD MORTISE_INLINE Single unless_masked(Single x, std::int32_t mask) {
  return Single::of(from_bits(bits_of(x.value) | ~mask));
}
}  // namespace detail

MORTISE_HD MORTISE_INLINE Single sqrt(Single x) { return detail::sqrt_of(x); }
MORTISE_HD MORTISE_INLINE Single tanh(Single x) { return detail::tanh_of(x); }
MORTISE_HD MORTISE_INLINE Single log1p(Single x) { return detail::log1p_of(x); }
MORTISE_HD MORTISE_INLINE Single expm1(Single x) { return detail::expm1_of(x); }
MORTISE_HD MORTISE_INLINE Single pow(Single x, Single exponent) { return detail::pow_of(x, exponent); }

}  // namespace mortise

#endif  // MORTISE_CPP_SINGLE_HPP_
