// GroupFilter: keeps the groups whose rewards differ, which alone teach a group-relative estimator something (dynamic
// sampling of DAPO, arXiv 2503.14476; verl's algorithm.filter_groups).
//
// A group is kept where its metric is not the same for all its rows, or where it has one row. Rows whose metric is NaN
// do not count. Nothing that was kept is thrown away: what a step does not need is the first that the next one gets,
// and goes into checkpoints. A step that fails leaves the filter as it was. Thread rule: one thread.
#pragma once

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
  // A generation batch of this step. An Error where the metric's name is not known.
  Result<> add(const Experience& batch);
  [[nodiscard]] bool is_full() const { return kept_.num_groups() >= groups_per_step_; }
  [[nodiscard]] int64_t num_batches() const { return num_batches_; }
  // May more be drawn? An Error says why not: the limit is reached, or as many prompts as the data has were tried one
  // after the other and none was kept.
  [[nodiscard]] Result<> check_more(int64_t num_dataset_prompts) const;
  // The groups of the step. Precondition: is_full().
  Experience take(MetricSet& metrics);
  // The step has learnt from them.
  void commit();

  [[nodiscard]] std::string state_name() const override { return "algorithm.filter_groups"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  FilterGroupsConfig config_;
  int64_t groups_per_step_;
  int64_t step_ = 0;
  Experience carried_;                                        // of the steps before
  Experience kept_;                                           // of this step so far, with what was carried in front
  int64_t num_batches_ = 0, num_dropped_ = 0, num_idle_ = 0;  // of this step; idle: prompts since one was kept
};

}  // namespace mortise
