// The policy of a run, its reference and the copy that samples: loaded, with an adapter, frozen parameters and ranks.
// Thread rule: one thread.
#pragma once

#include <optional>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/base/stateful.h"
#include "model/model.h"
#include "train/loop/parts.h"

namespace mortise {

// `weights_from`: the folder of a checkpoint whose weights the policy gets instead of those of model.path.
Result<> load_model(const RunSettings& run, const std::optional<Path>& weights_from, PolicyParts& policy,
                    StatefulRegistry& stateful);

// The model of ref.path, or the initial policy; for an adapter's run the base without it, which a refresh changes in a
// copy. `has_moved`: the current model is not the initial one. Its weights are spread over ranks if the policy's are.
Result<> load_reference(const RunSettings& run, bool has_moved, PolicyParts& parts);

// What samples while the policy learns: a whole copy of its weights, which is not stepped. Ranks that share the weights
// gather them, so these are collectives.
Result<> make_sampled(const RunConfig& config, PolicyParts& policy);
// Gives the copy the policy's weights, if there is one. Not while anything is sampled.
Result<> refresh_sampled(const RunConfig& config, PolicyParts& policy);

}  // namespace mortise
