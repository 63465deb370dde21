// What a worker may do: resource limits and a filter of system calls, set by the worker on itself before any code of
// the pack runs. Children of the worker inherit both. Threading: the single thread of a starting worker.
#pragma once

#include <cstdint>
#include <string>

#include "foundation/base/result.h"

namespace mortise {

struct WorkerLimits {
  int64_t memory_bytes = 0;    // of address space; 0: no limit
  int64_t file_bytes = 0;      // longest file it may write; 0: no limit
  int64_t open_files = 0;      // 0: no limit
  bool network = true;         // sockets to other machines and programs
  bool write_files = true;     // create, write, rename or remove files
  bool start_programs = true;  // execve
  bool operator==(const WorkerLimits&) const = default;
};

// Sets what the machine can set and says what is in force ("memory 8 GiB; no network, no writing (seccomp)"), or what
// is missing and why. Only a limit that the system refuses to set is an error.
Result<std::string> apply_limits(const WorkerLimits& limits);

}  // namespace mortise
