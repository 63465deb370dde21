// The value of a scalar expression at one of a few fixed points.
//
// At rational points a rational expression is computed exactly. Two expressions that agree at all points are then
// equal, except with a chance of about 1 in 2^15 per degree and point. With roots and functions the precision is 320
// bits.
#pragma once

#include "expression.h"
#include "number.h"

namespace mortise::math {

// Symbols are positive at even points and negative at odd ones, below 1 at the first two.
inline constexpr int kNumPoints = 4;

// `upper`: +- is + and -+ is -. Throws Undefined where it has no value.
Value evaluate(const Node& node, int point, bool upper, Arithmetic& arithmetic);

}  // namespace mortise::math
