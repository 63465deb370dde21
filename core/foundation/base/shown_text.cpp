#include "foundation/base/shown_text.h"

#include "foundation/base/text.h"

namespace mortise {

std::string shorten(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a code point
  return std::string(text.substr(0, end)) + std::string(kMore);
}

std::string one_line(std::string_view text) {
  std::string out;
  for (const char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      const std::string quoted = quote({&c, 1});
      out += quoted.substr(1, quoted.size() - 2);
    }
  }
  return out;
}

}  // namespace mortise
