// Starts a program with a clean environment and a time limit, and waits for it. Threading: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct ChildOutcome {
  int code = -1;  // exit code; negative: the signal that ended it
  bool timed_out = false;
};

// Standard output and error go to `log`. On timeout its whole process group is killed. `while_it_runs` is called about
// five times a second.
Result<ChildOutcome> run_child(const std::vector<std::string>& words, const Path& folder, const Path& log,
                               std::chrono::milliseconds timeout, const std::function<void()>& while_it_runs = {});

}  // namespace mortise
