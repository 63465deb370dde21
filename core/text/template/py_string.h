// Python's string operations on UTF-8 text; positions and lengths count code points. Pure functions, linear.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace mortise::jinja {

std::string lower_text(std::string_view text);  // with the final sigma
std::string upper_text(std::string_view text);
std::string title_text(std::string_view text);       // str.title
std::string capitalize_text(std::string_view text);  // str.capitalize
std::string swapcase_text(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
// Without chars: white space.
std::string_view strip_text(std::string_view text, std::optional<std::string_view> chars, Side side);

// str.split and rsplit; without a separator at runs of white space. max_splits < 0: all. An empty separator is an
// Error.
Result<std::vector<std::string>> split_text(std::string_view text, std::optional<std::string_view> separator,
                                            int64_t max_splits, bool from_right);
Result<std::vector<std::string>> split_lines(std::string_view text, bool keep_ends);
// max_count < 0: all.
std::string replace_text(std::string_view text, std::string_view old_text, std::string_view new_text,
                         int64_t max_count);
int64_t count_text(std::string_view text, std::string_view part);
// Byte of the first match at or after `from`, and of the last match; npos if there is none. The first search is linear
// for any texts. The last search pays for what it may cost (work.h).
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view part);
std::string pad_text(std::string_view text, int64_t width, std::string_view fill, Side text_side);  // kBoth: centred

// int(text, base) and float(text); nothing where Python raises ValueError.
std::optional<Int> parse_int_text(std::string_view text, int base);
std::optional<double> parse_float_text(std::string_view text);

// str.isalpha and its kin by name ("isalpha"); nothing for another name.
std::optional<bool> classify_text(std::string_view name, std::string_view text);

}  // namespace mortise::jinja
