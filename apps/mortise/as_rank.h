// A command that runs as one of the ranks of its run (docs/ranks.md).
#pragma once

#include <functional>

#include "config/run_config.h"
#include "dist/communicator.h"
#include "foundation/base/result.h"

namespace mortise {

// Joins the other ranks, if the environment says that there are any, and runs `work`. The others learn if it fails, also
// by an exception. All ranks leave together when they are done.
Result<int> run_as_rank(const RunConfig& config, const std::function<Result<int>(Communicator&)>& work);

}  // namespace mortise
