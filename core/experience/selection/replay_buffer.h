// ReplayBuffer: groups of earlier steps that take the place of groups whose rewards do not differ, which have no
// advantage in an estimator that compares the completions of a prompt (TRL's GRPO with a replay buffer).
//
// A step draws groups of earlier steps, without replacement and by their spread of rewards, one for each of its groups
// whose rewards do not differ. If the buffer has fewer, the others stay. Then the step's own groups whose rewards differ
// enter the buffer. A full buffer keeps the groups with the largest spread; of equal ones the newest. A group that is
// drawn stays in the buffer until it is too old. The draw is a function of (seed, step).
// Checkpoints save the buffer. A step that fails leaves it as it was. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "experience/selection/experience.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

class ReplayBuffer : public Stateful {
 public:
  ReplayBuffer(const ReplayBufferConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

  // What the step learns from. Prompts of drawn groups say their step (Prompt::sampled_in_step).
  // An Error if a group cannot be read back.
  [[nodiscard]] Result<Experience> exchange(const Experience& fresh, int64_t step, MetricSet& metrics);
  // The step's learning has begun: its groups are in the buffer from now on.
  void commit() { groups_ = std::move(next_); }

  [[nodiscard]] std::string state_name() const override { return "algorithm.replay_buffer"; }
  // A run may switch the buffer on with --allow-change.
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  struct Group {
    int64_t step = 0;                       // that sampled it
    double spread = 0;                      // spread_of its rewards
    int64_t num_rows = 0;                   // n
    std::vector<std::string> rewards = {};  // names of the reward columns
    // encode_experience of the group, which checkpoints hold as it is.
    std::shared_ptr<const std::string> bytes = {};
  };
  static Group group_of(const Experience& rows, std::string bytes);
  // Those of groups_ that the step may learn from.
  [[nodiscard]] std::vector<Group> usable(const Experience& fresh, int64_t step) const;
  static bool fits(const Group& group, const Experience& fresh);
  void add(const Experience& fresh, int64_t step, const std::vector<int64_t>& groups);

  ReplayBufferConfig config_;
  uint64_t seed_;
  std::vector<Group> groups_;  // by falling spread
  std::vector<Group> next_;    // after the step that is under way
};

}  // namespace mortise
