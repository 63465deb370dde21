// math_equal: is the completion's answer mathematically equal to the row's, whatever its form?
//
// It finds the answer in the completion (math/extract.h), reads both as mathematics (math/parser.h: numbers, fractions,
// roots, powers, percentages, units, functions, sets, intervals, tuples, matrices, equations, inequalities), and
// compares them by exact arithmetic, or to 320 bits if there are roots and functions (math/compare.h). As in
// math-verify, a decimal number and a number are rounded to 6 places, and all else is exact.
// TRL's accuracy_reward: extract = marked, gold = marked, on_unreadable_gold = skip; with after = "</think>" its
// reasoning_accuracy_reward. ms-swift's accuracy: extract = marked, tag = answer, gold = marked, on_unreadable_gold =
// miss. Both find the answer as math-verify does; the comparison is the one described here.
// The work per row is limited (math/number.h): a hostile completion is wrong, not slow.
#include "math_params.h"

namespace {

struct MathEqual : mortise::MathReward {
  static constexpr const char* summary = "the answer is mathematically equal to the row's, in any form";
  static constexpr const char* doc =
      "finds the answer (\\boxed{}, '####', 'answer is', last formula, last number), reads LaTeX or plain text, "
      "compares "
      "exactly; decimals to 6 places";

  double hit = param("hit", 1.0, "score of a right answer");
  double miss = param("miss", 0.0, "score of anything else");

  double score(const mortise::Row& row) const {
    const std::optional<bool> right = is_right(row);
    if (!right) return mortise::not_applicable;
    return *right ? hit : miss;
  }
};

}  // namespace

MORTISE_REWARD("math_equal", MathEqual)
