// gsm8k: verl's scorer of openai/gsm8k. The number behind the last "####" of the last 300 characters, commas left out,
// must be the answer as text.
//
// method = "flexible" takes the last number of any kind. An answer in the form that is wrong scores format_score.
// Trap: the answer is compared as text, so "42.0" is not "42"; `math_equal` compares numbers.
#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "../shared/verl_scores.h"

namespace {

struct Gsm8k : mortise::Reward {
  static constexpr const char* summary = "verl's gsm8k scorer: the number after the last '####'";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string truth = param("ground_truth", "",
                            "column of the answer, or a dotted path; empty: reward_model.ground_truth, else "
                            "ground_truth, else answer")
                          .column();
  std::string method = param("method", "strict", "'strict' wants '####'; 'flexible' takes the last number")
                           .choices({"strict", "flexible"});
  double hit = param("score", 1.0, "score of the right answer");
  double format_score = param("format_score", 0.0, "score of a wrong answer");

  double score(const mortise::Row& row) const {
    const auto want = mortise::find_truth(row, truth);
    if (!want) return mortise::not_applicable;
    const std::string answer = mortise::verl::gsm8k_answer(row.completion(), method == "flexible");
    row.note("pred", answer);
    if (answer.empty()) return 0;
    return answer == mortise::as_text(*want) ? hit : format_score;
  }
};

}  // namespace

MORTISE_REWARD("gsm8k", Gsm8k)
