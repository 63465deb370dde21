// verl's scorers of mathematics, by their own rules: strings are cleaned and compared, nothing is computed.
//
// As in verl 0.9.1 (verl/utils/reward_score). Lengths are in characters, not bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mortise::verl {

// gsm8k: the last "#### NUMBER" of the last 300 characters, without commas; flexible: the last number of any kind.
// Empty if there is none.
std::string gsm8k_answer(std::string_view solution, bool flexible);

// math_reward: the last \boxed{} (or "\boxed 5$", or \fbox{}), cleaned as Hendrycks' MATH does, equal to the cleaned
// truth.
bool math_is_right(std::string_view solution, std::string_view truth);
// The answer that it compares, cleaned; "" if there is none.
std::string math_pred(std::string_view solution);

// What that cleaning makes of an answer; nothing where verl's function raises.
std::optional<std::string> math_cleaned(std::string text);

// math_dapo: the text after the last "Answer:" of the last 300 characters, cleaned as in Minerva. The box is the last
// \boxed{} of the last 100, compared unchanged: if there is no "Answer:" (verl 0.9), not at all (before), or only the
// box (strict_box_verify).
enum class DapoBox { kFallback, kNever, kAlone };
// `pred` is verl's: the cleaned answer, or what the box holds; "" if strict_box_verify finds no box.
struct DapoScore {
  bool right = false;
  std::string pred;
};
DapoScore dapo_score(std::string_view solution, std::string_view truth, DapoBox use);

// search_r1_like_qa_em: compares the text in the last <answer></answer> with each of the right answers, without case,
// punctuation, articles and extra spaces. It must be equal, or (part) contain it. Nothing if there is no answer.
struct SearchR1Match {
  bool right = false;
  bool many_tags = false;  // more than 10 of <answer> or of </answer>: verl takes a quarter of the score
};
std::optional<SearchR1Match> search_r1_match(std::string_view solution, const std::vector<std::string>& truths,
                                             bool part);

}  // namespace mortise::verl
