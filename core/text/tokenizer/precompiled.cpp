// The normalizer Precompiled: SentencePiece's table of replacements, as tokenizer.json carries it in base64.
//
// The table is the size of a trie (4 bytes, little endian), the trie (32-bit units of a double array, Darts-clone's
// layout), and the replacements, each ended by a zero byte. Text goes grapheme by grapheme: one of fewer than six bytes
// that begins with a key becomes that key's replacement as a whole, else each of its characters is looked up alone; of
// several keys the shortest wins. That is what the tokenizers library does. Cost: a few reads per byte. Every index is
// checked: a broken table replaces less, and reads nothing outside. Thread rule: constant after loading.
#include <utf8proc.h>

#include <optional>
#include <vector>

#include "foundation/base/text.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Nothing where the text is not base64 with its padding.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const size_t padding = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
    uint32_t bits = 0;
    for (size_t j = 0; j < 4; ++j) {
      const int value = j + padding < 4 ? base64_value(text[i + j]) : 0;
      if (value < 0) return std::nullopt;
      bits = bits << 6 | static_cast<uint32_t>(value);
    }
    for (size_t j = 0; j + padding < 3; ++j) out.push_back(static_cast<char>(bits >> (16 - 8 * j) & 0xFF));
  }
  return out;
}

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<uint32_t> units, std::string replacements)
      : units_(std::move(units)), replacements_(std::move(replacements)) {}

  Result<> apply(NormalText& piece) const override {
    std::string out;
    out.reserve(piece.text.size());
    const std::string_view text = piece.text;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = grapheme_end(text, begin);
      add(text.substr(begin, end - begin), out);
      begin = end;
    }
    piece.text = std::move(out);
    return {};
  }

 private:
  static size_t grapheme_end(std::string_view text, size_t pos) {
    utf8proc_int32_t state = 0;
    auto code = static_cast<utf8proc_int32_t>(unicode::next_code_point(text, pos));
    while (pos < text.size()) {
      size_t next = pos;
      const auto following = static_cast<utf8proc_int32_t>(unicode::next_code_point(text, next));
      if (utf8proc_grapheme_break_stateful(code, following, &state)) break;
      code = following;
      pos = next;
    }
    return pos;
  }

  void add(std::string_view grapheme, std::string& out) const {
    constexpr size_t kLongWhole = 6;  // bytes from which on a grapheme is not looked up as a whole
    if (grapheme.size() < kLongWhole) {
      if (const auto found = find(grapheme)) return void(out += *found);
    }
    for (size_t pos = 0; pos < grapheme.size();) {
      const std::string_view character = grapheme.substr(pos, unicode::utf8_length(grapheme[pos]));
      out += find(character).value_or(character);
      pos += character.size();
    }
  }

  // The replacement of the shortest key that `text` begins with.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const {
    if (units_.empty()) return std::nullopt;
    size_t node = offset_of(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size()) return std::nullopt;
      const uint32_t unit = units_[node];
      if ((unit & 0x800000FFU) != byte) return std::nullopt;
      node ^= offset_of(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (node >= units_.size()) return std::nullopt;
      return replacement_at(units_[node] & 0x7FFFFFFFU);
    }
    return std::nullopt;
  }
  static size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200) >> 6); }
  [[nodiscard]] std::optional<std::string_view> replacement_at(size_t begin) const {
    if (begin >= replacements_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(replacements_).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace

Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(const Json& spec, const ComponentPlace& place) {
  const auto table = decode_base64(TRY(component_string(spec, "precompiled_charsmap", place)));
  if (!table) return place.fail("'precompiled_charsmap' has to be base64");
  const auto byte_at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>((*table)[i])); };
  const auto word_at = [&](size_t i) {
    return byte_at(i) | byte_at(i + 1) << 8 | byte_at(i + 2) << 16 | byte_at(i + 3) << 24;
  };
  const size_t trie_bytes = table->size() < 4 ? 1 : word_at(0);
  if (trie_bytes % 4 != 0 || trie_bytes > table->size() - 4)
    return place.fail("'precompiled_charsmap' is cut off: its trie does not fit");
  std::vector<uint32_t> units;
  for (size_t i = 4; i < 4 + trie_bytes; i += 4) units.push_back(word_at(i));
  std::string replacements = table->substr(4 + trie_bytes);
  if (find_invalid_utf8(replacements)) return place.fail("'precompiled_charsmap' has replacements that are not UTF-8");
  return std::make_unique<Precompiled>(std::move(units), std::move(replacements));
}

}  // namespace mortise
