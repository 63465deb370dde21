// What readers of Python source ask of characters and texts. Private to this folder.
#pragma once

#include <cctype>
#include <string_view>

#include "parse/text.h"

namespace mortise {

inline bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
inline bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || !is_ascii(c); }
inline std::string_view trimmed(std::string_view s) { return parse::trim(s, " \t\r\n"); }

}  // namespace mortise
