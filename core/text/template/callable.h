// The callables of a template: global functions, methods of values, macros, loops.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/value.h"

namespace mortise::jinja {

class Interpreter;

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;

  // Takes a keyword argument out; null where it was not given. The pointer lives until the next call.
  const Value* keyword_value(std::string_view name) const {
    for (const auto& [key, value] : keyword) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

class Callable {
 public:
  virtual ~Callable() = default;
  virtual Result<Value> call(Interpreter& interpreter, CallArgs args) const = 0;
  [[nodiscard]] virtual std::string type_name() const = 0;
  // An attribute of the object itself ("name" of a macro); null if there is none.
  [[nodiscard]] virtual const Value* attribute(std::string_view /*name*/) const { return nullptr; }
  // How deeply the values that it holds nest.
  [[nodiscard]] virtual int depth() const { return 0; }
  // How it prints.
  [[nodiscard]] virtual std::string repr() const = 0;
};

// Python-like binding of arguments to named parameters. Positional ones come first; a parameter may be given by name.
class BoundArgs {
 public:
  // `function` is named in errors. num_required: how many of the parameters have no default.
  static Result<BoundArgs> bind(std::string_view function, const CallArgs& args,
                                std::initializer_list<std::string_view> names, size_t num_required);
  [[nodiscard]] bool has(size_t index) const { return given_[index]; }
  [[nodiscard]] const Value& operator[](size_t index) const { return values_[index]; }
  [[nodiscard]] Value get(size_t index, Value fallback) const {
    return given_[index] ? values_[index] : std::move(fallback);
  }
  // Typed access; an absent argument gives the fallback, one of another type an Error.
  [[nodiscard]] Result<int64_t> integer(size_t index, int64_t fallback) const;
  [[nodiscard]] Result<bool> flag(size_t index, bool fallback) const;  // by truth
  [[nodiscard]] Result<std::string> text(size_t index, std::string_view fallback) const;

 private:
  std::vector<Value> values_;
  std::vector<bool> given_;
};

// What calling a filter, a test or a method costs at least: a walk over its input and its arguments.
inline constexpr size_t kCallWork = 16;
size_t call_work(const Value& input, const CallArgs& args);

// For a running loop: the number of its items, and its depth.
size_t loop_length(const LoopState& loop);
int loop_depth(const LoopState& loop);

}  // namespace mortise::jinja
