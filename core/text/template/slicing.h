// a[b:c:d], a[i] and the order comparisons of Python values. Pure functions.
#pragma once

#include <optional>

#include "text/template/value.h"

namespace mortise::jinja {

// None means an omitted bound.
Result<Value> slice_value(const Value& object, const Value& start, const Value& stop, const Value& step);
// The item at a position of a string, list, tuple or range; nothing if there is none.
std::optional<Value> item_at(const Value& object, Int index);

Result<bool> at_most(const Value& a, const Value& b);
Result<bool> greater_than(const Value& a, const Value& b);
Result<bool> at_least(const Value& a, const Value& b);

}  // namespace mortise::jinja
