// Moves the learning rate after each validation.
#include "learn/optim/metric_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "foundation/base/log.h"
#include "foundation/base/text.h"

namespace mortise {

MetricSchedule::MetricSchedule(const OptimConfig& optim, std::string table)
    : type_(optim.lr_scheduler_type),
      settings_(optim.lr_metric),
      table_(std::move(table)),
      metric_(settings_.name.value_or("")),
      first_lr_(optim.lr),
      factor_(settings_.factor.value_or(is_greedy() ? 0.95 : 0.1)),
      threshold_(settings_.threshold.value_or(is_greedy() ? 1e-6 : 1e-4)),
      mode_(settings_.threshold_mode.value_or(is_greedy() ? ThresholdMode::kAbs : ThresholdMode::kRel)) {
  begin();
}

void MetricSchedule::begin() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  lr_ = first_lr_;
  best_ = settings_.mode == MetricMode::kMin ? kInfinity : -kInfinity;
  num_bad_ = num_good_ = cooldown_ = raise_cooldown_ = 0;
  cuts_left_ = settings_.reset_start;
  window_.clear();
  window_sum_ = 0.0;
}

double MetricSchedule::rate(const ScheduleOptions& schedule, int64_t unit) const {
  if (!follows_metric(type_)) return learning_rate(schedule, unit);
  ScheduleOptions moved = schedule;
  moved.lr = lr_;
  return learning_rate(moved, unit);
}

bool MetricSchedule::is_better(double value) const {
  const bool is_rel = mode_ == ThresholdMode::kRel;
  if (settings_.mode == MetricMode::kMin) return value < (is_rel ? best_ * (1.0 - threshold_) : best_ - threshold_);
  return value > (is_rel ? best_ * (1.0 + threshold_) : best_ + threshold_);
}

double MetricSchedule::smoothed(double value) {
  if (!is_greedy() || settings_.smooth_window == 0) return value;
  window_.push_back(value);
  window_sum_ += value;
  if (std::ssize(window_) > settings_.smooth_window) {
    window_sum_ -= window_.front();
    window_.erase(window_.begin());
  }
  return window_sum_ / static_cast<double>(window_.size());
}

void MetricSchedule::cut() {
  const double cut = std::max(lr_ * factor_, settings_.min_lr);
  if (lr_ - cut > settings_.eps) lr_ = cut;
  if (is_greedy() && lr_ <= settings_.min_lr && --cuts_left_ <= 0) begin();
  cooldown_ = settings_.cooldown;
  num_bad_ = 0;
}

void MetricSchedule::raise() {
  const double raised = std::min(lr_ / factor_, settings_.max_lr);
  if (raised - lr_ > settings_.eps) lr_ = raised;
  raise_cooldown_ = settings_.raise_cooldown;
  cuts_left_ = settings_.reset_start;
  num_good_ = 0;
}

// The two differ in a cooldown: the best value still moves in that of reduce_lr_on_plateau.
void MetricSchedule::count(double value) {
  if (is_greedy() && (cooldown_ > 0 || raise_cooldown_ > 0)) {
    --(cooldown_ > 0 ? cooldown_ : raise_cooldown_);
    num_bad_ = num_good_ = 0;
    return;
  }
  if (is_better(value)) {
    best_ = value;
    num_bad_ = 0;
    ++num_good_;
  } else {
    ++num_bad_;
    num_good_ = 0;
  }
  if (!is_greedy() && cooldown_ > 0) {
    --cooldown_;
    num_bad_ = 0;
  }
  if (is_greedy() && num_good_ > settings_.patience)
    raise();
  else if (num_bad_ > settings_.patience)
    cut();
}

Result<> MetricSchedule::check(const MetricSet& metrics) const {
  if (follows_metric(type_)) TRY(metrics.named(metric_, table_ + ".lr_metric.name"));
  return {};
}

Result<> MetricSchedule::judge(int64_t step, const MetricSet& metrics) {
  if (!follows_metric(type_)) return {};
  const double value = TRY(metrics.named(metric_, table_ + ".lr_metric.name"));
  if (step == 0) return {};
  if (std::isnan(value)) {
    log_warn(
        fmt::format("{} is NaN after step {}: the schedule of the learning rate does not count it", metric_, step));
    return {};
  }
  const double before = lr_;
  count(smoothed(value));
  if (lr_ != before)
    log_info(fmt::format("{} was {} after step {}: the learning rate goes from {} to {}", metric_, format_f64(value),
                         step, format_f64(before), format_f64(lr_)));
  return {};
}

Result<> MetricSchedule::save_state(StateWriter& writer) const {
  writer.put_text("schedule", choice_name(type_));
  writer.put_text("metric", metric_);
  writer.put_double("first_lr", first_lr_);
  writer.put_double("lr", lr_);
  writer.put_double("best", best_);
  writer.put_int("num_bad", num_bad_);
  writer.put_int("num_good", num_good_);
  writer.put_int("cooldown", cooldown_);
  writer.put_int("raise_cooldown", raise_cooldown_);
  writer.put_int("cuts_left", cuts_left_);
  writer.put_vector("window", window_);
  writer.put_double("window_sum", window_sum_);
  return {};
}

Result<> MetricSchedule::load_state(StateReader& reader) {
  MetricSchedule saved = *this;
  const std::string schedule = TRY(reader.get_text("schedule")), metric = TRY(reader.get_text("metric"));
  saved.first_lr_ = TRY(reader.get_double("first_lr"));
  saved.lr_ = TRY(reader.get_double("lr"));
  saved.best_ = TRY(reader.get_double("best"));
  saved.num_bad_ = TRY(reader.get_int("num_bad"));
  saved.num_good_ = TRY(reader.get_int("num_good"));
  saved.cooldown_ = TRY(reader.get_int("cooldown"));
  saved.raise_cooldown_ = TRY(reader.get_int("raise_cooldown"));
  saved.cuts_left_ = TRY(reader.get_int("cuts_left"));
  saved.window_ = TRY(reader.get_vector<double>("window"));
  saved.window_sum_ = TRY(reader.get_double("window_sum"));
  if (schedule != choice_name(type_) || metric != metric_ || saved.first_lr_ != first_lr_) return {};
  *this = std::move(saved);
  return {};
}

}  // namespace mortise
