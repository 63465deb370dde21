// StopLimits: limits on a step's numbers, from [trainer]: how far sampler and trainer disagree
// (rollout_probs_diff_limit), how far the policy is from the reference (kl_limit), and the shares of rows without a
// reward (nan_reward_limit) and of groups with equal rewards (zero_variance_limit).
//
// A number beyond its limit in limit_patience steps in a row stops the run; NaN is beyond any limit. Checkpoints save
// the number of such steps. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

class StopLimits : public Stateful {
 public:
  explicit StopLimits(const TrainerConfig& config);

  // After a step, with its numbers; `learnt`: it had updates, and none was skipped, so no number may be missing. The
  // Error is of kind kNumerics (the first two: the weights are in doubt) or kReward.
  Result<> check(int64_t step, const MetricSet& metrics, bool learnt = true);

  [[nodiscard]] std::string state_name() const override { return "trainer.limits"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  struct Limit {
    std::string key;                   // a key of [trainer]
    std::optional<double> most;        // null: no limit
    std::vector<std::string> metrics;  // the first that the step has
    ErrorKind kind;
    std::string next;
    int64_t num_beyond = 0;  // steps in a row
  };
  [[nodiscard]] Error broken(const Limit& limit, int64_t step, const MetricValue& metric) const;

  std::vector<Limit> limits_;
  int64_t patience_;
};

}  // namespace mortise
