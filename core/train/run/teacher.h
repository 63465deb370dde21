// The frozen teacher of a run ([teacher]).
#pragma once

#include <optional>

#include "config/load.h"
#include "foundation/base/env.h"
#include "model/model.h"

namespace mortise {

// The config of the teacher's folder; nothing if the run has no teacher. An Error if it is no language model with
// `vocab_size` tokens, as the policy has, or its heads do not divide among ranks that share tokens.
Result<std::optional<ModelConfig>> teacher_config(Env& env, const LoadedConfig& loaded, int64_t vocab_size,
                                                  int num_ranks);

// The teacher, in model.dtype on `device`; nothing if there is none.
Result<std::optional<Model>> load_teacher(Env& env, const LoadedConfig& loaded, const ComputeDevice& device,
                                          int64_t vocab_size, int num_ranks);

}  // namespace mortise
