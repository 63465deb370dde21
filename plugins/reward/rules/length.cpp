// length: shapes the completion's length in tokens, the end token included.
//
//   n <= target           0
//   target < n < limit    linear from 0 down to `penalty`
//   n >= limit            `penalty`
// With target = max_response_length - buffer and limit = max_response_length this is DAPO's soft overlong punishment
// (arXiv:2503.14476, eq. 13), which is what it does when only `buffer` is set. The reward is never above 0.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Length : mortise::Reward {
  static constexpr const char* summary = "penalizes long completions: linear from target to limit";
  static constexpr const char* doc =
      "0 up to `target` tokens, `penalty` from `limit` tokens on, linear in between; DAPO's soft overlong punishment "
      "(arXiv:2503.14476)";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::int64_t target = param("target", -1, "tokens without a penalty; -1: limit - buffer").at_least(-1);
  std::int64_t limit = param("limit", -1, "tokens with the full penalty; -1: data.max_response_length").at_least(-1);
  std::int64_t buffer = param("buffer", 0, "tokens between target and limit when target is not set").at_least(0);
  double penalty = param("penalty", -1.0, "reward at the limit and beyond").range(-1e9, 0);

  void setup(mortise::Call) override {
    if (limit == 0) mortise::fail(MORTISE_INVALID_ARGUMENT, "limit: 0 tokens punish everything; give a length, or -1");
    if (target >= 0 && limit >= 0 && target > limit) {
      mortise::fail(MORTISE_INVALID_ARGUMENT,
                    "target " + std::to_string(target) + " is above limit " + std::to_string(limit));
    }
    if (target >= 0 && buffer > 0) mortise::fail(MORTISE_INVALID_ARGUMENT, "give target or buffer, not both");
  }

  double score(const mortise::Row& row) const {
    const std::int64_t end = limit >= 0 ? limit : row.max_response_length();
    if (end <= 0) mortise::fail(MORTISE_FAILED_PRECONDITION, "limit is not set and max_response_length is unknown");
    const std::int64_t start = target >= 0 ? target : std::max<std::int64_t>(end - buffer, 0);
    const std::int64_t n = row.completion_ids().size();
    if (n >= end && n > start) return penalty;
    if (n <= start) return 0;
    return penalty * double(n - start) / double(end - start);
  }
};

}  // namespace

MORTISE_REWARD("length", Length)
