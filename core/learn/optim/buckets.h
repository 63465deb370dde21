// Buckets: neighbouring parameters whose gradients ranks send together. Small tensors would cost a message each.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "learn/optim/update_rule.h"

namespace mortise {

// Bytes of a bucket, unless it is one larger tensor.
inline constexpr int64_t kBucketBytes = int64_t{32} << 20;

// Most bytes of gradients that a rank sends to their owners at a time.
inline constexpr int64_t kOwnerRoundBytes = int64_t{16} << 20;

// Places [begin, end) in the list of parameters.
struct ParameterRange {
  size_t begin = 0, end = 0;
};

// Is the gradient complete before autograd begins a backward pass? The pass over the head stores that of the head.
[[nodiscard]] bool is_complete_before_backward(const OptimizedParameter& parameter);

// The buckets in the order in which a backward pass completes them: first what is complete before, then the layers from
// the last one on, then what belongs to no layer. A bucket has numbers of one type. If it is more than one tensor, it
// has at most `most_bytes`.
[[nodiscard]] std::vector<ParameterRange> backward_groups(std::span<const OptimizedParameter> parameters,
                                                          int64_t most_bytes);

}  // namespace mortise
