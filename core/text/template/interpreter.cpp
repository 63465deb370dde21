// Statements, scopes and limits. See interpreter.h.
#include "text/template/interpreter.h"

#include <fmt/core.h>
#include <algorithm>
#include <limits>

#include "text/template/filters.h"
#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

constexpr size_t kVariablesPerUnit = 8;  // that a search for a name passes in a unit of work
constexpr size_t kCopiedPerUnit = 16;    // bytes
constexpr size_t kTurnWork = 4;          // work of a loop's turn, beyond its steps

}  // namespace

size_t loop_length(const LoopState& loop) { return loop.items->size(); }
int loop_depth(const LoopState& loop) { return loop.depth; }

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->values.clear();
}

Result<Value> Interpreter::make_namespace(std::vector<std::pair<std::string, Value>> values) {
  held_bytes += static_cast<int64_t>(2 * kObjectBytes + values.size() * sizeof(values[0]));
  TRY(room_for(0));
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(values)}));
  return Value(namespaces_.back());
}

Result<> Interpreter::check_limits() {
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const uintptr_t used = stack_start_ > here ? stack_start_ - here : here - stack_start_;
  if (depth_ > limits_.max_depth || used > limits_.max_stack_bytes)
    return type_error("maximum recursion depth exceeded");
  if (++steps_ > limits_.max_steps)
    return type_error(fmt::format("the template takes more than {} steps", limits_.max_steps));
  TRY(room_for(0));
  return use_work(1);
}

void Interpreter::define(std::string_view name, Value value) { globals_.emplace_back(name, std::move(value)); }

Result<std::string> Interpreter::run() {
  const WorkBudget budget(limits_.max_work, limits_.max_live_bytes, limits_.max_output_bytes);
  stack_start_ = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  root_ = open_scope(nullptr);
  root_->captured = true;
  const auto& names = template_.symbols.names;
  for (auto& [name, value] : globals_) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it != names.end()) set(root_, static_cast<Symbol>(it - names.begin()), value);
  }
  Scope* scope = open_scope(root_);
  std::string out;
  main_out_ = &out;
  TRY(exec(template_.body, scope, out));
  TRY(use_work(1));  // the last comparison may have been cut short
  return out;
}

Scope* Interpreter::open_scope(Scope* parent) {
  Scope* scope = nullptr;
  if (free_scopes_.empty()) {
    scope = &scopes_.emplace_back();
    held_bytes += static_cast<int64_t>(sizeof(Scope) + kObjectBytes);
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope->parent = parent;
  return scope;
}

void Interpreter::close_scope(Scope* scope) {
  if (scope->captured) return;
  held_bytes -= static_cast<int64_t>(scope->vars.size() * sizeof(scope->vars[0]));
  scope->vars.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::set(Scope* scope, Symbol symbol, Value value) {
  spend_work(scope->vars.size() / kVariablesPerUnit);
  for (auto& [name, known] : scope->vars) {
    if (name == symbol) {
      known = std::move(value);
      return;
    }
  }
  scope->vars.emplace_back(symbol, std::move(value));
  held_bytes += static_cast<int64_t>(sizeof(scope->vars[0]));
}

const Value* Interpreter::look_up(Symbol symbol, const Scope* scope) {
  size_t num_scopes = 0;
  for (; scope != nullptr; scope = scope->parent) {
    ++num_scopes;
    spend_work((num_scopes % kVariablesPerUnit == 0 ? 1 : 0) + scope->vars.size() / kVariablesPerUnit);
    for (const auto& [name, value] : scope->vars) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

Error Interpreter::located(Error error, const Place& place) const {
  if (error.where.empty()) error.where = place_text(template_.name, place);
  return error;
}

Result<> Interpreter::charge(size_t bytes) {
  made_bytes_ += bytes;
  if (made_bytes_ > limits_.max_made_bytes) return type_error("the template makes too much data");
  TRY(room_for(bytes));
  return use_work(bytes / kCopiedPerUnit);
}

Result<> Interpreter::charge(size_t count, size_t bytes_each) {
  size_t bytes = 0;
  return charge(__builtin_mul_overflow(count, bytes_each, &bytes) ? std::numeric_limits<size_t>::max() / 2 : bytes);
}

Result<> Interpreter::charge_text(size_t bytes) {
  TRY(text_may_have(bytes));
  return charge(bytes);
}

Result<> Interpreter::write(std::string& out, std::string_view text) {
  TRY(charge(text.size()));
  if (out.size() + text.size() > limits_.max_output_bytes) return type_error("the template writes too much text");
  out += text;
  held_bytes += static_cast<int64_t>(text.size());
  return {};
}

Result<Interpreter::Flow> Interpreter::exec(const Body& body, Scope* scope, std::string& out) {
  for (const auto& stmt : body) {
    auto flow = exec_one(*stmt, scope, out);
    if (!flow.ok()) return located(std::move(flow).error(), stmt->place);
    if (*flow != Flow::kNormal) return *flow;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::exec_one(const Stmt& stmt, Scope* scope, std::string& out) {
  const Nesting nesting(*this);
  TRY(nesting.check());
  switch (stmt.kind) {
    case StmtKind::kText:
      TRY(write(out, stmt.text));
      break;
    case StmtKind::kPrint: {
      const Value value = TRY(eval(*stmt.expr, scope));
      const std::string text = TRY(to_text(value));
      TRY(write(out, text));
      break;
    }
    case StmtKind::kIf:
      return exec_if(stmt, scope, out);
    case StmtKind::kFor:
      TRY(exec_for(stmt, scope, out));
      break;
    case StmtKind::kSet:
      TRY(exec_set(stmt, scope));
      break;
    case StmtKind::kSetBlock:
      TRY(exec_set_block(stmt, scope));
      break;
    case StmtKind::kMacro:
      TRY(exec_macro(stmt, scope));
      break;
    case StmtKind::kCallBlock:
      TRY(exec_call_block(stmt, scope, out));
      break;
    case StmtKind::kFilterBlock: {
      Value text = TRY(capture(stmt.body, scope));
      const Value filtered = TRY(apply_block_filters(stmt.expr.get(), std::move(text), scope));
      const std::string printed = TRY(to_text(filtered));
      TRY(write(out, printed));
      break;
    }
    case StmtKind::kWith:
      return exec_with(stmt, scope, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    case StmtKind::kGeneration:
      TRY(exec_generation(stmt, scope, out));
      break;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::exec_if(const Stmt& stmt, Scope* scope, std::string& out) {
  for (const auto& [test, body] : stmt.branches) {
    bool taken = true;
    if (test != nullptr) {
      const Value value = TRY(eval(*test, scope));
      taken = TRY(truth(value));
    }
    if (taken) return exec(body, scope, out);
  }
  return Flow::kNormal;
}

Result<std::vector<Value>> Interpreter::loop_items(const Stmt& stmt, Scope* scope, const Value& source) {
  std::vector<Value> items = TRY(items_of(source));
  TRY(charge(items.size() * sizeof(Value)));
  if (stmt.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    TRY(use_work(kTurnWork));
    Scope* inner = open_scope(scope);
    TRY(assign(*stmt.target, item, inner));
    const Value wanted = TRY(eval(*stmt.condition, inner));
    if (TRY(truth(wanted))) kept.push_back(std::move(item));
    close_scope(inner);
  }
  return kept;
}

Result<> Interpreter::exec_for(const Stmt& stmt, Scope* scope, std::string& out) {
  const Value source = TRY(eval(*stmt.expr, scope));
  return exec_loop(stmt, scope, source, 0, out);
}

Result<> Interpreter::exec_loop(const Stmt& stmt, Scope* scope, const Value& source, int depth0, std::string& out) {
  auto loop = std::make_shared<LoopState>();
  loop->owned = TRY(loop_items(stmt, scope, source));
  loop->items = &loop->owned;
  loop->live = LiveBytes(bytes_of(loop->owned));
  loop->depth = depth_around(loop->owned);
  loop->depth0 = depth0;
  loop->stmt = &stmt;
  loop->scope = scope;
  const std::shared_ptr<LoopState> forget(loop.get(),
                                          [](LoopState* state) { state->last_changed.clear(); });  // it may hold itself
  bool finished_a_turn = false;
  for (size_t i = 0; i < loop->items->size(); ++i) {
    loop->index0 = i;
    TRY(use_work(kTurnWork));
    Scope* inner = open_scope(scope);
    set(inner, template_.symbols.loop, Value(loop));
    TRY(assign(*stmt.target, (*loop->items)[i], inner));
    const Flow flow = TRY(exec(stmt.body, inner, out));
    close_scope(inner);
    if (flow == Flow::kBreak) break;
    finished_a_turn = finished_a_turn || flow == Flow::kNormal;
  }
  // As jinja2: `else` runs where no turn came to its end, be it for want of items or for break and continue.
  if (finished_a_turn || stmt.otherwise.empty()) return {};
  Scope* inner = open_scope(scope);
  TRY(exec(stmt.otherwise, inner, out));
  close_scope(inner);
  return {};
}

Result<std::string> Interpreter::run_loop_again(const LoopState& loop, const Value& items) {
  if (!loop.stmt->recursive) return type_error("The loop must have the 'recursive' marker to be called recursively.");
  loop.scope->captured = true;
  std::string out;
  TRY(exec_loop(*loop.stmt, loop.scope, items, loop.depth0 + 1, out));
  held_bytes -= static_cast<int64_t>(out.size());
  return out;
}

Result<> Interpreter::exec_set(const Stmt& stmt, Scope* scope) {
  if (stmt.target->kind == ExprKind::kNamespaceRef) TRY(check_namespace(*stmt.target, scope));
  const Value value = TRY(eval(*stmt.expr, scope));
  return assign(*stmt.target, value, scope);
}

Result<> Interpreter::exec_set_block(const Stmt& stmt, Scope* scope) {
  Value text = TRY(capture(stmt.body, scope));
  const Value value = TRY(apply_block_filters(stmt.expr.get(), std::move(text), scope));
  return assign(*stmt.target, value, scope);
}

Result<Interpreter::Flow> Interpreter::exec_with(const Stmt& stmt, Scope* scope, std::string& out) {
  Scope* inner = open_scope(scope);
  for (const auto& [target, expr] : stmt.assignments) {
    const Value value = TRY(eval(*expr, scope));
    TRY(assign(*target, value, inner));
  }
  const Flow flow = TRY(exec(stmt.body, inner, out));
  close_scope(inner);
  return flow;
}

Result<> Interpreter::exec_generation(const Stmt& stmt, Scope* scope, std::string& out) {
  const std::string text = TRY(capture(stmt.body, scope));
  // The output only grows: each of its characters is counted once.
  counted_characters_ += unicode::count_code_points(std::string_view(*main_out_).substr(counted_bytes_));
  counted_bytes_ = main_out_->size();
  spans_.push_back({counted_characters_, counted_characters_ + unicode::count_code_points(text)});
  return write(out, text);
}

Result<std::string> Interpreter::capture(const Body& body, Scope* scope) {
  Scope* inner = open_scope(scope);
  std::string out;
  TRY(exec(body, inner, out));
  close_scope(inner);
  held_bytes -= static_cast<int64_t>(out.size());
  return out;
}

Result<Value> Interpreter::apply_block_filters(const Expr* filters, Value text, Scope* scope) {
  if (filters == nullptr) return text;
  return eval_filter(*filters, scope, &text);
}

Result<> Interpreter::check_namespace(const Expr& target, const Scope* scope) const {
  const Value* object = look_up(target.symbol, scope);
  if (object == nullptr || !object->is(Kind::kNamespace))
    return type_error("cannot assign attribute on non-namespace object");
  return {};
}

Result<> Interpreter::assign(const Expr& target, const Value& value, Scope* scope) {
  if (target.kind == ExprKind::kTuple) return assign_tuple(target, value, scope);
  if (target.kind == ExprKind::kName) {
    set(scope, target.symbol, value);
    return {};
  }
  TRY(check_namespace(target, scope));
  const Value* object = look_up(target.symbol, scope);
  if (target.text.starts_with('_'))
    return type_error(
        fmt::format("Chat templates cannot store underscore-prefixed attributes on a namespace, but got {}.",
                    string_repr(target.text)));
  auto& values = object->name_space().values;
  TRY(use_work(values.size() / kAttributesPerUnit));
  const auto it =
      std::find_if(values.begin(), values.end(), [&](const auto& entry) { return entry.first == target.text; });
  if (it != values.end()) {
    it->second = value;
  } else {
    values.emplace_back(target.text, value);
    held_bytes += static_cast<int64_t>(sizeof(values[0]) + target.text.size());
  }
  return {};
}

Result<> Interpreter::assign_tuple(const Expr& target, const Value& value, Scope* scope) {
  auto items = items_of(value);
  if (!items.ok()) {
    if (value.is(Kind::kUndefined)) return std::move(items).error();
    return type_error(fmt::format("cannot unpack non-iterable {} object", type_name(value)));
  }
  const size_t wanted = target.items.size();
  if (items->size() > wanted) return type_error(fmt::format("too many values to unpack (expected {})", wanted));
  if (items->size() < wanted) {
    return type_error(fmt::format("not enough values to unpack (expected {}, got {})", wanted, items->size()));
  }
  for (size_t i = 0; i < wanted; ++i) TRY(assign(*target.items[i], (*items)[i], scope));
  return {};
}

}  // namespace mortise::jinja
