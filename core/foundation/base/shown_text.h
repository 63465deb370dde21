// Text as people are shown it in tables and logs: cut to a length, on one line. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mortise {

// The text itself, or where it is longer its beginning and "...": max_bytes together, cut at a code point. Needs
// max_bytes >= 3.
[[nodiscard]] std::string shorten(std::string_view text, size_t max_bytes);

// Control characters as \n, \t or \xNN: what stays on its line of a terminal, and does nothing to it.
[[nodiscard]] std::string one_line(std::string_view text);

}  // namespace mortise
