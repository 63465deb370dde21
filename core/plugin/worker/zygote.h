// The keeper of a pool of workers: loads the pack once, then forks a worker for every request, so that a replacement
// costs a fork and not a load. Runs in the program mortise-worker, never in the trainer.
//
// It runs no code of the pack but that of loading it, holds no thread, and reaps its workers. When the trainer hangs up
// it kills what is left of them and returns. Threading: one thread.
#pragma once

#include "foundation/base/result.h"
#include "plugin/worker/fd.h"

namespace mortise {

// `socket` is the connection to the trainer. An error is one that could not be told to the trainer.
Result<> run_zygote(Fd socket);

}  // namespace mortise
