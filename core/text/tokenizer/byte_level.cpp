// See byte_level.h. Printable Latin-1 bytes are themselves. The other 68 become U+0100 and up, in order.
#include "text/tokenizer/byte_level.h"

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr char32_t kFirstOther = 0x100;
constexpr size_t kNumOthers = 68;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<uint8_t, kNumOthers> kOthers = [] {
  std::array<uint8_t, kNumOthers> others{};
  size_t next = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) others[next++] = static_cast<uint8_t>(byte);
  }
  return others;
}();

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() {
  static const std::array<std::string, 256> alphabet = [] {
    std::array<std::string, 256> table;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (stands_for_itself(byte)) append_utf8(table[byte], byte);
    }
    for (size_t i = 0; i < kNumOthers; ++i) append_utf8(table[kOthers[i]], kFirstOther + static_cast<uint32_t>(i));
    return table;
  }();
  return alphabet;
}

std::optional<uint8_t> byte_of_char(char32_t code) {
  if (code < kFirstOther) return stands_for_itself(code) ? std::optional(static_cast<uint8_t>(code)) : std::nullopt;
  if (code < kFirstOther + kNumOthers) return kOthers[code - kFirstOther];
  return std::nullopt;
}

std::string byte_level_text(std::string_view bytes) {
  const auto& alphabet = byte_level_alphabet();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) out += alphabet[static_cast<uint8_t>(c)];
  return out;
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = byte_of_char(unicode::next_code_point(text, pos));
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
  }
  return out;
}

}  // namespace mortise
