// RolloutAhead: the rollouts of the next steps, on which a thread of its own works while the policy learns from this
// step's (trainer.mode = "one_step_off" and "async").
//
// The thread makes one round while a step learns (ahead_round.h), and the step ends when both have. Which weights sample
// a token therefore does not depend on how long anything takes, so that a run has the same bits every time. A checkpoint
// after a step holds all rollouts, finished or not, and a resume continues with them. If a round fails, what it changed is
// set back, and the step after it fails: the run then ends as if the round had not begun.
// Thread rule: one thread calls it. Between begin() and wait() nobody else may touch what the round uses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "experience/selection/experience.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

// The rollout of a step to come.
struct AheadRollout {
  int64_t step = 0;
  int64_t first_round = 0;       // the step that learnt when its first tokens were sampled
  int64_t num_pieces = 0;        // that its unfinished rows have
  bool is_whole = false;         // all rows are finished and have their rewards
  std::vector<uint8_t> is_done;  // by row, until it is whole
  Experience experience;
  MetricSet metrics;
};

class RolloutAhead : public Stateful {
 public:
  using Rollouts = std::vector<AheadRollout>;  // by step
  using Round = std::function<Result<>(Rollouts& rollouts)>;

  RolloutAhead() = default;
  RolloutAhead(const RolloutAhead&) = delete;
  RolloutAhead& operator=(const RolloutAhead&) = delete;
  ~RolloutAhead() override { wait(); }

  // All ranks must agree on how a round ends: `agree` turns this rank's result into that of all.
  void agree_by(std::function<Result<>(const Result<>&)> agree) { agree_ = std::move(agree); }

  // `object` changes in a round. Borrowed.
  Result<> add_changing(Stateful& object) { return changing_.add(object); }

  // Makes a round in a thread.
  Result<> begin(Round round);
  // Until the thread has ended. Nothing to do if there is none.
  void wait();
  // begin() and wait(), without a thread.
  Result<> make_now(const Round& round);

  // Precondition of the rest: no thread.
  // Is there a whole one for this step? Or the error of the last round.
  [[nodiscard]] Result<bool> has(int64_t step) const;
  [[nodiscard]] const Rollouts& rollouts() const { return rollouts_; }
  // Leaves out what there is.
  void forget();
  // That of the step, with the metrics of making it. It is gone then. Precondition: has(step).
  Result<Experience> take(int64_t step, MetricSet& metrics);

  [[nodiscard]] std::string state_name() const override { return "trainer.rollout_ahead"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  Result<> load_only_one(StateReader& reader);
  Result<> prepare();
  void work(const Round& round);
  void settle();

  std::function<Result<>(const Result<>&)> agree_ = [](const Result<>& own) { return own; };
  StatefulRegistry changing_;
  StateSnapshot before_;  // state of changing_ when the round began
  std::thread thread_;
  Rollouts rollouts_;
  Rollouts made_;  // what the round makes of them
  Result<> told_;  // by the last round
};

// May all rows that are not finished get further tokens?
bool has_room(const AheadRollout& rollout, int64_t longest);

// Rollouts in checkpoints. An Error names `owner`.
void save_rollouts(const RolloutAhead::Rollouts& rollouts, StateWriter& writer);
Result<RolloutAhead::Rollouts> load_rollouts(StateReader& reader, const std::string& owner);

}  // namespace mortise
