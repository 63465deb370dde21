// Programs that nobody has read, run where they can do nothing: bubblewrap with a file system of their own (the
// system's /usr, read-only, and an empty /tmp), no network, no sight of other processes, no capabilities, a filter of
// system calls that also forbids new processes, and limits on time, memory, files and output. Nothing is written on the
// host.
//
// Threading: run() may be called from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mortise {

struct SandboxLimits {
  double seconds = 1;
  std::int64_t memory_bytes = 0;  // of address space
  std::int64_t file_bytes = 0;    // of /tmp, and of one file
  std::int64_t output_bytes = 0;  // of standard output
  bool processes = false;         // may the program start others?
};

struct SandboxRun {
  enum End { kExited, kTimedOut, kTooMuchOutput };
  End end = kExited;
  int code = 0;        // kExited: exit code, 128 + signal where one ended it
  std::string output;  // standard output
  std::string errors;  // the last of standard error
};

class Sandbox {
 public:
  // Finds bwrap in PATH; `readable`: further folders of the host that programs may read. Throws Failure.
  explicit Sandbox(std::vector<std::string> readable);

  // Runs `command` with `program` as the file /program and `input` as standard input. Throws Failure where the system
  // gives no process.
  [[nodiscard]] SandboxRun run(const std::vector<std::string>& command, const std::string& program,
                               const std::string& input, const SandboxLimits& limits) const;

 private:
  [[nodiscard]] std::vector<std::string> words(const std::vector<std::string>& command,
                                               const SandboxLimits& limits) const;
  std::string bubblewrap_;
  std::vector<std::string> readable_;
};

// The filter of system calls as bwrap --seccomp reads it; empty on processors for which there is none.
std::string system_call_filter(bool processes);

}  // namespace mortise
