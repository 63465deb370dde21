// Descriptors and memory that the machine may run out of: the limit on open files, and what a user can do about it.
//
// Thread rule: raise the limit once, from main; the rest from any thread.
#pragma once

#include <string>

namespace mortise {

// The soft limit on open files (`ulimit -n`) becomes the hard limit, 65,536 at most: a larger one helps nobody, and
// some programs that a reward starts close every number below it. Nothing may depend on this: a hard limit of 256
// works.
void raise_open_files_limit();

// The next step for errno `code` of a call that makes a descriptor, a mapping or a process: "raise the limit on open
// files (ulimit -n is 1024)". For a code that says nothing of the kind: `otherwise`.
[[nodiscard]] std::string resource_advice(int code, const std::string& otherwise);

}  // namespace mortise
