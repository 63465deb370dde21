// Filters on sequences and mappings. See filters.h. If Jinja gives a generator, so do these: it can be read once, and
// has no length and no positions.
#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"
#include "text/template/filters.h"
#include "text/template/interpreter.h"
#include "text/template/py_string.h"
#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;

Result<Value> default_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_default", args, {"default_value", "boolean"}, 0));
  bool replaced = input.is(Kind::kUndefined);
  if (!replaced && TRY(bound.flag(1, false))) replaced = !TRY(truth(input));
  return replaced ? bound.get(0, Value("")) : input;
}

// The first or the last item of what has positions, without a copy of all; nothing where it is empty.
std::optional<Value> end_item(const Value& input, bool first) {
  if (input.is(Kind::kString)) {
    const std::string& text = input.string();
    if (text.empty()) return std::nullopt;
    size_t begin = first ? 0 : text.size();
    if (!first) unicode::previous_code_point(text, begin);
    return Value(text.substr(begin, unicode::utf8_length(text[begin])));
  }
  if (!input.is(Kind::kList) && !input.is(Kind::kTuple)) return std::nullopt;
  const auto& items = input.is(Kind::kList) ? input.list_value().items : input.tuple_value().items;
  if (items.empty()) return std::nullopt;
  return first ? items.front() : items.back();
}

Result<Value> first(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("first", args, {}, 0));
  if (input.is(Kind::kIterator)) {
    Iterator& iterator = input.iterator_value();
    if (iterator.next < iterator.items.size()) return iterator.items[iterator.next++];
    if (iterator.error) return *std::exchange(iterator.error, std::nullopt);
    return Value::undefined("No first item, sequence was empty.");
  }
  if (auto item = end_item(input, true)) return *std::move(item);
  const auto items = TRY(items_of(input));
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Result<Value> last(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("last", args, {}, 0));
  if (input.is(Kind::kIterator)) return type_error("'generator' object is not reversible");
  if (auto item = end_item(input, false)) return *std::move(item);
  auto items = items_of(input);
  if (!items.ok()) return type_error(fmt::format("'{}' object is not reversible", type_name(input)));
  return items->empty() ? Value::undefined("No last item, sequence was empty.") : items->back();
}

Result<Value> length(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("len", args, {}, 0));
  return Value(TRY(length_of(input)));
}

Result<Value> list(Interpreter& interpreter, const Value& input, Args args) {
  TRY(BoundArgs::bind("list", args, {}, 0));
  std::vector<Value> items = TRY(items_of(input));
  TRY(interpreter.charge(items.size() * sizeof(Value)));
  return Value::list(std::move(items));
}

Result<> items_filter_into(Interpreter& /*interpreter*/, const Value& input, Args args, std::vector<Value>& out) {
  TRY(BoundArgs::bind("do_items", args, {}, 0));
  if (input.is(Kind::kUndefined)) return {};
  if (!input.is(Kind::kDict)) return type_error("Can only get item pairs from a mapping.");
  for (const auto& [key, value] : input.dict().items()) {
    TRY(use_work(8));
    out.push_back(Value::tuple({key, value}));
  }
  return {};
}

Result<Value> join_filter(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("join", args, {"d", "attribute"}, 0));
  const std::string separator = bound.has(0) ? TRY(to_text(bound[0])) : "";
  std::optional<AttributePath> path;
  if (bound.has(1) && !bound[1].is(Kind::kNone)) path = TRY(AttributePath::parse(bound[1]));
  std::string out;
  size_t next_charge = 4096;  // growing copies the text, and a text may only be so long
  bool any = false;
  for (const Value& item : TRY(items_of(input))) {
    if (out.size() > next_charge) {
      TRY(interpreter.charge(out.size()));
      next_charge = 2 * out.size();
    }
    if (any) out += separator;
    any = true;
    const Value shown = path ? TRY(path->follow(interpreter, item)) : item;
    const std::string text = TRY(to_text(shown));
    TRY(interpreter.charge(text.size() + separator.size()));
    TRY(text_may_have(out.size() + text.size()));
    TRY(use_work(4));
    out += text;
  }
  return Value(std::move(out));
}

Result<> map_into(Interpreter& interpreter, const Value& input, Args args, std::vector<Value>& out) {
  if (!TRY(truth(input))) return {};  // none as well
  const std::vector<Value> items = TRY(items_of(input));
  if (args.positional.empty() && args.keyword_value("attribute") != nullptr) {
    const BoundArgs bound = TRY(BoundArgs::bind("map", args, {"attribute", "default"}, 0));
    const AttributePath path = TRY(AttributePath::parse(bound[0]));
    const bool has_default = bound.has(1) && !bound[1].is(Kind::kNone);
    for (const Value& item : items) {
      TRY(room_for(out.size() * sizeof(Value)));
      out.push_back(TRY(path.follow(interpreter, item, has_default ? &bound[1] : nullptr)));
    }
    return {};
  }
  if (args.positional.empty()) return type_error("map requires a filter argument");
  const std::string name = TRY(to_text(args.positional[0]));
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items) {
    TRY(room_for(out.size() * sizeof(Value)));
    out.push_back(TRY(interpreter.filter(name, item, rest)));
  }
  return {};
}

// select, reject, selectattr, rejectattr.
Result<> pick_into(Interpreter& interpreter, const Value& input, Args args, bool wanted, bool by_attribute,
                   std::vector<Value>& out) {
  if (!TRY(truth(input))) return {};  // none as well
  CallArgs rest = args;
  std::optional<AttributePath> path;
  if (by_attribute) {
    if (rest.positional.empty()) return type_error("Missing parameter for attribute name");
    path = TRY(AttributePath::parse(rest.positional[0]));
    rest.positional.erase(rest.positional.begin());
  }
  std::optional<std::string> test;
  if (!rest.positional.empty()) {
    test = TRY(to_text(rest.positional[0]));
    rest.positional.erase(rest.positional.begin());
  }
  for (const Value& item : TRY(items_of(input))) {
    const Value looked_at = path ? TRY(path->follow(interpreter, item)) : item;
    TRY(use_work(4));
    const bool passes = test ? TRY(interpreter.test(*test, looked_at, rest)) : TRY(truth(looked_at));
    if (passes == wanted) out.push_back(item);
  }
  return {};
}

template <bool kWanted, bool kByAttribute>
Result<> picked_into(Interpreter& interpreter, const Value& input, Args args, std::vector<Value>& out) {
  return pick_into(interpreter, input, args, kWanted, kByAttribute, out);
}

Result<Value> reverse(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("do_reverse", args, {}, 0));
  if (input.is(Kind::kString)) {
    const std::string& text = input.string();
    std::string out;
    out.reserve(text.size());
    for (size_t end = text.size(); end > 0;) {
      size_t begin = end;
      unicode::previous_code_point(text, begin);
      out.append(text, begin, end - begin);
      end = begin;
    }
    return Value(std::move(out));
  }
  auto items = items_of(input);
  if (!items.ok()) return work_is_spent() ? std::move(items).error() : type_error("argument must be iterable");
  std::reverse(items->begin(), items->end());
  return Value::iterator(*std::move(items));
}

Result<> batch_into(Interpreter& interpreter, const Value& input, Args args, std::vector<Value>& out) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_batch", args, {"linecount", "fill_with"}, 1));
  const int64_t size = TRY(bound.integer(0, 1));
  std::vector<Value> row;
  for (const Value& item : TRY(items_of(input))) {
    TRY(use_work(8));
    TRY(room_for(out.size() * sizeof(Value)));
    if (static_cast<int64_t>(row.size()) == size) out.push_back(Value::list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    const bool fills = bound.has(1) && !bound[1].is(Kind::kNone);
    if (fills && size > static_cast<int64_t>(row.size())) {
      TRY(interpreter.charge(static_cast<size_t>(size), sizeof(Value)));
      row.resize(static_cast<size_t>(size), bound[1]);
    }
    out.push_back(Value::list(std::move(row)));
  }
  return {};
}

Result<> slice_into(Interpreter& interpreter, const Value& input, Args args, std::vector<Value>& out) {
  const BoundArgs bound = TRY(BoundArgs::bind("slice", args, {"slices", "fill_with"}, 1));
  const int64_t count = TRY(bound.integer(0, 1));
  const auto items = TRY(items_of(input));
  if (count == 0) return type_error("integer division or modulo by zero");
  if (count < 0) return {};
  TRY(interpreter.charge(static_cast<size_t>(count), sizeof(Value) + kObjectBytes));
  TRY(use_work(8 * static_cast<size_t>(count)));
  const auto size = static_cast<int64_t>(items.size());
  auto at = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const bool extra = i < size % count;
    const auto end = at + size / count + (extra ? 1 : 0);
    std::vector<Value> row(at, end);
    at = end;
    if (!extra && bound.has(1) && !bound[1].is(Kind::kNone)) row.push_back(bound[1]);
    out.push_back(Value::list(std::move(row)));
  }
  return {};
}

Result<Value> attr(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_attr", args, {"name"}, 1));
  const std::string name = TRY(to_text(bound[0]));
  if (input.is(Kind::kDict) && input.dict().find(std::string_view(name)) != nullptr) {  // attributes only, no items
    return Value::undefined("'dict object' has no attribute " + string_repr(name));
  }
  return interpreter.attribute(input, name);
}

}  // namespace

Result<AttributePath> AttributePath::parse(const Value& attribute) {
  AttributePath path;
  if (attribute.is(Kind::kNone)) return path;
  if (!attribute.is(Kind::kString)) {
    path.parts_.push_back(attribute);
    return path;
  }
  for (const std::string_view part : split(attribute.string(), '.')) {
    const auto number = classify_text("isdigit", part).value_or(false) ? parse_int_text(part, 10) : std::nullopt;
    path.parts_.push_back(number ? Value(*number) : Value(part));
  }
  return path;
}

Result<Value> AttributePath::follow(Interpreter& interpreter, const Value& item, const Value* fallback) const {
  Value value = item;
  for (const Value& part : parts_) {
    TRY(use_work(kCallWork));
    value = TRY(interpreter.item(value, part));
    if (fallback != nullptr && value.is(Kind::kUndefined)) value = *fallback;
  }
  return value;
}

FilterFunction find_list_filter(std::string_view name) {
  static constexpr NamedFilter kFilters[] = {{"default", default_filter},
                                             {"d", default_filter},
                                             {"first", first},
                                             {"last", last},
                                             {"length", length},
                                             {"count", length},
                                             {"list", list},
                                             {"items", generator<items_filter_into>},
                                             {"join", join_filter},
                                             {"map", generator<map_into>},
                                             {"select", generator<picked_into<true, false>>},
                                             {"reject", generator<picked_into<false, false>>},
                                             {"selectattr", generator<picked_into<true, true>>},
                                             {"rejectattr", generator<picked_into<false, true>>},
                                             {"reverse", reverse},
                                             {"batch", generator<batch_into>},
                                             {"slice", generator<slice_into>},
                                             {"attr", attr}};
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace mortise::jinja
