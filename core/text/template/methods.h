// Methods of values: what x.name gives when the type has such a method.
#pragma once

#include <string_view>

#include "text/template/callable.h"

namespace mortise::jinja {

using MethodFunction = Result<Value> (*)(Interpreter&, std::string_view name, const Value& self, const CallArgs&);

// Null where the type has no such method.
MethodFunction find_method(const Value& self, std::string_view name);
MethodFunction find_string_method(std::string_view name);
// The method exists and would change the value: the sandbox forbids it.
bool is_mutator(const Value& self, std::string_view name);

}  // namespace mortise::jinja
