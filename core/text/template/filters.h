// Filters by name: {{ value | name(arguments) }}. Jinja 3.1's, with tojson as transformers defines it.
// Not there: urlize, xmlattr, random, wordwrap, pprint.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/callable.h"

namespace mortise::jinja {

using FilterFunction = Result<Value> (*)(Interpreter&, const Value& input, const CallArgs&);

struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};

// Null if there is none.
FilterFunction find_filter(std::string_view name);
FilterFunction find_text_filter(std::string_view name);    // filters_text.cpp
FilterFunction find_list_filter(std::string_view name);    // filters_list.cpp
FilterFunction find_order_filter(std::string_view name);   // filters_order.cpp
FilterFunction find_number_filter(std::string_view name);  // filters_number.cpp

// The value at a path of attributes and positions: "a.b.0". A number is a path of one.
class AttributePath {
 public:
  static Result<AttributePath> parse(const Value& attribute);
  // `fallback`: replaces anything undefined on the way; null: no replacement.
  Result<Value> follow(Interpreter& interpreter, const Value& item, const Value* fallback = nullptr) const;

 private:
  std::vector<Value> parts_;
};

// A filter that Jinja writes as a generator: `kFill` gives the items, and its error is met only by who walks them.
template <Result<> (*kFill)(Interpreter&, const Value& input, const CallArgs&, std::vector<Value>& out)>
Result<Value> generator(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  std::vector<Value> items;
  const Result<> done = kFill(interpreter, input, args, items);
  return Value::iterator(std::move(items), done.ok() ? std::nullopt : std::optional<Error>(done.error()));
}

// Text in lower case, anything else as it is: how sort, unique, min, max and groupby compare by default.
Value ignore_case(const Value& value);

}  // namespace mortise::jinja
