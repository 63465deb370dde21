// Runs a parsed template: a walk over the tree.
//
// Scopes follow Jinja: a turn of a loop, a macro, `with`, a set block, a filter block and a generation block have one
// of their own, `if` has not. Everything is bounded: steps, nesting, the size of texts and lists made, the output.
// Thread rule: one Interpreter per rendering, one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/template/ast.h"
#include "text/template/callable.h"

namespace mortise::jinja {

struct Limits {
  int64_t max_steps = 10'000'000;              // nodes visited
  int max_depth = 2500;                        // nodes open at once
  size_t max_stack_bytes = size_t{3} << 20;    // at most what the build makes of that
  int max_value_depth = 300;                   // containers in containers
  size_t max_output_bytes = size_t{10} << 20;  // size of the output, and of any text or list under way
  size_t max_live_bytes = size_t{32} << 20;    // size of all values held at a time
  size_t max_made_bytes = size_t{1} << 30;     // texts and lists made in one rendering, all together
  int64_t max_work = 50'000'000;               // bytes and items looked at (work.h)

  // Larger limits for a rendering whose template and data have so many bytes: time, memory and output stay linear in
  // them. `share` of the work: less than 1 for a caller that cannot wait.
  [[nodiscard]] static Limits for_input(size_t bytes, double share) {
    Limits limits;
    limits.max_output_bytes += 2 * bytes;
    limits.max_live_bytes += 3 * bytes;
    limits.max_work += 100 * static_cast<int64_t>(bytes);
    limits.max_work = static_cast<int64_t>(static_cast<double>(limits.max_work) * share);
    return limits;
  }
};

struct Scope {
  std::vector<std::pair<Symbol, Value>> vars;
  Scope* parent = nullptr;
  bool captured = false;  // a macro may come back to it: not to be reused
};

struct Span {
  size_t begin;
  size_t end;
};

// A loop under way, as `loop` in a template.
struct LoopState {
  const std::vector<Value>* items;
  size_t index0 = 0;
  int depth0 = 0;
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;  // the place of the loop
  std::vector<Value> last_changed;
  bool has_changed = false;
  std::vector<Value> owned;  // the items
  int depth = 1;             // how deeply they nest
  LiveBytes live;
};

class Interpreter {
 public:
  Interpreter(const Template& tree, const Limits& limits) : template_(tree), limits_(limits) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  ~Interpreter();

  // A variable or function that the template sees.
  void define(std::string_view name, Value value);
  Result<std::string> run();
  [[nodiscard]] const std::vector<Span>& generation_spans() const { return spans_; }

  // --- for filters, tests, methods and callables ---
  Result<Value> call(const Value& callee, CallArgs args);
  Result<Value> filter(std::string_view name, const Value& input, const CallArgs& args);
  Result<bool> test(std::string_view name, const Value& input, const CallArgs& args);
  Result<Value> attribute(const Value& object, const std::string& name);
  Result<Value> item(const Value& object, const Value& key);
  Result<Value> binary(Operator op, const Value& left, const Value& right);
  // Counts what an operation is about to make.
  Result<> charge(size_t bytes);
  Result<> charge(size_t count, size_t bytes_each);
  Result<> charge_text(size_t bytes);  // one text
  Result<std::string> call_macro(const Stmt& stmt, Scope* scope, std::string_view name, const CallArgs& args);
  Result<std::string> run_loop_again(const LoopState& loop, const Value& items);
  // A new namespace. It may come to hold itself, so the interpreter empties it in the end.
  Result<Value> make_namespace(std::vector<std::pair<std::string, Value>> values);
  int64_t now_s = 0;  // what strftime_now shows, seconds since the epoch

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  Result<Flow> exec(const Body& body, Scope* scope, std::string& out);
  Result<Flow> exec_one(const Stmt& stmt, Scope* scope, std::string& out);
  Result<Flow> exec_if(const Stmt& stmt, Scope* scope, std::string& out);
  Result<> exec_for(const Stmt& stmt, Scope* scope, std::string& out);
  Result<> exec_loop(const Stmt& stmt, Scope* scope, const Value& items, int depth0, std::string& out);
  Result<std::vector<Value>> loop_items(const Stmt& stmt, Scope* scope, const Value& source);
  Result<> exec_set(const Stmt& stmt, Scope* scope);
  Result<> exec_set_block(const Stmt& stmt, Scope* scope);
  Result<Flow> exec_with(const Stmt& stmt, Scope* scope, std::string& out);
  Result<> exec_macro(const Stmt& stmt, Scope* scope);
  Result<> exec_call_block(const Stmt& stmt, Scope* scope, std::string& out);
  Result<> exec_generation(const Stmt& stmt, Scope* scope, std::string& out);
  // Renders a body in its own scope to text.
  Result<std::string> capture(const Body& body, Scope* scope);
  Result<> assign(const Expr& target, const Value& value, Scope* scope);
  Result<> check_namespace(const Expr& target, const Scope* scope) const;
  Result<> assign_tuple(const Expr& target, const Value& value, Scope* scope);
  Result<> write(std::string& out, std::string_view text);

  Result<Value> eval(const Expr& expr, Scope* scope);
  Result<Value> eval_node(const Expr& expr, Scope* scope);
  Result<Value> eval_name(const Expr& expr, Scope* scope);
  Result<Value> eval_sequence(const Expr& expr, Scope* scope);
  Result<Value> eval_dict(const Expr& expr, Scope* scope);
  Result<Value> eval_condition(const Expr& expr, Scope* scope);
  Result<Value> eval_logic(const Expr& expr, Scope* scope);
  Result<Value> eval_compare(const Expr& expr, Scope* scope);
  Result<Value> eval_unary(const Expr& expr, Scope* scope);
  Result<Value> eval_concat(const Expr& expr, Scope* scope);
  Result<Value> eval_filter(const Expr& expr, Scope* scope, const Value* block_text);
  Result<Value> eval_call(const Expr& expr, Scope* scope, const Value* caller);
  Result<Value> eval_slice(const Expr& expr, Scope* scope);
  Result<CallArgs> eval_args(const ArgList& args, Scope* scope);
  Result<Value> apply_block_filters(const Expr* filters, Value text, Scope* scope);

  Result<> check_limits();
  // Counts one more open node while it lives.
  class Nesting {
   public:
    explicit Nesting(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ~Nesting() { --interpreter_.depth_; }
    [[nodiscard]] Result<> check() const { return interpreter_.check_limits(); }

   private:
    Interpreter& interpreter_;
  };
  Scope* open_scope(Scope* parent);
  void close_scope(Scope* scope);
  static void set(Scope* scope, Symbol symbol, Value value);
  [[nodiscard]] static const Value* look_up(Symbol symbol, const Scope* scope);
  // With the place of the innermost node that failed.
  [[nodiscard]] Error located(Error error, const Place& place) const;

  const Template& template_;
  Limits limits_;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::pair<std::string, Value>> globals_;
  Scope* root_ = nullptr;
  std::string* main_out_ = nullptr;  // the output that people get
  std::vector<Span> spans_;
  size_t counted_bytes_ = 0;  // bytes of the output, whose characters count
  size_t counted_characters_ = 0;
  int64_t steps_ = 0;
  int depth_ = 0;
  uintptr_t stack_start_ = 0;
  size_t made_bytes_ = 0;
};

}  // namespace mortise::jinja
