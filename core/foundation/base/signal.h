// SIGINT and SIGTERM as a flag that the loop asks between stages: the first one asks for a clean end (finish the step,
// save, exit with code 8); a second one ends the process at once with the same code. SIGPIPE is ignored.
// Thread rule: install once from main; the flag may be read anywhere.
#pragma once

#include <atomic>

namespace mortise {

void install_stop_signals();

// 0, or the number of the first SIGINT or SIGTERM since the start.
[[nodiscard]] int stop_signal();
[[nodiscard]] inline bool stop_requested() { return stop_signal() != 0; }
// The same as a flag that others watch.
[[nodiscard]] const std::atomic<bool>& stop_flag();

// As if `signal` had come (a deadline of the run, tests); 0 clears it.
void set_stop_signal(int signal);

}  // namespace mortise
