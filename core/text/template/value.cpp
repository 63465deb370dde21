// See value.h: kinds, truth, equality, order, length.
#include "text/template/value.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>

#include "foundation/base/text.h"
#include "text/template/callable.h"
#include "text/template/py_string.h"
#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

constexpr size_t kMaxCharacters = size_t{1} << 21;  // characters of a text that is walked character by character
constexpr size_t kIndexFrom = 16;                   // dicts of this size and more get a hash table

// A value for each character; those of ASCII are shared by all texts of the thread.
Result<std::vector<Value>> characters_of(std::string_view text) {
  static thread_local const std::vector<Value> ascii = [] {
    std::vector<Value> values;
    for (int c = 0; c < 0x80; ++c) values.emplace_back(std::string(1, static_cast<char>(c)));
    return values;
  }();
  if (text.size() > kMaxCharacters) return type_error("the template makes too much data");
  std::vector<Value> items;
  items.reserve(unicode::count_code_points(text));
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = unicode::utf8_length(text[pos]);
    if (size == 1) {
      items.push_back(ascii[static_cast<size_t>(text[pos])]);
    } else {
      TRY(use_work(8));
      TRY(room_for(items.size() * sizeof(Value)));
      items.emplace_back(text.substr(pos, size));
    }
    pos += size;
  }
  return items;
}

bool items_equal(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), equals);
}

bool dicts_equal(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
    const Value* other = b.find(item.first);
    return other != nullptr && equals(item.second, *other);
  });
}

// Exact comparison of an integer with a double: -1, 0, 1; 2 where it is not a number.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  const double x = a.number();
  const double y = b.number();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y ? 1 : 0;
}

Result<bool> sequence_less(const std::vector<Value>& a, const std::vector<Value>& b, std::string_view symbol) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!equals(a[i], b[i])) return less_than(a[i], b[i], symbol);
  }
  return a.size() < b.size();
}

}  // namespace

int depth_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
      return value.list_value().depth;
    case Kind::kTuple:
      return value.tuple_value().depth;
    case Kind::kDict:
      return value.dict().depth();
    case Kind::kView:
      return value.view().depth;
    case Kind::kIterator:
      return value.iterator_value().depth;
    case Kind::kCallable:
      return value.callable().depth();
    case Kind::kLoop:
      return loop_depth(value.loop());
    default:
      return 0;  // a namespace is emptied by the interpreter that made it
  }
}

int depth_around(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return depth + 1;
}

Value Value::list(std::vector<Value> items) {
  const int depth = depth_around(items);
  return Value(std::make_shared<const List>(List{std::move(items), depth}));
}
Value Value::tuple(std::vector<Value> items) {
  const int depth = depth_around(items);
  return Value(std::make_shared<const Tuple>(Tuple{std::move(items), {}, depth}));
}
Value Value::iterator(std::vector<Value> items, std::optional<Error> error) {
  const int depth = depth_around(items);
  return Value(std::make_shared<Iterator>(Iterator{std::move(items), 0, depth, std::move(error)}));
}
Value Value::undefined(std::string message) {
  return Value(std::make_shared<const Undefined>(Undefined{std::move(message)}));
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  if (is(Kind::kFloat) || is(Kind::kInt) || is(Kind::kString)) return equals(*this, other);
  return data_ == other.data_;
}

Result<> Dict::set(Value key, Value value) {
  TRY(check_hashable(key));
  depth_ = std::max({depth_, depth_of(key) + 1, depth_of(value) + 1});
  if (Value* known = const_cast<Value*>(find(key))) {  // find() is const, what it found is ours
    *known = std::move(value);
    return {};
  }
  live_.add(2 * sizeof(Value) + (key.is(Kind::kString) ? key.string().size() : 0) + kObjectBytes);
  items_.emplace_back(std::move(key), std::move(value));
  if (items_.size() == kIndexFrom) {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].first.is(Kind::kString)) index_.emplace(items_[i].first.string(), i);
    }
  } else if (items_.size() > kIndexFrom && items_.back().first.is(Kind::kString)) {
    index_.emplace(items_.back().first.string(), items_.size() - 1);
  }
  return {};
}

const Value* Dict::find(std::string_view key) const {
  spend_work(key.size() / 8);
  if (items_.size() >= kIndexFrom) {
    const auto it = index_.find(std::string(key));
    return it == index_.end() ? nullptr : &items_[it->second].second;
  }
  for (const auto& [name, value] : items_) {
    if (name.is(Kind::kString) && name.string() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is(Kind::kString)) return find(std::string_view(key.string()));
  spend_work(items_.size() / 8);
  for (const auto& [name, value] : items_) {
    if (!name.is(Kind::kString) && equals(name, key)) return &value;
  }
  return nullptr;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return value.tuple_value().names.empty() ? "tuple" : "_GroupTuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return value.view().type_name;
    case Kind::kIterator:
      return "generator";
    case Kind::kRange:
      return "range";
    case Kind::kNamespace:
      return "TemplateNamespace";
    case Kind::kCallable:
      return value.callable().type_name();
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

std::string object_name(const Value& value) {
  if (value.is(Kind::kNone)) return "None";
  return type_name(value) + " object";
}

Error type_error(std::string what) { return Error{ErrorKind::kData, std::move(what), "", ""}; }
Error undefined_error(const Value& value) { return type_error(value.undefined_value().message); }

Result<bool> truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.string().empty();
    case Kind::kList:
      return !value.list_value().items.empty();
    case Kind::kTuple:
      return !value.tuple_value().items.empty();
    case Kind::kDict:
      return value.dict().size() > 0;
    case Kind::kView:
      return !value.view().items.empty();
    case Kind::kRange:
      return value.range().length > 0;
    case Kind::kLoop:
      return true;
    default:
      return true;
  }
}

bool equals(const Value& a, const Value& b) {
  if (!spend_work(1)) return false;  // the rendering ends with an error
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.string().size() == b.string().size() && spend_work(a.string().size() / 16) && a.string() == b.string();
    case Kind::kList:
      return items_equal(a.list_value().items, b.list_value().items);
    case Kind::kTuple:
      return items_equal(a.tuple_value().items, b.tuple_value().items);
    case Kind::kDict:
      return dicts_equal(a.dict(), b.dict());
    case Kind::kRange: {
      const Range& x = a.range();
      const Range& y = b.range();
      return x.length == y.length && (x.length == 0 || (x.start == y.start && (x.length == 1 || x.step == y.step)));
    }
    default:
      return a.same_as(b);
  }
}

Result<bool> less_than(const Value& a, const Value& b, std::string_view symbol) {
  TRY(use_work(1));
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is(Kind::kUndefined)) return undefined_error(a);
  if (b.is(Kind::kUndefined)) return undefined_error(b);
  if (a.kind() == b.kind()) {
    if (a.is(Kind::kString)) {
      TRY(use_work(std::min(a.string().size(), b.string().size()) / 16));
      return a.string() < b.string();  // UTF-8 sorts as code points do
    }
    if (a.is(Kind::kList)) return sequence_less(a.list_value().items, b.list_value().items, symbol);
    if (a.is(Kind::kTuple)) return sequence_less(a.tuple_value().items, b.tuple_value().items, symbol);
  }
  return type_error(
      fmt::format("'{}' not supported between instances of '{}' and '{}'", symbol, type_name(a), type_name(b)));
}

Result<size_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return size_t{0};
    case Kind::kString:
      return unicode::count_code_points(value.string());
    case Kind::kList:
      return value.list_value().items.size();
    case Kind::kTuple:
      return value.tuple_value().items.size();
    case Kind::kDict:
      return value.dict().size();
    case Kind::kView:
      return value.view().items.size();
    case Kind::kRange:
      return static_cast<size_t>(value.range().length);
    case Kind::kLoop:
      return loop_length(value.loop());
    default:
      return type_error(fmt::format("object of type '{}' has no len()", type_name(value)));
  }
}

Result<std::vector<Value>> items_of(const Value& value) {
  TRY(use_work(work_over(value)));
  TRY(room_for(work_over(value) * sizeof(Value)));
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kString:
      return characters_of(value.string());
    case Kind::kList:
      return value.list_value().items;
    case Kind::kTuple:
      return value.tuple_value().items;
    case Kind::kDict:
      for (const auto& [key, unused] : value.dict().items()) items.push_back(key);
      return items;
    case Kind::kView:
      return value.view().items;
    case Kind::kIterator: {
      Iterator& iterator = value.iterator_value();
      if (iterator.error) return *std::exchange(iterator.error, std::nullopt);
      items.assign(iterator.items.begin() + static_cast<std::ptrdiff_t>(iterator.next), iterator.items.end());
      iterator.next = iterator.items.size();
      return items;
    }
    case Kind::kRange:
      for (int64_t i = 0; i < value.range().length; ++i)
        items.emplace_back(value.range().start + i * value.range().step);
      return items;
    default:
      return type_error(fmt::format("'{}' object is not iterable", type_name(value)));
  }
}

Result<bool> contains(const Value& haystack, const Value& needle) {
  if (haystack.is(Kind::kString)) {
    if (needle.is(Kind::kString)) {
      TRY(use_work(work_over(haystack)));
      return find_text(haystack.string(), needle.string()) != std::string::npos;
    }
    return type_error("'in <string>' requires string as left operand, not " + type_name(needle));
  }
  if (haystack.is(Kind::kDict)) {
    TRY(check_hashable(needle));
    return haystack.dict().find(needle) != nullptr;
  }
  const auto is_needle = [&](const Value& item) { return equals(item, needle); };
  if (haystack.is(Kind::kList)) return std::ranges::any_of(haystack.list_value().items, is_needle);
  auto items = items_of(haystack);
  if (!items.ok()) {
    if (haystack.is(Kind::kUndefined) || work_is_spent()) return std::move(items).error();
    return type_error(fmt::format("argument of type '{}' is not iterable", type_name(haystack)));
  }
  return std::ranges::any_of(*items, is_needle);
}

Result<> check_hashable(const Value& value) {
  if (value.is(Kind::kList) || value.is(Kind::kDict))
    return type_error(fmt::format("unhashable type: '{}'", type_name(value)));
  if (value.is(Kind::kTuple)) {
    TRY(use_work(work_over(value)));
    for (const Value& item : value.tuple_value().items) TRY(check_hashable(item));
  }
  return {};
}

}  // namespace mortise::jinja
