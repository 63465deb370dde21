// Compares validations, and counts those that were no better.
#include "train/loop/best_validation.h"

#include <fmt/core.h>

#include <cmath>

#include "foundation/base/log.h"
#include "foundation/base/text.h"

namespace mortise {

BestValidation::BestValidation(const TrainerConfig& config)
    : metric_(config.metric_for_best_model.value_or("")),
      greater_is_better_(config.greater_is_better),
      threshold_(config.early_stopping_threshold),
      patience_(metric_.empty() ? 0 : config.early_stopping_patience) {}

// The threshold belongs to the patience alone; the best checkpoint is the best by any margin.
bool BestValidation::is_better(double value) const {
  if (std::isnan(value)) return false;
  if (step_ == 0) return true;
  return greater_is_better_ ? value > value_ : value < value_;
}

Result<> BestValidation::judge(int64_t step, const MetricSet& metrics) {
  if (metric_.empty()) return {};
  const double value = TRY(metrics.named(metric_, "trainer.metric_for_best_model"));
  if (step == 0) return {};
  const double gain = greater_is_better_ ? value - value_ : value_ - value;
  const bool resets = step_ == 0 ? !std::isnan(value) : gain > threshold_;
  num_no_better_ = resets ? 0 : num_no_better_ + 1;
  if (is_better(value)) {
    step_ = step;
    value_ = value;
  }
  if (is_over())
    log_info(fmt::format("{} validations in a row were no better: the run ends early; {}", num_no_better_, text()));
  return {};
}

std::string BestValidation::text() const {
  if (step_ == 0) return "";
  return fmt::format("{} was {} after step {}, the best so far", metric_, format_f64(value_), step_);
}

void BestValidation::forget() {
  step_ = 0;
  num_no_better_ = 0;
}

Result<> BestValidation::save_state(StateWriter& writer) const {
  writer.put_text("metric", metric_);
  writer.put_int("step", step_);
  writer.put_double("value", value_);
  writer.put_int("num_no_better", num_no_better_);
  return {};
}

Result<> BestValidation::load_state(StateReader& reader) {
  const std::string metric = TRY(reader.get_text("metric"));
  const int64_t step = TRY(reader.get_int("step"));
  const double value = TRY(reader.get_double("value"));
  const int64_t num_no_better = TRY(reader.get_int("num_no_better"));
  if (metric != metric_) return {};
  step_ = step;
  value_ = value;
  num_no_better_ = num_no_better;
  return {};
}

}  // namespace mortise
