// The process that starts cases: one line of JSON in, one line of JSON out, a new process for each case.
//
// `mortise plugin check` starts itself again once per job with serve_cases(). That process has one thread and loads no
// pack, so it may fork for each case. A case then costs a few milliseconds, not a start of the program. It reports a
// case that crashes, hangs or exits as such, and keeps its output.
// Request: subject.h. Reply: {"status": passed | failed | not_applicable | crashed | timed_out | exited, "text",
// "output", "seconds"}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "conformance/subject.h"

namespace mortise::check {

// Reads requests from descriptor 0 until it ends, writes replies to descriptor 1; returns the exit code. Only in a
// process that was started for it and has one thread: else an error is the first and last line.
int serve_cases();

// A pack that is read once for all of its cases. Not sealed: it cannot be, and cases that load it say why.
struct ReadPack {
  PackInfo info;
  std::optional<PackFile> sealed;
};

// Runs the case in this process. Returns a remark for a passed case, or "". For the forked process.
[[nodiscard]] Result<std::string> run_case(const Request& request, Result<ReadPack>& pack);

// Writes all of it, whatever signals come; false if the other side has closed.
bool write_all(int fd, std::string_view text);

}  // namespace mortise::check
