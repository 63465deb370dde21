// Filters that give numbers. See filters.h.
#include <fmt/core.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "text/template/filters.h"
#include "text/template/interpreter.h"
#include "text/template/py_string.h"
#include "text/template/work.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;

Result<Value> abs_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("abs", args, {}, 0));
  if (input.is(Kind::kUndefined)) return undefined_error(input);
  if (input.is_integral()) return Value(input.integer() < 0 ? -input.integer() : input.integer());
  if (input.is(Kind::kFloat)) return Value(std::fabs(input.number()));
  return type_error(fmt::format("bad operand type for abs(): '{}'", type_name(input)));
}

// The whole part of a double, where 127 bits hold it.
std::optional<Value> whole_part(double value) {
  if (!std::isfinite(value) || std::fabs(value) > 1e38) return std::nullopt;
  return Value(static_cast<Int>(value));
}

Result<Value> int_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_int", args, {"default", "base"}, 0));
  const Value fallback = bound.get(0, Value(0));
  const int64_t base = TRY(bound.integer(1, 10));
  if (input.is_integral()) return Value(input.integer());
  if (input.is(Kind::kFloat)) return whole_part(input.number()).value_or(fallback);
  if (input.is(Kind::kUndefined)) return undefined_error(input);
  if (!input.is(Kind::kString)) return fallback;
  if (base == 0 || (base >= 2 && base <= 36)) {
    if (const auto value = parse_int_text(input.string(), static_cast<int>(base))) return Value(*value);
  }
  const auto value = parse_float_text(input.string());  // "42.23" is 42
  return value ? whole_part(*value).value_or(fallback) : fallback;
}

Result<Value> float_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_float", args, {"default"}, 0));
  const Value fallback = bound.get(0, Value(0.0));
  if (input.is_number()) return Value(input.number());
  if (input.is(Kind::kUndefined)) return undefined_error(input);
  if (!input.is(Kind::kString)) return fallback;
  const auto value = parse_float_text(input.string());
  return value ? Value(*value) : fallback;
}

// Python's round(x, n): the decimal nearest to the exact value, ties (of the exact value) to even.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -300) return std::copysign(0.0, value);
  if (digits >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);  // correctly rounded, ties to even
    return std::strtod(buffer, nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

Result<Value> round_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_round", args, {"precision", "method"}, 0));
  const int64_t digits = TRY(bound.integer(0, 0));
  const auto method_text = bound.text(1, "common");
  if (!method_text.ok()) return method_text.error();
  const std::string_view method = *method_text;
  if (method != "common" && method != "ceil" && method != "floor")
    return type_error("method must be common, ceil or floor");
  if (input.is(Kind::kUndefined)) return undefined_error(input);
  if (!input.is_number()) return type_error(fmt::format("type {} doesn't define __round__ method", type_name(input)));
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    const double scaled = input.number() * scale;
    return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  TRY(use_work(static_cast<size_t>(std::clamp<int64_t>(digits, 0, 300))));  // long decimals are slow to print and read
  if (!input.is_integral()) return Value(rounded(input.number(), digits));
  if (digits >= 0) return Value(input.integer());
  if (digits < -37) return Value(0);
  Int unit = 1;
  for (int64_t i = 0; i < -digits; ++i) unit *= 10;
  const Int value = input.integer();
  const Int rest = ((value % unit) + unit) % unit;
  const Int down = value - rest;
  const bool up = rest * 2 > unit || (rest * 2 == unit && (down / unit) % 2 != 0);
  return Value(up ? down + unit : down);
}

Result<Value> sum(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("sum", args, {"attribute", "start"}, 0));
  std::optional<AttributePath> path;
  if (bound.has(0) && !bound[0].is(Kind::kNone)) path = TRY(AttributePath::parse(bound[0]));
  Value total = bound.get(1, Value(0));
  if (total.is(Kind::kString)) return type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : TRY(items_of(input))) {
    TRY(use_work(1));
    const Value part = path ? TRY(path->follow(interpreter, item)) : item;
    total = TRY(interpreter.binary(Operator::kAdd, total, part));
  }
  return total;
}

Result<Value> file_size(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_filesizeformat", args, {"binary"}, 0));
  const bool binary = TRY(bound.flag(0, false));
  double bytes = 0;
  if (input.is_number()) {
    bytes = input.number();
  } else {
    const auto parsed = input.is(Kind::kString) ? parse_float_text(input.string()) : std::nullopt;
    if (!parsed) return type_error(fmt::format("could not convert {} to float", type_name(input)));
    bytes = *parsed;
  }
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value("1 Byte");
  if (bytes < base) return Value(int_text(static_cast<Int>(bytes)) + " Bytes");
  static constexpr std::string_view kLetters = "kMGTPEZY";
  double unit = base;
  size_t index = 0;
  while (index + 1 < kLetters.size() && bytes >= unit * base) {
    unit *= base;
    ++index;
  }
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.1f ", bytes / unit);
  const char letter = binary && index == 0 ? 'K' : kLetters[index];
  return Value(std::string(buffer) + letter + (binary ? "iB" : "B"));
}

}  // namespace

FilterFunction find_number_filter(std::string_view name) {
  static constexpr NamedFilter kFilters[] = {
      {"abs", abs_filter},     {"int", int_filter}, {"float", float_filter},
      {"round", round_filter}, {"sum", sum},        {"filesizeformat", file_size}};
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace mortise::jinja
