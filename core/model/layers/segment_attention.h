// Attention over sequences that lie end to end, on any device. Each sequence has its queries last: query i of Lq sees
// the keys up to Lk - Lq + i, and with a window only the last of them.
//
// On CUDA without cap and sinks it is libtorch's fused operators (cuda_attention.h), which keep a number per query and head
// for backward. Elsewhere it is one sequence after the other with an explicit mask, and backward keeps the probabilities,
// Hq Lq Lk numbers for each sequence. A window that holds all keys is none. Training takes cuDNN in place of it where a run has
// chosen so (attention_choice.h).
// Thread rule: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/attention.h"
#include "model/tensor/packing.h"

namespace mortise {

// By sequence. A sequence has at least as many keys as queries.
struct SegmentLengths {
  std::vector<int64_t> queries;
  std::vector<int64_t> keys;
  // Where the queries and the keys of each sequence begin, and the end of the last, as int32 on the device of the pass.
  // Undefined: fused attention sends them itself, in each layer.
  at::Tensor query_begins = {}, key_begins = {};
};

// Sends the begins, once for all layers of a pass. The host does not wait.
void send_begins(SegmentLengths& lengths, at::Device device);

// The rows of keys, M in all, that lie end to end as SegmentLengths::keys says: from which token each comes, and which of
// them are copies of token n: places[begins[n]] to places[begins[n + 1] - 1], the own one first. int32 on the device of the
// pass. Undefined: each token has one row, its own.
struct KeyCopies {
  at::Tensor sources_M = {}, begins_N1 = {}, places_M = {};
  [[nodiscard]] bool defined() const { return sources_M.defined(); }
};

// The bias of queries, keys and values, and the leaves that lie in it one behind the other. Undefined and empty: there is none.
struct HeadBias {
  at::Tensor row_Q = {};
  std::vector<at::Tensor> leaves = {};
};

// The segments of a pass. `lengths`: of their queries, and of their keys behind those of their prompts, with begins on a
// device. Empty for the CPU's kernels, which do not read them. `copies`: for the kernels of core/cuda alone.
struct PassSegments {
  at::Tensor rows_S4;  // segments_tensor()
  SegmentLengths lengths;
  KeyCopies copies = {};
};
SegmentLengths segment_lengths(std::span<const PackedSegment> segments, at::Device device);
// Sends them, once for all layers of a pass. The host does not wait.
KeyCopies key_copies(std::span<const PackedSegment> segments, at::Device device);

// q [Nq, Hq, D], k and v [Nk, Hk, D] -> [Nq, Hq, D]. If shape.rounds, they are rounded to bfloat16 first, if they are not
// yet, and so is the result; its dtype is that of q.
at::Tensor segment_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                             const SegmentLengths& lengths, const AttentionShape& shape);

}  // namespace mortise
