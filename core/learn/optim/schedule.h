// Learning-rate schedules, each after a linear warm-up. The names and shapes are those of transformers; of the decays
// of warmup_stable_decay, minus_sqrt and exponential are Megatron's.
//
// With w warm-up units, T units in all and unit s counted from 0:
//   s < w:   lr * s / w                      (the first unit of a warm-up has lr 0, as in transformers and verl)
//   else:    lr * shape(p), p = (s - w) / (T - w)
//   constant              1
//   linear                m + (1-m)(1-p)
//   polynomial            m + (1-m)(1-p)^power
//   cosine                m + (1-m)(1 + cos(2 pi c p))/2, never below m
//   cosine_with_restarts  m + (1-m)(1 + cos(pi frac(c p)))/2; m from p = 1 on
//   inverse_sqrt          1 / sqrt(1 + (s - w) / t), t = timescale
//   warmup_stable_decay   1 until T - d, then m + (1-m) decay((s - (T-d)) / d); m from T on
// with m = min_lr_ratio, c = num_cycles and d = decay_units. A unit is an optimizer update or a training step
// (optim.schedule_unit). Pure functions.
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
  double power = 1.0;         // polynomial
  int64_t timescale = 10000;  // inverse_sqrt
  int64_t decay_units = 0;    // warmup_stable_decay
  LrDecay decay = LrDecay::kCosine;
};

// verl's rule: an explicit number of steps goes before the ratio; -1 means "not given".
[[nodiscard]] int64_t resolve_warmup(int64_t warmup_steps, double warmup_ratio, int64_t total_units);

// -1 means "not given": transformers' rule, the length of the warm-up or 10,000 without one.
[[nodiscard]] int64_t resolve_timescale(int64_t timescale, int64_t warmup_units);
// -1 means "not given": a tenth of the schedule. At most what the warm-up leaves.
[[nodiscard]] int64_t resolve_decay(int64_t decay_steps, int64_t warmup_units, int64_t total_units);

[[nodiscard]] double learning_rate(const ScheduleOptions& options, int64_t unit);

}  // namespace mortise
