// The states of Thompson's automaton of a pattern, over bytes of UTF-8: what ByteAutomaton is built from.
// Thread rule: plain values, a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "foundation/base/result.h"
#include "text/guide/pattern_tree.h"

namespace mortise {

inline constexpr int64_t kMostPatternStates = 400'000;

struct PatternEdge {
  ByteRange bytes;
  uint32_t to = 0;
};

// A state continues by an edge that has the next byte, or at once to one of the two states of `split`.
struct PatternState {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t first_edge = 0, num_edges = 0;
  uint32_t split[2] = {kNone, kNone};
};

struct PatternStates {
  std::vector<PatternState> states;
  std::vector<PatternEdge> edges;
  uint32_t start = 0, match = 0;  // the text matches in `match`, which goes nowhere
};

// An error if there are more than kMostPatternStates.
Result<PatternStates> pattern_states(const PatternTree& tree);

}  // namespace mortise
