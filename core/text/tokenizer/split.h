// How a text is cut around matches: the five behaviours of tokenizer.json. Pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "text/tokenizer/regex.h"

namespace mortise {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Result<SplitBehavior> parse_split_behavior(std::string_view name, std::string_view where);

// Cuts [0, size) around the matches (sorted, not overlapping), without empty parts. `invert`: the text between the
// matches counts as the match.
void split_around(const std::vector<TextSpan>& matches, size_t size, SplitBehavior behavior, bool invert,
                  std::vector<TextSpan>& out);

}  // namespace mortise
