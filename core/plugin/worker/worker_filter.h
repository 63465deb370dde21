// The filters of system calls of workers. Built before they are needed; installing one is a single system call.
#pragma once

#include <sys/types.h>

#include <vector>

#include "plugin/worker/limits.h"
#include "sandbox/call_filter.h"
#include "sandbox/refused_calls.h"

namespace mortise {

// The calls that write, rename or remove files and have no other use.
const std::vector<sandbox::SystemCall>& writing_calls();

// What `limits` does not allow. SECURITY.md has the table.
sandbox::FilterProgram worker_filter(const WorkerLimits& limits);

// Refuses signals to the fork server `server`, to its process group and to all processes at once.
sandbox::FilterProgram fork_server_filter(pid_t server, pid_t group);

}  // namespace mortise
