// StepState: the results of a step so far, so that a checkpoint inside it (trainer.save_freq_updates) resumes after its
// last update, with the same samples and scores. These might differ if they were made again: a rollout server, a reward
// with a clock or a network.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experience/selection/experience.h"
#include "foundation/base/stateful.h"
#include "foundation/batch/step_table.h"
#include "foundation/metrics/registry.h"
#include "learn/update/actor_learner.h"

namespace mortise {

// The step that is under way.
struct StepWork {
  int64_t step = 0;      // 0: between steps
  double seconds = 0.0;  // that earlier processes spent in it
  Experience experience;
  StepTable table;                    // rows of the experience
  std::vector<UpdateReport> updates;  // done
  MetricSet metrics;                  // metrics of the stages; those of an update are in its report
};

struct StepState : Stateful {
  StepWork work;

  [[nodiscard]] std::string state_name() const override { return "step"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  Result<> load(StateReader& reader);
};

}  // namespace mortise
