// Learning-rate schedules against transformers' formulas.
#include "learn/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

namespace mortise {
namespace {

TEST(Schedule, WarmupStartsAtZeroAndConstantStays) {
  const ScheduleOptions options{LrSchedule::kConstant, 2.0, 4, 10, 0.0, 0.5};
  EXPECT_EQ(learning_rate(options, 0), 0.0);
  EXPECT_EQ(learning_rate(options, 1), 0.5);
  EXPECT_EQ(learning_rate(options, 3), 1.5);
  EXPECT_EQ(learning_rate(options, 4), 2.0);
  EXPECT_EQ(learning_rate(options, 99), 2.0);
}

TEST(Schedule, LinearFollowsTransformers) {  // lr * (max - s) / (max - warmup)
  const ScheduleOptions options{LrSchedule::kLinear, 1e-3, 2, 12, 0.0, 0.5};
  for (int64_t s = 2; s < 12; ++s)
    EXPECT_NEAR(learning_rate(options, s), 1e-3 * static_cast<double>(12 - s) / 10.0, 1e-18);
  EXPECT_EQ(learning_rate(options, 12), 0.0);
  EXPECT_EQ(learning_rate(options, 40), 0.0);  // past the end it does not go below
}

TEST(Schedule, CosineKeepsItsFloor) {
  const ScheduleOptions options{LrSchedule::kCosine, 1.0, 0, 100, 0.1, 0.5};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 1.0);
  EXPECT_NEAR(learning_rate(options, 50), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(options, 100), 0.1, 1e-12);
}

TEST(Schedule, LinearKeepsItsFloorAndTheWarmUpKnowsNone) {
  const ScheduleOptions options{LrSchedule::kLinear, 2.0, 4, 14, 0.25, 0.5};
  EXPECT_EQ(learning_rate(options, 0), 0.0);  // the floor is that of the decay
  EXPECT_EQ(learning_rate(options, 2), 1.0);
  EXPECT_EQ(learning_rate(options, 4), 2.0);
  EXPECT_NEAR(learning_rate(options, 9), 2.0 * (0.25 + 0.75 * 0.5), 1e-15);
  EXPECT_NEAR(learning_rate(options, 14), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(options, 100), 0.5, 1e-15);
}

TEST(Schedule, CosineWithAFloorStaysAboveItForAnyNumberOfCycles) {
  ScheduleOptions options{LrSchedule::kCosine, 1.0, 10, 110, 0.2, 1.5};
  for (int64_t s = 10; s <= 150; ++s) EXPECT_GE(learning_rate(options, s), 0.2) << s;
  EXPECT_NEAR(learning_rate(options, 10 + 100 / 3), 0.2, 1e-3);  // down once after a third
  options.warmup_units = options.total_units = 10;               // nothing is left for the decay
  EXPECT_EQ(learning_rate(options, 10), 1.0);
}

// From transformers 5.23.0: get_*_schedule with lr = 3e-4, 50 steps, and the settings of each row.
struct FromTransformers {
  const char* name;
  ScheduleOptions options;
  std::vector<double> rates;  // at kUnits
};

ScheduleOptions of_type(LrSchedule type, int64_t warmup = 5) {
  return {.type = type, .lr = 3e-4, .warmup_units = warmup, .total_units = 50, .num_cycles = 0.5};
}

TEST(Schedule, EqualTransformers) {
  constexpr int64_t kUnits[] = {0, 1, 4, 5, 6, 20, 37, 44, 45, 49, 50, 60};
  ScheduleOptions restarts = of_type(LrSchedule::kCosineWithRestarts), polynomial = of_type(LrSchedule::kPolynomial),
                  inverse = of_type(LrSchedule::kInverseSqrt), slow = inverse,
                  cosine = of_type(LrSchedule::kWarmupStableDecay), linear = of_type(LrSchedule::kWarmupStableDecay, 0),
                  root = cosine;
  restarts.num_cycles = 3;
  polynomial.power = 2;
  polynomial.min_lr_ratio = 0.1;  // lr_end = 3e-5
  inverse.timescale = resolve_timescale(-1, 5);
  slow.timescale = resolve_timescale(20, 5);
  cosine.decay_units = linear.decay_units = root.decay_units = resolve_decay(12, 5, 50);
  linear.decay = LrDecay::kLinear;
  linear.min_lr_ratio = 0.1;
  root.decay = LrDecay::kMinusSqrt;
  const FromTransformers all[] = {
      {"cosine_with_hard_restarts, 3 cycles",
       restarts,
       {0.0, 6e-05, 0.00024, 0.0003, 0.0002967221401100708, 0.0003, 0.00028703181864639014, 0.00010364745084375785,
        7.500000000000009e-05, 3.2778598899291795e-06, 0.0, 0.0}},
      {"polynomial, power 2",
       polynomial,
       {0.0, 6e-05, 0.00024, 0.0003, 0.0002881333333333333, 0.00015, 5.253333333333333e-05, 3.48e-05,
        3.3333333333333335e-05, 3.0133333333333335e-05, 3e-05, 3e-05}},
      {"inverse_sqrt",
       inverse,
       {0.0, 6e-05, 0.00024, 0.0003, 0.00027386127875258305, 0.00015, 0.00011028219331407117, 0.0001011299793694863,
        1e-4, 9.583148474999099e-05, 9.486832980505138e-05, 8.660254037844386e-05}},
      {"inverse_sqrt, timescale 20",
       slow,
       {0.0, 6e-05, 0.00024, 0.0003, 0.0002927700218845599, 0.0002267786838055363, 0.00018605210188381264,
        0.00017466675292187458, 0.00017320508075688773, 0.00016770509831248422, 0.00016641005886756873,
        0.00015491933384829664}},
      {"wsd, cosine",
       cosine,
       {0.0, 6e-05, 0.00024, 0.0003, 0.0003, 0.0003, 0.0003, 0.00015, 0.00011117714323462186, 5.11112605663977e-06, 0.0,
        0.0}},
      {"wsd, linear, floor 0.1",
       linear,
       {0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.000165, 0.0001425, 5.25e-05, 3e-05, 3e-05}},
      {"wsd, 1-sqrt",
       root,
       {0.0, 6e-05, 0.00024, 0.0003, 0.0003, 0.0003, 0.0003, 8.786796564403573e-05, 7.087121525220798e-05,
        1.2771867673098569e-05, 0.0, 0.0}},
  };
  for (const FromTransformers& row : all)
    for (size_t i = 0; i < row.rates.size(); ++i)
      EXPECT_NEAR(learning_rate(row.options, kUnits[i]), row.rates[i], 1e-17) << row.name << " at " << kUnits[i];
}

constexpr int64_t kLateUnits[] = {0, 1, 4, 5, 6, 20, 37, 44, 45, 49, 50, 60};

void expect_rates(std::span<const FromTransformers> all) {
  for (const FromTransformers& row : all)
    for (size_t i = 0; i < row.rates.size(); ++i)
      EXPECT_NEAR(learning_rate(row.options, kLateUnits[i]), row.rates[i], 2e-17)
          << row.name << " at " << kLateUnits[i];
}

ScheduleOptions stable_decay() {
  ScheduleOptions options = of_type(LrSchedule::kWarmupStableDecay);
  options.min_lr_ratio = 0.1;
  options.decay_units = 12;
  return options;
}

TEST(Schedule, EqualTransformersWithOtherWarmUps) {
  ScheduleOptions ahead = of_type(LrSchedule::kCosineWarmupWithMinLr);
  ahead.min_lr_ratio = 0.1;
  ScheduleOptions ahead_from = ahead, ahead_waves = ahead;
  ahead_from.warmup_init_ratio = 0.1;
  ahead_waves.warmup_units = 0;
  ahead_waves.num_cycles = 1.5;
  ScheduleOptions stable = stable_decay();
  stable.warmup_init_ratio = 0.1;  // transformers' warm-up begins at the floor
  ScheduleOptions stable_cosine = stable, stable_root = stable, stable_waves = stable;
  stable_cosine.warmup = LrWarmup::kCosine;
  stable_root.warmup = LrWarmup::kMinusSqrt;
  stable_root.decay = LrDecay::kLinear;
  stable_root.total_units = 37;  // num_stable_steps = 20
  stable_root.is_length_given = true;
  stable_waves.num_cycles = 1.5;
  const FromTransformers all[] = {
      {"cosine_warmup_with_min_lr",
       ahead,
       {5.9999999999999995e-05, 0.00011999999999999999, 0.0003, 0.0002996711467850762, 0.000298686189280112,
        0.00022418010481652543, 7.466736814155418e-05, 3.814149619390237e-05, 3.522967104832694e-05,
        2.9999999999999997e-05, 3.0328853214923716e-05, 6.78891269542821e-05}},
      {"cosine_warmup_with_min_lr, warmup_lr_rate",
       ahead_from,
       {2.9999999999999997e-05, 9.75e-05, 0.0003, 0.0002996711467850762, 0.000298686189280112, 0.00022418010481652543,
        7.466736814155418e-05, 3.814149619390237e-05, 3.522967104832694e-05, 2.9999999999999997e-05,
        3.0328853214923716e-05, 6.78891269542821e-05}},
      {"cosine_warmup_with_min_lr, 1.5 cycles",
       ahead_waves,
       {0.00029760877884837294, 0.00029051982559491393, 0.00024435100905948387, 0.00022248020436128478,
        0.00019857313476725536, 7.2586140699627e-05, 0.00025105223861607306, 8.564899094051614e-05,
        6.658923529810942e-05, 2.9999999999999997e-05, 3.2391221151627036e-05, 0.00023003674600373134}},
      {"wsd, warm-up by a cosine",
       stable_cosine,
       {2.9999999999999997e-05, 5.57827057593821e-05, 0.00027421729424061787, 0.0003, 0.0003, 0.0003, 0.0003, 0.000165,
        0.00013005942891115968, 3.4600013450975794e-05, 2.9999999999999997e-05, 2.9999999999999997e-05}},
      {"wsd, warm-up by a root, num_stable_steps",
       stable_root,
       {2.9999999999999997e-05, 5.850465843002271e-05, 0.00017925232921501137, 0.0003, 0.0003, 0.0003,
        2.9999999999999997e-05, 2.9999999999999997e-05, 2.9999999999999997e-05, 2.9999999999999997e-05,
        2.9999999999999997e-05, 2.9999999999999997e-05}},
      {"wsd, 1.5 cycles",
       stable_waves,
       {2.9999999999999997e-05, 8.4e-05, 0.000246, 0.0003, 0.0003, 0.0003, 0.0003, 0.00016499999999999997,
        0.0002604594154601839, 6.95405845398162e-05, 2.9999999999999997e-05, 2.9999999999999997e-05}},
  };
  expect_rates(all);
}

// OptimizerParamScheduler.get_lr with lr_warmup_init = 3e-5, min_lr = 6e-5 and lr_decay_steps = 44.
TEST(Schedule, EqualMegatron) {
  const auto megatron = [](LrSchedule type) {
    ScheduleOptions options = of_type(type);
    options.warmup_init_ratio = 0.1;  // lr_warmup_init = 3e-5
    options.min_lr_ratio = 0.2;       // min_lr = 6e-5
    options.total_units = 44;
    options.is_length_given = true;
    options.timescale = 5;
    options.decay_units = 10;
    return options;
  };
  ScheduleOptions exponential = megatron(LrSchedule::kWarmupStableDecay), root = exponential,
                  high_floor = megatron(LrSchedule::kInverseSqrt);
  exponential.decay = LrDecay::kExponential;
  root.decay = LrDecay::kMinusSqrt;
  high_floor.min_lr_ratio = 0.4;
  high_floor.total_units = 100;
  const FromTransformers all[] = {
      {"Megatron, linear",
       megatron(LrSchedule::kLinear),
       {3e-05, 8.4e-05, 0.00024599999999999996, 0.0003, 0.0002938461538461538, 0.00020769230769230768,
        0.00010307692307692307, 6e-05, 6e-05, 6e-05, 6e-05, 6e-05}},
      {"Megatron, cosine",
       megatron(LrSchedule::kCosine),
       {3e-05, 8.4e-05, 0.00024599999999999996, 0.0003, 0.0002996108769761052, 0.00022255258644510425,
        7.857718973474466e-05, 6e-05, 6e-05, 6e-05, 6e-05, 6e-05}},
      {"Megatron, inverse-square-root",
       megatron(LrSchedule::kInverseSqrt),
       {3e-05, 8.4e-05, 0.00024599999999999996, 0.0003, 0.00027386127875258305, 0.00015, 0.00011028219331407116,
        0.00010112997936948631, 6e-05, 6e-05, 6e-05, 6e-05}},
      {"Megatron, inverse-square-root down to its floor",
       high_floor,
       {3e-05, 8.4e-05, 0.00024599999999999996, 0.0003, 0.00027386127875258305, 0.00015, 0.00012, 0.00012, 0.00012,
        0.00012, 0.00012, 0.00012}},
      {"Megatron, WSD, exponential",
       exponential,
       {3e-05, 8.4e-05, 0.00024599999999999996, 0.0003, 0.0003, 0.0003, 0.00020988115025099305, 6e-05, 6e-05, 6e-05,
        6e-05, 6e-05}},
      {"Megatron, WSD, minus_sqrt",
       root,
       {3e-05, 8.4e-05, 0.00024599999999999996, 0.0003, 0.0003, 0.0003, 0.00016854658619876013, 6e-05, 6e-05, 6e-05,
        6e-05, 6e-05}},
  };
  expect_rates(all);
}

// get_wsd_schedule_with_warmup with stable_ratio = 0.7.
TEST(Schedule, EqualVerlsWsd) {
  ScheduleOptions verl = stable_decay();
  verl.decay_units = resolve_decay(-1, 5, 50, 0.7);
  ScheduleOptions verl_from_one = verl;
  verl_from_one.first_unit = 1;
  const FromTransformers all[] = {
      {"verl, wsd",
       verl,
       {0.0, 5.9999999999999995e-05, 0.00023999999999999998, 0.0003, 0.0003, 0.0003, 0.00029661526814454614,
        0.00013495967391589757, 0.00010642569521912966, 3.3384731855453794e-05, 2.9999999999999997e-05,
        2.9999999999999997e-05}},
      {"verl, wsd from one",
       verl_from_one,
       {5.9999999999999995e-05, 0.00011999999999999999, 0.0003, 0.0003, 0.0003, 0.0003, 0.00028663079716682654,
        0.00010642569521912966, 8.082887674907099e-05, 2.9999999999999997e-05, 2.9999999999999997e-05,
        2.9999999999999997e-05}},
  };
  expect_rates(all);
}

// Megatron's 2 * 0.5^p - 1, which transformers lacks.
TEST(Schedule, TheExponentialDecayEndsAtTheFloor) {
  ScheduleOptions options = of_type(LrSchedule::kWarmupStableDecay, 0);
  options.decay = LrDecay::kExponential;
  options.decay_units = 10;
  EXPECT_EQ(learning_rate(options, 40), 3e-4);
  EXPECT_NEAR(learning_rate(options, 45), 3e-4 * (std::sqrt(2.0) - 1.0), 1e-17);
  EXPECT_EQ(learning_rate(options, 50), 0.0);
}

TEST(Schedule, WhatIsNotGivenFollowsFromTheRest) {
  EXPECT_EQ(resolve_timescale(-1, 0), 10'000);
  EXPECT_EQ(resolve_timescale(-1, 7), 7);
  EXPECT_EQ(resolve_decay(-1, 5, 200), 20);
  EXPECT_EQ(resolve_decay(500, 50, 200), 150);
  EXPECT_EQ(resolve_decay(0, 0, 200), 0);
  EXPECT_EQ(resolve_decay(-1, 300, 200), 0);
}

TEST(Schedule, WarmupStepsGoBeforeTheRatio) {
  EXPECT_EQ(resolve_warmup(-1, 0.1, 200), 20);
  EXPECT_EQ(resolve_warmup(0, 0.1, 200), 0);
  EXPECT_EQ(resolve_warmup(7, 0.1, 200), 7);
}

}  // namespace
}  // namespace mortise
