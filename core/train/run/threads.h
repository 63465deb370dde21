// How many threads a command computes with.
#pragma once

#include <ATen/Parallel.h>

#include "config/run_config.h"
#include "foundation/base/cpus.h"

namespace mortise {

// trainer.num_threads, else what libtorch took when the program started (OMP_NUM_THREADS, or what the process may use).
// Pools of plugins and data follow it. Call before they are made.
inline void use_threads(const TrainerConfig& trainer) {
  if (trainer.num_threads) at::set_num_threads(static_cast<int>(*trainer.num_threads));
  set_pool_threads(at::get_num_threads());
}

}  // namespace mortise
