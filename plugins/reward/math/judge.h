// Is a completion's answer the right one? Shared by the mathematical rewards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compare.h"
#include "extract.h"

namespace mortise::math {

// Right answers: one, or several alternatives.
using Golds = std::vector<Answer>;

// The answer in a completion; an empty text if there is none.
Answer answer_of(std::string_view completion, Extraction extraction);

// Equal to one of them, within a budget of work for the whole.
bool is_right(const Golds& golds, const Answer& answer, const Rules& rules);

}  // namespace mortise::math
