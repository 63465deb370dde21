/* Dual: a number with its derivative (forward-mode automatic differentiation).
 *
 * A loss is written once as a template on its number type; fed with {log_prob, 1} it returns the value and the exact
 * derivative with respect to log_prob. Where a function has a kink the conventions are torch's: at a tie, min and max
 * give the mean of both slopes; clamp lets the gradient through at its edges; abs has slope 0 at 0. NaN comes through
 * min and max from either side: a bad log-prob must reach the host's guard. detach(x) keeps the value and drops the
 * slope (stop-gradient). Prefer select(condition, yes, no) to `if`: without branches the loop over tokens becomes SIMD.
 * Constants are plain doubles. Cost: two to three times the plain function.
 */
#ifndef MORTISE_CPP_AUTODIFF_HPP_
#define MORTISE_CPP_AUTODIFF_HPP_

#include "math.hpp"
#include "single.hpp"

namespace mortise {

MORTISE_HD MORTISE_INLINE double value_of(double x) { return x; }

#define MORTISE_FN friend MORTISE_HD MORTISE_INLINE

// N: double or Single.
template <class N>
struct BasicDual {
  N value;
  N slope;

  MORTISE_FN N value_of(BasicDual x) { return x.value; }
  MORTISE_FN N detach(BasicDual x) { return x.value; }

  MORTISE_FN BasicDual operator-(BasicDual a) { return {-a.value, -a.slope}; }
  MORTISE_FN BasicDual operator+(BasicDual a, BasicDual b) { return {a.value + b.value, a.slope + b.slope}; }
  MORTISE_FN BasicDual operator-(BasicDual a, BasicDual b) { return {a.value - b.value, a.slope - b.slope}; }
  MORTISE_FN BasicDual operator*(BasicDual a, BasicDual b) {
    return {a.value * b.value, a.slope * b.value + a.value * b.slope};
  }
  MORTISE_FN BasicDual operator/(BasicDual a, BasicDual b) {
    const N quotient = a.value / b.value;
    return {quotient, (a.slope - quotient * b.slope) / b.value};
  }
  MORTISE_FN BasicDual operator+(BasicDual a, N c) { return {a.value + c, a.slope}; }
  MORTISE_FN BasicDual operator+(N c, BasicDual a) { return {c + a.value, a.slope}; }
  MORTISE_FN BasicDual operator-(BasicDual a, N c) { return {a.value - c, a.slope}; }
  MORTISE_FN BasicDual operator-(N c, BasicDual a) { return {c - a.value, -a.slope}; }
  MORTISE_FN BasicDual operator*(BasicDual a, N c) { return {a.value * c, a.slope * c}; }
  MORTISE_FN BasicDual operator*(N c, BasicDual a) { return {c * a.value, c * a.slope}; }
  MORTISE_FN BasicDual operator/(BasicDual a, N c) { return {a.value / c, a.slope / c}; }
  MORTISE_FN BasicDual operator/(N c, BasicDual a) {
    const N quotient = c / a.value;
    return {quotient, -quotient * a.slope / a.value};
  }

// Comparisons look at values alone.
#define MORTISE_DUAL_COMPARE(op)                                                                    \
  MORTISE_FN MORTISE_PURE bool operator op(BasicDual a, BasicDual b) { return a.value op b.value; } \
  MORTISE_FN MORTISE_PURE bool operator op(BasicDual a, N c) { return a.value op c; }               \
  MORTISE_FN MORTISE_PURE bool operator op(N c, BasicDual a) { return c op a.value; }
  MORTISE_DUAL_COMPARE(<)
  MORTISE_DUAL_COMPARE(<=)
  MORTISE_DUAL_COMPARE(>)
  MORTISE_DUAL_COMPARE(>=)
#undef MORTISE_DUAL_COMPARE

  MORTISE_FN BasicDual select(bool condition, BasicDual yes, BasicDual no) {
    return {mortise::select(condition, yes.value, no.value), mortise::select(condition, yes.slope, no.slope)};
  }
  MORTISE_FN BasicDual select(bool condition, BasicDual yes, N no) { return select(condition, yes, constant(no)); }
  MORTISE_FN BasicDual select(bool condition, N yes, BasicDual no) { return select(condition, constant(yes), no); }

  MORTISE_FN BasicDual exp(BasicDual x) {
    const N e = detail::exp_of(x.value);
    return {e, e * x.slope};
  }
  // The same for |x| <= 80, as after a clamp: a tenth of a clipped loss goes into the ends of exp.
  MORTISE_FN BasicDual exp_inside(BasicDual x) {
    const N e = detail::exp_inside(x.value);
    return {e, e * x.slope};
  }
  MORTISE_FN BasicDual log(BasicDual x) { return {detail::log_of(x.value), x.slope / x.value}; }
  MORTISE_FN BasicDual abs(BasicDual x) {
    const N falling = mortise::select(x.value < 0.0, -x.slope, zero());
    return {detail::abs_of(x.value), mortise::select(x.value > 0.0, x.slope, falling)};
  }
  MORTISE_FN BasicDual max(BasicDual a, BasicDual b) { return choose((a > b) | (a.value != a.value), a, b); }
  MORTISE_FN BasicDual max(BasicDual a, N c) { return choose((a > c) | (a.value != a.value), a, c); }
  MORTISE_FN BasicDual max(N c, BasicDual a) { return max(a, c); }
  MORTISE_FN BasicDual min(BasicDual a, BasicDual b) { return choose((a < b) | (a.value != a.value), a, b); }
  MORTISE_FN BasicDual min(BasicDual a, N c) { return choose((a < c) | (a.value != a.value), a, c); }
  MORTISE_FN BasicDual min(N c, BasicDual a) { return min(a, c); }
  MORTISE_FN BasicDual clamp(BasicDual x, N low, N high) {
    const bool below = x<low, above = x> high;
    return {mortise::select(below, low, mortise::select(above, high, x.value)),
            mortise::select(below | above, zero(), x.slope)};
  }
  MORTISE_FN BasicDual clamp_max(BasicDual x, N high) {
    const bool above = x > high;
    return {mortise::select(above, high, x.value), mortise::select(above, zero(), x.slope)};
  }
  // 1 / (1 + exp(-x)), from exp(-|x|) so that it neither overflows nor loses digits.
  MORTISE_FN BasicDual sigmoid(BasicDual x) {
    const N size = detail::abs_of(x.value), e = detail::exp_inside(mortise::select(size > 80.0, N(-80.0), -size));
    const N large = 1.0 / (1.0 + e), small = e * large;
    return {mortise::select(x.value < 0.0, small, large), small * large * x.slope};
  }

 private:
  static MORTISE_HD MORTISE_INLINE N zero() { return 0.0; }
  static MORTISE_HD MORTISE_INLINE BasicDual constant(N c) { return {c, 0.0}; }
  // a where it was chosen, b elsewhere; at a tie the mean of both slopes. A constant has none to compute with.
  static MORTISE_HD MORTISE_INLINE BasicDual choose(bool first, BasicDual a, BasicDual b) {
    const N chosen = mortise::select(first, a.slope, b.slope);
    return {mortise::select(first, a.value, b.value),
            mortise::select(a.value == b.value, 0.5 * (a.slope + b.slope), chosen)};
  }
  static MORTISE_HD MORTISE_INLINE BasicDual choose(bool first, BasicDual a, N c) {
    const N chosen = mortise::select(first, a.slope, zero());
    return {mortise::select(first, a.value, c), mortise::select(a.value == c, 0.5 * a.slope, chosen)};
  }
};

#undef MORTISE_FN

using Dual = BasicDual<double>;

}  // namespace mortise

#endif  // MORTISE_CPP_AUTODIFF_HPP_
