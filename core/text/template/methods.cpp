// Methods of dicts, lists, tuples, numbers and loops; attributes and items of any value. See methods.h.
#include "text/template/methods.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>

#include "text/template/interpreter.h"
#include "text/template/slicing.h"
#include "text/template/work.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;
using Name = std::string_view;

class Method final : public Callable {
 public:
  Method(MethodFunction function, std::string name, Value self)
      : function_(function), name_(std::move(name)), self_(std::move(self)) {}
  Result<Value> call(Interpreter& interpreter, CallArgs args) const override {
    TRY(use_work(call_work(self_, args)));
    return function_(interpreter, name_, self_, args);
  }
  [[nodiscard]] std::string type_name() const override { return "builtin_function_or_method"; }
  [[nodiscard]] int depth() const override { return depth_of(self_) + 1; }
  [[nodiscard]] std::string repr() const override {
    return fmt::format("<built-in method {} of {} object>", name_, jinja::type_name(self_));
  }

 private:
  MethodFunction function_;
  std::string name_;
  Value self_;
};

Result<Value> dict_view(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  TRY(BoundArgs::bind(name, args, {}, 0));
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().items()) {
    TRY(use_work(8));
    items.push_back(name == "items" ? Value::tuple({key, value}) : name == "keys" ? key : value);
  }
  const int depth = depth_around(items);
  return Value(std::make_shared<const View>(View{"dict_" + std::string(name), std::move(items), depth}));
}

Result<Value> dict_get(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"key", "default"}, 1));
  TRY(check_hashable(bound[0]));
  const Value* found = self.dict().find(bound[0]);
  return found != nullptr ? *found : bound.get(1, None{});
}

Result<Value> copy(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  TRY(BoundArgs::bind(name, args, {}, 0));
  return self;
}

const std::vector<Value>& sequence_items(const Value& self) {
  return self.is(Kind::kList) ? self.list_value().items : self.tuple_value().items;
}

Result<Value> sequence_count(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"value"}, 1));
  const auto& items = sequence_items(self);
  return Value(static_cast<int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equals(item, bound[0]); })));
}

Result<Value> sequence_index(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"value", "start", "stop"}, 1));
  const auto& items = sequence_items(self);
  const auto size = static_cast<int64_t>(items.size());
  const auto place = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  const int64_t start = place(TRY(bound.integer(1, 0)));
  const int64_t stop = place(TRY(bound.integer(2, size)));
  for (int64_t i = start; i < stop; ++i) {
    if (equals(items[static_cast<size_t>(i)], bound[0])) return Value(i);
  }
  return type_error(self.is(Kind::kList) ? TRY(to_repr(bound[0])) + " is not in list"
                                         : "tuple.index(x): x not in tuple");
}

Result<Value> float_is_integer(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  TRY(BoundArgs::bind(name, args, {}, 0));
  return Value(self.number() == std::floor(self.number()));
}

Result<Value> loop_cycle(Interpreter& /*interpreter*/, Name /*name*/, const Value& self, Args args) {
  if (args.positional.empty()) return type_error("no items for cycling given");
  return args.positional[self.loop().index0 % args.positional.size()];
}

Result<Value> loop_changed(Interpreter& /*interpreter*/, Name /*name*/, const Value& self, Args args) {
  LoopState& loop = self.loop();
  const bool same = loop.has_changed && loop.last_changed.size() == args.positional.size() &&
                    std::equal(loop.last_changed.begin(), loop.last_changed.end(), args.positional.begin(), equals);
  loop.last_changed = args.positional;
  loop.has_changed = true;
  return Value(!same);
}

std::optional<Value> loop_attribute(const LoopState& loop, std::string_view name) {
  const size_t length = loop.items->size();
  const size_t index = loop.index0;
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(loop.depth0 + 1);
  if (name == "depth0") return Value(loop.depth0);
  if (name == "previtem") return index > 0 ? (*loop.items)[index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? (*loop.items)[index + 1] : Value::undefined("there is no next item");
  return std::nullopt;
}

// What belongs to the object itself, not to its items.
std::optional<Value> own_attribute(const Value& object, const std::string& name) {
  if (const MethodFunction method = find_method(object, name)) {
    return Value(std::shared_ptr<const Callable>(std::make_shared<Method>(method, name, object)));
  }
  if (is_mutator(object, name) || name.starts_with("__")) {
    return Value::undefined(fmt::format("access to attribute {} of {} object is unsafe.", string_repr(name),
                                        string_repr(type_name(object))));
  }
  if (object.is(Kind::kNamespace)) {
    spend_work(object.name_space().values.size() / kAttributesPerUnit);
    for (const auto& [key, value] : object.name_space().values) {
      if (key == name) return value;
    }
  } else if (object.is(Kind::kLoop)) {
    return loop_attribute(object.loop(), name);
  } else if (object.is(Kind::kCallable)) {
    const Value* found = object.callable().attribute(name);
    if (found != nullptr) return *found;
  } else if (object.is(Kind::kTuple)) {
    const Tuple& tuple = object.tuple_value();
    for (size_t i = 0; i < tuple.names.size(); ++i) {
      if (tuple.names[i] == name) return tuple.items[i];
    }
  } else if (object.is_number()) {
    if (name == "real" || name == "numerator") return object.is_integral() ? Value(object.integer()) : object;
    if (name == "imag") return Value(0);
    if (name == "denominator" && object.is_integral()) return Value(1);
  }
  return std::nullopt;
}

Result<Value> missing(const Value& object, const Value& key) {
  if (key.is(Kind::kString))
    return Value::undefined(
        fmt::format("{} has no attribute {}", string_repr(object_name(object)), string_repr(key.string())));
  return Value::undefined(fmt::format("{} has no element {}", object_name(object), TRY(to_repr(key))));
}

}  // namespace

bool is_mutator(const Value& self, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (self.is(Kind::kList) && among(kList)) || (self.is(Kind::kDict) && among(kDict));
}

MethodFunction find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString:
      return find_string_method(name);
    case Kind::kDict:
      if (name == "items" || name == "keys" || name == "values") return dict_view;
      if (name == "get") return dict_get;
      if (name == "copy") return copy;
      return nullptr;
    case Kind::kList:
    case Kind::kTuple:
      if (name == "count") return sequence_count;
      if (name == "index") return sequence_index;
      return name == "copy" && self.is(Kind::kList) ? copy : nullptr;
    case Kind::kFloat:
      return name == "is_integer" ? float_is_integer : nullptr;
    case Kind::kLoop:
      if (name == "cycle") return loop_cycle;
      return name == "changed" ? loop_changed : nullptr;
    default:
      return nullptr;
  }
}

Result<Value> Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is(Kind::kUndefined)) return undefined_error(object);
  TRY(use_work(name.size()));
  if (auto own = own_attribute(object, name)) return std::move(*own);
  if (object.is(Kind::kDict)) {
    const Value* found = object.dict().find(std::string_view(name));
    if (found != nullptr) return *found;
  }
  return missing(object, Value(name));
}

Result<Value> Interpreter::item(const Value& object, const Value& key) {
  if (object.is(Kind::kUndefined)) return undefined_error(object);
  if (key.is(Kind::kString)) TRY(use_work(key.string().size()));
  if (object.is(Kind::kDict)) {
    if (check_hashable(key).ok()) {
      const Value* found = object.dict().find(key);
      if (found != nullptr) return *found;
    }
  } else if (key.is_integral()) {
    if (object.is(Kind::kString)) TRY(use_work(work_over(object)));
    if (auto found = item_at(object, key.integer())) return std::move(*found);
  }
  if (key.is(Kind::kString)) {
    if (auto own = own_attribute(object, key.string())) return std::move(*own);
  }
  return missing(object, key);
}

}  // namespace mortise::jinja
