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

int64_t resolve_decay(int64_t decay_steps, int64_t warmup_units, int64_t total_units,
                      std::optional<double> stable_ratio) {
  const int64_t left = std::max<int64_t>(0, total_units - warmup_units);
  int64_t wanted = decay_steps;
  if (decay_steps < 0 && stable_ratio)
    wanted = left - static_cast<int64_t>(static_cast<double>(left) * *stable_ratio);
  else if (decay_steps < 0)
    wanted = total_units / 10;
  return std::clamp<int64_t>(wanted, 0, left);
}

namespace {

// Cosine of `cycles` periods, from 1 at progress 0.
double wave(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(2.0 * std::numbers::pi * cycles * progress));
}

// From 1 at progress 0 down to 0 at progress 1.
double decay_shape(const ScheduleOptions& options, double progress) {
  switch (options.decay) {
    case LrDecay::kLinear:
      return 1.0 - progress;
    case LrDecay::kCosine:
      return wave(options.num_cycles, progress);
    case LrDecay::kMinusSqrt:
      return 1.0 - std::sqrt(progress);
    case LrDecay::kExponential:
      break;
  }
  return 2.0 * std::pow(0.5, progress) - 1.0;
}

// From 0 at progress 0 up to 1 at progress 1.
double rise(LrWarmup warmup, double progress) {
  switch (warmup) {
    case LrWarmup::kCosine:
      return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
    case LrWarmup::kMinusSqrt:
      return 1.0 - std::sqrt(1.0 - progress);
    case LrWarmup::kLinear:
      break;
  }
  return progress;
}

double warmup_share(const ScheduleOptions& options, int64_t unit) {
  const auto place = static_cast<double>(unit), length = static_cast<double>(options.warmup_units);
  const double first = options.warmup_init_ratio.value_or(0.0);
  if (options.type != LrSchedule::kCosineWarmupWithMinLr)
    return first + (1.0 - first) * rise(options.warmup, place / length);
  if (!options.warmup_init_ratio) return (place + 1.0) / length;
  return first + (1.0 - first) * place / std::max(1.0, length - 1.0);
}

// The last part of warmup_stable_decay, and what is before it.
double stable_decay_shape(const ScheduleOptions& options, int64_t unit) {
  const int64_t begin = options.total_units - options.decay_units;
  if (unit < begin) return 1.0;
  if (unit >= options.total_units) return 0.0;
  return decay_shape(options, static_cast<double>(unit - begin) / static_cast<double>(options.decay_units));
}

// What is left of the way from lr to the floor: 1 is lr, 0 the floor.
double shape_of(const ScheduleOptions& options, int64_t unit) {
  const double span = static_cast<double>(std::max<int64_t>(1, options.total_units - options.warmup_units));
  const double since_warmup = static_cast<double>(unit - options.warmup_units);
  const double progress = since_warmup / span;
  switch (options.type) {
    case LrSchedule::kConstant:
    case LrSchedule::kReduceOnPlateau:
    case LrSchedule::kGreedy:
      break;
    case LrSchedule::kInverseSqrt:
      return 1.0 / std::sqrt(1.0 + since_warmup / static_cast<double>(options.timescale));
    case LrSchedule::kLinear:
      return std::max(0.0, 1.0 - progress);
    case LrSchedule::kPolynomial:
      return std::pow(std::max(0.0, 1.0 - progress), options.power);
    case LrSchedule::kCosine:
      return wave(options.num_cycles, progress);
    case LrSchedule::kCosineWarmupWithMinLr:
      return wave(options.num_cycles, (since_warmup + 1.0) / span);
    case LrSchedule::kCosineWithRestarts: {
      if (progress >= 1.0) return 0.0;
      const double cycles = options.num_cycles * progress;
      return 0.5 * (1.0 + std::cos(std::numbers::pi * (cycles - std::floor(cycles))));
    }
    case LrSchedule::kWarmupStableDecay:
      return stable_decay_shape(options, unit);
  }
  return 1.0;
}

}  // namespace

double learning_rate(const ScheduleOptions& options, int64_t unit) {
  unit += options.first_unit;
  if (unit < options.warmup_units) return options.lr * warmup_share(options, unit);
  if (options.type == LrSchedule::kConstant || follows_metric(options.type)) return options.lr;
  const double floor = options.min_lr_ratio;
  if (options.is_length_given && unit > options.total_units) return options.lr * floor;
  const double shape = shape_of(options, unit);
  if (options.type == LrSchedule::kInverseSqrt) return options.lr * std::max(floor, shape);
  return options.lr * std::max(floor, floor + (1.0 - floor) * shape);
}

}  // namespace mortise
