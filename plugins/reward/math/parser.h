// From a normalised answer to what it says.
#pragma once

#include <string_view>

#include "expression.h"
#include "lexer.h"

namespace mortise::math {

// Throws Unreadable for what is no expression, or one that is nested too deep. Units and other words beside numbers are
// left out; an answer of words alone is a kWord. Linear in the text.
NodePtr parse(std::string_view normalised);

}  // namespace mortise::math
