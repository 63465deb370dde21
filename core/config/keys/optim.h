// [actor.optim] and [critic.optim]: AdamW and the learning-rate schedule.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/choice.h"

namespace mortise {

// Course of the learning rate after the warm-up.
enum class LrSchedule {
  kConstant,
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kInverseSqrt,
  kWarmupStableDecay
};
constexpr auto choice_names(LrSchedule) {
  return std::array<std::string_view, 7>{
      "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"};
}
// Whether the learning rate after the warm-up depends on the length of the run.
constexpr bool plans_ahead(LrSchedule schedule) {
  return schedule != LrSchedule::kConstant && schedule != LrSchedule::kInverseSqrt;
}

// Shape of the last part of warmup_stable_decay.
enum class LrDecay { kLinear, kCosine, kMinusSqrt, kExponential };
constexpr auto choice_names(LrDecay) {
  return std::array<std::string_view, 4>{"linear", "cosine", "minus_sqrt", "exponential"};
}

// What the schedule counts.
enum class ScheduleUnit { kUpdate, kStep };
constexpr auto choice_names(ScheduleUnit) { return std::array<std::string_view, 2>{"update", "step"}; }

struct OptimConfig {
  double lr = 1e-6;
  double weight_decay = 0.01;                // AdamW; not for parameters named *bias* or *norm*
  std::vector<double> betas = {0.9, 0.999};  // exactly two
  double eps = 1e-8;
  LrSchedule lr_scheduler_type = LrSchedule::kConstant;
  int64_t lr_warmup_steps = -1;                        // in schedule_unit; negative = use lr_warmup_steps_ratio
  double lr_warmup_steps_ratio = 0.0;                  // share of all steps, used if lr_warmup_steps < 0
  double min_lr_ratio = 0.0;                           // floor of the decay as a share of lr
  double num_cycles = 0.5;                             // cosine: 0.5 = once from lr down to the floor
  double power = 1.0;                                  // polynomial
  int64_t timescale = -1;                              // inverse_sqrt; -1 = the warm-up's length
  int64_t lr_wsd_decay_steps = -1;                     // warmup_stable_decay; -1 = a tenth of the schedule
  LrDecay lr_wsd_decay_style = LrDecay::kCosine;       // warmup_stable_decay
  ScheduleUnit schedule_unit = ScheduleUnit::kUpdate;  // what the schedule counts (verl: step)
  bool operator==(const OptimConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

// `optim`: the table's struct in a config. `when`: the commands that read it. `verl_lr`: verl's default, as JSON.
template <class Keys, class Optim>
void describe_optim_schedule(Keys& keys, const std::string& table, Optim optim, Uses when) {
  const auto schedule = [optim, table](const auto& k) {
    return table + ".lr_scheduler_type is " + std::string(choice_name(optim(k.config).lr_scheduler_type));
  };
  keys.compared(
      "lr_scheduler_type", &OptimConfig::lr_scheduler_type,
      "Shape of the learning rate after the warm-up. constant, linear, polynomial and cosine go down to the floor over "
      "the whole run. cosine_with_restarts does so num_cycles times. inverse_sqrt falls with the root of the steps and "
      "needs no length. warmup_stable_decay stays at lr and falls in the last lr_wsd_decay_steps.");
  keys.compared("lr_warmup_steps", &OptimConfig::lr_warmup_steps,
                "Length of the linear warm-up from 0, counted in schedule_unit. -1: lr_warmup_steps_ratio decides.")
      .at_least(-1)
      .as_in_verl("-1")
      .trl("warmup_steps");
  keys.compared("lr_warmup_steps_ratio", &OptimConfig::lr_warmup_steps_ratio,
                "Length of the warm-up as a share of the whole schedule. Used if lr_warmup_steps is -1.")
      .at_least(0)
      .at_most(1)
      .trl("warmup_ratio")
      .no_effect(
          when, [optim](const auto& k) { return optim(k.config).lr_warmup_steps >= 0; },
          table + ".lr_warmup_steps wins");
  // Without effect for every type but these two.
  const auto unless = [optim](LrSchedule one, LrSchedule other) {
    return [optim, one, other](const auto& k) {
      const LrSchedule type = optim(k.config).lr_scheduler_type;
      return type != one && type != other;
    };
  };
  keys.compared("min_lr_ratio", &OptimConfig::min_lr_ratio,
                "Floor of the decay, as a share of lr. No effect with constant and inverse_sqrt.")
      .at_least(0)
      .at_most(1)
      .no_effect(
          when, [optim](const auto& k) { return !plans_ahead(optim(k.config).lr_scheduler_type); }, schedule);
  keys.compared("num_cycles", &OptimConfig::num_cycles,
                "Periods of the cosine over the schedule; 0.5 goes down once. With cosine_with_restarts the number of "
                "times that it goes down, 1 or more.")
      .above(0)
      .at_most(1e6)
      .no_effect(when, unless(LrSchedule::kCosine, LrSchedule::kCosineWithRestarts), schedule);
  keys.compared("power", &OptimConfig::power, "Exponent of the polynomial decay. 1 is linear.")
      .above(0)
      .at_most(1e3)
      .no_effect(when, unless(LrSchedule::kPolynomial, LrSchedule::kPolynomial), schedule);
  keys.compared("timescale", &OptimConfig::timescale,
                "Steps after which inverse_sqrt begins to fall: lr / sqrt(1 + (steps since the warm-up) / timescale). "
                "-1: the length of the warm-up, or 10,000 without one.")
      .at_least(-1)
      .no_effect(when, unless(LrSchedule::kInverseSqrt, LrSchedule::kInverseSqrt), schedule);
  keys.compared(
          "lr_wsd_decay_steps", &OptimConfig::lr_wsd_decay_steps,
          "Length of the last part of warmup_stable_decay, in schedule_unit, at most what the warm-up leaves. -1: "
          "a tenth of the schedule.")
      .at_least(-1)
      .no_effect(when, unless(LrSchedule::kWarmupStableDecay, LrSchedule::kWarmupStableDecay), schedule);
  keys.compared(
          "lr_wsd_decay_style", &OptimConfig::lr_wsd_decay_style,
          "Shape of the last part of warmup_stable_decay: linear, cosine, minus_sqrt (1 - sqrt(p)) or exponential "
          "(2 * 0.5^p - 1).")
      .no_effect(when, unless(LrSchedule::kWarmupStableDecay, LrSchedule::kWarmupStableDecay), schedule);
  keys.compared("schedule_unit", &OptimConfig::schedule_unit,
                "What the schedule counts. update: optimizer updates, as in TRL. step: batches of prompts, as in verl, "
                "however many updates each has.");
}

template <class Keys>
void describe_adamw(Keys& keys, const std::string& verl_lr) {
  keys.compared("lr", &OptimConfig::lr, "Learning rate at the top of the schedule.")
      .at_least(0)
      .as_in_verl(verl_lr)
      .trl("learning_rate", "1e-06");
  keys.compared("weight_decay", &OptimConfig::weight_decay,
                "Decoupled weight decay. Parameters with bias or norm in their name get none.")
      .at_least(0)
      .as_in_verl("0.01")
      .transformers("weight_decay", "0.0")
      .swift("weight_decay", "0.1");
  keys.compared("betas", &OptimConfig::betas, "Decay rates of the two moments.")
      .at_least(0)
      .below(1)
      .items(2)
      .as_in_verl("[0.9, 0.999]")
      .trl("adam_beta1, adam_beta2");
  keys.compared("eps", &OptimConfig::eps, "Added to the square root of the second moment.")
      .above(0)
      .transformers("adam_epsilon", "1e-08");
}

template <class Catalog, class Optim>
void describe_optim_section(Catalog& catalog, const std::string& table, Optim optim, Uses when,
                            const std::string& verl_lr) {
  auto keys = catalog.table(table, "AdamW and the learning-rate schedule.", optim);
  if ((when & kInSft) == 0) keys.unread_by(kInSft);
  describe_adamw(keys, verl_lr);
  describe_optim_schedule(keys, table, optim, when);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
