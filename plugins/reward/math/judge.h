// Is a completion's answer the right one? What the math rewards share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compare.h"
#include "extract.h"

namespace mortise::math {

// Right answers: one, or several of which each will do.
using Golds = std::vector<Answer>;

// The answer that a completion gives; empty text where it gives none.
Answer answer_of(std::string_view completion, Extraction extraction);

// Equal to one of them, within a budget of work for the whole.
bool is_right(const Golds& golds, const Answer& answer, const Rules& rules);

}  // namespace mortise::math
