// See text.h. UTF-8 well-formedness follows table 3-7 of the Unicode standard.
#include "parse/text.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace mortise::parse {

std::size_t utf8_sequence_length(std::string_view s) {
  const auto at = [&](size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const auto in = [](unsigned value, unsigned low, unsigned high) { return value >= low && value <= high; };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (in(lead, 0xC2, 0xDF)) return in(at(1), 0x80, 0xBF) ? 2 : 0;
  if (in(lead, 0xE0, 0xEF)) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return in(at(1), low, high) && in(at(2), 0x80, 0xBF) ? 3 : 0;
  }
  if (in(lead, 0xF0, 0xF4)) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return in(at(1), low, high) && in(at(2), 0x80, 0xBF) && in(at(3), 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const size_t length = utf8_sequence_length(text.substr(i, 4));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | code_point >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | code_point >> 18);
    tail(12), tail(6), tail(0);
  }
}

std::string_view trim(std::string_view text, std::string_view space) {
  const std::size_t first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  return text;
}

std::string quote(std::string_view text, std::size_t max_bytes) {
  std::string out = "'";
  size_t i = 0;
  while (i < text.size() && i < max_bytes) {
    const size_t length = utf8_sequence_length(text.substr(i, 4));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", byte);
      out += hex.data();
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  if (i < text.size()) out += "...";
  return out + "'";
}

TextPosition text_position(std::string_view text, std::size_t offset) {
  TextPosition position;
  offset = std::min(offset, text.size());
  for (size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n')
      ++position.line, position.column = 1;
    else
      ++position.column;
  }
  return position;
}

}  // namespace mortise::parse
