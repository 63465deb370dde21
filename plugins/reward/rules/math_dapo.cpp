// math_dapo: verl's scorer for the data of DAPO and AIME. The text after the last "Answer:" must equal the answer after
// both were cleaned as in Minerva (arXiv:2206.14858): 1, else -1. Only the last 300 characters count.
//
// Without "Answer:" the last \boxed{} of the last 100 characters counts, unchanged (verl 0.9; box = "never": before).
// box = "alone" is strict_box_verify.
#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "../shared/verl_scores.h"

namespace {

using mortise::verl::DapoBox;

struct MathDapo : mortise::Reward {
  static constexpr const char* summary = "verl's math_dapo scorer: 1 or -1 for the text after 'Answer:'";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string truth = param("ground_truth", "",
                            "column of the answer, or a dotted path; empty: reward_model.ground_truth, else "
                            "ground_truth, else answer")
                          .column();
  std::string box = param("box", "fallback",
                          "the last \\boxed{}: 'fallback' where there is no 'Answer:', 'never', or 'alone' "
                          "(strict_box_verify)")
                        .choices({"fallback", "never", "alone"});

  double score(const mortise::Row& row) const {
    const auto want = mortise::find_truth(row, truth);
    if (!want) return mortise::not_applicable;
    const DapoBox use = box == "alone" ? DapoBox::kAlone : box == "never" ? DapoBox::kNever : DapoBox::kFallback;
    const auto score = mortise::verl::dapo_score(row.completion(), mortise::as_text(*want), use);
    row.note("acc", score.right ? 1 : 0);
    row.note("pred", score.pred);
    return score.right ? 1 : -1;
  }
};

}  // namespace

MORTISE_REWARD("math_dapo", MathDapo)
