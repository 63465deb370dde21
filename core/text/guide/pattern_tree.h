// A regular expression that guides sampling, as a tree.
//
// The language is the part of regular expressions that a finite automaton can follow, with the meaning that it has for
// vLLM (xgrammar): the whole text has to match; . is any character, also a line break; \d, \w and \s are ASCII digits,
// ASCII letters with digits and _, and white space (space, \t \n \v \f \r, U+00A0). Groups, alternatives, classes, the
// repeats * + ? {m} {m,} {m,n}, also lazy ones, which match the same texts; ^ as the first and $ as the last character;
// escapes \n \r \t \f \v \a \e \0 \xHH \uHHHH \u{H...} \UHHHHHHHH \cX and those of punctuation. Everything else is an error
// that names the character at which it stands.
// Cost: linear. Thread rule: pure functions, plain values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "text/guide/code_ranges.h"

namespace mortise {

inline constexpr size_t kMostPatternBytes = size_t{1} << 18;

struct PatternNode {
  enum class Kind { kClass, kSequence, kChoice, kRepeat };
  static constexpr int kNoEnd = -1;

  Kind kind = Kind::kSequence;
  CodeRanges set = {};                // kClass: one of these characters
  std::vector<size_t> children = {};  // nodes of the tree, for all other kinds. A sequence of none is the empty text
  int least = 0, most = kNoEnd;       // kRepeat: how often its child comes
};

struct PatternTree {
  std::vector<PatternNode> nodes;
  size_t root = 0;
};

Result<PatternTree> parse_pattern(std::string_view pattern);

// The pattern that matches `text` alone.
std::string escaped_pattern(std::string_view text);

}  // namespace mortise
