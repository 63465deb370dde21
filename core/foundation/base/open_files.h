// The limit on open files, and advice for errors when descriptors or memory run out.
//
// Thread rule: raise the limit once, from main; the rest from any thread.
#pragma once

#include <string>

namespace mortise {

// Raises the soft limit on open files (`ulimit -n`) to the hard limit, but at most to 65,536. A larger limit has no
// use, and some programs that a reward starts close every number below it. Nothing may depend on this: a hard limit of
// 256 works.
void raise_open_files_limit();

// The next step for the errno `code` of a call that makes a descriptor, a mapping or a process: "raise the limit on
// open files (ulimit -n is 1024)". `otherwise` for other codes.
[[nodiscard]] std::string resource_advice(int code, const std::string& otherwise);

}  // namespace mortise
