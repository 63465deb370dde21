// Macros and call blocks. See interpreter.h.
#include <fmt/core.h>
#include <algorithm>
#include <optional>

#include "text/template/interpreter.h"
#include "text/template/work.h"

namespace mortise::jinja {
namespace {

// A macro, or the body of a call block. Scopes live as long as the interpreter, so a plain pointer will do.
class Macro final : public Callable {
 public:
  Macro(const Stmt& stmt, Scope* scope, std::string name)
      : stmt_(stmt), scope_(scope), name_(std::move(name)), name_value_(name_) {
    std::vector<Value> names;
    for (const Param& param : stmt.params) names.emplace_back(param.name);
    arguments_ = Value::tuple(std::move(names));
  }
  Result<Value> call(Interpreter& interpreter, CallArgs args) const override {
    return Value(TRY(interpreter.call_macro(stmt_, scope_, name_, args)));
  }
  [[nodiscard]] std::string type_name() const override { return "Macro"; }
  [[nodiscard]] std::string repr() const override { return fmt::format("<Macro {}>", string_repr(name_)); }
  [[nodiscard]] const Value* attribute(std::string_view name) const override {
    if (name == "name") return &name_value_;
    if (name == "arguments") return &arguments_;
    return nullptr;
  }

 private:
  const Stmt& stmt_;
  Scope* scope_;
  std::string name_;
  Value name_value_;
  Value arguments_;
};

}  // namespace

Result<> Interpreter::exec_macro(const Stmt& stmt, Scope* scope) {
  TRY(use_work(stmt.text.size() + 8 * stmt.params.size()));
  for (Scope* at = scope; at != nullptr; at = at->parent) at->captured = true;
  set(scope, stmt.symbol, Value(std::shared_ptr<const Callable>(std::make_shared<Macro>(stmt, scope, stmt.text))));
  return {};
}

Result<> Interpreter::exec_call_block(const Stmt& stmt, Scope* scope, std::string& out) {
  TRY(use_work(8 * stmt.params.size()));
  for (Scope* at = scope; at != nullptr; at = at->parent) at->captured = true;
  const Value caller(std::shared_ptr<const Callable>(std::make_shared<Macro>(stmt, scope, "caller")));
  const Value result = TRY(eval_call(*stmt.expr, scope, &caller));
  const std::string text = TRY(to_text(result));
  return write(out, text);
}

Result<std::string> Interpreter::call_macro(const Stmt& stmt, Scope* scope, std::string_view name,
                                            const CallArgs& args) {
  const Nesting nesting(*this);
  TRY(nesting.check());
  TRY(use_work(name.size() + args.positional.size() + (stmt.params.size() + 1) * args.keyword.size()));
  Scope* inner = open_scope(scope);
  const std::string quoted_name = string_repr(name);
  std::vector<std::pair<std::string, Value>> keyword = args.keyword;
  const auto take = [&](std::string_view key) -> std::optional<Value> {
    const auto it = std::find_if(keyword.begin(), keyword.end(), [&](const auto& entry) { return entry.first == key; });
    if (it == keyword.end()) return std::nullopt;
    Value value = std::move(it->second);
    keyword.erase(it);
    return value;
  };
  for (size_t i = 0; i < stmt.params.size(); ++i) {
    const Param& param = stmt.params[i];
    if (i < args.positional.size()) {
      if (std::any_of(keyword.begin(), keyword.end(), [&](const auto& entry) { return entry.first == param.name; })) {
        return type_error(
            fmt::format("macro {} got multiple values for argument {}", quoted_name, string_repr(param.name)));
      }
      set(inner, param.symbol, args.positional[i]);
    } else if (auto value = take(param.name)) {
      set(inner, param.symbol, std::move(*value));
    } else if (param.fallback != nullptr) {
      set(inner, param.symbol, TRY(eval(*param.fallback, inner)));
    } else {
      set(inner, param.symbol, Value::undefined(fmt::format("parameter {} was not provided", string_repr(param.name))));
    }
  }
  const size_t num_taken = std::min(stmt.params.size(), args.positional.size());
  std::vector<Value> rest(args.positional.begin() + static_cast<std::ptrdiff_t>(num_taken), args.positional.end());
  if (stmt.uses_caller)
    set(inner, template_.symbols.caller, take("caller").value_or(Value::undefined("No caller defined")));
  if (!keyword.empty() && !stmt.uses_kwargs) {
    const auto is_caller = [](const auto& entry) { return entry.first == "caller"; };
    if (std::any_of(keyword.begin(), keyword.end(), is_caller)) {
      return type_error(fmt::format(
          "macro {} was invoked with two values for the special caller argument. This is most likely a bug.",
          quoted_name));
    }
    return type_error(
        fmt::format("macro {} takes no keyword argument {}", quoted_name, string_repr(keyword.front().first)));
  }
  if (!rest.empty() && !stmt.uses_varargs) {
    return type_error(fmt::format("macro {} takes not more than {} argument(s)", quoted_name, stmt.params.size()));
  }
  if (stmt.uses_varargs) set(inner, template_.symbols.varargs, Value::tuple(std::move(rest)));
  if (stmt.uses_kwargs) {
    auto dict = std::make_shared<Dict>();
    for (auto& [key, value] : keyword) TRY(dict->set(Value(key), std::move(value)));
    set(inner, template_.symbols.kwargs, Value(std::shared_ptr<const Dict>(std::move(dict))));
  }
  std::string out;
  TRY(exec(stmt.body, inner, out));
  close_scope(inner);
  held_bytes -= static_cast<int64_t>(out.size());
  return out;
}

}  // namespace mortise::jinja
