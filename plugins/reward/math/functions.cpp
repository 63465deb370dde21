// Exponential, logarithm and what follows from them, with the error bound of each.
#include <algorithm>
#include <cmath>

#include "number.h"

namespace mortise::math {
namespace {

constexpr std::int64_t kCost = 3000;     // cost of one function, in words
constexpr double kRoughest = -32;        // largest log2 of an argument's error
constexpr double kLargestArgument = 20;  // log2; e to more than that has no use

const Exact kImaginaryUnit{0, 1};

Approx argument(const Value& a) {
  Approx x = approximate(a);
  if (x.error > kRoughest || magnitude_of(x) > kLargestArgument) throw Undefined("an argument out of range");
  return x;
}

}  // namespace

// e^x (cos y + i sin y)
Value Arithmetic::exponential(const Value& a) {
  const Approx x = argument(a);
  budget_.spend(kCost);
  Float size, sine, cosine;
  mpfr_exp(size, x.re, MPFR_RNDN);
  mpfr_sin_cos(sine, cosine, x.im, MPFR_RNDN);
  Approx out;
  mpfr_mul(out.re, size, cosine, MPFR_RNDN);
  mpfr_mul(out.im, size, sine, MPFR_RNDN);
  out.error = exponent_of(size) + std::max(x.error, -double(kPrecision)) + 3;
  return checked(std::move(out));
}

Value Arithmetic::logarithm(const Value& a) {
  const Approx x = approximate(a);
  if (magnitude_of(x) <= x.error + 32) throw Undefined("logarithm of 0");
  budget_.spend(kCost);
  Float size;
  mpfr_hypot(size, x.re, x.im, MPFR_RNDN);
  Approx out;
  mpfr_log(out.re, size, MPFR_RNDN);
  mpfr_atan2(out.im, x.im, x.re, MPFR_RNDN);
  out.error = std::max({x.error - magnitude_of(x) + 2, rounding_of(out), -double(kPrecision)}) + 2;
  return checked(std::move(out));
}

// sin z = (e^iz - e^-iz) / 2i, cos z = (e^iz + e^-iz) / 2
Value Arithmetic::sine(const Value& a, bool cosine) {
  if (!is_real(a)) {
    const Value turned = multiply(kImaginaryUnit, a);
    const Value plus = exponential(turned), minus = exponential(negate(turned));
    return cosine ? divide(add(plus, minus), integer(2)) : divide(subtract(plus, minus), Exact{0, 2});
  }
  const Approx x = argument(a);
  budget_.spend(kCost);
  Approx out;
  (cosine ? mpfr_cos : mpfr_sin)(out.re, x.re, MPFR_RNDN);
  out.error = std::max(x.error, -double(kPrecision)) + 2;
  return checked(std::move(out));
}

Value Arithmetic::hyperbolic(const Value& a, bool cosine) {
  const Value plus = exponential(a), minus = exponential(negate(a));
  return divide(cosine ? add(plus, minus) : subtract(plus, minus), integer(2));
}

Value Arithmetic::inverse(const std::string& name, const Value& a) {
  if (!is_real(a)) throw Undefined(name + " of a complex number");
  const Approx x = argument(a);
  budget_.spend(kCost);
  Approx out;
  if (name == "arctan") {
    mpfr_atan(out.re, x.re, MPFR_RNDN);
    out.error = std::max(x.error, -double(kPrecision)) + 2;
    return checked(std::move(out));
  }
  // The slope is 1 / sqrt(1 - x^2); at the ends the error is about the root of the argument's.
  const bool at_end = equal(absolute(a), integer(1));
  Float clamped = x.re;
  if (at_end) mpfr_set_si(clamped, mpfr_sgn(static_cast<mpfr_srcptr>(x.re)), MPFR_RNDN);
  (name == "arcsin" ? mpfr_asin : mpfr_acos)(out.re, clamped, MPFR_RNDN);
  if (mpfr_nan_p(static_cast<mpfr_srcptr>(out.re)) != 0) throw Undefined(name + " outside of [-1, 1]");
  double slope = 0;
  if (!at_end) slope = -exponent_of(approximate(subtract(integer(1), multiply(a, a))).re) / 2 + 1;
  out.error = std::max(x.error + std::max(slope, 0.0), -double(kPrecision)) + 3;
  return checked(std::move(out));
}

Value Arithmetic::function(const std::string& name, const Value& a) {
  if (name == "exp") return exponential(a);
  if (name == "ln") return logarithm(a);
  if (name == "sin" || name == "cos") return sine(a, name == "cos");
  if (name == "tan") return divide(sine(a, false), sine(a, true));
  if (name == "cot") return divide(sine(a, true), sine(a, false));
  if (name == "sec") return divide(integer(1), sine(a, true));
  if (name == "csc") return divide(integer(1), sine(a, false));
  if (name == "sinh" || name == "cosh") return hyperbolic(a, name == "cosh");
  if (name == "tanh") return divide(hyperbolic(a, false), hyperbolic(a, true));
  if (name == "arcsin" || name == "arccos" || name == "arctan") return inverse(name, a);
  throw Undefined("the function " + name);
}

}  // namespace mortise::math
