// Runs the validation that is due, and writes the line of the step.
#include "train/report/journal.h"

#include <fmt/core.h>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/metrics/op_timer.h"

namespace mortise {

Result<> RunJournal::validate(int64_t step, MetricSet& metrics) {
  const Stopwatch watch(*env_);
  const ValidationReport report = TRY(plan_.validate(step));
  TRY(metrics.merge(report.metrics));
  log_->log_validation(step, report.metrics);
  for (const ValidatedSet& set : report.sets)
    TRY(log_->write_validation(step, set.name, set.prompts, set.samples, set.scored));
  // If a metric is not there, nothing has counted: a resume begins with this validation.
  for (const MetricSchedule* rate : {&progress_->policy_rate, &progress_->critic_rate})
    TRY(rate->check(report.metrics));
  TRY(progress_->best.judge(step, report.metrics));
  TRY(progress_->policy_rate.judge(step, report.metrics));
  TRY(progress_->critic_rate.judge(step, report.metrics));
  if (plan_.on_validation) plan_.on_validation(report, watch.elapsed_s(), metrics);
  return {};
}

Result<> RunJournal::write_step(int64_t step, MetricSet& metrics, Result<>& validated) {
  const bool is_due = step == plan_.total_steps || (plan_.test_freq > 0 && step % plan_.test_freq == 0);
  if (is_due && plan_.validate) {
    const MetricSet learnt = metrics;
    validated = validate(step, metrics);
    if (!validated.ok()) metrics = learnt;
  }
  if (!validated.ok() && validated.error().kind == ErrorKind::kDisk) return validated;  // its lines are not whole
  if (!validated.ok()) {
    log_warn(fmt::format(
        "the validation after step {} failed: a resume begins with it (data.val_files=[] leaves it out)", step));
    progress_->owed_validation.metrics = metrics;
  }
  const OpTimer timer("write");
  return log_->write_step(step, metrics);
}

Result<> RunJournal::write_first_validation() {
  MetricSet metrics;
  TRY(validate(0, metrics));
  return log_->write_step(0, metrics);
}

Result<bool> RunJournal::write_owed() {
  std::optional<MetricSet>& owed = progress_->owed_validation.metrics;
  if (!owed) return false;
  MetricSet metrics = *owed;
  Result<> validated;
  TRY(write_step(progress_->counters.step, metrics, validated));
  TRY(std::move(validated));
  owed.reset();
  return true;
}

}  // namespace mortise
