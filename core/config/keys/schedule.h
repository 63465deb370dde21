// The learning-rate schedule of [actor.optim] and [critic.optim], with the table lr_metric of both.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/keys/model.h"
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
  kWarmupStableDecay,
  kCosineWarmupWithMinLr,
  kReduceOnPlateau,
  kGreedy
};
constexpr auto choice_names(LrSchedule) {
  return std::array<std::string_view, 10>{"constant",
                                          "linear",
                                          "cosine",
                                          "cosine_with_restarts",
                                          "polynomial",
                                          "inverse_sqrt",
                                          "warmup_stable_decay",
                                          "cosine_warmup_with_min_lr",
                                          "reduce_lr_on_plateau",
                                          "greedy"};
}
// Whether validations decide the learning rate.
constexpr bool follows_metric(LrSchedule schedule) {
  return schedule == LrSchedule::kReduceOnPlateau || schedule == LrSchedule::kGreedy;
}
// Whether the learning rate after the warm-up depends on the length of the schedule.
constexpr bool plans_ahead(LrSchedule schedule) {
  return schedule != LrSchedule::kConstant && schedule != LrSchedule::kInverseSqrt && !follows_metric(schedule);
}

// Shape of the warm-up.
enum class LrWarmup { kLinear, kCosine, kMinusSqrt };
constexpr auto choice_names(LrWarmup) { return std::array<std::string_view, 3>{"linear", "cosine", "minus_sqrt"}; }

// Shape of the last part of warmup_stable_decay.
enum class LrDecay { kLinear, kCosine, kMinusSqrt, kExponential };
constexpr auto choice_names(LrDecay) {
  return std::array<std::string_view, 4>{"linear", "cosine", "minus_sqrt", "exponential"};
}

// What the schedule counts.
enum class ScheduleUnit { kUpdate, kStep };
constexpr auto choice_names(ScheduleUnit) { return std::array<std::string_view, 2>{"update", "step"}; }

enum class MetricMode { kMax, kMin };
constexpr auto choice_names(MetricMode) { return std::array<std::string_view, 2>{"max", "min"}; }

// What a gain of a metric is measured in.
enum class ThresholdMode { kRel, kAbs };
constexpr auto choice_names(ThresholdMode) { return std::array<std::string_view, 2>{"rel", "abs"}; }

// How reduce_lr_on_plateau and greedy follow a metric. The optional ones have a default for each of the two.
struct LrMetricConfig {
  std::optional<std::string> name;  // a metric of the validation
  MetricMode mode = MetricMode::kMax;
  std::optional<double> factor;     // null = 0.1, 0.95
  int64_t patience = 10;            // validations in a row without a gain (greedy: or with one) that change nothing
  std::optional<double> threshold;  // null = 1e-4, 1e-6
  std::optional<ThresholdMode> threshold_mode;  // null = rel, abs
  int64_t cooldown = 0;                         // validations after a cut that do not count
  int64_t raise_cooldown = 0;                   // greedy: the same after a raise
  double min_lr = 0.0;
  double max_lr = 1.0;        // greedy
  double eps = 1e-8;          // a smaller change is not made
  int64_t smooth_window = 0;  // greedy: judge the mean of so many validations; 0 = each by itself
  int64_t reset_start = 500;  // greedy: cuts in a row at min_lr after which it begins again
  bool operator==(const LrMetricConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

// The rules "without effect" of a schedule's keys.
template <class Optim>
struct ScheduleRules {
  Optim optim;
  std::string table;

  [[nodiscard]] auto why() const {
    return [optim = optim, table = table](const auto& k) {
      return table + ".lr_scheduler_type is " + std::string(choice_name(optim(k.config).lr_scheduler_type));
    };
  }
  // Without effect for every type but these.
  template <class... Types>
  [[nodiscard]] auto unless(Types... types) const {
    return [optim = optim, types...](const auto& k) {
      const LrSchedule type = optim(k.config).lr_scheduler_type;
      return ((type != types) && ...);
    };
  }
};

template <class Section, class Keys, class Optim>
void describe_warmup(Keys& keys, const ScheduleRules<Optim>& rules, Uses when) {
  keys.compared("lr_warmup_steps", &Section::lr_warmup_steps,
                "Length of the warm-up, counted in schedule_unit. -1: lr_warmup_steps_ratio decides.")
      .at_least(-1)
      .as_in_verl("-1")
      .trl("warmup_steps");
  keys.compared("lr_warmup_steps_ratio", &Section::lr_warmup_steps_ratio,
                "Length of the warm-up as a share of the whole schedule. Used if lr_warmup_steps is -1.")
      .at_least(0)
      .at_most(1)
      .trl("warmup_ratio")
      .no_effect(
          when, [optim = rules.optim](const auto& k) { return optim(k.config).lr_warmup_steps >= 0; },
          rules.table + ".lr_warmup_steps wins");
  const auto no_warmup = [optim = rules.optim](const auto& k) {
    const auto& own = optim(k.config);
    return own.lr_warmup_steps == 0 || (own.lr_warmup_steps < 0 && own.lr_warmup_steps_ratio == 0.0);
  };
  const auto is_ahead = [optim = rules.optim](const auto& k) {
    return optim(k.config).lr_scheduler_type == LrSchedule::kCosineWarmupWithMinLr;
  };
  keys.compared("lr_warmup_init_ratio", &Section::lr_warmup_init_ratio,
                "Where the warm-up begins, as a share of lr. null: at 0; with cosine_warmup_with_min_lr at 1 / "
                "lr_warmup_steps. verl's Megatron: lr_warmup_init, a learning rate.")
      .at_least(0)
      .at_most(1)
      .no_effect(when, no_warmup, "there is no warm-up");
  keys.compared("lr_warmup_style", &Section::lr_warmup_style,
                "Shape of the warm-up: linear, cosine, or minus_sqrt (1 - sqrt(1 - p)).")
      .no_effect(when, no_warmup, "there is no warm-up")
      .no_effect(when, is_ahead, rules.why());
}

template <class Section, class Keys, class Optim>
void describe_decay(Keys& keys, const ScheduleRules<Optim>& rules, Uses when) {
  keys.compared(
          "lr_decay_steps", &Section::lr_decay_steps,
          "Length of the schedule with its warm-up, counted in schedule_unit. Afterwards the learning rate is the "
          "floor. -1: the length of the run.")
      .at_least(-1)
      .no_effect(
          when,
          [optim = rules.optim](const auto& k) {
            const LrSchedule type = optim(k.config).lr_scheduler_type;
            return type == LrSchedule::kConstant || follows_metric(type);
          },
          rules.why());
  keys.compared("min_lr_ratio", &Section::min_lr_ratio,
                "Floor of the decay, as a share of lr. No effect with constant.")
      .at_least(0)
      .at_most(1)
      .no_effect(
          when,
          [optim = rules.optim](const auto& k) {
            const LrSchedule type = optim(k.config).lr_scheduler_type;
            return type == LrSchedule::kConstant || follows_metric(type);
          },
          rules.why());
  keys.compared("num_cycles", &Section::num_cycles,
                "Periods of the cosine over the schedule; 0.5 goes down once. With warmup_stable_decay over its last "
                "part. With cosine_with_restarts the number of times that it goes down, 1 or more.")
      .above(0)
      .at_most(1e6)
      .no_effect(when,
                 rules.unless(LrSchedule::kCosine, LrSchedule::kCosineWithRestarts, LrSchedule::kWarmupStableDecay,
                              LrSchedule::kCosineWarmupWithMinLr),
                 rules.why());
  keys.compared("power", &Section::power, "Exponent of the polynomial decay. 1 is linear.")
      .above(0)
      .at_most(1e3)
      .no_effect(when, rules.unless(LrSchedule::kPolynomial), rules.why());
  keys.compared("timescale", &Section::timescale,
                "Steps after which inverse_sqrt begins to fall: lr / sqrt(1 + (steps since the warm-up) / timescale). "
                "-1: the length of the warm-up, or 10,000 without one.")
      .at_least(-1)
      .no_effect(when, rules.unless(LrSchedule::kInverseSqrt), rules.why());
  keys.compared(
          "lr_wsd_decay_steps", &Section::lr_wsd_decay_steps,
          "Length of the last part of warmup_stable_decay, in schedule_unit, at most what the warm-up leaves. -1: "
          "lr_wsd_stable_ratio decides.")
      .at_least(-1)
      .no_effect(when, rules.unless(LrSchedule::kWarmupStableDecay), rules.why());
  keys.compared("lr_wsd_stable_ratio", &Section::lr_wsd_stable_ratio,
                "Share of the steps after the warm-up that warmup_stable_decay stays at lr. null: its last part is a "
                "tenth of the schedule.")
      .at_least(0)
      .at_most(1)
      .no_effect(when, rules.unless(LrSchedule::kWarmupStableDecay), rules.why())
      .no_effect(
          when, [optim = rules.optim](const auto& k) { return optim(k.config).lr_wsd_decay_steps >= 0; },
          rules.table + ".lr_wsd_decay_steps wins");
  keys.compared(
          "lr_wsd_decay_style", &Section::lr_wsd_decay_style,
          "Shape of the last part of warmup_stable_decay: linear, cosine, minus_sqrt (1 - sqrt(p)) or exponential "
          "(2 * 0.5^p - 1).")
      .no_effect(when, rules.unless(LrSchedule::kWarmupStableDecay), rules.why());
}

template <class Section, class Keys, class Optim>
void describe_schedule(Keys& keys, const ScheduleRules<Optim>& rules, Uses when) {
  keys.compared(
      "lr_scheduler_type", &Section::lr_scheduler_type,
      "Course of the learning rate after the warm-up. linear, polynomial and cosine go down to the floor over the whole "
      "run. cosine_with_restarts does so num_cycles times. cosine_warmup_with_min_lr is cosine, one step ahead, as in "
      "transformers. inverse_sqrt falls with the root of the steps and needs no length. warmup_stable_decay stays at lr "
      "and falls in the last lr_wsd_decay_steps. reduce_lr_on_plateau cuts the rate when validations stop to gain, and "
      "greedy also raises it while they gain (lr_metric).");
  describe_warmup<Section>(keys, rules, when);
  describe_decay<Section>(keys, rules, when);
  keys.compared("schedule_unit", &Section::schedule_unit,
                "What the schedule counts. update: optimizer updates, as in TRL. step: batches of prompts, as in verl, "
                "however many updates each has.");
  keys.compared("schedule_from_one", &Section::schedule_from_one,
                "Count the first update (or step) as 1 instead of 0, so that a warm-up does not begin with a learning "
                "rate of 0. verl: zero_indexed_step, turned round.");
}

template <class Keys, class Optim>
void describe_lr_metric(Keys& keys, const ScheduleRules<Optim>& rules, Uses when) {
  const auto not_greedy = rules.unless(LrSchedule::kGreedy);
  keys.compared("name", &LrMetricConfig::name,
                "The metric of a validation, such as eval_reward or val-core/gsm8k/reward/mean@1.");
  keys.compared("mode", &LrMetricConfig::mode, "Whether larger (max) or smaller (min) values are better.");
  keys.compared("factor", &LrMetricConfig::factor,
                "A cut multiplies the learning rate by it; a raise of greedy divides. null: 0.1, with greedy 0.95.")
      .above(0)
      .below(1);
  keys.compared("patience", &LrMetricConfig::patience,
                "Validations in a row without a gain that are waited for; the next one cuts. greedy also waits for so "
                "many with a gain before it raises.")
      .at_least(0);
  keys.compared("threshold", &LrMetricConfig::threshold,
                "A smaller gain over the best value counts as none. null: 1e-4, with greedy 1e-6.")
      .at_least(0);
  keys.compared(
      "threshold_mode", &LrMetricConfig::threshold_mode,
      "rel: the threshold is a share of the best value. abs: it is a difference. null: rel, with greedy abs.");
  keys.compared("cooldown", &LrMetricConfig::cooldown, "Validations after a cut that do not count.").at_least(0);
  keys.compared("raise_cooldown", &LrMetricConfig::raise_cooldown, "Validations after a raise that do not count.")
      .at_least(0)
      .no_effect(when, not_greedy, rules.why());
  keys.compared("min_lr", &LrMetricConfig::min_lr, "The least learning rate.").at_least(0);
  keys.compared("max_lr", &LrMetricConfig::max_lr, "The largest learning rate.")
      .above(0)
      .no_effect(when, not_greedy, rules.why());
  keys.compared("eps", &LrMetricConfig::eps,
                "A change of the learning rate up to it is not made. It ends the cuts of small rates: from 1e-8 on no "
                "cut is larger than the default.")
      .at_least(0);
  keys.compared("smooth_window", &LrMetricConfig::smooth_window,
                "Validations over whose mean greedy judges. 0: each by itself.")
      .at_least(0)
      .at_most(1e6)
      .no_effect(when, not_greedy, rules.why());
  keys.compared("reset_start", &LrMetricConfig::reset_start,
                "After so many cuts at min_lr greedy begins again, with lr. A raise sets the count back.")
      .at_least(1)
      .no_effect(when, not_greedy, rules.why());
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
