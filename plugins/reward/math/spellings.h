// The replacements of characters and commands in a normalised answer.
#pragma once

#include <string_view>

namespace mortise::math {

// LaTeX or ASCII for one UTF-8 character, and for a command's name without its backslash; null: as it is.
const std::string_view* character_spelling(std::string_view character);
const std::string_view* command_spelling(std::string_view name);

}  // namespace mortise::math
