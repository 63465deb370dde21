// The numbers in which answers are compared: exact Gaussian rationals (GMP) as long as that is possible, else complex
// floats of 320 bits with a bound on their error (MPFR), so that "equal" and "not equal" are both known.
//
// Work is counted and not timed, so that a reward never depends on the machine: an operation that would exceed the
// limits, or has no value (1/0, the logarithm of 0), throws Undefined. Threading: a Budget belongs to one thread.
#pragma once

#include <gmpxx.h>
#include <mpfr.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <variant>

namespace mortise::math {

struct Undefined : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr long kPrecision = 320;           // bits of an approximate number
inline constexpr std::size_t kMaxBits = 1 << 17;  // bits of an exact numerator or denominator

// Work that may still be done, in machine words touched.
class Budget {
 public:
  explicit Budget(std::int64_t words = 40'000'000) : left_(words) {}
  void spend(std::int64_t words) {
    left_ -= words;
    if (left_ < 0) throw Undefined("too much work");
  }

 private:
  std::int64_t left_;
};

class Float {
 public:
  Float() {
    mpfr_init2(x_, kPrecision);
    mpfr_set_zero(x_, 1);
  }
  Float(const Float& other) : Float() { mpfr_set(x_, other.x_, MPFR_RNDN); }
  Float(Float&& other) noexcept : Float() { mpfr_swap(x_, other.x_); }
  Float& operator=(Float other) noexcept {
    mpfr_swap(x_, other.x_);
    return *this;
  }
  ~Float() { mpfr_clear(x_); }
  operator mpfr_ptr() { return x_; }
  operator mpfr_srcptr() const { return x_; }
  [[nodiscard]] bool is_zero() const { return mpfr_zero_p(x_) != 0; }

 private:
  mpfr_t x_;
};

struct Exact {
  mpq_class re, im;
};
struct Approx {
  Float re, im;
  double error = 0;  // log2 of a bound on the absolute error of both parts
};
using Value = std::variant<Exact, Approx>;

inline Value integer(long n) { return Exact{n, 0}; }
Value pi();
Value euler();

class Arithmetic {
 public:
  explicit Arithmetic(Budget& budget) : budget_(budget) {}

  Value add(const Value& a, const Value& b);
  Value negate(const Value& a);
  Value subtract(const Value& a, const Value& b) { return add(a, negate(b)); }
  Value multiply(const Value& a, const Value& b);
  Value divide(const Value& a, const Value& b);
  Value power(const Value& base, const Value& exponent);
  // The n-th root; the real one where the number is real and n is odd.
  Value root(const Value& a, const Value& n);
  Value absolute(const Value& a);
  Value floor(const Value& a, bool up);
  Value factorial(const Value& a);
  Value binomial(const Value& n, const Value& k);
  // The greatest common divisor or the least common multiple of two whole numbers.
  Value common(const Value& a, const Value& b, bool multiple);
  Value exponential(const Value& a);
  Value logarithm(const Value& a);  // natural, principal branch
  // sin, cos, tan, cot, sec, csc, sinh, cosh, tanh, arcsin, arccos, arctan, exp, ln; angles in radians. Throws
  // Undefined for a name that it does not know.
  Value function(const std::string& name, const Value& a);

  // Are they the same number? Throws Undefined if the error bounds do not decide.
  bool equal(const Value& a, const Value& b);
  // Both real: is a below b?
  bool less(const Value& a, const Value& b);
  // Equal after rounding both to `places` decimals; false unless both are real.
  bool equal_rounded(const Value& a, const Value& b, long places);

 private:
  Value checked(Exact x);
  Value checked(Approx x);
  Value sine(const Value& a, bool cosine);
  Value hyperbolic(const Value& a, bool cosine);
  Value inverse(const std::string& name, const Value& a);
  Value falling_binomial(const Value& n, long k);
  Value power_of_integer(const Value& base, long n);
  mpz_class rounded(const Value& a, long places);
  Budget& budget_;
};

// log2 of upper bounds: of a part, of both parts, and of the error that rounding them makes. -inf for 0.
double exponent_of(const Float& x);
double magnitude_of(const Approx& x);
double rounding_of(const Approx& x);
Approx approximate(const Value& v);

bool is_real(const Value& a);
// The number as a small integer; false if it is not one.
bool as_long(const Value& a, long& n);
// log2 of an upper bound of |a|.
double magnitude(const Value& a);

}  // namespace mortise::math
