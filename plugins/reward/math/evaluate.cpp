// Computes an expression at one of the fixed points, exactly if possible.
#include "evaluate.h"

namespace mortise::math {
namespace {

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

// A fraction in (1/4, 1), three times that at later points.
Value value_of(const std::string& symbol, int point) {
  std::uint64_t hash = 0x6D6F7274697365U + static_cast<std::uint64_t>(point);
  for (const char c : symbol) hash = mixed(hash ^ static_cast<unsigned char>(c));
  mpq_class x(long((1U << 15) + (hash & 0x7FFF)), long((1U << 16) + (hash >> 32 & 0xFFFF)));
  x.canonicalize();
  if (point >= 2) x *= 3;
  if (point % 2 == 1) x = -x;
  return Exact{x, 0};
}

class Evaluation {
 public:
  Evaluation(int point, bool upper, Arithmetic& arithmetic) : point_(point), upper_(upper), a_(arithmetic) {}

  Value of(const Node& n) {
    switch (n.kind) {
      case Kind::kNumber:
        return Exact{n.number, 0};
      case Kind::kSymbol:
        return value_of(n.text, point_);
      case Kind::kPi:
        return pi();
      case Kind::kEuler:
        return euler();
      case Kind::kImaginary:
        return Exact{0, 1};
      case Kind::kAdd:
        return folded(n, &Arithmetic::add);
      case Kind::kMultiply:
        return folded(n, &Arithmetic::multiply);
      case Kind::kNegate:
        return a_.negate(of(*n.args[0]));
      case Kind::kDivide:
        return a_.divide(of(*n.args[0]), of(*n.args[1]));
      case Kind::kPower:
        return power(n);
      case Kind::kRoot:
        return a_.root(of(*n.args[0]), of(*n.args[1]));
      case Kind::kLog:
        return logarithm(n);
      case Kind::kFunction:
        return function(n);
      case Kind::kFactorial:
        return a_.factorial(of(*n.args[0]));
      case Kind::kAbsolute:
        return a_.absolute(of(*n.args[0]));
      case Kind::kFloor:
        return a_.floor(of(*n.args[0]), false);
      case Kind::kCeiling:
        return a_.floor(of(*n.args[0]), true);
      case Kind::kBinomial:
        return a_.binomial(of(*n.args[0]), of(*n.args[1]));
      case Kind::kPercent:
        return a_.divide(of(*n.args[0]), integer(100));
      case Kind::kDegrees:
        return degrees(n);
      case Kind::kScaled:
        return a_.multiply(of(*n.args[0]), Exact{n.number, 0});
      case Kind::kOfSeveral:
        return of_several(n);
      case Kind::kModulo:
        return modulo(of(*n.args[0]), of(*n.args[1]));
      case Kind::kPlusMinus:
        return (n.text == "+") == upper_ ? of(*n.args[0]) : a_.negate(of(*n.args[0]));
      default:
        throw Undefined("no number");
    }
  }

 private:
  Value folded(const Node& n, Value (Arithmetic::*operation)(const Value&, const Value&)) {
    Value out = of(*n.args[0]);
    for (std::size_t i = 1; i < n.args.size(); ++i) out = (a_.*operation)(out, of(*n.args[i]));
    return out;
  }
  Value of_several(const Node& n) {
    Value out = of(*n.args[0]);
    for (std::size_t i = 1; i < n.args.size(); ++i) {
      const Value next = of(*n.args[i]);
      if (n.text == "gcd" || n.text == "lcm") {
        out = a_.common(out, next, n.text == "lcm");
      } else if (a_.less(out, next) == (n.text == "max")) {
        out = next;
      }
    }
    return out;
  }
  Value modulo(const Value& a, const Value& m) {
    return a_.subtract(a, a_.multiply(m, a_.floor(a_.divide(a, m), false)));
  }
  // e^x without the logarithm of e.
  Value power(const Node& n) {
    if (n.args[0]->kind == Kind::kEuler) return a_.exponential(of(*n.args[1]));
    return a_.power(of(*n.args[0]), of(*n.args[1]));
  }
  Value logarithm(const Node& n) { return a_.divide(a_.logarithm(of(*n.args[0])), a_.logarithm(of(*n.args[1]))); }
  // An angle in degrees is its number, except in the functions of angles.
  Value function(const Node& n) {
    const bool outer = in_function_;
    in_function_ = true;
    const Value inside = of(*n.args[0]);
    in_function_ = outer;
    return a_.function(n.text, inside);
  }
  Value degrees(const Node& n) {
    const Value number = of(*n.args[0]);
    return in_function_ ? a_.divide(a_.multiply(number, pi()), integer(180)) : number;
  }

  int point_;
  bool upper_;
  bool in_function_ = false;
  Arithmetic& a_;
};

}  // namespace

Value evaluate(const Node& node, int point, bool upper, Arithmetic& arithmetic) {
  return Evaluation(point, upper, arithmetic).of(node);
}

}  // namespace mortise::math
