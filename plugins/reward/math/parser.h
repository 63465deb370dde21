// From a normalised answer to what it says.
#pragma once

#include <string_view>

#include "expression.h"
#include "lexer.h"

namespace mortise::math {

// Throws Unreadable for a text that is not an expression, or that is nested too deep. Units and other words next to
// numbers are ignored; an answer of only words is a kWord. Linear in the text.
NodePtr parse(std::string_view normalised);

}  // namespace mortise::math
