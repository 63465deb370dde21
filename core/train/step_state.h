// StepState: what a step has made so far, so that a checkpoint inside it (trainer.save_freq_updates) resumes behind its
// last update, with the very samples and scores, which need not come out the same if they were made again: a rollout
// server, a reward with a clock or a network.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experience/correction/rollout_correction.h"
#include "experience/selection/experience.h"
#include "foundation/base/stateful.h"
#include "foundation/batch/advantage_batch.h"
#include "foundation/metrics/registry.h"
#include "learn/update/actor_learner.h"

namespace mortise {

// Log-probs taken before the advantages: of the policy that sampled (where more than one update uses them, or something
// else asks) and of the reference. Empty where not needed.
struct LogProbBatch {
  std::vector<float> old_log_prob;  // in bypass mode the sampler's
  std::vector<float> ref_log_prob;
  std::vector<float> old_entropy;  // of the policy that sampled, where updates look at all their rows at once
};

// The step at hand.
struct StepWork {
  int64_t step = 0;      // 0: between steps
  double seconds = 0.0;  // that earlier processes spent in it
  Experience experience;
  LogProbBatch log_probs;
  CorrectedBatch corrected;
  AdvantageBatch advantages;
  std::vector<float> first_log_prob;  // [N] of the policy before its updates, as far as these have measured it
  std::vector<UpdateReport> updates;  // done
  MetricSet metrics;                  // of the stages; those of an update are in its report
};

struct StepState : Stateful {
  StepWork work;

  [[nodiscard]] std::string state_name() const override { return "step"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;
};

}  // namespace mortise
