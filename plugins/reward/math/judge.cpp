// Extracts, normalizes, parses and compares an answer, and applies the limits.
#include "judge.h"

#include <algorithm>

namespace mortise::math {

Answer answer_of(std::string_view completion, Extraction extraction) {
  const std::vector<std::string> candidates = extract(completion, extraction);
  for (const std::string& candidate : candidates) {
    Answer answer(candidate);
    if (answer.node != nullptr) return answer;
  }
  return Answer(candidates.empty() ? "" : candidates[0]);
}

bool is_right(const Golds& golds, const Answer& answer, const Rules& rules) {
  Budget budget;
  return std::any_of(golds.begin(), golds.end(), [&](const Answer& gold) { return same(gold, answer, rules, budget); });
}

}  // namespace mortise::math
