// The fork server of a pool of workers: it loads the pack once and forks a worker for every request, so that a
// replacement costs a fork and not a load. Runs in the program mortise-worker, never in the trainer.
//
// It runs no code of the pack except that of loading it. It has one thread, ends workers when the trainer asks, and
// reaps them. It reports a failed fork to the trainer, which asks again later. When the trainer closes the connection,
// the fork server kills the remaining workers and returns. Threading: one thread.
#pragma once

#include "foundation/base/result.h"
#include "plugin/worker/fd.h"
#include "plugin/worker/system.h"

namespace mortise {

// `socket` is the connection to the trainer. Returns an error that it could not report to the trainer.
Result<> run_fork_server(Fd socket, WorkerSystem& system = real_worker_system());

}  // namespace mortise
