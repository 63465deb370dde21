// BestValidation: which validation was the best by trainer.metric_for_best_model, and how many in a row since then were
// no better. The run keeps the checkpoint of the best one (RUN/best names it), and trainer.early_stopping_patience ends
// the run. Checkpoints save all of it. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

class BestValidation : public Stateful {
 public:
  explicit BestValidation(const TrainerConfig& config);

  // Once after the validation of each `step`, with its metrics. The policy before the first step (0) is in no
  // checkpoint, so it is never the best; only the metric's name is checked. An Error of kind kConfig: the validation
  // has no such metric.
  Result<> judge(int64_t step, const MetricSet& metrics);

  // The best validation so far is the one of this step.
  [[nodiscard]] bool is_best(int64_t step) const { return step > 0 && step == step_; }
  // The patience is used up: the run ends early.
  [[nodiscard]] bool is_over() const { return patience_ > 0 && num_no_better_ >= patience_; }
  // "val-core/... was 0.93 after step 8, the best so far"; empty before the first validation.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] int64_t step() const { return step_; }  // 0: none so far
  // The checkpoint of the best validation is gone: the next validation is the best.
  void forget();

  [[nodiscard]] std::string state_name() const override { return "trainer.best_validation"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  // A checkpoint with another metric counts as one without: the settings may change on a resume.
  Result<> load_state(StateReader& reader) override;

 private:
  [[nodiscard]] bool is_better(double value) const;

  std::string metric_;  // empty: nothing is judged
  bool greater_is_better_;
  double threshold_;
  int64_t patience_;
  int64_t step_ = 0;
  double value_ = 0.0;
  int64_t num_no_better_ = 0;
};

}  // namespace mortise
