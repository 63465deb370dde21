// SentencePiece's table of replacements (normalizer_spec.precompiled_charsmap): which texts become which.
//
// It is the size of a trie (4 bytes, little endian), the trie (32-bit units of a double array, Darts-clone's layout),
// and the replacements, each ended by a zero byte. Cost of a look-up: a few reads per byte. Every index is checked: a
// broken table replaces less, reads nothing outside, cuts no character in two, and keys longer
// than kMaxKeyBytes are not looked for. Thread rule: constant after parsing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/component.h"

namespace mortise {

class Charsmap {
 public:
  struct Match {
    size_t size;  // bytes of the key
    std::string_view replacement;
  };

  static Result<Charsmap> parse(std::string_view table, const ComponentPlace& place);

  // The shortest and the longest key that `text` begins with.
  [[nodiscard]] std::optional<Match> shortest(std::string_view text) const { return find(text, false); }
  [[nodiscard]] std::optional<Match> longest(std::string_view text) const { return find(text, true); }

 private:
  [[nodiscard]] std::optional<Match> find(std::string_view text, bool longest) const;
  [[nodiscard]] bool has_replacement(size_t begin) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace mortise
