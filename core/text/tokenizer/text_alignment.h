// The places of a text's characters in another form of the text: with spaces inserted or removed, composed, or in lower
// case.
//
// Greedy: equal characters match (case, marks and compatibility forms do not count). At a difference, the smallest gap
// after which both texts continue alike is skipped. Cost: linear in texts that differ little; a gap of more than a few
// hundred characters ends the search. Thread rule: a pure function.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/template/chat_template.h"

namespace mortise {

class TextAlignment {
 public:
  TextAlignment(std::string_view text, std::string_view other);

  // Code point of `text` from which on the two do not go together; nothing where all is aligned.
  [[nodiscard]] std::optional<size_t> lost_at() const { return lost_at_; }
  // The place of [begin, end) of `text` (code points) in the other text; empty if nothing of it is there.
  [[nodiscard]] TextRange in_other(TextRange range) const;

 private:
  struct Item {
    char32_t code;
    size_t source;  // number of the code point that it is (part of)
  };
  using Items = std::vector<Item>;
  static Items fold(std::string_view text);
  void align();
  // Skipped items of text and other before both continue alike; nothing if that is out of reach.
  [[nodiscard]] std::optional<std::pair<size_t, size_t>> find_gap(size_t i, size_t j) const;
  [[nodiscard]] bool agree(size_t i, size_t j, size_t count) const;
  void insert(size_t i, size_t j, size_t count);

  Items text_;
  Items other_;
  std::vector<TextRange> places_;  // for each item of text_, items of other_
  std::optional<size_t> lost_at_;
};

}  // namespace mortise
