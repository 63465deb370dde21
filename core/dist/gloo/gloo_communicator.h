// The communicator of several processes, over libtorch's Gloo: TCP between all pairs of ranks. carry_device() adds NCCL.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/gloo/c10d_store.h"
#include "dist/watch/rank_watch.h"

namespace mortise {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string address;  // this machine's address for the others; empty: that of its host name
  std::chrono::milliseconds timeout{1'800'000};
};

// `store` is for the ranks' addresses, and kept. The watch must be that of the same group.
Result<std::unique_ptr<Communicator>> gloo_communicator(std::unique_ptr<C10dStore> store,
                                                        std::unique_ptr<RankWatch> watch, const GlooOptions& options);

}  // namespace mortise
