// Tests by name: {{ value is name(argument) }}. Jinja 3.1's.
#pragma once

#include <string_view>

#include "text/template/callable.h"

namespace mortise::jinja {

using TestFunction = Result<bool> (*)(Interpreter&, const Value& input, const CallArgs&);

// Null if there is none.
TestFunction find_test(std::string_view name);

}  // namespace mortise::jinja
