// PatternCheck: whether a completion that somebody else sampled follows a pattern.
//
// Cost: one look-up per byte. Thread rule: constant after building.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "text/guide/byte_automaton.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

class PatternCheck {
 public:
  // What the text of a completion must be.
  enum class Extent {
    kWhole,     // a matching text: the completion ended by itself
    kBeginning  // the beginning of one: a limit or a stop text may have cut it
  };

  static Result<PatternCheck> create(std::string_view pattern);

  // `ids`: a completion, perhaps with an end id of `end_ids` as its last token. An end id there asks for the whole text.
  // The text is that of the tokens or, as servers may see it, without the space that decoding drops at the start.
  // An error if the tokenizer's tokens have no text of their own.
  [[nodiscard]] Result<bool> follows(std::span<const int64_t> ids, std::span<const int64_t> end_ids, Extent extent,
                                     const Tokenizer& tokenizer) const;

 private:
  explicit PatternCheck(ByteAutomaton automaton) : automaton_(std::move(automaton)) {}
  [[nodiscard]] bool follows(std::string_view text, Extent extent) const;

  ByteAutomaton automaton_;
};

}  // namespace mortise
