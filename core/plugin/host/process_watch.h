// What a plugin must leave as it is (rule R20), looked at after every call in the engine's process: the floating-point
// mode, the actions of the signals that the program handles, the thread's blocked signals, locale and working directory,
// and the program's descriptors.
//
// A change is put back where that is possible, and the call fails, because the numbers of the call or the next checkpoint
// could be wrong. `mortise plugin check` looks at more: environment, umask, threads, children. Cost: about 20 system
// calls. Threading: each call has its own; process-wide changes of a concurrent call may be told of this one.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>

namespace mortise {

// Remembers what the process looks like now. Without it nothing but the floating-point mode is watched, as in a worker,
// which is a process of the plugin alone.
void install_process_watch();

class ProcessWatch {
 public:
  ProcessWatch();
  // "" or what has changed since, which is then restored: "the floating-point mode".
  [[nodiscard]] std::string take_change() const;

 private:
  uint32_t floating_point_;
  sigset_t blocked_{};
};

}  // namespace mortise
