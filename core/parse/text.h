// UTF-8 and the parts of messages about texts. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mortise::parse {

// Bytes of the well-formed UTF-8 sequence at the start of `text`, or 0.
[[nodiscard]] std::size_t utf8_sequence_length(std::string_view text);

// Offset of the first byte that is not well-formed UTF-8 (overlong forms, surrogates and code points above U+10FFFF are
// not), or nothing.
[[nodiscard]] std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// Appends a code point as UTF-8. Precondition: a scalar value (no surrogate, <= U+10FFFF).
void append_utf8(std::string& out, std::uint32_t code_point);

// Without white space at both ends. Python's ASCII white space, unless the caller names other characters.
[[nodiscard]] std::string_view trim(std::string_view text, std::string_view space = " \t\n\v\f\r");

// UTF-8 files from Windows may begin with this mark; it is no part of their text.
[[nodiscard]] std::string_view without_byte_order_mark(std::string_view text);

// In single quotes, cut to max_bytes at a code point with "...", control characters and bad bytes as \xNN: for errors.
// (Not `quoted`: with a std::string argument and <iomanip> in sight that name means std::quoted.)
[[nodiscard]] std::string quote(std::string_view text, std::size_t max_bytes = 80);

// 1-based line and column (column in bytes) of an offset.
struct TextPosition {
  std::int64_t line = 1;
  std::int64_t column = 1;
};
[[nodiscard]] TextPosition text_position(std::string_view text, std::size_t offset);

}  // namespace mortise::parse
