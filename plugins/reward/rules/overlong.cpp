// soft_overlong and hard_overlong: the penalty for a completion that is too long (DAPO, arXiv:2503.14476, section 3.4).
//
//   soft  0 up to max_length - buffer tokens, then (max_length - buffer - n) / buffer, never below -1; times `factor`
//   hard  -1 above max_length tokens, and where the completion was cut off at its limit
// soft: TRL's get_soft_overlong_punishment(max_length, buffer), ms-swift's soft_overlong(soft_max_length,
// soft_cache_length), verl's overlong_buffer (len = buffer, penalty_factor = factor). Trap: swift and verl have no
// floor. They agree with this reward as long as no completion is longer than max_length. Lengths count the end token.
#include <algorithm>

#include <mortise/cpp/mortise.hpp>

namespace {

struct Overlong : mortise::Reward {
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::int64_t max_length =
      param("max_length", -1, "tokens with the full penalty; -1: data.max_response_length").at_least(-1);
  double factor = param("factor", 1.0, "factor of the penalty").at_least(0);

  void setup(mortise::Call) override {
    if (max_length == 0)
      mortise::fail(MORTISE_INVALID_ARGUMENT, "max_length: 0 tokens punish everything; give a length, or -1");
  }

  std::int64_t limit(const mortise::Row& row) const {
    const std::int64_t tokens = max_length > 0 ? max_length : row.max_response_length();
    if (tokens <= 0)
      mortise::fail(MORTISE_FAILED_PRECONDITION, "max_length is not set and max_response_length is unknown");
    return tokens;
  }
};

struct SoftOverlong : Overlong {
  static constexpr const char* summary = "0 to -1 over the last `buffer` tokens before max_length (DAPO)";

  std::int64_t buffer =
      param<std::int64_t>("buffer", mortise::required, "tokens over which the penalty grows").at_least(1);

  void setup(mortise::Call call) override {
    Overlong::setup(call);
    if (max_length > 0 && buffer > max_length) {
      mortise::fail(MORTISE_INVALID_ARGUMENT, "buffer: " + std::to_string(buffer) + " is above max_length " +
                                                  std::to_string(max_length) +
                                                  ", so that no length would go unpunished; lower it");
    }
  }

  double score(const mortise::Row& row) const {
    const std::int64_t start = limit(row) - buffer, n = row.completion_ids().size();
    if (n <= start) return 0;
    return factor * std::max(double(start - n) / double(buffer), -1.0);
  }
};

struct HardOverlong : Overlong {
  static constexpr const char* summary = "-1 for a completion above max_length or cut off, else 0";

  double score(const mortise::Row& row) const {
    const bool cut = row.finish_reason() == MORTISE_FINISH_LENGTH;
    return cut || row.completion_ids().size() > limit(row) ? -factor : 0.0;
  }
};

}  // namespace

MORTISE_REWARD("soft_overlong", SoftOverlong)
MORTISE_REWARD("hard_overlong", HardOverlong)
