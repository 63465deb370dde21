// Which code of a pack a thread runs, so that a crash, an exit or a hang inside it can be told by name.
//
// A plugin in the engine's process cannot be survived: it may have left memory in any state. What Mortise can do is to
// say which plugin it was, at which slot and step, and to end with the exit code of plugins, so that a supervisor resumes
// from the last checkpoint. A child that the code forked must not come back: it would be a second trainer or worker, which
// answers too. It ends at the end of the scope, with a line on standard error. Cost: a few stores and two system calls for
// a scope, a lock where it has a limit. Threading: any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

namespace mortise {

// Lives while the thread is inside the pack. Texts are borrowed. Scopes nest: the innermost one counts.
class RunningCode {
 public:
  // limit_ms: how long the code may run at most; 0 = no limit. A call that runs longer cannot be ended alone, so the
  // program ends, within a second, with a line that names it.
  RunningCode(std::string_view label, std::string_view slot, int64_t step, int64_t limit_ms = 0);
  // On a thread that works for the code of another one (host->parallel_for); null: for nobody.
  explicit RunningCode(const RunningCode* other);
  ~RunningCode();
  RunningCode(const RunningCode&) = delete;
  RunningCode& operator=(const RunningCode&) = delete;

  // What this thread runs; null outside packs.
  static const RunningCode* current();

  std::string_view label;  // "policy_loss gspo@mortise.losses 0.1.0 (1a2b3c4d5e6f)", or a file
  std::string_view slot;
  int64_t step = 0;  // 0: outside a run
  int64_t limit_ms = 0;

 private:
  const RunningCode* outer_;
  pid_t process_;  // that entered the scope
  int64_t deadline_ns_ = 0;
};

// From now on a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) or exit() inside the code of a pack is told on
// standard error and in the run's log, and the program ends with the exit code of plugins. Other crashes end it as
// before. Call it once, before the first thread. A program sees _exit() too if it has exit_symbols.cpp. The system call
// itself cannot be seen from inside a process.
void install_crash_reports();
// Ends the program with such a report if code of a pack calls `function` on this thread; else returns.
void report_exit(std::string_view function, int status);

}  // namespace mortise
