// What the tests of the kernels share: numbers, the orders of the emulator, and the proof that every barrier is needed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulate/emulator.h"
#include "cuda/module.h"
#include "support/long_run.h"
#include "support/this_build.h"

namespace mortise::cuda {

inline std::vector<float> normal(size_t count, double scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw(0.0, scale);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(draw(random));
  return out;
}

// Sanitizers see the same faults in every order: one is enough there, except with --long.
inline void in_three_orders(const std::function<void()>& body) {
  for (const Schedule schedule : {Schedule::kForward, Schedule::kBackward, Schedule::kShuffled}) {
    if (test::kSanitized && !test::is_long() && schedule != Schedule::kShuffled) continue;
    SCOPED_TRACE(static_cast<int>(schedule));
    emulator_options() = {schedule, 7};
    body();
  }
}

// With ThreadSanitizer tests of numbers take their smallest cases, except with --long: it looks for races.
inline bool takes_few_cases() { return test::kThreadSanitizer && !test::is_long(); }

inline std::filesystem::path kernel_folder() { return std::filesystem::path(MORTISE_SOURCE_DIR) / "core/cuda/kernels"; }

// Numbers of the lines of a kernel's source that are barriers.
inline std::vector<int> barrier_lines(const std::string& file) {
  std::ifstream source(kernel_folder() / file);
  EXPECT_TRUE(source.good()) << file;
  std::vector<int> out;
  std::string line;
  for (int number = 1; std::getline(source, line); ++number)
    if (line.find("__syncthreads();") != std::string::npos) out.push_back(number);
  return out;
}

// Leaves each barrier out in turn: the emulator must notice, or in a build with ThreadSanitizer the sanitizer alone. `run`
// passes all barriers of these sources.
inline void expect_every_barrier_is_needed(const std::function<void()>& run, const std::vector<std::string>& sources) {
  emulator_options() = {};
  forget_barriers();
  run();
  const std::vector<BarrierSite> sites = barriers_passed();
  for (const std::string& source : sources) {
    for (const int line : barrier_lines(source)) {
      const auto is_here = [&](const BarrierSite& site) {
        return site.line == line &&
               std::filesystem::path(site.file).filename() == std::filesystem::path(source).filename();
      };
      EXPECT_TRUE(std::ranges::any_of(sites, is_here)) << "no test passes the barrier at " << source << ":" << line;
    }
  }
  for (const BarrierSite& site : sites) {
    emulator_options() = {Schedule::kForward, 1, {site}, /*notes_accesses=*/!test::kThreadSanitizer};
    std::string error;
    try {
      run();
    } catch (const EmulatorError& thrown) {
      error = thrown.what();
    }
    const bool found = error.find(test::kThreadSanitizer ? "ThreadSanitizer" : "") != std::string::npos;
    EXPECT_TRUE(!error.empty() && found) << site.file << ":" << site.line << " may be left out; " << error;
  }
  emulator_options() = {};
}

}  // namespace mortise::cuda
