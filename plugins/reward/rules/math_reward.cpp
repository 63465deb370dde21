// math_reward: verl's scorer of MATH. What the last \boxed{} holds must equal the answer after both were cleaned as the
// MATH data set's own scorer does (Hendrycks et al., arXiv:2103.03874): 1, else 0.
//
// Trap: strings are compared, so 0.75 is not \frac{3}{4}; `math_equal` compares mathematics.
#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "../shared/verl_scores.h"

namespace {

struct MathReward : mortise::Reward {
  static constexpr const char* summary = "verl's MATH scorer: the last box equals the answer as a cleaned string";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string truth = param("ground_truth", "",
                            "column of the answer, or a dotted path; empty: reward_model.ground_truth, else "
                            "ground_truth, else answer")
                          .column();

  double score(const mortise::Row& row) const {
    const auto want = mortise::find_truth(row, truth);
    if (!want) return mortise::not_applicable;
    row.note("pred", mortise::verl::math_pred(row.completion()));
    return mortise::verl::math_is_right(row.completion(), mortise::as_text(*want)) ? 1 : 0;
  }
};

}  // namespace

MORTISE_REWARD("math_reward", MathReward)
