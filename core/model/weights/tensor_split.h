// Which numbers of each parameter a rank has if the ranks of a group share the matrices of the layers (tensor parallel,
// layers/tensor_ranks.h). Rank r of T has the r-th part of the query heads, of the key-value heads, and of the units of every
// MLP: of each expert too. With fewer key-value heads than ranks, neighbours have the same one. A matrix that holds several
// under one another (Phi-3's qkv_proj and gate_up_proj) is split part by part. In the experts of gpt-oss, which are one
// tensor, the units are columns. A rank has the rows of its tokens of embedding and head. Ranks may differ by one row.
// Thread rule: pure functions of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/weights/model_config.h"

namespace mortise {

// How a parameter is split: not, by rows, or by columns, which are another dimension than the first.
enum class SplitAxis { kNone, kRows, kColumns };

// Neighbouring rows or columns that the ranks share, such as those of all query heads.
struct SplitRange {
  int64_t begin = 0;    // where they begin in the whole
  int64_t size = 0;     // those of one rank
  int64_t repeats = 1;  // neighbours that have the same ones, each with a term of their gradient
  // Not 0: `num_ranks` ranks share so many rows, which need not divide. The last of a rank's `size` rows may then be unused.
  // It is 0, and so is its gradient.
  int64_t num_shared = 0, num_ranks = 1;

  [[nodiscard]] int64_t begin_on(int64_t rank) const {
    return num_shared > 0 ? num_shared * rank / num_ranks : begin + rank / repeats * size;
  }
  // Those that are used.
  [[nodiscard]] int64_t size_on(int64_t rank) const {
    return num_shared > 0 ? begin_on(rank + 1) - begin_on(rank) : size;
  }
  // Does this rank count for the numbers that several have?
  [[nodiscard]] bool is_first(int64_t rank) const { return rank % repeats == 0; }
};

struct TensorSplit {
  SplitAxis axis = SplitAxis::kNone;
  // One behind the other, in the whole and in a rank's part. Those that neighbours repeat come last. Columns have one range.
  std::vector<SplitRange> ranges = {};
  // Every rank has the parameter, but only a term of its gradient.
  bool has_terms = false;
  int64_t column_dim = 1;  // kColumns: in the experts of gpt-oss also the last of three

  [[nodiscard]] bool is_split() const { return axis != SplitAxis::kNone; }
  [[nodiscard]] int64_t dim() const { return axis == SplitAxis::kColumns ? column_dim : 0; }
  // A rank's part of the whole parameter: a view if there is one range, else a copy. Precondition: is_split().
  [[nodiscard]] at::Tensor part_of(const at::Tensor& whole, int64_t rank) const;
  // The numbers of one of the ranges in a rank's part, with those that are unused; a view.
  [[nodiscard]] at::Tensor range_of(const at::Tensor& part, size_t range) const;
  // Puts a rank's part, or what it counts for, where it belongs, but for numbers that a neighbour gives.
  void put_part(const at::Tensor& part, int64_t rank, const at::Tensor& whole) const;
  // The same of all ranks' parts, one in each row.
  void put_parts(const at::Tensor& parts, const at::Tensor& whole) const;
  // What this rank counts for: the front of its part, without what is unused; a view. Empty if neighbours count for all of it.
  [[nodiscard]] at::Tensor counted(const at::Tensor& part, int64_t rank) const;
  // Its rows or columns.
  [[nodiscard]] int64_t counted_size(int64_t rank) const;
  // Those of a rank's part that are used.
  [[nodiscard]] int64_t used_size(int64_t rank) const;
};

// Does each of so many ranks have tokens of the vocabulary? The last ones have fewer than the others if it does not divide.
[[nodiscard]] bool can_split_vocabulary(int64_t vocab_size, int64_t num_ranks);
// Can so many ranks share the layers, the embedding and the head?
[[nodiscard]] bool can_split_layers(const ModelConfig& config, int64_t num_ranks);
// The layers of one rank, and the rows of its embedding and head with those that are unused. Precondition: can_split_layers.
[[nodiscard]] ModelConfig split_config(const ModelConfig& config, int64_t num_ranks);
// Is it split by tokens of the vocabulary: an embedding, or a head that is none of a classifier?
[[nodiscard]] bool is_split_by_tokens(std::string_view name);
// What a rank has of the parameter with this name (model.layers.0.self_attn.q_proj.weight).
[[nodiscard]] TensorSplit split_of(const ModelConfig& config, std::string_view name, int64_t num_ranks);

}  // namespace mortise
