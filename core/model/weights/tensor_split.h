// Which numbers of each parameter a rank has if the ranks of a group share the matrices of the layers (tensor parallel,
// layers/tensor_ranks.h). Rank r of T has the r-th part of the query heads, of the key-value heads, and of the units of every
// MLP: of each expert too. With fewer key-value heads than ranks, neighbours have the same one.
// Thread rule: pure functions of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "model/weights/model_config.h"

namespace mortise {

// What the rows or columns of a parameter are split by.
enum class SplitAxis { kNone, kRows, kColumns };

struct TensorSplit {
  SplitAxis axis = SplitAxis::kNone;
  int64_t size = 0;     // rows or columns of one rank
  int64_t repeats = 1;  // neighbours that have the same ones, each with a term of their gradient
  // Every rank has the parameter, but only a term of its gradient.
  bool has_terms = false;

  [[nodiscard]] bool is_split() const { return axis != SplitAxis::kNone; }
  [[nodiscard]] int64_t begin(int64_t rank) const { return rank / repeats * size; }
  // Does this rank count for the numbers that several have?
  [[nodiscard]] bool is_first(int64_t rank) const { return rank % repeats == 0; }
  // A rank's part of the whole parameter; a view. Precondition: is_split().
  [[nodiscard]] at::Tensor part_of(const at::Tensor& whole, int64_t rank) const {
    return whole.narrow(axis == SplitAxis::kRows ? 0 : 1, begin(rank), size);
  }
};

// Can so many ranks share the layers? `config` has no fused projections, and no experts of gpt-oss.
[[nodiscard]] bool can_split_layers(const ModelConfig& config, int64_t num_ranks);
// The layers of one rank. Precondition: can_split_layers.
[[nodiscard]] ModelConfig split_config(const ModelConfig& config, int64_t num_ranks);
// What a rank has of the parameter with this name (model.layers.0.self_attn.q_proj.weight).
[[nodiscard]] TensorSplit split_of(const ModelConfig& config, std::string_view name, int64_t num_ranks);

}  // namespace mortise
