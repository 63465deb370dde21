// The inside of a quoted string of a template: Python's escapes.
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise::jinja {

// \n \t \\ \' \" \a \b \f \v \r, \ooo, \xhh, \uhhhh, \Uhhhhhhhh, backslash + newline (nothing). Any other backslash
// remains. \N{name} is not supported. Surrogates from \u are an error.
Result<std::string> unescape_string(std::string_view text);

}  // namespace mortise::jinja
