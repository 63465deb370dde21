// GroupFilter: keeps the groups whose rewards differ. Only they have an advantage in a group-relative estimator
// (dynamic sampling of DAPO, arXiv 2503.14476; verl's algorithm.filter_groups).
//
// A group is kept if its metric differs between its rows, or if it has one row, and if its mean lies between min_mean and
// max_mean. Rows whose metric is NaN do not count.
// Kept groups are never dropped: a surplus group comes first in the next step, and checkpoints save it. A step that
// fails leaves the filter as it was. Thread rule: one thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "experience/selection/experience.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

class GroupFilter : public Stateful {
 public:
  // groups_per_step: how many groups a step learns from.
  GroupFilter(const FilterGroupsConfig& config, int64_t groups_per_step)
      : config_(config), groups_per_step_(groups_per_step) {}

  void begin_step(int64_t step);
  // A generation batch of this step. An Error if no reward gives the metric.
  Result<> add(const Experience& batch);
  [[nodiscard]] bool is_full() const { return kept_.num_groups() >= groups_per_step_; }
  [[nodiscard]] int64_t num_batches() const { return num_batches_; }
  // The rows of the groups that were kept so far: their places among all rows that this step has sampled; -1 for those of
  // earlier steps.
  [[nodiscard]] const std::vector<int64_t>& sampled_rows() const { return sampled_rows_; }
  // Whether more prompts may be drawn. An Error says why not: the limit is reached, or a whole pass over the data gave
  // no group that was kept.
  [[nodiscard]] Result<> check_more(int64_t num_dataset_prompts) const;
  // The groups of the step. Precondition: is_full().
  Experience take(MetricSet& metrics);
  // The step has learnt from them.
  void commit();

  [[nodiscard]] std::string state_name() const override { return "algorithm.filter_groups"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  [[nodiscard]] bool is_in_range(std::span<const double> values) const;

  FilterGroupsConfig config_;
  int64_t groups_per_step_;
  int64_t step_ = 0;
  Experience carried_;                                        // rows that earlier steps left over
  Experience kept_;                                           // rows of this step so far, behind what was carried
  std::vector<int64_t> sampled_rows_;                         // those of kept_
  int64_t num_batches_ = 0, num_dropped_ = 0, num_idle_ = 0;  // in this step; idle: prompts since one was kept
};

}  // namespace mortise
