// The pointer file that a clone without git-lfs has instead of a large file of a model folder. Thread rule: free
// function.
#pragma once

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// An Error (kData) that says how to get the file, where `path` is such a pointer.
Result<> refuse_lfs_pointer(Env& env, const Path& path);

}  // namespace mortise
