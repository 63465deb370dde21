// OverSampling: a step samples more groups than it learns from, and ends when enough are finished
// (rollout.over_sampling).
//
// All rows of all groups are sampled in rounds, a few tokens each. After a round the step counts the finished groups. It
// ends as soon as there are data.train_batch_size of them, and takes those that were finished first; of one round, those
// of older steps first, then by their order in the data. The others stay: their rows keep their tokens with log-probs and
// versions, and continue in the next step. So what a step learns from depends on tokens alone, not on time. A step has
// one round at least, because fewer groups stay than a step takes: a row ends after kRounds steps at most.
//
// Checkpoints save the groups that stay. A step that fails leaves them as they were. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experience/data/prompt_source.h"
#include "foundation/base/stateful.h"
#include "train/sampling/rollout_ahead.h"
#include "train/sampling/sampler.h"

namespace mortise {

class OverSampling : public Stateful {
 public:
  static constexpr int64_t kRounds = 16;  // that the longest completion takes

  OverSampling(double rate, int64_t groups_per_step);

  // The finished groups of a step, without rewards.
  Result<Experience> sample(PromptSource& source, Sampler& sampler, int64_t step, int64_t weight_version,
                            MetricSet& metrics);
  // The step's learning has begun.
  void commit() { open_ = std::move(next_); }

  [[nodiscard]] std::string state_name() const override { return "rollout.over_sampling"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }  // --allow-change may switch it on
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  struct Open {
    RolloutAhead::Rollouts rollouts;  // by the step that began them
    PromptBatch waiting;              // drawn from the data, not begun
  };
  struct Place {
    size_t rollout = 0;
    int64_t group = 0;
    bool operator==(const Place&) const = default;
  };
  void leave_out_misfits(const RolloutPlan& plan);
  Result<> begin_groups(PromptSource& source, const Sampler& sampler, int64_t step);
  Result<> sample_round(Sampler& sampler, int64_t weight_version, MetricSet& metrics);
  void note_finished(std::vector<Place>& finished) const;
  Experience take(const std::vector<Place>& finished);
  void add_metrics(MetricSet& metrics) const;

  int64_t groups_per_step_;
  int64_t num_groups_;  // that are sampled at the same time
  Open open_;
  Open next_;  // after the step that is under way
};

}  // namespace mortise
