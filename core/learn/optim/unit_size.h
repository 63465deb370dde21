// How large the buckets are that ranks own together (ZeRO 1 and 2). Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "learn/optim/buckets.h"
#include "learn/optim/shards.h"

namespace mortise {

// So large that each rank can own some of it. Else one rank would receive while the others wait. `element`: bytes of a
// number.
[[nodiscard]] constexpr int64_t unit_size(ShardCut cut, int64_t num_ranks, int64_t element) {
  return cut == ShardCut::kBlocks ? std::max(kBucketBytes, num_ranks * Shards::kBlock * element)
                                  : num_ranks * kBucketBytes;
}

}  // namespace mortise
