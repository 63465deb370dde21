// Expressions. See interpreter.h.
#include <fmt/core.h>
#include <algorithm>
#include <cmath>

#include "text/template/filters.h"
#include "text/template/interpreter.h"
#include "text/template/slicing.h"
#include "text/template/tests.h"
#include "text/template/work.h"

namespace mortise::jinja {

Result<Value> Interpreter::eval(const Expr& expr, Scope* scope) {
  if (expr.kind == ExprKind::kConst) return expr.value;
  const Nesting nesting(*this);
  TRY(nesting.check());
  auto result = eval_node(expr, scope);
  if (!result.ok()) return located(std::move(result).error(), expr.place);
  if (depth_of(*result) > limits_.max_value_depth)
    return located(type_error("a value is nested too deeply"), expr.place);
  return result;
}

Result<Value> Interpreter::eval_node(const Expr& expr, Scope* scope) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return eval_name(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_sequence(expr, scope);
    case ExprKind::kDict:
      return eval_dict(expr, scope);
    case ExprKind::kCondition:
      return eval_condition(expr, scope);
    case ExprKind::kNot:
    case ExprKind::kNegate:
    case ExprKind::kPositive:
      return eval_unary(expr, scope);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return eval_logic(expr, scope);
    case ExprKind::kCompare:
      return eval_compare(expr, scope);
    case ExprKind::kBinary: {
      const Value left = TRY(eval(*expr.items[0], scope));
      const Value right = TRY(eval(*expr.items[1], scope));
      return binary(expr.ops[0], left, right);
    }
    case ExprKind::kConcat:
      return eval_concat(expr, scope);
    case ExprKind::kFilter:
      return eval_filter(expr, scope, nullptr);
    case ExprKind::kTest: {
      const Value input = TRY(eval(*expr.items[0], scope));
      const CallArgs args = TRY(eval_args(*expr.args, scope));
      return Value(TRY(test(expr.text, input, args)));
    }
    case ExprKind::kCall:
      return eval_call(expr, scope, nullptr);
    case ExprKind::kAttribute: {
      const Value object = TRY(eval(*expr.items[0], scope));
      return attribute(object, expr.text);
    }
    case ExprKind::kItem: {
      const Value object = TRY(eval(*expr.items[0], scope));
      const Value key = TRY(eval(*expr.items[1], scope));
      return item(object, key);
    }
    case ExprKind::kSlice:
      return eval_slice(expr, scope);
    case ExprKind::kNamespaceRef:
      break;
  }
  return type_error("an expression that cannot be read");
}

Result<Value> Interpreter::eval_name(const Expr& expr, Scope* scope) {
  const Value* value = look_up(expr.symbol, scope);
  if (value != nullptr) return *value;
  TRY(use_work(expr.text.size()));
  return Value::undefined(string_repr(expr.text) + " is undefined");
}

Result<Value> Interpreter::eval_sequence(const Expr& expr, Scope* scope) {
  std::vector<Value> items;
  items.reserve(expr.items.size());
  for (const ExprPtr& item : expr.items) items.push_back(TRY(eval(*item, scope)));
  return expr.kind == ExprKind::kList ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Result<Value> Interpreter::eval_dict(const Expr& expr, Scope* scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.items.size(); i += 2) {
    Value key = TRY(eval(*expr.items[i], scope));
    Value value = TRY(eval(*expr.items[i + 1], scope));
    TRY(dict->set(std::move(key), std::move(value)));
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Result<Value> Interpreter::eval_condition(const Expr& expr, Scope* scope) {
  const Value test = TRY(eval(*expr.items[0], scope));
  if (TRY(truth(test))) return eval(*expr.items[1], scope);
  if (expr.items.size() > 2) return eval(*expr.items[2], scope);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Result<Value> Interpreter::eval_logic(const Expr& expr, Scope* scope) {
  Value left = TRY(eval(*expr.items[0], scope));
  const bool is_true = TRY(truth(left));
  if (is_true == (expr.kind == ExprKind::kOr)) return left;
  return eval(*expr.items[1], scope);
}

Result<Value> Interpreter::eval_compare(const Expr& expr, Scope* scope) {
  Value left = TRY(eval(*expr.items[0], scope));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = TRY(eval(*expr.items[i + 1], scope));
    bool holds = false;
    switch (expr.ops[i]) {
      case Operator::kEq:
        holds = equals(left, right);
        break;
      case Operator::kNe:
        holds = !equals(left, right);
        break;
      case Operator::kLt:
        holds = TRY(less_than(left, right, "<"));
        break;
      case Operator::kLe:
        holds = TRY(at_most(left, right));
        break;
      case Operator::kGt:
        holds = TRY(greater_than(left, right));
        break;
      case Operator::kGe:
        holds = TRY(at_least(left, right));
        break;
      case Operator::kIn:
        holds = TRY(contains(right, left));
        break;
      case Operator::kNotIn:
        holds = !TRY(contains(right, left));
        break;
      default:
        break;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Interpreter::eval_unary(const Expr& expr, Scope* scope) {
  const Value value = TRY(eval(*expr.items[0], scope));
  if (expr.kind == ExprKind::kNot) return Value(!TRY(truth(value)));
  if (value.is(Kind::kUndefined)) return undefined_error(value);
  const bool negate = expr.kind == ExprKind::kNegate;
  if (value.is(Kind::kFloat)) return Value(negate ? -value.number() : value.number());
  if (value.is_integral()) return Value(negate ? -value.integer() : value.integer());
  return type_error(fmt::format("bad operand type for unary {}: '{}'", negate ? "-" : "+", type_name(value)));
}

Result<Value> Interpreter::eval_concat(const Expr& expr, Scope* scope) {
  std::string out;
  for (const ExprPtr& item : expr.items) {
    const Value value = TRY(eval(*item, scope));
    const std::string text = TRY(to_text(value));
    TRY(charge(text.size()));
    TRY(text_may_have(out.size() + text.size()));
    out += text;
  }
  return Value(std::move(out));
}

Result<Value> Interpreter::eval_filter(const Expr& expr, Scope* scope, const Value* block_text) {
  Value input;
  if (expr.items.empty()) {
    input = block_text != nullptr ? *block_text : Value();
  } else if (block_text != nullptr && expr.items[0]->kind == ExprKind::kFilter) {
    input = TRY(eval_filter(*expr.items[0], scope, block_text));
  } else {
    input = TRY(eval(*expr.items[0], scope));
  }
  const CallArgs args = TRY(eval_args(*expr.args, scope));
  return filter(expr.text, input, args);
}

Result<Value> Interpreter::filter(std::string_view name, const Value& input, const CallArgs& args) {
  const FilterFunction found = find_filter(name);
  if (found == nullptr) return type_error(fmt::format("No filter named '{}'.", name));
  TRY(use_work(call_work(input, args)));
  return found(*this, input, args);
}

Result<bool> Interpreter::test(std::string_view name, const Value& input, const CallArgs& args) {
  const TestFunction found = find_test(name);
  if (found == nullptr) return type_error(fmt::format("No test named '{}'.", name));
  TRY(use_work(call_work(input, args)));
  return found(*this, input, args);
}

Result<CallArgs> Interpreter::eval_args(const ArgList& args, Scope* scope) {
  CallArgs out;
  for (const ExprPtr& item : args.positional) out.positional.push_back(TRY(eval(*item, scope)));
  if (args.star != nullptr) {
    const Value more = TRY(eval(*args.star, scope));
    for (Value& item : TRY(items_of(more))) out.positional.push_back(std::move(item));
  }
  for (const auto& [name, item] : args.keyword) {
    TRY(use_work(name.size()));
    out.keyword.emplace_back(name, TRY(eval(*item, scope)));
  }
  if (args.double_star != nullptr) {
    const Value more = TRY(eval(*args.double_star, scope));
    if (!more.is(Kind::kDict)) return type_error("argument after ** must be a mapping, not " + type_name(more));
    for (const auto& [name, value] : more.dict().items()) {
      TRY(use_work(work_over(name)));
      if (!name.is(Kind::kString)) return type_error("keywords must be strings");
      out.keyword.emplace_back(name.string(), value);
    }
  }
  return out;
}

Result<Value> Interpreter::eval_call(const Expr& expr, Scope* scope, const Value* caller) {
  const Value callee = TRY(eval(*expr.items[0], scope));
  CallArgs args = TRY(eval_args(*expr.args, scope));
  if (caller != nullptr) args.keyword.emplace_back("caller", *caller);
  return call(callee, std::move(args));
}

Result<Value> Interpreter::call(const Value& callee, CallArgs args) {
  TRY(use_work(kCallWork));
  if (callee.is(Kind::kUndefined)) return undefined_error(callee);
  if (callee.is(Kind::kCallable)) return callee.callable().call(*this, std::move(args));
  if (callee.is(Kind::kLoop)) {
    const BoundArgs bound = TRY(BoundArgs::bind("loop", args, {"iterable"}, 1));
    return Value(TRY(run_loop_again(callee.loop(), bound[0])));
  }
  return type_error(fmt::format("'{}' object is not callable", type_name(callee)));
}

// Made of literals only: jinja2 works such an expression out while it compiles.
static bool is_constant(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return true;
    case ExprKind::kName:
    case ExprKind::kNamespaceRef:
    case ExprKind::kCall:
      return false;
    default:
      break;
  }
  const auto constant = [](const ExprPtr& item) { return item == nullptr || is_constant(*item); };
  if (!std::all_of(expr.items.begin(), expr.items.end(), constant)) return false;
  return expr.args == nullptr || std::all_of(expr.args->positional.begin(), expr.args->positional.end(), constant);
}

Result<Value> Interpreter::eval_slice(const Expr& expr, Scope* scope) {
  const Value object = TRY(eval(*expr.items[0], scope));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.items[i + 1] != nullptr) bounds[i] = TRY(eval(*expr.items[i + 1], scope));
  }
  TRY(use_work(work_over(object)));
  auto sliced = slice_value(object, bounds[0], bounds[1], bounds[2]);
  // jinja2's compile-time evaluation gives undefined where the slice of a variable would be an error.
  if (!sliced.ok() && is_constant(expr)) return Value::undefined(sliced.error().what);
  return sliced;
}

}  // namespace mortise::jinja
