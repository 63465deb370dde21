// See string_literal.h.
#include "text/template/string_literal.h"

#include "foundation/base/text.h"

namespace mortise::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Error fail(const std::string& what) { return Error{ErrorKind::kData, what, "", ""}; }

// Exactly `count` hexadecimal digits at `pos`.
Result<uint32_t> read_hex(std::string_view text, size_t pos, size_t count) {
  uint32_t code = 0;
  for (size_t i = 0; i < count; ++i) {
    const int digit = pos + i < text.size() ? hex_digit(text[pos + i]) : -1;
    if (digit < 0) return fail("a truncated escape in a string");
    code = code << 4 | static_cast<uint32_t>(digit);
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return fail("an escape in a string that is not a character");
  return code;
}

}  // namespace

Result<std::string> unescape_string(std::string_view text) {
  static constexpr std::string_view kFrom = "ntr\\'\"abfv";
  static constexpr std::string_view kTo = "\n\t\r\\'\"\a\b\f\v";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 >= text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      out += kTo[known];
    } else if (c == '\n') {
      // a line continued
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_utf8(out, TRY(read_hex(text, i + 1, count)));
      i += count;
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t used = 0;
      while (used < 3 && i + used < text.size() && text[i + used] >= '0' && text[i + used] <= '7') {
        code = code * 8 + static_cast<uint32_t>(text[i + used] - '0');
        ++used;
      }
      append_utf8(out, code);
      i += used - 1;
    } else if (c == 'N') {
      return fail("the escape \\N{name} is not supported");
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace mortise::jinja
