// Attention over sequences that lie end to end, on any device. Each sequence has its queries last: query i of Lq sees
// the keys up to Lk - Lq + i, and with a window only the last of them.
//
// On CUDA without window, cap and sinks it is libtorch's fused operators (cuda_attention.h), which keep a number per query
// and head for backward. Elsewhere it is one sequence after the other with an explicit mask, and backward keeps the
// probabilities, Hq Lq Lk numbers for each sequence. A window that holds all keys is none. Training takes cuDNN in place of
// it where a run has chosen so (attention_choice.h).
// Thread rule: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/layers/attention.h"

namespace mortise {

// By sequence. A sequence has at least as many keys as queries.
struct SegmentLengths {
  std::vector<int64_t> queries;
  std::vector<int64_t> keys;
};

// q [Nq, Hq, D], k and v [Nk, Hk, D] -> [Nq, Hq, D]. If shape.rounds, they are rounded to bfloat16 first, and so is the
// result; its dtype is that of q.
at::Tensor segment_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                             const SegmentLengths& lengths, const AttentionShape& shape);

}  // namespace mortise
