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

int64_t resolve_timescale(int64_t timescale, int64_t warmup_units) {
  if (timescale > 0) return timescale;
  return warmup_units > 0 ? warmup_units : 10'000;
}

int64_t resolve_decay(int64_t decay_steps, int64_t warmup_units, int64_t total_units) {
  const int64_t wanted = decay_steps >= 0 ? decay_steps : total_units / 10;
  return std::clamp<int64_t>(wanted, 0, std::max<int64_t>(0, total_units - warmup_units));
}

namespace {

// From 1 at progress 0 down to 0 at progress 1.
double decay_shape(LrDecay decay, double progress) {
  switch (decay) {
    case LrDecay::kLinear:
      return 1.0 - progress;
    case LrDecay::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case LrDecay::kMinusSqrt:
      return 1.0 - std::sqrt(progress);
    case LrDecay::kExponential:
      break;
  }
  return 2.0 * std::pow(0.5, progress) - 1.0;
}

// What is left of the way from lr to the floor: 1 is lr, 0 the floor.
double shape_of(const ScheduleOptions& options, int64_t unit) {
  const double span = static_cast<double>(std::max<int64_t>(1, options.total_units - options.warmup_units));
  const double since_warmup = static_cast<double>(unit - options.warmup_units);
  const double progress = since_warmup / span;
  switch (options.type) {
    case LrSchedule::kConstant:
      return 1.0;
    case LrSchedule::kLinear:
      return std::max(0.0, 1.0 - progress);
    case LrSchedule::kPolynomial:
      return std::pow(std::max(0.0, 1.0 - progress), options.power);
    case LrSchedule::kCosine:
      return 0.5 * (1.0 + std::cos(2.0 * std::numbers::pi * options.num_cycles * progress));
    case LrSchedule::kCosineWithRestarts: {
      if (progress >= 1.0) return 0.0;
      const double cycles = options.num_cycles * progress;
      return 0.5 * (1.0 + std::cos(std::numbers::pi * (cycles - std::floor(cycles))));
    }
    case LrSchedule::kInverseSqrt:
      return 1.0 / std::sqrt(1.0 + since_warmup / static_cast<double>(options.timescale));
    case LrSchedule::kWarmupStableDecay:
      break;
  }
  const int64_t begin = options.total_units - options.decay_units;
  if (unit < begin) return 1.0;
  if (unit >= options.total_units) return 0.0;
  return decay_shape(options.decay, static_cast<double>(unit - begin) / static_cast<double>(options.decay_units));
}

}  // namespace

double learning_rate(const ScheduleOptions& options, int64_t unit) {
  if (unit < options.warmup_units) {
    return options.lr * static_cast<double>(unit) / static_cast<double>(options.warmup_units);
  }
  if (!plans_ahead(options.type)) return options.lr * shape_of(options, unit);  // no floor
  const double floor = options.min_lr_ratio;
  return options.lr * std::max(floor, floor + (1.0 - floor) * shape_of(options, unit));
}

}  // namespace mortise
