// Learning-rate schedules: constant, linear and cosine decay, each after a linear warm-up.
//
// With w warm-up units, T units in all and unit s counted from 0:
//   s < w:   lr * s / w                      (the first unit of a warm-up has lr 0, as in transformers and verl)
//   else:    lr * shape(p), p = (s - w) / (T - w)
//   constant shape = 1;  linear = m + (1-m)(1-p);  cosine = m + (1-m)(1 + cos(2 pi c p))/2, never below m
// with m = min_lr_ratio and c = num_cycles. A unit is an optimizer update or a training step (optim.schedule_unit).
// Pure functions.
#pragma once

#include <cstdint>

#include "config/keys/optim.h"

namespace mortise {

struct ScheduleOptions {
  LrSchedule type = LrSchedule::kConstant;
  double lr = 1e-6;
  int64_t warmup_units = 0;
  int64_t total_units = 1;
  double min_lr_ratio = 0.0;
  double num_cycles = 0.5;
};

// verl's rule: an explicit number of steps goes before the ratio; -1 means "not given".
[[nodiscard]] int64_t resolve_warmup(int64_t warmup_steps, double warmup_ratio, int64_t total_units);

[[nodiscard]] double learning_rate(const ScheduleOptions& options, int64_t unit);

}  // namespace mortise
