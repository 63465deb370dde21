// UTF-8: walking over well-formed text, and reading of bytes that may be broken (checking and writing: base/text.h).
// Cost: linear, no allocation beyond the output. Thread rule: free functions; Utf8Repair belongs to one thread.
// Broken bytes: one U+FFFD per maximal subpart (The Unicode Standard, 3.9, "Substitution of Maximal Subparts").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mortise::unicode {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the character that starts with `lead`, in well-formed text.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point at `pos` of well-formed text; moves pos behind it.
char32_t next_code_point(std::string_view text, size_t& pos);
// The code point that ends before `pos`; moves pos to its start. Precondition: pos > 0.
char32_t previous_code_point(std::string_view text, size_t& pos);

size_t count_code_points(std::string_view text);
// Byte offset of the code point number `index` (text.size() at or past the end).
size_t byte_offset_of(std::string_view text, size_t index);
std::u32string to_code_points(std::string_view text);

// Bytes in, whole characters out. A broken sequence becomes U+FFFD as soon as it is known to be broken.
class Utf8Repair {
 public:
  void push(std::string_view bytes, std::string& out);
  // The rest of an unfinished character is one U+FFFD.
  void finish(std::string& out);
  [[nodiscard]] bool pending() const { return size_ > 0; }

 private:
  void push_byte(uint8_t byte, std::string& out);
  char held_[4] = {};
  uint8_t size_ = 0;    // bytes held
  uint8_t needed_ = 0;  // bytes of the whole character
  uint8_t low_ = 0x80;  // bounds of the next byte
  uint8_t high_ = 0xBF;
};

}  // namespace mortise::unicode
