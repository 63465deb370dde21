// See utf8.h. The bounds of second bytes follow table 3-7 of The Unicode Standard.
#include "text/unicode/utf8.h"

namespace mortise::unicode {
namespace {

struct LeadInfo {
  uint8_t length;  // 0: not a lead byte
  uint8_t low;
  uint8_t high;
};

LeadInfo lead_info(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t& pos) {
  const auto at = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const char32_t lead = at(pos);
  if (lead < 0x80) return pos += 1, lead;
  if (lead < 0xE0) {
    const char32_t code = (lead & 0x1F) << 6 | (at(pos + 1) & 0x3F);
    return pos += 2, code;
  }
  if (lead < 0xF0) {
    const char32_t code = (lead & 0x0F) << 12 | (at(pos + 1) & 0x3F) << 6 | (at(pos + 2) & 0x3F);
    return pos += 3, code;
  }
  const char32_t code =
      (lead & 0x07) << 18 | (at(pos + 1) & 0x3F) << 12 | (at(pos + 2) & 0x3F) << 6 | (at(pos + 3) & 0x3F);
  return pos += 4, code;
}

char32_t previous_code_point(std::string_view text, size_t& pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80);
  size_t start = pos;
  return next_code_point(text, start);
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

size_t byte_offset_of(std::string_view text, size_t index) {
  size_t pos = 0;
  while (index > 0 && pos < text.size()) {
    pos += utf8_length(text[pos]);
    --index;
  }
  return pos;
}

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) out.push_back(next_code_point(text, pos));
  return out;
}

void Utf8Repair::push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) push_byte(static_cast<uint8_t>(c), out);
}

void Utf8Repair::push_byte(uint8_t byte, std::string& out) {
  if (size_ > 0) {
    if (byte >= low_ && byte <= high_) {
      held_[size_++] = static_cast<char>(byte);
      low_ = 0x80;
      high_ = 0xBF;
      if (size_ == needed_) {
        out.append(held_, size_);
        size_ = 0;
      }
      return;
    }
    finish(out);  // the held part ends here; this byte may start a new character
  }
  const LeadInfo lead = lead_info(byte);
  if (lead.length == 1) {
    out.push_back(static_cast<char>(byte));
  } else if (lead.length == 0) {
    out.append(kReplacement);
  } else {
    held_[0] = static_cast<char>(byte);
    size_ = 1;
    needed_ = lead.length;
    low_ = lead.low;
    high_ = lead.high;
  }
}

void Utf8Repair::finish(std::string& out) {
  if (size_ > 0) out.append(kReplacement);
  size_ = 0;
}

}  // namespace mortise::unicode
