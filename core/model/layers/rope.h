// Rotary position embedding (Su et al. 2021, RoFormer), rotating pairs (i, i + D/2), with the frequency scalings of
// linear, dynamic, llama3 and yarn (Peng et al. 2023). Tables are computed in double and rounded once.
//
// Cost: table O(positions D), applied O(N heads D). Thread rule: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/weights/model_config.h"

namespace mortise {

// D/2 inverse frequencies after scaling. `num_positions` counts for dynamic alone, and there only beyond
// max_position_embeddings (training and generation never go there; evaluation may).
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t num_positions = 0);

// cos and sin by position (times attention_factor): each [num_positions, D/2], contiguous, float or double.
struct RopeTable {
  at::Tensor cos_PD2;
  at::Tensor sin_PD2;
};
RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t num_positions, at::ScalarType dtype);

// Rotates in place the first `num_rotated_heads` heads of every row of x [N, row_stride >= heads*D] (q and k lie first
// in a fused qkv row). positions_N is int64. inverse = true rotates back (the gradient).
void rope_rotate_(const at::Tensor& x_NQ, const at::Tensor& positions_N, const RopeTable& table,
                  int64_t num_rotated_heads, int64_t head_dim, bool inverse);

// The judge: ATen operations with autograd; returns a new tensor.
at::Tensor rope_rotate_plain(const at::Tensor& x_NQ, const at::Tensor& positions_N, const RopeTable& table,
                             int64_t num_rotated_heads, int64_t head_dim);

}  // namespace mortise
