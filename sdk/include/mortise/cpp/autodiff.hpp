/* Dual: a number with its derivative (forward-mode automatic differentiation).
 *
 * A loss is written once as a template on its number type; fed with Dual{log_prob, 1} it returns the value and the
 * exact derivative with respect to log_prob. Where a function has a kink the conventions are torch's: at a tie, min and
 * max give the mean of both slopes; clamp lets the gradient through at its edges; abs has slope 0 at 0. NaN comes
 * through min and max from either side: a bad log-prob must reach the host's guard. detach(x) keeps the value and drops
 * the slope (stop-gradient). Prefer select(condition, yes, no) to `if`: without branches the loop over tokens becomes
 * SIMD. Constants are plain doubles. Cost: two to three times the plain function.
 */
#ifndef MORTISE_CPP_AUTODIFF_HPP_
#define MORTISE_CPP_AUTODIFF_HPP_

#include "math.hpp"

namespace mortise {

struct Dual {
  double value;
  double slope;
};

#define MORTISE_FN MORTISE_HD MORTISE_INLINE

MORTISE_FN double value_of(Dual x) { return x.value; }
MORTISE_FN double value_of(double x) { return x; }
MORTISE_FN double detach(Dual x) { return x.value; }

MORTISE_FN Dual operator-(Dual a) { return {-a.value, -a.slope}; }
MORTISE_FN Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
MORTISE_FN Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.slope - b.slope}; }
MORTISE_FN Dual operator*(Dual a, Dual b) { return {a.value * b.value, a.slope * b.value + a.value * b.slope}; }
MORTISE_FN Dual operator/(Dual a, Dual b) {
  const double quotient = a.value / b.value;
  return {quotient, (a.slope - quotient * b.slope) / b.value};
}
MORTISE_FN Dual operator+(Dual a, double c) { return {a.value + c, a.slope}; }
MORTISE_FN Dual operator+(double c, Dual a) { return {c + a.value, a.slope}; }
MORTISE_FN Dual operator-(Dual a, double c) { return {a.value - c, a.slope}; }
MORTISE_FN Dual operator-(double c, Dual a) { return {c - a.value, -a.slope}; }
MORTISE_FN Dual operator*(Dual a, double c) { return {a.value * c, a.slope * c}; }
MORTISE_FN Dual operator*(double c, Dual a) { return {c * a.value, c * a.slope}; }
MORTISE_FN Dual operator/(Dual a, double c) { return {a.value / c, a.slope / c}; }
MORTISE_FN Dual operator/(double c, Dual a) {
  const double quotient = c / a.value;
  return {quotient, -quotient * a.slope / a.value};
}

// Comparisons look at values alone.
#define MORTISE_DUAL_COMPARE(op)                                             \
  MORTISE_FN bool operator op(Dual a, Dual b) { return a.value op b.value; } \
  MORTISE_FN bool operator op(Dual a, double c) { return a.value op c; }     \
  MORTISE_FN bool operator op(double c, Dual a) { return c op a.value; }
MORTISE_DUAL_COMPARE(<)
MORTISE_DUAL_COMPARE(<=)
MORTISE_DUAL_COMPARE(>)
MORTISE_DUAL_COMPARE(>=)
#undef MORTISE_DUAL_COMPARE

MORTISE_FN Dual select(bool condition, Dual yes, Dual no) {
  return {select(condition, yes.value, no.value), select(condition, yes.slope, no.slope)};
}
MORTISE_FN Dual select(bool condition, Dual yes, double no) { return select(condition, yes, Dual{no, 0.0}); }
MORTISE_FN Dual select(bool condition, double yes, Dual no) { return select(condition, Dual{yes, 0.0}, no); }

MORTISE_FN Dual exp(Dual x) {
  const double e = detail::exp_of(x.value);
  return {e, e * x.slope};
}
MORTISE_FN Dual log(Dual x) { return {detail::log_of(x.value), x.slope / x.value}; }
MORTISE_FN Dual abs(Dual x) {
  return {detail::abs_of(x.value), select(x.value > 0, x.slope, select(x.value < 0, -x.slope, 0.0))};
}
namespace detail {
// a where it was chosen, b elsewhere; at a tie the mean of both slopes. A constant has none to compute with.
MORTISE_FN Dual choose(bool first, Dual a, Dual b) {
  const double slope = select(a.value == b.value, 0.5 * (a.slope + b.slope), select(first, a.slope, b.slope));
  return {select(first, a.value, b.value), slope};
}
MORTISE_FN Dual choose(bool first, Dual a, double c) {
  const double slope = select(a.value == c, 0.5 * a.slope, select(first, a.slope, 0.0));
  return {select(first, a.value, c), slope};
}
}  // namespace detail
MORTISE_FN Dual max(Dual a, Dual b) { return detail::choose((a.value > b.value) | (a.value != a.value), a, b); }
MORTISE_FN Dual max(Dual a, double c) { return detail::choose((a.value > c) | (a.value != a.value), a, c); }
MORTISE_FN Dual max(double c, Dual a) { return max(a, c); }
MORTISE_FN Dual min(Dual a, Dual b) { return detail::choose((a.value < b.value) | (a.value != a.value), a, b); }
MORTISE_FN Dual min(Dual a, double c) { return detail::choose((a.value < c) | (a.value != a.value), a, c); }
MORTISE_FN Dual min(double c, Dual a) { return min(a, c); }
MORTISE_FN Dual clamp(Dual x, double low, double high) {
  const bool below = x.value<low, above = x.value> high;
  return {select(below, low, select(above, high, x.value)), select(below | above, 0.0, x.slope)};
}
MORTISE_FN Dual clamp_max(Dual x, double high) {
  const bool above = x.value > high;
  return {select(above, high, x.value), select(above, 0.0, x.slope)};
}
// 1 / (1 + exp(-x)), from exp(-|x|) so that it neither overflows nor loses digits.
MORTISE_FN Dual sigmoid(Dual x) {
  const double e = detail::exp_of(-detail::abs_of(x.value));
  const double small = e / (1.0 + e), large = 1.0 / (1.0 + e);
  return {select(x.value < 0, small, large), small * large * x.slope};
}

#undef MORTISE_FN

}  // namespace mortise

#endif  // MORTISE_CPP_AUTODIFF_HPP_
