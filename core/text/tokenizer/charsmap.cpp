// See charsmap.h.
#include "text/tokenizer/charsmap.h"

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr size_t kMaxKeyBytes = 256;

bool continues_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

Result<Charsmap> Charsmap::parse(std::string_view table, const ComponentPlace& place) {
  const auto byte_at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(table[i])); };
  const auto word_at = [&](size_t i) {
    return byte_at(i) | byte_at(i + 1) << 8 | byte_at(i + 2) << 16 | byte_at(i + 3) << 24;
  };
  const size_t trie_bytes = table.size() < 4 ? 1 : word_at(0);
  if (trie_bytes % 4 != 0 || trie_bytes > table.size() - 4)
    return place.fail("'precompiled_charsmap' is cut off: its trie does not fit");
  Charsmap made;
  made.units_.reserve(trie_bytes / 4);
  for (size_t i = 4; i < 4 + trie_bytes; i += 4) made.units_.push_back(word_at(i));
  made.replacements_ = table.substr(4 + trie_bytes);
  if (find_invalid_utf8(made.replacements_))
    return place.fail("'precompiled_charsmap' has replacements that are not UTF-8");
  return made;
}

std::optional<Charsmap::Match> Charsmap::find(std::string_view text, bool longest) const {
  std::optional<Match> best;
  if (units_.empty()) return best;
  size_t node = offset_of(units_[0]);
  size_t replacement = 0;  // where the replacement of `best` begins
  const auto found = [&]() -> std::optional<Match> {
    if (!best) return std::nullopt;
    const std::string_view rest = std::string_view(replacements_).substr(replacement);
    return Match{best->size, rest.substr(0, rest.find('\0'))};
  };
  const size_t longest_key = std::min(text.size(), kMaxKeyBytes);
  for (size_t i = 0; i < longest_key; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if ((unit & 0x800000FFU) != byte) break;
    node ^= offset_of(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (node >= units_.size()) break;
    const bool whole = i + 1 == text.size() || !continues_character(text[i + 1]);
    const size_t begin = units_[node] & 0x7FFFFFFFU;
    if (whole && has_replacement(begin)) {
      best = Match{i + 1, {}};
      replacement = begin;
    }
    if (!longest) break;
  }
  return found();
}

bool Charsmap::has_replacement(size_t begin) const {
  return begin < replacements_.size() && !continues_character(replacements_[begin]);
}

}  // namespace mortise
