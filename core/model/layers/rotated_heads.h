// What attention reads of qkv rows, by the kernels of core/cuda: normed and rotated queries and keys, and values, each as a
// tensor of its own, in bfloat16 where attention rounds. The keys and values of a shared prompt are there once for each
// sequence that reads them. One launch forward, one backward, and one more for the gradients of norms or of a bias.
// Backward keeps qkv only for norms.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layers/rms_norm.h"
#include "model/layers/segment_attention.h"

namespace mortise {

// Can the kernels take these heads? A norm needs an even number of numbers in a head.
[[nodiscard]] bool takes_rotated_heads(const AttentionShape& shape, const RopeTable& table, bool has_norms);

// training_attention() of these heads: [N, (Hq + 2 Hkv) D] before norms and rotation -> [N, Hq D], in bfloat16 if shape.rounds.
// The table has a row for each token. A bias is added to each row first. Precondition: takes_rotated_heads(), and not both norms
// and a bias.
at::Tensor rotated_attention(const at::Tensor& qkv_NQ, const PassSegments& segments, const RopeTable& table,
                             const AttentionShape& shape, const HeadNorms& norms, const HeadBias& bias);

}  // namespace mortise
