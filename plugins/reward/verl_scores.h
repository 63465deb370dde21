// verl's scorers of mathematics, by their own rules: strings are cleaned and compared, nothing is computed.
//
// As in verl 0.9.1 (verl/utils/reward_score). Lengths are in characters, not bytes.
#pragma once

#include <string>
#include <string_view>

namespace mortise::verl {

// gsm8k: the last "#### NUMBER" of the last 300 characters, commas left out; flexible: the last number of any kind.
// Empty where there is none.
std::string gsm8k_answer(std::string_view solution, bool flexible);

// math_reward: the last \boxed{} (or "\boxed 5$", or \fbox{}), cleaned as Hendrycks' MATH does, equal to the cleaned
// truth.
bool math_is_right(std::string_view solution, std::string_view truth);

// math_dapo: behind the last "Answer:" of the last 300 characters, cleaned as Minerva does. The box is the last
// \boxed{} of the last 100, compared unchanged: where there is no "Answer:" (verl 0.9), not at all (before), or alone
// (strict_box_verify).
enum class DapoBox { kFallback, kNever, kAlone };
bool dapo_is_right(std::string_view solution, std::string_view truth, DapoBox use);

}  // namespace mortise::verl
