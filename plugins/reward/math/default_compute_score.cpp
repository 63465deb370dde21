// default_compute_score: verl's choice of a scorer by the row's data_source.
//
//   openai/gsm8k                                              gsm8k        0 or 1
//   lighteval/MATH, DigitalLearningGmbH/MATH-lighteval,
//   HuggingFaceH4/MATH-500                                    math_reward  0 or 1
//   math_dapo, math, math_dapo_reasoning, aime*               math_dapo    -1 or 1
//   numina_aops_forum, numina_synthetic_math, numina_amc_aime,
//   numina_synthetic_amc, numina_cn_k12, numina_olympiads     prime_math   0 or 1
//   hiyouga/geometry3k                                        geo3k        0, 0.1, 0.9 or 1
//   searchR1_nq, _triviaqa, _popqa, _hotpotqa,
//   _2wikimultihopqa, _musique, _bamboogle                    search_r1    0, 0.25 or 1
// A row of another source fails: what runs programs (codecontests, apps, codeforces, taco) is the reward `code` here.
// Traps: the scorers' ranges differ, so a mixture of sources weighs them differently. Where verl asks sympy for the
// equality of two expressions (numina_*, geometry3k), the comparison of `math_equal` answers.
#include <algorithm>
#include <initializer_list>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "../shared/search_r1_truths.h"
#include "../shared/verl_scores.h"
#include "prime_math.h"

namespace {

using namespace mortise::verl;

struct DefaultComputeScore : mortise::Reward {
  static constexpr const char* summary =
      "verl's scorer for the row's data_source: gsm8k, MATH, math_dapo, aime*, numina_*, geometry3k, searchR1_*";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string truth = param("ground_truth", "",
                            "column of the answer, or a dotted path; empty: reward_model.ground_truth, else "
                            "ground_truth, else answer")
                          .column();
  std::string source_column = param("data_source", "data_source", "column with the source's name").column();

  double score(const mortise::Row& row) const {
    const auto named = mortise::find_value(row, source_column);
    if (!named) return mortise::not_applicable;
    const std::string source = mortise::as_text(*named);
    const auto want = mortise::find_truth(row, truth);
    if (!want) return mortise::not_applicable;
    if (is_one_of(source, {"searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa",
                           "searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle"}))
      return search_r1_score(search_r1_match(row.completion(), search_r1_truths(*want), false), 1, 0);
    const std::string answer = mortise::as_text(*want);
    if (source == "openai/gsm8k") return gsm8k_answer(row.completion(), false) == answer && !answer.empty() ? 1 : 0;
    if (is_one_of(source, {"lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"}))
      return math_is_right(row.completion(), answer) ? 1 : 0;
    if (is_one_of(source, {"math_dapo", "math", "math_dapo_reasoning"}) || source.compare(0, 4, "aime") == 0) {
      const DapoScore score = dapo_score(row.completion(), answer, DapoBox::kFallback);
      row.note("acc", score.right ? 1 : 0);
      row.note("pred", score.pred);
      return score.right ? 1 : -1;
    }
    if (is_one_of(source, {"numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc",
                           "numina_cn_k12", "numina_olympiads"}))
      return prime_is_right(row.completion(), answer) ? 1 : 0;
    if (source == "hiyouga/geometry3k") return geo3k_score(row.completion(), answer);
    mortise::fail(MORTISE_INVALID_ARGUMENT,
                  source_column + " '" + source +
                      "' has no scorer here (openai/gsm8k, lighteval/MATH, DigitalLearningGmbH/MATH-lighteval, "
                      "HuggingFaceH4/MATH-500, math, math_dapo, math_dapo_reasoning, aime*, verl's numina_* and "
                      "searchR1_*, hiyouga/geometry3k); use the reward math_equal, or code for programs");
  }

  static bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
  }
};

}  // namespace

MORTISE_REWARD("default_compute_score", DefaultComputeScore)
