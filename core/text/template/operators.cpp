// + - * / // % ** on Python values. See interpreter.h.
#include <fmt/core.h>
#include <cmath>

#include "text/template/format.h"
#include "text/template/interpreter.h"
#include "text/template/work.h"

namespace mortise::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

Error unsupported(Operator op, const Value& a, const Value& b) {
  return type_error(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", kSymbols[static_cast<size_t>(op)],
                                type_name(a), type_name(b)));
}

Error too_large() { return type_error("an integer result is too large (more than 127 bits)"); }

Int floor_div(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_mod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  return rest;
}

Result<Value> integer_power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) return type_error("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      return too_large();
    }
  }
  return Value(result);
}

Result<Value> integer_op(Operator op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Operator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Result<Value>(too_large()) : Value(result);
    case Operator::kSub:
      return __builtin_sub_overflow(a, b, &result) ? Result<Value>(too_large()) : Value(result);
    case Operator::kMul:
      return __builtin_mul_overflow(a, b, &result) ? Result<Value>(too_large()) : Value(result);
    case Operator::kDiv:
      if (b == 0) return type_error("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDiv:
      if (b == 0) return type_error("integer division or modulo by zero");
      return Value(floor_div(a, b));
    case Operator::kMod:
      if (b == 0) return type_error("integer modulo by zero");
      return Value(a - floor_div(a, b) * b);
    default:
      return integer_power(a, b);
  }
}

Result<Value> float_op(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSub:
      return Value(a - b);
    case Operator::kMul:
      return Value(a * b);
    case Operator::kDiv:
      if (b == 0) return type_error("float division by zero");
      return Value(a / b);
    case Operator::kFloorDiv:
      if (b == 0) return type_error("float floor division by zero");
      return Value(std::floor((a - float_mod(a, b)) / b + 0.5));
    case Operator::kMod:
      if (b == 0) return type_error("float modulo");
      return Value(float_mod(a, b));
    default:
      if (a == 0 && b < 0) return type_error("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::floor(b)) return type_error("complex numbers are not supported");
      if (const double power = std::pow(a, b); !std::isinf(power) || std::isinf(a) || std::isinf(b))
        return Value(power);
      return type_error("(34, 'Numerical result out of range')");
  }
}

const std::vector<Value>* items_if_sequence(const Value& value) {
  if (value.is(Kind::kList)) return &value.list_value().items;
  if (value.is(Kind::kTuple)) return &value.tuple_value().items;
  return nullptr;
}

std::vector<Value> joined(const std::vector<Value>& a, const std::vector<Value>& b) {
  std::vector<Value> out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

}  // namespace

// Texts, lists and tuples: a + b.
static Result<Value> add_sequences(Interpreter& interpreter, const Value& a, const Value& b) {
  if (a.is(Kind::kString)) {
    if (!b.is(Kind::kString))
      return type_error(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
    TRY(interpreter.charge_text(a.string().size() + b.string().size()));
    return Value(a.string() + b.string());
  }
  const auto* left = items_if_sequence(a);
  if (left == nullptr) return unsupported(Operator::kAdd, a, b);
  if (a.kind() != b.kind()) {
    return type_error(
        fmt::format("can only concatenate {} (not \"{}\") to {}", type_name(a), type_name(b), type_name(a)));
  }
  const auto* right = items_if_sequence(b);
  TRY(interpreter.charge((left->size() + right->size()) * sizeof(Value)));
  return a.is(Kind::kList) ? Value::list(joined(*left, *right)) : Value::tuple(joined(*left, *right));
}

// A text, list or tuple, so many times.
static Result<Value> repeat_sequence(Interpreter& interpreter, const Value& sequence, Int count) {
  const auto* items = items_if_sequence(sequence);
  const size_t size = items != nullptr ? items->size() * sizeof(Value) : sequence.string().size();
  if (count < 0 || size == 0) count = 0;
  if (count > 0 && static_cast<Int>(size) > (Int{1} << 40) / count)
    return type_error("the template makes too much data");
  const size_t made = size * static_cast<size_t>(count);
  TRY(items != nullptr ? interpreter.charge(made) : interpreter.charge_text(made));
  if (items == nullptr) {
    std::string out;
    for (Int i = 0; i < count; ++i) out += sequence.string();
    return Value(std::move(out));
  }
  std::vector<Value> out;
  for (Int i = 0; i < count; ++i) out.insert(out.end(), items->begin(), items->end());
  return sequence.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Result<Value> Interpreter::binary(Operator op, const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return integer_op(op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return float_op(op, left.number(), right.number());
  if (op == Operator::kMod && left.is(Kind::kString)) {
    TRY(use_work(work_over(left) + work_over(right)));
    std::string text = TRY(percent_format(left.string(), right));
    TRY(charge_text(text.size()));
    return Value(std::move(text));
  }
  if (left.is(Kind::kUndefined)) return undefined_error(left);
  if (right.is(Kind::kUndefined)) return undefined_error(right);
  if (op == Operator::kAdd && (left.is(Kind::kString) || items_if_sequence(left) != nullptr))
    return add_sequences(*this, left, right);
  if (op == Operator::kMul) {
    const auto repeats = [](const Value& value) {
      return value.is(Kind::kString) || items_if_sequence(value) != nullptr;
    };
    if (repeats(left) && right.is_integral()) return repeat_sequence(*this, left, right.integer());
    if (repeats(right) && left.is_integral()) return repeat_sequence(*this, right, left.integer());
    if (repeats(left) || repeats(right)) {
      const Value& other = repeats(left) ? right : left;
      return type_error(fmt::format("can't multiply sequence by non-int of type '{}'", type_name(other)));
    }
  }
  return unsupported(op, left, right);
}

}  // namespace mortise::jinja
