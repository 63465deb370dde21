// Exact arithmetic with GMP, and floating-point arithmetic with an error bound (MPFR) if that is not possible.
#include "number.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mortise::math {
namespace {

constexpr double kMaxExponent = 1 << 22;  // exponent of an approximate number

std::int64_t words(const mpq_class& x) {
  return std::int64_t(mpz_size(x.get_num_mpz_t()) + mpz_size(x.get_den_mpz_t()));
}
std::int64_t words(const Exact& x) { return words(x.re) + words(x.im); }

std::size_t bits(const mpq_class& x) {
  return std::max(mpz_sizeinbase(x.get_num_mpz_t(), 2), mpz_sizeinbase(x.get_den_mpz_t(), 2));
}

// A perfect n-th root of a rational that is not negative.
bool perfect_root(const mpq_class& x, unsigned long n, mpq_class& root) {
  mpz_class num, den;
  if (mpz_root(num.get_mpz_t(), x.get_num_mpz_t(), n) == 0 || mpz_root(den.get_mpz_t(), x.get_den_mpz_t(), n) == 0)
    return false;
  root = mpq_class(num, den);
  return true;
}

bool is_exact_zero(const Value& v) {
  const auto* e = std::get_if<Exact>(&v);
  return e != nullptr && e->re == 0 && e->im == 0;
}

const Exact kImaginary{0, 1};

}  // namespace

double exponent_of(const Float& x) {
  return x.is_zero() ? -std::numeric_limits<double>::infinity() : double(mpfr_get_exp(x));
}
double magnitude_of(const Approx& x) { return std::max(exponent_of(x.re), exponent_of(x.im)); }
double rounding_of(const Approx& x) { return magnitude_of(x) - double(kPrecision) + 2; }

Approx approximate(const Value& v) {
  if (const auto* a = std::get_if<Approx>(&v)) return *a;
  const auto& e = std::get<Exact>(v);
  Approx out;
  mpfr_set_q(out.re, e.re.get_mpq_t(), MPFR_RNDN);
  mpfr_set_q(out.im, e.im.get_mpq_t(), MPFR_RNDN);
  out.error = rounding_of(out);
  return out;
}

Value pi() {
  Approx out;
  mpfr_const_pi(out.re, MPFR_RNDN);
  out.error = rounding_of(out);
  return out;
}

Value euler() {
  Approx out;
  Float one;
  mpfr_set_ui(one, 1, MPFR_RNDN);
  mpfr_exp(out.re, one, MPFR_RNDN);
  out.error = rounding_of(out);
  return out;
}

double magnitude(const Value& a) { return magnitude_of(approximate(a)); }

bool is_real(const Value& a) {
  const auto* e = std::get_if<Exact>(&a);
  return e != nullptr ? e->im == 0 : std::get<Approx>(a).im.is_zero();
}

bool as_long(const Value& a, long& n) {
  const auto* e = std::get_if<Exact>(&a);
  if (e == nullptr || e->im != 0 || e->re.get_den() != 1 || !e->re.get_num().fits_slong_p()) return false;
  n = e->re.get_num().get_si();
  return true;
}

Value Arithmetic::checked(Exact x) {
  if (bits(x.re) > kMaxBits || bits(x.im) > kMaxBits) throw Undefined("a number of too many digits");
  const std::int64_t size = words(x);
  budget_.spend(8 + 8 * size + size * size / 16);  // the last for the gcd of a fraction
  return x;
}

// A part whose error bound includes 0 becomes 0. Otherwise chance would decide its side of a branch cut.
Value Arithmetic::checked(Approx x) {
  budget_.spend(40);
  if (mpfr_number_p(x.re) == 0 || mpfr_number_p(x.im) == 0 || std::isnan(x.error)) throw Undefined("no value");
  if (magnitude_of(x) > kMaxExponent) throw Undefined("a number that is too large");
  for (Float* part : {&x.re, &x.im}) {
    if (!part->is_zero() && exponent_of(*part) <= x.error + 4) {
      x.error = std::max(x.error, exponent_of(*part));
      mpfr_set_zero(*part, 1);
    }
  }
  return x;
}

Value Arithmetic::add(const Value& a, const Value& b) {
  const auto *p = std::get_if<Exact>(&a), *q = std::get_if<Exact>(&b);
  if (p != nullptr && q != nullptr) return checked(Exact{p->re + q->re, p->im + q->im});
  const Approx x = approximate(a), y = approximate(b);
  Approx out;
  mpfr_add(out.re, x.re, y.re, MPFR_RNDN);
  mpfr_add(out.im, x.im, y.im, MPFR_RNDN);
  out.error = std::max({x.error, y.error, rounding_of(out)}) + 1;
  return checked(std::move(out));
}

Value Arithmetic::negate(const Value& a) {
  if (const auto* p = std::get_if<Exact>(&a)) return Exact{-p->re, -p->im};
  Approx out = std::get<Approx>(a);
  mpfr_neg(out.re, out.re, MPFR_RNDN);
  mpfr_neg(out.im, out.im, MPFR_RNDN);
  return out;
}

Value Arithmetic::multiply(const Value& a, const Value& b) {
  if (is_exact_zero(a) || is_exact_zero(b)) return integer(0);
  const auto *p = std::get_if<Exact>(&a), *q = std::get_if<Exact>(&b);
  if (p != nullptr && q != nullptr) {
    if (p->im == 0 && q->im == 0) return checked(Exact{p->re * q->re, 0});
    return checked(Exact{p->re * q->re - p->im * q->im, p->re * q->im + p->im * q->re});
  }
  const Approx x = approximate(a), y = approximate(b);
  Approx out;
  mpfr_fmms(out.re, x.re, y.re, x.im, y.im, MPFR_RNDN);
  mpfr_fmma(out.im, x.re, y.im, x.im, y.re, MPFR_RNDN);
  out.error = std::max({x.error + magnitude_of(y), y.error + magnitude_of(x), x.error + y.error, rounding_of(out)}) + 3;
  return checked(std::move(out));
}

Value Arithmetic::divide(const Value& a, const Value& b) {
  if (is_exact_zero(b)) throw Undefined("division by 0");
  if (is_exact_zero(a)) return integer(0);
  const auto *p = std::get_if<Exact>(&a), *q = std::get_if<Exact>(&b);
  if (p != nullptr && q != nullptr) {
    if (p->im == 0 && q->im == 0) return checked(Exact{p->re / q->re, 0});
    const mpq_class square = q->re * q->re + q->im * q->im;
    return checked(Exact{(p->re * q->re + p->im * q->im) / square, (p->im * q->re - p->re * q->im) / square});
  }
  const Approx x = approximate(a), y = approximate(b);
  const double size = magnitude_of(y);
  if (size <= y.error + 32) throw Undefined("division by what may be 0");
  Float square;
  mpfr_fmma(square, y.re, y.re, y.im, y.im, MPFR_RNDN);
  Approx out;
  mpfr_fmma(out.re, x.re, y.re, x.im, y.im, MPFR_RNDN);
  mpfr_fmms(out.im, x.im, y.re, x.re, y.im, MPFR_RNDN);
  mpfr_div(out.re, out.re, square, MPFR_RNDN);
  mpfr_div(out.im, out.im, square, MPFR_RNDN);
  const double quotient = magnitude_of(x) - size + 1;
  out.error = std::max({x.error - size, y.error - size + quotient, quotient - double(kPrecision)}) + 4;
  return checked(std::move(out));
}

// By squaring; |n| is at most 4096 for approximate numbers.
Value Arithmetic::power_of_integer(const Value& base, long n) {
  const bool inverse = n < 0;
  unsigned long left = inverse ? 0UL - static_cast<unsigned long>(n) : static_cast<unsigned long>(n);
  Value result = integer(1), square = base;
  while (left > 0) {
    if ((left & 1) != 0) result = multiply(result, square);
    left >>= 1;
    if (left > 0) square = multiply(square, square);
  }
  return inverse ? divide(integer(1), result) : result;
}

Value Arithmetic::power(const Value& base, const Value& exponent) {
  if (is_exact_zero(exponent)) return integer(1);
  if (is_exact_zero(base)) {
    if (is_real(exponent) && less(integer(0), exponent)) return integer(0);
    throw Undefined("0 to a power that is not positive");
  }
  const auto *b = std::get_if<Exact>(&base), *e = std::get_if<Exact>(&exponent);
  long n = 0;
  if (as_long(exponent, n)) {
    if (b != nullptr && b->im == 0 && abs(b->re) == 1) return b->re == 1 || n % 2 == 0 ? integer(1) : integer(-1);
    const double size = b == nullptr ? 0 : double(std::max(bits(b->re), bits(b->im))) * std::abs(double(n));
    if (b != nullptr && size <= double(kMaxBits)) return power_of_integer(base, n);
    if (b == nullptr && std::abs(double(n)) <= 4096) return power_of_integer(base, n);
  } else if (b != nullptr && e != nullptr && b->im == 0 && e->im == 0 && b->re > 0 && e->re.get_den() > 1 &&
             e->re.get_den() <= 64) {
    mpq_class base_root;
    if (perfect_root(b->re, e->re.get_den().get_ui(), base_root))
      return power(Exact{base_root, 0}, Exact{mpq_class(e->re.get_num()), 0});
  }
  return exponential(multiply(exponent, logarithm(base)));
}

Value Arithmetic::root(const Value& a, const Value& n) {
  long degree = 0;
  if (!as_long(n, degree) || degree < 1 || degree > 4096) return power(a, divide(integer(1), n));
  if (is_exact_zero(a)) return a;
  if (is_real(a) && less(a, integer(0))) {
    if (degree % 2 == 1) return negate(root(negate(a), n));
    if (degree == 2) return multiply(kImaginary, root(negate(a), n));
  }
  const auto* e = std::get_if<Exact>(&a);
  mpq_class exact;
  if (e != nullptr && e->im == 0 && perfect_root(e->re, static_cast<unsigned long>(degree), exact))
    return checked(Exact{exact, 0});
  if (!is_real(a)) return power(a, divide(integer(1), n));
  const Approx x = approximate(a);
  Approx out;
  budget_.spend(2000);
  mpfr_rootn_ui(out.re, x.re, static_cast<unsigned long>(degree), MPFR_RNDN);
  // Next to 0 the root of the error bound; else the derivative, x^(1/n) / (n x).
  out.error = magnitude_of(x) <= x.error + 8
                  ? x.error / double(degree) + 2
                  : std::max(x.error + magnitude_of(out) - magnitude_of(x) + 2, rounding_of(out)) + 1;
  return checked(std::move(out));
}

Value Arithmetic::absolute(const Value& a) {
  if (is_real(a)) return less(a, integer(0)) ? negate(a) : a;
  if (const auto* e = std::get_if<Exact>(&a)) return root(checked(Exact{e->re * e->re + e->im * e->im, 0}), integer(2));
  const Approx x = approximate(a);
  Approx out;
  mpfr_hypot(out.re, x.re, x.im, MPFR_RNDN);
  out.error = std::max(x.error, rounding_of(out)) + 2;
  return checked(std::move(out));
}

Value Arithmetic::floor(const Value& a, bool up) {
  if (!is_real(a)) throw Undefined("floor of a complex number");
  mpz_class whole;
  if (const auto* e = std::get_if<Exact>(&a)) {
    (up ? mpz_cdiv_q : mpz_fdiv_q)(whole.get_mpz_t(), e->re.get_num_mpz_t(), e->re.get_den_mpz_t());
    return checked(Exact{mpq_class(whole), 0});
  }
  const Approx x = approximate(a);
  if (x.error > -16 || magnitude_of(x) > 64) throw Undefined("floor of a number known too roughly");
  Float near;
  mpfr_rint(near, x.re, MPFR_RNDN);
  const bool is_whole = equal(a, [&] {
    mpfr_get_z(whole.get_mpz_t(), near, MPFR_RNDN);
    return Exact{mpq_class(whole), 0};
  }());
  if (!is_whole) mpfr_get_z(whole.get_mpz_t(), x.re, up ? MPFR_RNDU : MPFR_RNDD);
  return checked(Exact{mpq_class(whole), 0});
}

Value Arithmetic::factorial(const Value& a) {
  long n = 0;
  if (as_long(a, n)) {
    if (n < 0 || n > 5000) throw Undefined("factorial of a negative or too large number");
    budget_.spend(n * n / 8);
    mpz_class out;
    mpz_fac_ui(out.get_mpz_t(), static_cast<unsigned long>(n));
    return checked(Exact{mpq_class(out), 0});
  }
  if (!is_real(a) || magnitude(a) > 12) throw Undefined("factorial of a complex or too large number");
  Approx x = approximate(add(a, integer(1))), out;
  if (x.error > -64) throw Undefined("factorial of a number known too roughly");
  budget_.spend(4000);
  mpfr_gamma(out.re, x.re, MPFR_RNDN);
  out.error = std::max(x.error + 16, -double(kPrecision)) + std::max(exponent_of(out.re), 0.0) + 8;
  return checked(std::move(out));
}

Value Arithmetic::common(const Value& a, const Value& b, bool multiple) {
  const auto whole = [](const Value& v) {
    const auto* const e = std::get_if<Exact>(&v);
    if (e == nullptr || e->im != 0 || e->re.get_den() != 1) throw Undefined("a divisor of what is not whole");
    return e->re.get_num();
  };
  const mpz_class x = whole(a), y = whole(b);
  budget_.spend(std::int64_t(mpz_size(x.get_mpz_t()) * mpz_size(y.get_mpz_t())) + 50);
  mpz_class out;
  (multiple ? mpz_lcm : mpz_gcd)(out.get_mpz_t(), x.get_mpz_t(), y.get_mpz_t());
  return checked(Exact{mpq_class(out), 0});
}

// n (n - 1) ... (n - k + 1) / k!
Value Arithmetic::falling_binomial(const Value& n, long k) {
  Value out = integer(1);
  for (long i = 0; i < k; ++i) out = divide(multiply(out, subtract(n, integer(i))), integer(i + 1));
  return out;
}

Value Arithmetic::binomial(const Value& n, const Value& k) {
  long from = 0, choose = 0;
  const bool whole = as_long(n, from), whole_choice = as_long(k, choose);
  if (!whole && whole_choice && choose >= 0 && choose <= 64) return falling_binomial(n, choose);
  if (!whole || !whole_choice) return divide(factorial(n), multiply(factorial(k), factorial(subtract(n, k))));
  if (from < 0 || from > 20000) throw Undefined("binomial of what is no small integer");
  if (choose < 0 || choose > from) return integer(0);
  budget_.spend(from * 64);
  mpz_class out;
  mpz_bin_uiui(out.get_mpz_t(), static_cast<unsigned long>(from), static_cast<unsigned long>(choose));
  return checked(Exact{mpq_class(out), 0});
}

mpz_class Arithmetic::rounded(const Value& a, long places) {
  mpz_class ten, out;
  mpz_ui_pow_ui(ten.get_mpz_t(), 10, static_cast<unsigned long>(places));
  if (const auto* e = std::get_if<Exact>(&a)) {
    const mpq_class scaled = e->re * ten * 2 + 1;  // floor((2x + 1) / 2)
    mpz_class twice = scaled.get_den() * 2;
    mpz_fdiv_q(out.get_mpz_t(), scaled.get_num_mpz_t(), twice.get_mpz_t());
    return out;
  }
  const Approx x = approximate(a);
  if (magnitude_of(x) > 4096) throw Undefined("a number that is too large to round");
  Float scaled;
  mpfr_mul_z(scaled, x.re, ten.get_mpz_t(), MPFR_RNDN);
  mpfr_get_z(out.get_mpz_t(), scaled, MPFR_RNDN);
  return out;
}

bool Arithmetic::equal_rounded(const Value& a, const Value& b, long places) {
  if (!is_real(a) || !is_real(b)) return false;
  budget_.spend(200);
  return rounded(a, places) == rounded(b, places);
}

bool Arithmetic::equal(const Value& a, const Value& b) {
  const auto *p = std::get_if<Exact>(&a), *q = std::get_if<Exact>(&b);
  if (p != nullptr && q != nullptr) return p->re == q->re && p->im == q->im;
  const Approx x = approximate(a), y = approximate(b);
  const double error = std::max(x.error, y.error);
  const Approx difference = approximate(subtract(a, b));
  if (magnitude_of(difference) > error + 12) return false;
  if (error > std::max(std::max(magnitude_of(x), magnitude_of(y)) - 100, -200.0))
    throw Undefined("numbers known too roughly to compare");
  return true;
}

bool Arithmetic::less(const Value& a, const Value& b) {
  if (!is_real(a) || !is_real(b)) throw Undefined("order of complex numbers");
  const auto *p = std::get_if<Exact>(&a), *q = std::get_if<Exact>(&b);
  if (p != nullptr && q != nullptr) return p->re < q->re;
  const Approx x = approximate(a), y = approximate(b);
  return mpfr_cmp(x.re, y.re) < 0;
}

}  // namespace mortise::math
