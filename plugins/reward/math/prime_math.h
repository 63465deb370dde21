// verl's scorers that compare mathematics: prime_math (the numina_* data) and geo3k (hiyouga/geometry3k).
//
// As in verl 0.9.1 (verl/utils/reward_score), in the answer that is taken, the order of the comparisons and what each
// lets pass. Where verl asks sympy whether two expressions are equal, math/judge.h answers.
#pragma once

#include <string>
#include <string_view>

namespace mortise::verl {

// prime_math's answer: behind the last "answer is" or "answer:", before "is the answer", in the last box, without the
// sentence behind it, behind the last "is", "=", ...
std::string prime_answer(std::string_view solution);

// Equal as MATH's cleaned strings, or as mathematics, or as numbers to 1e-4 of the larger, one of which may be a
// percentage of the other; pi may be 3.14.
bool prime_is_right(std::string_view solution, const std::string& truth);

// 0.9 for the right answer in the last \boxed{}, 0.1 for "<think>...</think>...\boxed{...}". Right means equal as
// MATH's cleaned strings, or as mathematics in the same form: a fraction stays unreduced, an integer is written as one
// (mathruler's grade_answer, which is PRM800K's, arXiv:2305.20050).
double geo3k_score(std::string_view solution, const std::string& truth);

}  // namespace mortise::verl
