// Starts the ranks of a run on this machine, as `mortise launch` does: one process each, with torchrun's variables.
//
// Rank 0 writes to the terminal, every other rank to a file. If a rank fails, the others get time to find out and to
// name it (rank_watch.h). Then they get SIGTERM, and at last SIGKILL. SIGINT and SIGTERM are passed to all ranks. If this
// process is killed, the kernel sends the ranks SIGTERM. Thread rule: the main thread, once; it blocks the signals.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct LocalGroupOptions {
  int num_ranks = 1;
  std::vector<std::string> command;              // the program's path and its words
  int port = 0;                                  // where rank 0 serves the store; 0: a free one
  int threads_per_rank = 0;                      // OMP_NUM_THREADS of each rank; 0: as it is
  Path log_folder;                               // for rank_1.log, rank_2.log, ...; it must exist
  std::chrono::milliseconds patience{25'000};    // from the first failure to SIGTERM
  std::chrono::milliseconds kill_grace{10'000};  // from SIGTERM to SIGKILL
};

// How the group ended.
struct GroupEnd {
  int code = 0;      // exit code of the rank that failed first, 7 if a signal killed it; 0 if none failed
  int rank = -1;     // that rank
  std::string text;  // "rank 2 was killed by signal 9 (Killed)"
};

Result<GroupEnd> run_local_group(const LocalGroupOptions& options);

}  // namespace mortise
