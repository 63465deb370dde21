// SIGINT and SIGTERM. While a program loads, the first one ends it at once with exit code 8: nothing is lost yet, and
// nothing checks a flag in the middle of a large file. From take_stop_requests() on, the first one is a request that
// the loop checks between stages (finish the step, save, exit with code 8). One that comes more than a second later ends
// the process at once with the same code, and says so on standard error; wrappers and schedulers often send the first one
// twice. SIGPIPE is ignored.
// Thread rule: install once from main; any thread may read the flag.
#pragma once

#include <atomic>

namespace mortise {

void install_stop_signals();

// The caller asks stop_requested() often from now on.
void take_stop_requests();

// 0, or the number of the first SIGINT or SIGTERM since the start. Until this process gets one itself, it is the one that it
// follows.
[[nodiscard]] int stop_signal();
[[nodiscard]] inline bool stop_requested() { return stop_signal() != 0; }
// The same as a flag that others watch.
[[nodiscard]] const std::atomic<bool>& stop_flag();

// As if `signal` had come (a deadline of the run, tests); 0 clears it.
void set_stop_signal(int signal);

// Another process of the same run got `signal`: a request from now on. The first signal that this process gets itself is still
// one too, and does not end it. 0 changes nothing. Thread rule: any thread.
void follow_stop_signal(int signal);

}  // namespace mortise
