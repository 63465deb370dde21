// Cuts a text at a code point, and puts it on one line.
#include "foundation/base/shown_text.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

std::string shorten(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a code point
  return std::string(text.substr(0, end)) + std::string(kMore);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

namespace {

// The bytes of the control character that the text begins with; 0 if it begins with none. Beyond ASCII these are C1
// (U+0080 to U+009F), line and paragraph separators, and what turns the direction of text (Unicode's Bidi_Control).
size_t control_bytes(std::string_view text) {
  const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0; };
  const auto between = [](int value, int low, int high) { return value >= low && value <= high; };
  if (byte(0) < 0x20 || byte(0) == 0x7F) return 1;
  if (byte(0) == 0xC2 && between(byte(1), 0x80, 0x9F)) return 2;
  if (byte(0) == 0xD8 && byte(1) == 0x9C) return 2;
  if (byte(0) != 0xE2) return 0;
  if (byte(1) == 0x80 && (between(byte(2), 0x8E, 0x8F) || between(byte(2), 0xA8, 0xAE))) return 3;
  return byte(1) == 0x81 && between(byte(2), 0xA6, 0xA9) ? 3 : 0;
}

std::string escaped(std::string_view text, bool keeps_lines) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t count = control_bytes(text);
    const char c = text[0];
    if (count == 0 || (keeps_lines && (c == '\n' || c == '\t'))) {
      out += c;
    } else if (c == '\n' || c == '\t') {
      out += c == '\n' ? "\\n" : "\\t";
    } else {
      for (const char raw : text.substr(0, count)) {
        const auto value = static_cast<unsigned char>(raw);
        out.append("\\x").append({kHex[value >> 4], kHex[value & 15]});
      }
    }
    text.remove_prefix(std::max<size_t>(count, 1));
  }
  return out;
}

}  // namespace

std::string one_line(std::string_view text) { return escaped(text, false); }

std::string without_controls(std::string_view text) { return escaped(text, true); }

}  // namespace mortise
