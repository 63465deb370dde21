// Settings of estimates in tests.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace mortise {

// A run whose updates have so many micro-batches.
inline RunConfig run_of_passes(int64_t num_passes, int64_t stage = 0) {
  RunConfig config;
  config.actor.use_dynamic_bsz = false;
  config.actor.ppo_micro_batch_size_per_gpu = 1;
  config.rollout.n = 1;
  config.data.train_batch_size = config.actor.ppo_mini_batch_size = num_passes;
  config.ranks.zero_stage = stage;
  return config;
}

}  // namespace mortise
