// Learning-rate schedules, each after a warm-up. The names and shapes are those of transformers; of the decays of
// warmup_stable_decay, minus_sqrt and exponential are Megatron's.
//
// With w warm-up units, T units in all and unit s counted from 0:
//   s < w:   lr (i + (1-i) rise(s / w))      (without i the first unit has lr 0, as in transformers and verl)
//   else:    lr * shape(p), p = (s - w) / (T - w)
//   constant              1
//   linear                m + (1-m)(1-p)
//   polynomial            m + (1-m)(1-p)^power
//   cosine                m + (1-m)(1 + cos(2 pi c p))/2, never below m
//   cosine_with_restarts  m + (1-m)(1 + cos(pi frac(c p)))/2; m from p = 1 on
//   inverse_sqrt          1 / sqrt(1 + (s - w) / t), never below m; t = timescale
//   warmup_stable_decay   1 until T - d, then m + (1-m) decay((s - (T-d)) / d); m from T on
//   cosine_warmup_with_min_lr   cosine with p = (s + 1 - w) / (T - w); its warm-up is (s + 1) / w, or with i given
//                               i + (1-i) s / (w - 1)
// with i = warmup_init_ratio, m = min_lr_ratio, c = num_cycles and d = decay_units. If T is given (`is_length_given`), m
// after T, except for constant. A unit is an optimizer update or a training step (optim.schedule_unit). Pure functions.
#pragma once

#include <cstdint>
#include <optional>

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
  std::optional<double> warmup_init_ratio{};
  LrWarmup warmup = LrWarmup::kLinear;
  bool is_length_given = false;
  int64_t first_unit = 0;  // number of the first unit
};

// verl's rule: an explicit number of steps goes before the ratio; -1 means "not given".
[[nodiscard]] int64_t resolve_warmup(int64_t warmup_steps, double warmup_ratio, int64_t total_units);

// -1 means "not given": transformers' rule, the length of the warm-up or 10,000 without one.
[[nodiscard]] int64_t resolve_timescale(int64_t timescale, int64_t warmup_units);
// -1 means "not given": all but the `stable_ratio` of what the warm-up leaves, rounded up (verl's rule), or without it a
// tenth of the schedule. At most what the warm-up leaves.
[[nodiscard]] int64_t resolve_decay(int64_t decay_steps, int64_t warmup_units, int64_t total_units,
                                    std::optional<double> stable_ratio = {});

// `unit`: how many were before it.
[[nodiscard]] double learning_rate(const ScheduleOptions& options, int64_t unit);

}  // namespace mortise
