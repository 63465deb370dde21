// MetricSchedule: a learning rate that validations decide. reduce_lr_on_plateau computes what
// torch.optim.lr_scheduler.ReduceLROnPlateau computes, greedy what transformers' GreedyLR (arXiv 2512.14527) does. With
// any other schedule it passes the rate through. Checkpoints save all of it. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/keys/optim.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"
#include "learn/optim/schedule.h"

namespace mortise {

class MetricSchedule : public Stateful {
 public:
  // `table`: the settings' table, "actor.optim"; it names errors and the state.
  MetricSchedule(const OptimConfig& optim, std::string table);

  // Once after the validation of each `step`, with its metrics. That of the policy before the first step (0) only checks
  // the metric's name, and a NaN does not count. An Error of kind kConfig: the validation has no such metric.
  Result<> judge(int64_t step, const MetricSet& metrics);

  // The error that judge() would give for these metrics. Nothing counts.
  [[nodiscard]] Result<> check(const MetricSet& metrics) const;

  // The learning rate of a unit: learning_rate(), from where the validations so far have moved `lr`.
  [[nodiscard]] double rate(const ScheduleOptions& schedule, int64_t unit) const;

  [[nodiscard]] std::string state_name() const override { return table_ + ".lr_metric"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  // A checkpoint with another schedule, metric or lr counts as one without: the settings may change on a resume.
  Result<> load_state(StateReader& reader) override;

 private:
  [[nodiscard]] bool is_greedy() const { return type_ == LrSchedule::kGreedy; }
  [[nodiscard]] bool is_better(double value) const;
  [[nodiscard]] double smoothed(double value);
  void count(double value);
  void cut();
  void raise();
  void begin();

  LrSchedule type_;
  LrMetricConfig settings_;
  std::string table_, metric_;
  double first_lr_, factor_, threshold_;
  ThresholdMode mode_;

  double lr_ = 0.0, best_ = 0.0;
  int64_t num_bad_ = 0, num_good_ = 0;         // in a row
  int64_t cooldown_ = 0, raise_cooldown_ = 0;  // validations that are left of them
  int64_t cuts_left_ = 0;                      // before it begins again
  std::vector<double> window_;
  double window_sum_ = 0.0;
};

}  // namespace mortise
