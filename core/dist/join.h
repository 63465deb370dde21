// How a process becomes a rank of its run.
#pragma once

#include <memory>

#include "config/run_config.h"
#include "dist/communicator.h"
#include "dist/launch/rank_place.h"

namespace mortise {

// Waits until all ranks are there, at most ranks.join_timeout. One process: returns at once.
// kConfig: the environment is half set. kRankFailure: ranks are missing, or do not fit together.
Result<std::unique_ptr<Communicator>> join_ranks(const RankPlace& place, const RanksConfig& config);
// With the environment of this process.
Result<std::unique_ptr<Communicator>> join_ranks(const RanksConfig& config);

}  // namespace mortise
