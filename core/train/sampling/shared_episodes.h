// Episodes of ranks that sample the same rows together (rollout.tensor_model_parallel_size). The first rank of a group runs
// them in its environment, and tells the others the answers, so that all of them continue the same rows.
//
// Cost: an exchange in the group for each call of advance() while an episode waits. Thread rule: one thread. advance() is a
// collective of the group: its ranks make the same calls, and a rank that fails ends the run of all.
#pragma once

#include <memory>

#include "dist/communicator.h"
#include "plugin/worker/episode_runner.h"

namespace mortise {

// `group_size` neighbours among `ranks` share the episodes. `own` is the environment of this rank.
std::unique_ptr<EpisodeRunner> share_episodes(std::unique_ptr<EpisodeRunner> own, Communicator& ranks, int group_size);

}  // namespace mortise
