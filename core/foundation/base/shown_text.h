// Text as people are shown it in tables and logs: cut to a length, on one line. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mortise {

// The text itself, or where it is longer its beginning and "...": max_bytes together, cut at a code point. Needs
// max_bytes >= 3.
[[nodiscard]] std::string shorten(std::string_view text, size_t max_bytes);

// counted(1, "row") is "1 row", counted(1200, "row") is "1,200 rows". For nouns whose plural ends in s.
[[nodiscard]] std::string counted(int64_t count, std::string_view noun);

// Control characters as \n, \t or \xNN, so that a text stays on its line of a terminal and cannot control it. So are
// those of Unicode, and marks that turn the direction of text.
[[nodiscard]] std::string one_line(std::string_view text);

// The same for a text of several lines: newlines and tabs stay.
[[nodiscard]] std::string without_controls(std::string_view text);

}  // namespace mortise
