/* Dual: a number with its derivative (forward-mode automatic differentiation).
 *
 * A loss is written once as a template on its number type; fed with {log_prob, 1} it returns the value and the exact
 * derivative with respect to log_prob. Functions: exp, exp_inside, log, log1p, expm1, sqrt, pow, tanh, sigmoid, abs,
 * min, max, clamp, clamp_max, select, value_of, detach, and + - * / < <= > >=. Where a function has a kink the
 * conventions are torch's: at a tie, min and max give the mean of both slopes; clamp lets the gradient through at its
 * edges; abs has slope 0 at 0. NaN comes through min and max from either side: a bad log-prob must reach the host's
 * guard. detach(x) keeps the value and drops the slope (stop-gradient). Prefer select(condition, yes, no) to `if`:
 * without branches the loop over tokens becomes SIMD. Constants are plain doubles. Cost: two to three times the plain
 * function.
 */
#ifndef MORTISE_CPP_AUTODIFF_HPP_
#define MORTISE_CPP_AUTODIFF_HPP_

#include "math.hpp"
#include "single.hpp"

namespace mortise {

// N: double or Single.
template <class N>
struct BasicDual {
  N value;
  N slope;
};

namespace detail {
// A constant next to a Dual: anything that converts to its N.
template <class N>
struct ConstantOf {
  using Type = N;
};
}  // namespace detail
template <class N>
using Constant = typename detail::ConstantOf<N>::Type;

#define MORTISE_FN   \
  template <class N> \
  MORTISE_HD MORTISE_INLINE

MORTISE_HD MORTISE_INLINE double value_of(double x) { return x; }
MORTISE_FN N value_of(BasicDual<N> x) { return x.value; }
MORTISE_FN N detach(BasicDual<N> x) { return x.value; }

MORTISE_FN BasicDual<N> operator-(BasicDual<N> a) { return {-a.value, -a.slope}; }
MORTISE_FN BasicDual<N> operator+(BasicDual<N> a, BasicDual<N> b) { return {a.value + b.value, a.slope + b.slope}; }
MORTISE_FN BasicDual<N> operator-(BasicDual<N> a, BasicDual<N> b) { return {a.value - b.value, a.slope - b.slope}; }
MORTISE_FN BasicDual<N> operator*(BasicDual<N> a, BasicDual<N> b) {
  return {a.value * b.value, a.slope * b.value + a.value * b.slope};
}
MORTISE_FN BasicDual<N> operator/(BasicDual<N> a, BasicDual<N> b) {
  const N quotient = a.value / b.value;
  return {quotient, (a.slope - quotient * b.slope) / b.value};
}
MORTISE_FN BasicDual<N> operator+(BasicDual<N> a, Constant<N> c) { return {a.value + c, a.slope}; }
MORTISE_FN BasicDual<N> operator+(Constant<N> c, BasicDual<N> a) { return {c + a.value, a.slope}; }
MORTISE_FN BasicDual<N> operator-(BasicDual<N> a, Constant<N> c) { return {a.value - c, a.slope}; }
MORTISE_FN BasicDual<N> operator-(Constant<N> c, BasicDual<N> a) { return {c - a.value, -a.slope}; }
MORTISE_FN BasicDual<N> operator*(BasicDual<N> a, Constant<N> c) { return {a.value * c, a.slope * c}; }
MORTISE_FN BasicDual<N> operator*(Constant<N> c, BasicDual<N> a) { return {c * a.value, c * a.slope}; }
MORTISE_FN BasicDual<N> operator/(BasicDual<N> a, Constant<N> c) { return {a.value / c, a.slope / c}; }
MORTISE_FN BasicDual<N> operator/(Constant<N> c, BasicDual<N> a) {
  const N quotient = c / a.value;
  return {quotient, -quotient * a.slope / a.value};
}

// Comparisons compare only the values.
#define MORTISE_DUAL_COMPARE(op)                                                                          \
  MORTISE_FN MORTISE_PURE bool operator op(BasicDual<N> a, BasicDual<N> b) { return a.value op b.value; } \
  MORTISE_FN MORTISE_PURE bool operator op(BasicDual<N> a, Constant<N> c) { return a.value op c; }        \
  MORTISE_FN MORTISE_PURE bool operator op(Constant<N> c, BasicDual<N> a) { return c op a.value; }
MORTISE_DUAL_COMPARE(<)
MORTISE_DUAL_COMPARE(<=)
MORTISE_DUAL_COMPARE(>)
MORTISE_DUAL_COMPARE(>=)
#undef MORTISE_DUAL_COMPARE

MORTISE_FN BasicDual<N> select(bool condition, BasicDual<N> yes, BasicDual<N> no) {
  return {select(condition, yes.value, no.value), select(condition, yes.slope, no.slope)};
}
MORTISE_FN BasicDual<N> select(bool condition, BasicDual<N> yes, Constant<N> no) {
  return select(condition, yes, BasicDual<N>{no, 0.0});
}
MORTISE_FN BasicDual<N> select(bool condition, Constant<N> yes, BasicDual<N> no) {
  return select(condition, BasicDual<N>{yes, 0.0}, no);
}

MORTISE_FN BasicDual<N> exp(BasicDual<N> x) {
  const N e = detail::exp_of(x.value);
  return {e, e * x.slope};
}
// The same for |x| <= 80, as after a clamp. It skips the checks at the ends of exp, a tenth of a clipped loss's time.
MORTISE_FN BasicDual<N> exp_inside(BasicDual<N> x) {
  const N e = detail::exp_inside(x.value);
  return {e, e * x.slope};
}
MORTISE_FN BasicDual<N> log(BasicDual<N> x) { return {detail::log_of(x.value), x.slope / x.value}; }
MORTISE_FN BasicDual<N> abs(BasicDual<N> x) {
  const N zero = 0.0, falling = select(x.value < 0.0, -x.slope, zero);
  return {detail::abs_of(x.value), select(x.value > 0.0, x.slope, falling)};
}

namespace detail {
// The slope of the chosen argument; at a tie the mean of both. A constant has no slope.
MORTISE_FN BasicDual<N> choose(bool first, BasicDual<N> a, BasicDual<N> b) {
  const N chosen = select(first, a.slope, b.slope);
  return {select(first, a.value, b.value), select(a.value == b.value, 0.5 * (a.slope + b.slope), chosen)};
}
MORTISE_FN BasicDual<N> choose(bool first, BasicDual<N> a, Constant<N> c) {
  const N zero = 0.0, chosen = select(first, a.slope, zero);
  return {select(first, a.value, c), select(a.value == c, 0.5 * a.slope, chosen)};
}
}  // namespace detail
MORTISE_FN BasicDual<N> max(BasicDual<N> a, BasicDual<N> b) {
  return detail::choose((a > b) | (a.value != a.value), a, b);
}
MORTISE_FN BasicDual<N> max(BasicDual<N> a, Constant<N> c) {
  return detail::choose((a > c) | (a.value != a.value), a, c);
}
MORTISE_FN BasicDual<N> max(Constant<N> c, BasicDual<N> a) { return max(a, c); }
MORTISE_FN BasicDual<N> min(BasicDual<N> a, BasicDual<N> b) {
  return detail::choose((a < b) | (a.value != a.value), a, b);
}
MORTISE_FN BasicDual<N> min(BasicDual<N> a, Constant<N> c) {
  return detail::choose((a < c) | (a.value != a.value), a, c);
}
MORTISE_FN BasicDual<N> min(Constant<N> c, BasicDual<N> a) { return min(a, c); }
MORTISE_FN BasicDual<N> clamp(BasicDual<N> x, Constant<N> low, Constant<N> high) {
  const bool below = x<low, above = x> high;
  const N zero = 0.0, value = select(above, high, x.value);
  return {select(below, low, value), select(below | above, zero, x.slope)};
}
MORTISE_FN BasicDual<N> clamp_max(BasicDual<N> x, Constant<N> high) {
  const bool above = x > high;
  const N zero = 0.0;
  return {select(above, high, x.value), select(above, zero, x.slope)};
}
// 1 / (1 + exp(-x)), from exp(-|x|) so that it neither overflows nor loses digits.
MORTISE_FN BasicDual<N> sigmoid(BasicDual<N> x) {
  const N size = detail::abs_of(x.value), most = 80.0, e = detail::exp_inside(-select(size > most, most, size));
  const N large = 1.0 / (1.0 + e), small = e * large;
  return {select(x.value < 0.0, small, large), small * large * x.slope};
}

MORTISE_FN BasicDual<N> sqrt(BasicDual<N> x) {
  const N root = detail::sqrt_of(x.value);
  return {root, x.slope / (2.0 * root)};
}
// These four call the C library for each token: about ten times the time of exp.
MORTISE_FN BasicDual<N> tanh(BasicDual<N> x) {
  const N t = detail::tanh_of(x.value);
  return {t, (1.0 - t * t) * x.slope};
}
MORTISE_FN BasicDual<N> log1p(BasicDual<N> x) { return {detail::log1p_of(x.value), x.slope / (1.0 + x.value)}; }
MORTISE_FN BasicDual<N> expm1(BasicDual<N> x) {
  const N e = detail::expm1_of(x.value);
  return {e, (e + 1.0) * x.slope};
}
// NaN for a negative number with an exponent that is not whole.
MORTISE_FN BasicDual<N> pow(BasicDual<N> x, Constant<N> exponent) {
  const N zero = 0.0, slope = exponent * detail::pow_of(x.value, exponent - 1.0);
  return {detail::pow_of(x.value, exponent), select(exponent == 0.0, zero, slope) * x.slope};
}

// Functions of <cmath> that losses do not need, or that have another name here: one clear error instead of a list of
// candidates.
#define MORTISE_DUAL_HAS_NO(name)                                                                 \
  MORTISE_FN BasicDual<N> name(BasicDual<N> x) {                                                  \
    static_assert(sizeof(N) == 0, "Dual has no " #name                                            \
                                  "(); see its functions in mortise/cpp/autodiff.hpp and in the " \
                                  "page on policy losses");                                       \
    return x;                                                                                     \
  }
MORTISE_DUAL_HAS_NO(sin)
MORTISE_DUAL_HAS_NO(cos)
MORTISE_DUAL_HAS_NO(tan)
MORTISE_DUAL_HAS_NO(atan)
MORTISE_DUAL_HAS_NO(sinh)
MORTISE_DUAL_HAS_NO(cosh)
MORTISE_DUAL_HAS_NO(erf)
MORTISE_DUAL_HAS_NO(fabs)
MORTISE_DUAL_HAS_NO(floor)
MORTISE_DUAL_HAS_NO(ceil)
MORTISE_DUAL_HAS_NO(round)
#undef MORTISE_DUAL_HAS_NO

#undef MORTISE_FN

using Dual = BasicDual<double>;

}  // namespace mortise

#endif  // MORTISE_CPP_AUTODIFF_HPP_
