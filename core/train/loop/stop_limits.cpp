// Counts the steps beyond each limit, and makes the error that stops the run.
#include "train/loop/stop_limits.h"

#include <fmt/core.h>

#include <utility>

#include "foundation/base/text.h"

namespace mortise {

StopLimits::StopLimits(const TrainerConfig& config) : patience_(config.limit_patience) {
  limits_.push_back(
      {"rollout_probs_diff_limit",
       config.rollout_probs_diff_limit,
       {"training/rollout_probs_diff_mean"},
       ErrorKind::kNumerics,
       "sampler and trainer no longer compute the same model: check that the rollout backend has the newest "
       "weights and the same rollout.temperature",
       0});
  limits_.push_back({"kl_limit",
                     config.kl_limit,
                     {"kl", "actor/reward_kl_penalty"},
                     ErrorKind::kNumerics,
                     "lower actor.optim.lr or raise the KL's coefficient, and resume from an earlier checkpoint",
                     0});
  limits_.push_back({"nan_reward_limit",
                     config.nan_reward_limit,
                     {"frac_reward_nan"},
                     ErrorKind::kReward,
                     "look at rewards/NAME/not_applicable and rewards/NAME/failed in metrics.jsonl",
                     0});
  limits_.push_back(
      {"zero_variance_limit",
       config.zero_variance_limit,
       {"frac_reward_zero_std"},
       ErrorKind::kReward,
       "all completions of most prompts get the same reward: take easier or harder prompts, or raise rollout.n",
       0});
}

Error StopLimits::broken(const Limit& limit, int64_t step, const MetricValue& metric) const {
  const std::string steps = patience_ == 1 ? "" : fmt::format(", for {} steps in a row", patience_);
  return {limit.kind,
          fmt::format("{} is {}, more than trainer.{} = {}{}", metric.name, format_f64(metric.value), limit.key,
                      format_f64(*limit.most), steps),
          "step " + std::to_string(step), limit.next};
}

Result<> StopLimits::check(int64_t step, const MetricSet& metrics, bool learnt) {
  std::optional<Error> first;
  for (Limit& limit : limits_) {
    if (!limit.most) continue;
    std::optional<MetricValue> seen;
    for (const std::string& name : limit.metrics) {
      if (const auto value = metrics.value(name); value && !seen) seen = MetricValue{name, *value};
    }
    if (!seen && !learnt) continue;
    if (!seen) {
      return Error{ErrorKind::kConfig,
                   fmt::format("the step has no {}, so its limit cannot be checked", limit.metrics.front()),
                   fmt::format("trainer.{}, step {}", limit.key, step),
                   "use a rollout backend that gives log-probabilities, or remove the limit"};
    }
    limit.num_beyond = seen->value <= *limit.most ? 0 : limit.num_beyond + 1;
    if (limit.num_beyond >= patience_ && !first) first = broken(limit, step, *seen);
  }
  if (first) return *std::move(first);
  return {};
}

Result<> StopLimits::save_state(StateWriter& writer) const {
  for (const Limit& limit : limits_) writer.put_int(limit.key, limit.num_beyond);
  return {};
}

Result<> StopLimits::load_state(StateReader& reader) {
  for (Limit& limit : limits_) limit.num_beyond = TRY(reader.get_int(limit.key));
  return {};
}

}  // namespace mortise
