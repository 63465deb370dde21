// See slicing.h.
#include "text/template/slicing.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>
#include <optional>

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

struct Cut {
  int64_t start;
  int64_t step;
  int64_t count;
};

Result<std::optional<int64_t>> bound_of(const Value& value) {
  if (value.is(Kind::kNone)) return std::optional<int64_t>();
  if (value.is(Kind::kUndefined)) return undefined_error(value);
  if (!value.is_integral()) return type_error("slice indices must be integers or None or have an __index__ method");
  constexpr Int kLimit = Int{1} << 60;
  return std::optional<int64_t>(static_cast<int64_t>(std::clamp(value.integer(), -kLimit, kLimit)));
}

// Python's slice.indices().
Result<Cut> cut_of(const Value& start, const Value& stop, const Value& step, int64_t size) {
  const int64_t by = TRY(bound_of(step)).value_or(1);
  if (by == 0) return type_error("slice step cannot be zero");
  const auto first = TRY(bound_of(start));
  const auto last = TRY(bound_of(stop));
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? size : size - 1;
  const auto place = [&](std::optional<int64_t> bound, int64_t absent) {
    if (!bound) return absent;
    return std::clamp(*bound < 0 ? *bound + size : *bound, low, high);
  };
  const int64_t from = place(first, by > 0 ? low : high);
  const int64_t to = place(last, by > 0 ? high : low);
  const int64_t span = by > 0 ? to - from : from - to;
  const int64_t stride = by > 0 ? by : -by;
  return Cut{from, by, span > 0 ? (span + stride - 1) / stride : 0};
}

std::vector<Value> take(const std::vector<Value>& items, const Cut& cut) {
  std::vector<Value> out;
  out.reserve(static_cast<size_t>(cut.count));
  for (int64_t i = 0; i < cut.count; ++i) out.push_back(items[static_cast<size_t>(cut.start + i * cut.step)]);
  return out;
}

bool is_nan(const Value& value) { return value.is(Kind::kFloat) && std::isnan(value.number()); }

// Fails for values that cannot be ordered, naming them in the order they were written.
Result<> check_order(const Value& a, const Value& b, std::string_view symbol) {
  if (a.is_number() && b.is_number()) return {};
  TRY(less_than(a, b, symbol));
  return {};
}

}  // namespace

Result<Value> slice_value(const Value& object, const Value& start, const Value& stop, const Value& step) {
  switch (object.kind()) {
    case Kind::kUndefined:
      return undefined_error(object);
    case Kind::kString: {
      const std::string_view text = object.string();
      const size_t size = unicode::count_code_points(text);
      const Cut cut = TRY(cut_of(start, stop, step, static_cast<int64_t>(size)));
      if (cut.step == 1) {
        const std::string_view rest = text.substr(unicode::byte_offset_of(text, static_cast<size_t>(cut.start)));
        return Value(rest.substr(0, unicode::byte_offset_of(rest, static_cast<size_t>(cut.count))));
      }
      std::string out;
      if (size == text.size()) {  // a byte is a character
        for (int64_t i = 0; i < cut.count; ++i) out += text[static_cast<size_t>(cut.start + i * cut.step)];
        return Value(std::move(out));
      }
      const std::u32string codes = unicode::to_code_points(text);
      for (int64_t i = 0; i < cut.count; ++i) append_utf8(out, codes[static_cast<size_t>(cut.start + i * cut.step)]);
      return Value(std::move(out));
    }
    case Kind::kList: {
      const auto& items = object.list_value().items;
      return Value::list(take(items, TRY(cut_of(start, stop, step, static_cast<int64_t>(items.size())))));
    }
    case Kind::kTuple: {
      const auto& items = object.tuple_value().items;
      return Value::tuple(take(items, TRY(cut_of(start, stop, step, static_cast<int64_t>(items.size())))));
    }
    case Kind::kRange: {
      const Range& range = object.range();
      const Cut cut = TRY(cut_of(start, stop, step, range.length));
      const int64_t from = range.start + cut.start * range.step;
      const int64_t by = range.step * cut.step;
      return Value(Range{from, from + by * cut.count, by, cut.count});
    }
    case Kind::kDict:
      return type_error("unhashable type: 'slice'");
    default:
      return type_error(fmt::format("'{}' object is not subscriptable", type_name(object)));
  }
}

std::optional<Value> item_at(const Value& object, Int index) {
  Int size = 0;
  switch (object.kind()) {
    case Kind::kString:
      size = static_cast<Int>(unicode::count_code_points(object.string()));
      break;
    case Kind::kList:
      size = static_cast<Int>(object.list_value().items.size());
      break;
    case Kind::kTuple:
      size = static_cast<Int>(object.tuple_value().items.size());
      break;
    case Kind::kRange:
      size = object.range().length;
      break;
    default:
      return std::nullopt;
  }
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  const auto at = static_cast<size_t>(index);
  if (object.is(Kind::kList)) return object.list_value().items[at];
  if (object.is(Kind::kTuple)) return object.tuple_value().items[at];
  if (object.is(Kind::kRange)) return Value(object.range().start + static_cast<int64_t>(index) * object.range().step);
  const std::string& text = object.string();
  const size_t begin = unicode::byte_offset_of(text, at);
  return Value(text.substr(begin, unicode::utf8_length(text[begin])));
}

Result<bool> at_most(const Value& a, const Value& b) {
  TRY(check_order(a, b, "<="));
  const bool more = TRY(less_than(b, a, "<="));
  return !more && !is_nan(a) && !is_nan(b);
}

Result<bool> greater_than(const Value& a, const Value& b) {
  TRY(check_order(a, b, ">"));
  return less_than(b, a, ">");
}

Result<bool> at_least(const Value& a, const Value& b) {
  const bool less = TRY(less_than(a, b, ">="));
  return !less && !is_nan(a) && !is_nan(b);
}

}  // namespace mortise::jinja
