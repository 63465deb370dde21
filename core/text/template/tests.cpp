// See tests.h.
#include "text/template/tests.h"

#include <cmath>

#include "text/template/filters.h"
#include "text/template/interpreter.h"
#include "text/template/py_string.h"
#include "text/template/slicing.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;

template <bool (*kCheck)(const Value&)>
Result<bool> plain(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("test", args, {}, 0));
  return kCheck(input);
}

bool is_defined(const Value& v) { return !v.is(Kind::kUndefined); }
bool is_undefined(const Value& v) { return v.is(Kind::kUndefined); }
bool is_none(const Value& v) { return v.is(Kind::kNone); }
bool is_string(const Value& v) { return v.is(Kind::kString); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_float(const Value& v) { return v.is(Kind::kFloat); }
bool is_integer(const Value& v) { return v.is(Kind::kInt); }
bool is_boolean(const Value& v) { return v.is(Kind::kBool); }
bool is_true(const Value& v) { return v.is(Kind::kBool) && v.boolean(); }
bool is_false(const Value& v) { return v.is(Kind::kBool) && !v.boolean(); }
bool is_mapping(const Value& v) { return v.is(Kind::kDict); }
bool is_callable(const Value& v) { return v.is(Kind::kCallable) || v.is(Kind::kLoop) || v.is(Kind::kUndefined); }
bool is_escaped(const Value& /*v*/) { return false; }

bool is_iterable(const Value& v) {
  switch (v.kind()) {
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kNamespace:
    case Kind::kCallable:
      return false;
    default:
      return true;
  }
}

// What has a length and can be indexed.
bool is_sequence(const Value& v) {
  return v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kTuple) || v.is(Kind::kDict) || v.is(Kind::kRange) ||
         v.is(Kind::kUndefined);
}

Result<bool> is_lower(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("test_lower", args, {}, 0));
  const std::string text = TRY(to_text(input));
  return classify_text("islower", text).value_or(false);
}

Result<bool> is_upper(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("test_upper", args, {}, 0));
  const std::string text = TRY(to_text(input));
  return classify_text("isupper", text).value_or(false);
}

Result<bool> remainder_is(Interpreter& interpreter, const Value& input, const Value& divisor, int rest) {
  const Value value = TRY(interpreter.binary(Operator::kMod, input, divisor));
  return equals(value, Value(rest));
}

Result<bool> is_odd(Interpreter& interpreter, const Value& input, Args args) {
  TRY(BoundArgs::bind("test_odd", args, {}, 0));
  return remainder_is(interpreter, input, Value(2), 1);
}

Result<bool> is_even(Interpreter& interpreter, const Value& input, Args args) {
  TRY(BoundArgs::bind("test_even", args, {}, 0));
  return remainder_is(interpreter, input, Value(2), 0);
}

Result<bool> divisible_by(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("test_divisibleby", args, {"num"}, 1));
  return remainder_is(interpreter, input, bound[0], 0);
}

template <Operator kOp>
Result<bool> compare(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("test", args, {"other"}, 1));
  switch (kOp) {
    case Operator::kEq:
      return equals(input, bound[0]);
    case Operator::kNe:
      return !equals(input, bound[0]);
    case Operator::kLt:
      return less_than(input, bound[0], "<");
    case Operator::kLe:
      return at_most(input, bound[0]);
    case Operator::kGt:
      return greater_than(input, bound[0]);
    default:
      return at_least(input, bound[0]);
  }
}

Result<bool> is_in(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("test_in", args, {"seq"}, 1));
  return contains(bound[0], input);
}

Result<bool> same_as(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("test_sameas", args, {"other"}, 1));
  return input.same_as(bound[0]);
}

Result<bool> names_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("test_filter", args, {}, 0));
  TRY(check_hashable(input));
  return input.is(Kind::kString) && find_filter(input.string()) != nullptr;
}

Result<bool> names_test(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("test_test", args, {}, 0));
  TRY(check_hashable(input));
  return input.is(Kind::kString) && find_test(input.string()) != nullptr;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  static constexpr std::pair<std::string_view, TestFunction> kTests[] = {{"defined", plain<is_defined>},
                                                                         {"undefined", plain<is_undefined>},
                                                                         {"none", plain<is_none>},
                                                                         {"string", plain<is_string>},
                                                                         {"number", plain<is_number>},
                                                                         {"float", plain<is_float>},
                                                                         {"integer", plain<is_integer>},
                                                                         {"boolean", plain<is_boolean>},
                                                                         {"true", plain<is_true>},
                                                                         {"false", plain<is_false>},
                                                                         {"mapping", plain<is_mapping>},
                                                                         {"callable", plain<is_callable>},
                                                                         {"escaped", plain<is_escaped>},
                                                                         {"iterable", plain<is_iterable>},
                                                                         {"sequence", plain<is_sequence>},
                                                                         {"lower", is_lower},
                                                                         {"upper", is_upper},
                                                                         {"odd", is_odd},
                                                                         {"even", is_even},
                                                                         {"divisibleby", divisible_by},
                                                                         {"in", is_in},
                                                                         {"sameas", same_as},
                                                                         {"filter", names_filter},
                                                                         {"test", names_test},
                                                                         {"eq", compare<Operator::kEq>},
                                                                         {"equalto", compare<Operator::kEq>},
                                                                         {"==", compare<Operator::kEq>},
                                                                         {"ne", compare<Operator::kNe>},
                                                                         {"!=", compare<Operator::kNe>},
                                                                         {"lt", compare<Operator::kLt>},
                                                                         {"lessthan", compare<Operator::kLt>},
                                                                         {"<", compare<Operator::kLt>},
                                                                         {"le", compare<Operator::kLe>},
                                                                         {"<=", compare<Operator::kLe>},
                                                                         {"gt", compare<Operator::kGt>},
                                                                         {"greaterthan", compare<Operator::kGt>},
                                                                         {">", compare<Operator::kGt>},
                                                                         {"ge", compare<Operator::kGe>},
                                                                         {">=", compare<Operator::kGe>}};
  for (const auto& [known, function] : kTests) {
    if (known == name) return function;
  }
  return nullptr;
}

}  // namespace mortise::jinja
