// Do two answers say the same?
#pragma once

#include <string>
#include <string_view>

#include "expression.h"
#include "number.h"

namespace mortise::math {

// A parsed answer. `node` is empty if the parser does not know the expression; it then equals only its own text.
struct Answer {
  explicit Answer(std::string_view text);
  std::string text;  // normalised, without spaces
  NodePtr node;
};

struct Rules {
  // If a decimal number is compared with a number, both are rounded to this many places (more for small numbers: at
  // least two digits count). Everything else is exact.
  int places = 6;
  // Above 0: two real numbers are also the same where they differ by at most so much of the larger.
  double relative = 0;
};

// Never throws; what cannot be decided within the budget is not equal.
bool same(const Answer& gold, const Answer& answer, const Rules& rules, Budget& budget);

}  // namespace mortise::math
