// See split.h.
#include "text/tokenizer/split.h"

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

struct Part {
  TextSpan span;
  bool is_match;
};

// The whole text as matches and the text between them. Empty matches remain: they end a run of joined ones.
std::vector<Part> cover(const std::vector<TextSpan>& matches, size_t size, bool invert) {
  std::vector<Part> parts;
  parts.reserve(matches.size() * 2 + 1);
  size_t done = 0;
  for (const TextSpan& match : matches) {
    if (match.begin > done) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) parts.push_back({{done, size}, invert});
  return parts;
}

// Joins each match to the part on its left (`parts` in reading order) or, reversed, on its right.
void merge_matches(std::vector<Part>& parts, bool with_next) {
  if (with_next) std::reverse(parts.begin(), parts.end());
  std::vector<Part> merged;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.is_match && !after_match && !merged.empty()) {
      (with_next ? merged.back().span.begin : merged.back().span.end) = with_next ? part.span.begin : part.span.end;
    } else {
      merged.push_back(part);
    }
    after_match = part.is_match;
  }
  if (with_next) std::reverse(merged.begin(), merged.end());
  parts = std::move(merged);
}

void merge_runs(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.is_match == after_match && !merged.empty()) {
      merged.back().span.end = part.span.end;
    } else {
      merged.push_back(part);
    }
    after_match = part.is_match;
  }
  parts = std::move(merged);
}

}  // namespace

Result<SplitBehavior> parse_split_behavior(std::string_view name, std::string_view where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Error{ErrorKind::kData, "unknown split behaviour " + quote(name), std::string(where), ""};
}

void split_around(const std::vector<TextSpan>& matches, size_t size, SplitBehavior behavior, bool invert,
                  std::vector<TextSpan>& out) {
  std::vector<Part> parts = cover(matches, size, invert);
  if (behavior == SplitBehavior::kMergedWithPrevious) merge_matches(parts, false);
  if (behavior == SplitBehavior::kMergedWithNext) merge_matches(parts, true);
  if (behavior == SplitBehavior::kContiguous) merge_runs(parts);
  for (const Part& part : parts) {
    const bool removed = behavior == SplitBehavior::kRemoved && part.is_match;
    if (!removed && part.span.end > part.span.begin) out.push_back(part.span);
  }
}

}  // namespace mortise
