// RunJournal: the line of each step in a run's log, after the validation that is due with it. `train` and `sft` share it.
//
// A validation that fails does not undo its step. The line is written without it, and the run owes it: a resume begins
// with it and writes the line again. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>

#include "foundation/metrics/registry.h"
#include "train/loop/parts.h"
#include "train/loop/validation.h"
#include "train/report/run_log.h"

namespace mortise {

class RunJournal {
 public:
  struct Plan {
    int64_t total_steps = 0;
    int64_t test_freq = 0;  // steps between validations; 0: only after the last
    // Validates the weights of so many steps; empty: there is nothing to validate.
    std::function<Result<ValidationReport>(int64_t step)> validate;
    // What the command makes of a validation besides its metrics; may be empty.
    std::function<void(const ValidationReport& report, double seconds, MetricSet& metrics)> on_validation;
  };
  // Borrows all.
  RunJournal(Env& env, RunProgress& progress, RunLog& log, Plan plan)
      : env_(&env), progress_(&progress), log_(&log), plan_(std::move(plan)) {}

  // Writes the line of the step. If a validation is due, `metrics` has its numbers afterwards, and `validated` says how
  // it went. An error says that the disk did not take the lines.
  Result<> write_step(int64_t step, MetricSet& metrics, Result<>& validated);
  // The line of the untrained policy.
  Result<> write_first_validation();
  // Makes the validation that the process before this one could not make. False: it owes none.
  Result<bool> write_owed();

 private:
  Result<> validate(int64_t step, MetricSet& metrics);

  Env* env_;
  RunProgress* progress_;
  RunLog* log_;
  Plan plan_;
};

}  // namespace mortise
