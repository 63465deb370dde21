// Runs unreviewed programs in a place where they can do no harm.
//
// bubblewrap gives the program its own file system (the system's /usr, read-only, and an empty /tmp), no network, no
// environment, no view of other processes and no capabilities. A filter of system calls also forbids new processes.
// There are limits on time, memory, threads, files and output. Nothing is written on the host.
//
// A run distinguishes the program's faults from the machine's. The harness, a short Python script that starts the
// program, writes to a private pipe just before the program's first line. A run without that mark did not start, so it
// says nothing about the program. A program cannot send itself SIGKILL or exit with code 137, so a run that ends so was
// killed from outside, for example by the kernel when memory ran out.
//
// Threading: run() may be called from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sandbox/call_filter.h"
#include "sandbox/refused_calls.h"

namespace mortise {

struct SandboxLimits {
  double seconds = 1;             // from the program's first line on
  std::int64_t memory_bytes = 0;  // limit of address space
  std::int64_t file_bytes = 0;    // limit of /tmp, and of one file
  std::int64_t output_bytes = 0;  // limit of standard output, and of the result
  std::int64_t threads = 0;       // with the main thread
};

// What the sandbox holds. The harness must write to kStartFd and close it, and then run /program.
struct SandboxJob {
  std::string program;  // the file /program
  std::string harness;  // the file /harness, which the interpreter runs
  std::string input;    // standard input
  std::string test;     // kTestFd, a file that the harness reads; what it holds is in no folder
};

struct SandboxRun {
  enum End {
    kExited,
    kTimedOut,
    kTooMuchOutput,
    kTooManyThreads,
    kNotStarted,  // the machine's fault
    kKilled       // by SIGKILL from outside: the machine's fault
  };
  End end = kExited;
  int code = 0;        // kExited: exit code, 128 + signal if a signal ended the program
  std::string output;  // standard output
  std::string errors;  // the last of standard error
  std::string result;  // what was written to kResultFd
};

class Sandbox {
 public:
  static constexpr int kStartFd = 5, kResultFd = 6, kTestFd = 7;

  // Finds bwrap in PATH and makes the filter. `readable`: further folders of the host that programs may read. Throws
  // Failure.
  explicit Sandbox(std::vector<std::string> readable);

  // Runs the harness with `interpreter`. Tries again, with pauses, if the machine gets in the way. Throws Failure if it
  // still does after that: kNotStarted and kKilled are never returned.
  [[nodiscard]] SandboxRun run(const std::string& interpreter, const SandboxJob& job,
                               const SandboxLimits& limits) const;
  // One attempt.
  [[nodiscard]] SandboxRun try_run(const std::string& interpreter, const SandboxJob& job,
                                   const SandboxLimits& limits) const;

  // The kernel's limit on threads is used until this is called; without it, they are only counted from outside.
  void leave_thread_limit() { limit_threads_ = false; }
  [[nodiscard]] bool limits_threads() const { return limit_threads_; }

 private:
  [[nodiscard]] std::vector<std::string> words(const std::string& interpreter, const SandboxLimits& limits) const;
  std::string bubblewrap_;
  std::string filter_;  // filter of system calls
  std::vector<std::string> readable_;
  bool limit_threads_ = false;
};

// The filter of system calls for programs: the calls that reward workers are refused too (sandbox/refused_calls.h),
// program_calls(), new processes, and every way to be ended by SIGKILL.
sandbox::FilterProgram system_call_filter();

// What only programs are refused: sockets, memory in no address space, timers.
const std::vector<sandbox::SystemCall>& program_calls();

}  // namespace mortise
