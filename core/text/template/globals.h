// The functions every template sees: range, dict, namespace, raise_exception, strftime_now, joiner.
#pragma once

#include "text/template/interpreter.h"

namespace mortise::jinja {

void define_globals(Interpreter& interpreter);

}  // namespace mortise::jinja
