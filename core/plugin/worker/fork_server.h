// The fork server of a pool of workers: it loads the pack once and forks a worker for every request, so that a
// replacement costs a fork and not a load. Runs in the program mortise-worker, never in the trainer.
//
// The only code of the pack that it runs is that of loading it. It has one thread, ends workers when the trainer asks
// and reaps them. A fork that fails is told to the trainer, which asks again later. When the trainer hangs up, the fork
// server kills the workers that are left and returns. Threading: one thread.
#pragma once

#include "foundation/base/result.h"
#include "plugin/worker/fd.h"
#include "plugin/worker/system.h"

namespace mortise {

// `socket` is the connection to the trainer. An error is one that could not be told to the trainer.
Result<> run_fork_server(Fd socket, WorkerSystem& system = real_worker_system());

}  // namespace mortise
