// cosine: a right answer is worth more when it is short, and a wrong one costs less when it is long.
//
//   p = min(tokens / max_length, 1)
//   reward = end + (start - end) / 2 * (1 + cos(pi p)),  from `start` at length 0 to `end` at max_length
// Demystifying Long Chain-of-Thought Reasoning (arXiv:2502.03373), appendix C.1. The answer is compared as in
// math_equal. Defaults are TRL's get_cosine_scaled_reward: 1 to 0.5 when right, -1 to -0.5 when wrong. ms-swift's
// `cosine`: wrong_start = -0.5, wrong_end = 0. Trap: swift's curve turns back beyond max_length; here, as in TRL, it
// stays at its end.
#include <cmath>

#include "math_params.h"

namespace {

struct Cosine : mortise::MathReward {
  static constexpr const char* summary = "right or wrong, scaled by length along a cosine (TRL, ms-swift)";
  static constexpr const char* doc =
      "end + (start - end) / 2 (1 + cos(pi min(tokens / max_length, 1))). arXiv:2502.03373, C.1";

  std::int64_t max_length =
      param("max_length", -1, "tokens at which the curve ends; -1: data.max_response_length").at_least(-1);
  double correct_start = param("correct_start", 1.0, "a right answer of length 0 (TRL: max_value_correct)");
  double correct_end = param("correct_end", 0.5, "a right answer of max_length (TRL: min_value_correct)");
  double wrong_start = param("wrong_start", -1.0, "a wrong answer of length 0 (TRL: min_value_wrong)");
  double wrong_end = param("wrong_end", -0.5, "a wrong answer of max_length (TRL: max_value_wrong)");

  void setup(mortise::Call) override {
    if (max_length == 0)
      mortise::fail(MORTISE_INVALID_ARGUMENT, "max_length: 0 tokens leave no curve; give a length, or -1");
  }

  double score(const mortise::Row& row) const {
    const std::int64_t limit = max_length > 0 ? max_length : row.max_response_length();
    if (limit <= 0) {
      mortise::fail(MORTISE_FAILED_PRECONDITION, "max_length is not set and max_response_length is unknown");
    }
    const std::optional<bool> right = is_right(row);
    if (!right) return mortise::not_applicable;
    const double start = *right ? correct_start : wrong_start, end = *right ? correct_end : wrong_end;
    const double p = std::min(double(row.completion_ids().size()) / double(limit), 1.0);
    return end + (start - end) / 2 * (1 + std::cos(p * 3.14159265358979323846));
  }
};

}  // namespace

MORTISE_REWARD("cosine", Cosine)
