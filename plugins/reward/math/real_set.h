// Sets of real numbers as intervals that do not touch, so that (1, 3) u (2, 4) is (1, 4) and R \ {0} is a union.
#pragma once

#include <optional>
#include <vector>

#include "expression.h"
#include "number.h"

namespace mortise::math {

// infinity: -1 or 1 for an infinite end; otherwise `value` counts.
struct End {
  int infinity = 0;
  Value value = Exact{};
};

struct Piece {
  End low, high;
  bool low_closed = false, high_closed = false;
};

using RealSet = std::vector<Piece>;  // in order; empty: the empty set

// Reads intervals, finite sets, unions, intersections, differences, inequalities in one name, and lists of these: the
// numbers that fulfil all, or where that is none, any ("x < -1, x > 1"). Empty for anything else. Throws Undefined.
std::optional<RealSet> real_set_of(const Node& node, Arithmetic& arithmetic, Budget& budget);

bool same_sets(const RealSet& a, const RealSet& b, Arithmetic& arithmetic);

}  // namespace mortise::math
