// Checkpoints that the ranks of a run verify together. Each rank reads and hashes a share of the files, and all take the
// same verdict. A rank trusts what another one has hashed, so they must see the same disk: a rank whose manifest differs is
// an error of kind kConfig.
// Thread rule: as the Communicator. Every function is a collective.
#pragma once

#include <optional>

#include "checkpoint/reader.h"
#include "dist/communicator.h"
#include "foundation/base/env.h"

namespace mortise {

// As verify_checkpoint. The Error names the rank that found the bad entry.
Result<Manifest> verify_on_ranks(Env& env, Communicator& ranks, const Path& checkpoint_dir);

// As find_newest_valid. The main rank looks into the run's folder.
Result<std::optional<FoundCheckpoint>> find_newest_on_ranks(Env& env, Communicator& ranks, const Path& run_dir);

}  // namespace mortise
