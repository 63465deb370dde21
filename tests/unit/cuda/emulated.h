// What the tests of the kernels share: numbers, the orders of the emulator, and the proof that every barrier is needed.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cuda/emulate/emulator.h"
#include "cuda/module.h"
#include "support/sanitized.h"

namespace mortise::cuda {

inline std::vector<float> normal(size_t count, double scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw(0.0, scale);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(draw(random));
  return out;
}

// AddressSanitizer looks at the host's memory, which every order uses alike: there one order is enough.
inline void in_three_orders(const std::function<void()>& body) {
  for (const Schedule schedule : {Schedule::kForward, Schedule::kBackward, Schedule::kShuffled}) {
    if (test::kSanitized && schedule != Schedule::kShuffled) continue;
    SCOPED_TRACE(static_cast<int>(schedule));
    emulator_options() = {schedule, 7};
    body();
  }
}

// Leaves each barrier out in turn: the emulator must notice.
inline void expect_every_barrier_is_needed(const std::function<void()>& run, size_t least) {
  emulator_options() = {};
  forget_barriers();
  run();
  const std::vector<BarrierSite> sites = barriers_passed();
  ASSERT_GE(sites.size(), least);
  for (const BarrierSite& site : sites) {
    emulator_options() = {Schedule::kForward, 1, {site}};
    EXPECT_THROW(run(), EmulatorError) << site.file << ":" << site.line;
  }
  emulator_options() = {};
}

}  // namespace mortise::cuda
