// The process that cases are started from: one line of JSON in, one line of JSON out, a fresh process for each case.
//
// `mortise plugin check` starts itself anew once per job with serve_cases(); that process has one thread and loads no
// pack, so it may fork for each case: a case costs a few milliseconds, not a start of the program. A case that crashes,
// hangs or ends by itself is reported as such; what it printed is kept.
// Request: subject.h. Reply: {"status": passed | failed | not_applicable | crashed | timed_out | exited, "text",
// "output", "seconds"}.
#pragma once

#include <string>

#include "plugin/check/subject.h"

namespace mortise::check {

// Reads requests from descriptor 0 until it ends, writes replies to descriptor 1; returns the exit code. Only in a
// process that was started for it and has one thread: else an error is the first and last line.
int serve_cases();

// Runs the case here, in this process: of one that passed, what is to be said beside it, or "". For the forked process.
[[nodiscard]] Result<std::string> run_case(const Request& request);

}  // namespace mortise::check
