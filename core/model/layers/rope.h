// Rotary position embedding (Su et al. 2021, RoFormer) of the first R dimensions of each head (R = D except with
// partial_rotary_factor), rotating pairs (i, i + R/2), with the frequency scalings of linear, dynamic, llama3, yarn
// (Peng et al. 2023) and longrope (Ding et al. 2024). Tables are computed in double and rounded once.
//
// Cost: table O(positions R), applied O(N heads R). Thread rule: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/weights/model_config.h"

namespace mortise {

// R/2 inverse frequencies after scaling, for sequences of `length` tokens. The length matters for dynamic beyond
// max_position_embeddings (evaluation may go there; training and generation do not), and for longrope, which has other
// factors beyond original_max_position_embeddings.
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t length = 0);

// cos and sin by position (times attention_factor): each [num_positions, R/2], contiguous, float or double.
struct RopeTable {
  at::Tensor cos_PR2;
  at::Tensor sin_PR2;
};
// length 0: num_positions.
RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t num_positions, at::ScalarType dtype,
                          int64_t length = 0);

// Rotates in place the first R dimensions of the first `num_rotated_heads` heads of every row of x [N, row_stride >=
// heads*D] (q and k come first in a fused qkv row). positions_N is int64. inverse = true rotates back (the gradient).
void rope_rotate_(const at::Tensor& x_NQ, const at::Tensor& positions_N, const RopeTable& table,
                  int64_t num_rotated_heads, int64_t head_dim, bool inverse);

// The reference implementation: ATen operations with autograd; returns a new tensor.
at::Tensor rope_rotate_plain(const at::Tensor& x_NQ, const at::Tensor& positions_N, const RopeTable& table,
                             int64_t num_rotated_heads, int64_t head_dim);

}  // namespace mortise
