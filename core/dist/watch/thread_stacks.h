// Where each thread of this process is, for the log of a rank that hangs.
#pragma once

#include <string>

namespace mortise {

// One paragraph per thread: its number, its name, and its calls, innermost first. A signal interrupts each thread for a
// moment, so system calls may return early: only for a process that is about to end. One call at a time.
std::string thread_stacks();

}  // namespace mortise
