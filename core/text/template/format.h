// Text formatting of Python: 'a %s' % x, and '{} {name:>5}'.format(...). Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "text/template/callable.h"

namespace mortise::jinja {

// `values`: a tuple of them, a dict for %(name)s, or the one value.
Result<std::string> percent_format(std::string_view format, const Value& values);
// str.format. Attributes and items of fields are looked up through the interpreter (so the sandbox holds).
Result<std::string> brace_format(Interpreter& interpreter, std::string_view format, const CallArgs& args);
// format(value, spec).
Result<std::string> format_value(const Value& value, std::string_view spec);

}  // namespace mortise::jinja
