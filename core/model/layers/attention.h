// Attention over the segments of a packed batch: causal within a segment, and to the whole of its prefix segment;
// grouped-query heads; rotary embedding applied to the inputs; optionally a window (Beltagy et al. 2020) and capped
// scores.
//
// Fast path: one task per (segment, key-value head), which lays its keys and values out once for all heads and blocks of
// queries (attention_products.h); softmax by vector kernels. Backward recomputes the probabilities from the saved
// log-sum-exp (Dao et al. 2022) and adds a shared prompt's gradients from per-segment parts in a fixed order, so the
// result does not depend on threads. Cost: 4 sum(Lq Lk) Hq D flops forward, 2.5 times that backward; a window W makes
// Lk at most W + 159.
// A sink is a trained score of a head that every query also looks at, and that has no value (Xiao et al. 2023; gpt-oss).
// Memory: lse [N, Hq]; per thread a query block x its keys (backward 2), and 2 copies of a head's rows (backward 5).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "model/layers/rope.h"
#include "model/tensor/packing.h"

namespace mortise {

struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double scale = 0.0;       // factor of the scores
  int64_t window = 0;       // tokens that a token sees, itself included; 0: all before it
  double softcap = 0.0;     // scores become softcap tanh(score / softcap); 0: they do not
  at::Tensor sinks_A = {};  // by head; undefined: none
  bool rounds = false;      // by operators alone: q, k and v are rounded to bfloat16, which the fused operators take
};

// [S, 4] int64: begin, length, prefix segment, (unused here) position.
at::Tensor segments_tensor(std::span<const PackedSegment> segments);

// qkv_NQ [N, (Hq + 2 Hkv) D] before rotation -> [N, Hq D]. CONSUMES qkv_NQ: q and k are rotated in place (its producer
// must not need its own output for backward, which holds for linear and qk_norm). `on_qkv` sees the rotated rows.
at::Tensor rope_attention(const at::Tensor& qkv_NQ, const at::Tensor& segments_S4, const at::Tensor& positions_N,
                          const RopeTable& table, const AttentionShape& shape,
                          const std::function<void(const at::Tensor&)>& on_qkv = {});

// What attention gave before for the same tokens. `is_rotated`: q and k of the call are rotated already.
struct KnownAttention {
  at::Tensor out_NA;
  at::Tensor lse_Nh;  // log-sum-exp of the scores of each head
  bool is_rotated = false;
};
// The same for its gradient alone: gives known.out_NA.
at::Tensor known_attention(const at::Tensor& qkv_NQ, const at::Tensor& segments_S4, const at::Tensor& positions_N,
                           const RopeTable& table, const AttentionShape& shape, const KnownAttention& known);

// The reference implementation: ATen operations with autograd, one segment and one mask at a time. It does not change
// qkv_NQ.
at::Tensor rope_attention_plain(const at::Tensor& qkv_NQ, const at::Tensor& segments_S4, const at::Tensor& positions_N,
                                const RopeTable& table, const AttentionShape& shape,
                                const std::function<void(const at::Tensor&)>& on_qkv = {});

// The weights of the keys for each query, in ATen operations: scaled and capped scores, of which a query sees its own place
// and those before it (the last shape.window of them), softmax with the heads' sinks. `products` [..., Hq, Lq, Lk] are
// q k^T. The places are int64 and broadcast against the last two dimensions: [..., Lq, 1] and [Lk].
at::Tensor attention_probabilities(const at::Tensor& products, const at::Tensor& query_places,
                                   const at::Tensor& key_places, const AttentionShape& shape);

}  // namespace mortise
