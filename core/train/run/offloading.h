// *.offload: which numbers of a run are in files or rest in the host's memory, and where. Also: giving freed memory back.
// Thread rule: one thread.
#pragma once

#include <string>

#include "config/load.h"
#include "foundation/base/env.h"
#include "foundation/metrics/registry.h"
#include "learn/optim/optimizer.h"
#include "model/model.h"

namespace mortise {

// Do the master weights of a run on a GPU stay there, wherever the state goes? Ranks that share steps, or layers, also while
// they sample, exchange weights there.
[[nodiscard]] inline bool masters_stay_on_device(const RunConfig& config, int num_ranks) {
  const bool shares_layers =
      config.actor.tensor_model_parallel_size > 1 || config.rollout.tensor_model_parallel_size > 1;
  return num_ranks > 1 && (config.ranks.zero_stage > 0 || shares_layers);
}

// The state of `optimizer` and the master weights of `model`, if [table] ("actor.optim", "critic.optim") says so. To be
// called once, before the first step.
Result<> offload_optimizer(Env& env, const LoadedConfig& loaded, int num_ranks, const std::string& table, Model& model,
                           Optimizer& optimizer);

// Before and behind the updates of a step: state and masters come to the device, and leave it, if optim.offload is
// while_sampling. The state comes with the first update.
Result<> fetch_state(const Optimizer& optimizer, Model& model);
Result<> rest_state(Optimizer& optimizer, Model& model, MetricSet& metrics);

// Gives free memory back to the system now, and from now on also that of each large tensor when it is freed. Without
// this call the program keeps freed pages for its next step (foundation/base/freed_memory.h), and the gaps between them
// are a sixth of a run's memory. For runs that have little memory.
void give_freed_pages_back();
// The same of large matrices alone. Every pass gathers layers (ZeRO 3), so small ones would cost more than they free.
void give_freed_matrices_back();

// The weights of the reference, if ref.offload says so. Not for the view of an adapter's base.
Result<> offload_reference(Env& env, const LoadedConfig& loaded, Model& reference);

}  // namespace mortise
