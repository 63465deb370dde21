// Filters that compare items: sort, dictsort, unique, min, max, groupby. See filters.h. Sorting is stable, as Python's.
#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"
#include "text/template/filters.h"
#include "text/template/interpreter.h"
#include "text/template/py_string.h"
#include "text/template/work.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;

struct Keyed {
  Value key;
  Value item;
};

// Merge sort by key: a comparison may fail, which std::stable_sort could not pass on.
Result<> sort_keyed(std::vector<Keyed>& rows, bool reverse) {
  std::vector<Keyed> buffer(rows.size());
  for (size_t width = 1; width < rows.size(); width *= 2) {
    for (size_t begin = 0; begin < rows.size(); begin += 2 * width) {
      size_t left = begin;
      const size_t middle = std::min(begin + width, rows.size());
      const size_t end = std::min(begin + 2 * width, rows.size());
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left >= middle;
        if (!take_right && right < end) {
          take_right = reverse ? TRY(less_than(rows[left].key, rows[right].key, "<"))
                               : TRY(less_than(rows[right].key, rows[left].key, "<"));
        }
        buffer[out] = std::move(rows[take_right ? right++ : left++]);
      }
    }
    rows.swap(buffer);
  }
  return {};
}

// The keys "a,b.c" of each item; one attribute gives the value itself.
Result<std::vector<Keyed>> keyed_by(Interpreter& interpreter, const std::vector<Value>& items, const Value& attribute,
                                    bool case_sensitive, bool several, const Value* fallback) {
  std::vector<AttributePath> paths;
  if (several && attribute.is(Kind::kString)) {
    for (const std::string_view part : split(attribute.string(), ','))
      paths.push_back(TRY(AttributePath::parse(Value(part))));
  } else {
    paths.push_back(TRY(AttributePath::parse(attribute)));
  }
  std::vector<Keyed> rows;
  for (const Value& item : items) {
    std::vector<Value> keys;
    TRY(use_work(kCallWork));
    TRY(room_for(rows.size() * sizeof(Keyed)));
    for (const AttributePath& path : paths) {
      const Value key = TRY(path.follow(interpreter, item, fallback));
      if (!case_sensitive && key.is(Kind::kString)) TRY(use_work(work_over(key)));
      keys.push_back(case_sensitive ? key : ignore_case(key));
    }
    rows.push_back({keys.size() == 1 && !several ? keys[0] : Value::list(std::move(keys)), item});
  }
  return rows;
}

std::vector<Value> items_in(const std::vector<Keyed>& rows) {
  std::vector<Value> items;
  for (const Keyed& row : rows) items.push_back(row.item);
  return items;
}

Result<Value> sort(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_sort", args, {"reverse", "case_sensitive", "attribute"}, 0));
  const auto items = TRY(items_of(input));
  const bool case_sensitive = TRY(bound.flag(1, false));
  auto rows = TRY(keyed_by(interpreter, items, bound.get(2, None{}), case_sensitive, true, nullptr));
  const bool reverse = TRY(bound.flag(0, false));
  TRY(sort_keyed(rows, reverse));
  return Value::list(items_in(rows));
}

Result<Value> dictsort(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_dictsort", args, {"case_sensitive", "by", "reverse"}, 0));
  const std::string by = TRY(bound.text(1, "key"));
  if (by != "key" && by != "value") return type_error("You can only sort by either \"key\" or \"value\"");
  if (input.is(Kind::kUndefined)) return undefined_error(input);
  if (!input.is(Kind::kDict)) return type_error(fmt::format("'{}' object has no attribute 'items'", type_name(input)));
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict().items()) pairs.push_back(Value::tuple({key, value}));
  const bool case_sensitive = TRY(bound.flag(0, false));
  auto rows = TRY(keyed_by(interpreter, pairs, Value(by == "key" ? 0 : 1), case_sensitive, false, nullptr));
  const bool reverse = TRY(bound.flag(2, false));
  TRY(sort_keyed(rows, reverse));
  return Value::list(items_in(rows));
}

Result<> unique_into(Interpreter& interpreter, const Value& input, Args args, std::vector<Value>& out) {
  const BoundArgs bound = TRY(BoundArgs::bind("unique", args, {"case_sensitive", "attribute"}, 0));
  const auto items = TRY(items_of(input));
  const bool case_sensitive = TRY(bound.flag(0, false));
  const auto rows = TRY(keyed_by(interpreter, items, bound.get(1, None{}), case_sensitive, false, nullptr));
  Dict seen;
  for (const Keyed& row : rows) {
    TRY(check_hashable(row.key));
    if (seen.find(row.key) != nullptr) continue;
    TRY(seen.set(row.key, None{}));
    out.push_back(row.item);
  }
  return {};
}

Result<Value> extreme(Interpreter& interpreter, const Value& input, Args args, bool largest) {
  const BoundArgs bound = TRY(BoundArgs::bind(largest ? "max" : "min", args, {"case_sensitive", "attribute"}, 0));
  const auto items = TRY(items_of(input));
  const bool case_sensitive = TRY(bound.flag(0, false));
  const auto rows = TRY(keyed_by(interpreter, items, bound.get(1, None{}), case_sensitive, false, nullptr));
  if (rows.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    const bool better =
        largest ? TRY(less_than(rows[best].key, rows[i].key, "<")) : TRY(less_than(rows[i].key, rows[best].key, "<"));
    if (better) best = i;
  }
  return rows[best].item;
}

Result<Value> min(Interpreter& interpreter, const Value& input, Args args) {
  return extreme(interpreter, input, args, false);
}
Result<Value> max(Interpreter& interpreter, const Value& input, Args args) {
  return extreme(interpreter, input, args, true);
}

Value group_tuple(const Value& key, std::vector<Value> items) {
  std::vector<Value> pair = {key, Value::list(std::move(items))};
  const int depth = depth_around(pair);
  return Value(std::make_shared<const Tuple>(Tuple{std::move(pair), {"grouper", "list"}, depth}));
}

Result<Value> groupby(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1));
  const auto items = TRY(items_of(input));
  const bool case_sensitive = TRY(bound.flag(2, false));
  const bool has_default = bound.has(1) && !bound[1].is(Kind::kNone);
  const Value* fallback = has_default ? &bound[1] : nullptr;
  auto rows = TRY(keyed_by(interpreter, items, bound[0], case_sensitive, false, fallback));
  TRY(sort_keyed(rows, false));
  const AttributePath path = TRY(AttributePath::parse(bound[0]));
  std::vector<Value> groups;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && equals(rows[end].key, rows[begin].key)) ++end;
    std::vector<Value> members;
    for (size_t i = begin; i < end; ++i) members.push_back(rows[i].item);
    const Value key = TRY(path.follow(interpreter, members.front(), fallback));
    groups.push_back(group_tuple(key, std::move(members)));
    begin = end;
  }
  return Value::list(std::move(groups));
}

}  // namespace

Value ignore_case(const Value& value) { return value.is(Kind::kString) ? Value(lower_text(value.string())) : value; }

FilterFunction find_order_filter(std::string_view name) {
  static constexpr NamedFilter kFilters[] = {{"sort", sort}, {"dictsort", dictsort}, {"unique", generator<unique_into>},
                                             {"min", min},   {"max", max},           {"groupby", groupby}};
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace mortise::jinja
