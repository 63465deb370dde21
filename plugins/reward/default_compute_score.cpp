// default_compute_score: verl's choice of a scorer by the row's data_source.
//
//   openai/gsm8k                                              gsm8k        0 or 1
//   lighteval/MATH, DigitalLearningGmbH/MATH-lighteval,
//   HuggingFaceH4/MATH-500                                    math_reward  0 or 1
//   math_dapo, math, math_dapo_reasoning, aime*               math_dapo    -1 or 1
// A row of another source fails: verl's other scorers compute (`math_equal`) or run programs (`code`), and are rewards
// of their own here. Trap: the scorers' ranges differ, so a mixture of sources weighs them differently.
#include <algorithm>
#include <initializer_list>

#include <mortise/cpp/mortise.hpp>

#include "../shared/columns.h"
#include "verl_scores.h"

namespace {

using namespace mortise::verl;

struct DefaultComputeScore : mortise::Reward {
  static constexpr const char* summary = "verl's scorer for the row's data_source: gsm8k, MATH, math_dapo, aime*";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string truth = param("ground_truth", "",
                            "column of the answer, or a dotted path; empty: reward_model.ground_truth, else "
                            "ground_truth, else answer");
  std::string source_column = param("data_source", "data_source", "column with the source's name");

  double score(const mortise::Row& row) const {
    const auto named = mortise::find_value(row, source_column);
    if (!named) return mortise::not_applicable;
    const std::string source = mortise::as_text(*named);
    const auto want = mortise::find_truth(row, truth);
    if (!want) return mortise::not_applicable;
    const std::string answer = mortise::as_text(*want);
    if (source == "openai/gsm8k") return gsm8k_answer(row.completion(), false) == answer && !answer.empty() ? 1 : 0;
    if (is_one_of(source, {"lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"}))
      return math_is_right(row.completion(), answer) ? 1 : 0;
    if (is_one_of(source, {"math_dapo", "math", "math_dapo_reasoning"}) || source.compare(0, 4, "aime") == 0) {
      const bool right = dapo_is_right(row.completion(), answer, DapoBox::kFallback);
      row.note("acc", right ? 1 : 0);
      return right ? 1 : -1;
    }
    mortise::fail(MORTISE_INVALID_ARGUMENT,
                  source_column + " '" + source +
                      "' has no scorer here (openai/gsm8k, lighteval/MATH, DigitalLearningGmbH/MATH-lighteval, "
                      "HuggingFaceH4/MATH-500, math, math_dapo, math_dapo_reasoning, aime*); use the reward "
                      "math_equal, or code for programs");
  }

  static bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
  }
};

}  // namespace

MORTISE_REWARD("default_compute_score", DefaultComputeScore)
