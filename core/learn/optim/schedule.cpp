// Computes the learning rate of a step or update.
#include "learn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mortise {

int64_t resolve_warmup(int64_t warmup_steps, double warmup_ratio, int64_t total_units) {
  if (warmup_steps >= 0) return warmup_steps;
  return static_cast<int64_t>(warmup_ratio * static_cast<double>(total_units));
}

double learning_rate(const ScheduleOptions& options, int64_t unit) {
  if (unit < options.warmup_units) {
    return options.lr * static_cast<double>(unit) / static_cast<double>(options.warmup_units);
  }
  if (options.type == LrSchedule::kConstant) return options.lr;
  const double span = static_cast<double>(std::max<int64_t>(1, options.total_units - options.warmup_units));
  const double progress = static_cast<double>(unit - options.warmup_units) / span;
  const double floor = options.min_lr_ratio;
  double shape = std::max(0.0, 1.0 - progress);
  if (options.type == LrSchedule::kCosine) {
    shape = 0.5 * (1.0 + std::cos(2.0 * std::numbers::pi * options.num_cycles * progress));
  }
  return options.lr * std::max(floor, floor + (1.0 - floor) * shape);
}

}  // namespace mortise
