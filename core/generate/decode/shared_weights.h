// The packed weights of one model for all engines on it: training and validation have an engine each, and would
// otherwise make and hold a copy each. Thread rule: hold `mutex` from the look at `state` to the last read of
// `weights`.
#pragma once

#include <cstdint>
#include <mutex>

#include "generate/decode/packed_weights.h"

namespace mortise {

struct SharedWeights {
  std::mutex mutex;
  PackedWeights weights;
  uint64_t state = 0;     // the model's version when they were packed, as the engine gives it
  int64_t num_packs = 0;  // so far
};

}  // namespace mortise
