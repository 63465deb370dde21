// Makes a hostile pack, and uses one of its plugins as a run does, in a process of its own that it may ruin.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "misdeeds.h"

namespace mortise::test {

inline constexpr int64_t kCallLimitMs = 2000, kRowLimitMs = 4000;

// Compiles hostile.c into `folder`/NAME.so; "" or what the compiler said. A call of it that never returns counts how
// long it lives, in `folder`/NAME.ticks.KIND.PROCESS: one byte for each 10 ms of sleep or of CPU time.
std::string build_pack(const Misdeed& misdeed, const Path& folder);

inline constexpr int kKilled = -99;
struct Ended {
  int code = -1;  // exit code; negative for a signal; kKilled: it had not ended after five minutes
  std::string output;
};

// A kind, and where its plugin runs. Rewards are always in workers.
struct Use {
  std::string kind;
  bool is_isolated = false;
  auto operator<=>(const Use&) const = default;
};

// For each use, at the same time: two steps with the kind's plugin "hostile", which misbehaves at the second one.
// Rewards misbehave at one of four rows. Limits: kCallLimitMs for a call, kRowLimitMs for a row, 2 GiB of memory, 1 GiB
// in a worker. Each process tells its errors and exits as the program does. `mark` is a file that the pack's static
// constructor makes.
std::map<Use, Ended> use_plugins(const Path& pack, const std::vector<Use>& uses, const Path& mark);

}  // namespace mortise::test
