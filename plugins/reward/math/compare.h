// Do two answers say the same?
#pragma once

#include <string>
#include <string_view>

#include "expression.h"
#include "number.h"

namespace mortise::math {

// An answer as it was read. `node` is empty where it is no expression that the parser knows; it then equals its own
// text alone.
struct Answer {
  explicit Answer(std::string_view text);
  std::string text;  // normalised, without spaces
  NodePtr node;
};

struct Rules {
  // Where a decimal number meets a number, both are rounded to this many places (more for small numbers: two digits
  // always count); all else is exact.
  int places = 6;
  // Above 0: two real numbers are also the same where they differ by at most so much of the larger.
  double relative = 0;
};

// Never throws; what cannot be decided within the budget is not equal.
bool same(const Answer& gold, const Answer& answer, const Rules& rules, Budget& budget);

}  // namespace mortise::math
