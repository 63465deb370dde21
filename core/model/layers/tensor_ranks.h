// Tensor parallel (Megatron, Shoeybi et al. 2019, arXiv:1909.08053): the ranks of a group share the matrices of each layer.
//
// A rank has some heads of attention and some units of the MLP, for all tokens of a pass. The matrices that make them (q,
// k, v, gate, up) are split by rows, and those behind them (o, down) by columns (weights/tensor_split.h). Each rank then has
// one term of what the layer adds to the hidden states, and the ranks add these terms. Norms are on every rank, which computes
// them alike. A rank also has some rows of the embedding and of the head: those of its tokens of the vocabulary.
//
// Cost of a layer for N tokens: forward two sums of [N, H] over the group, backward two more. The embedding has one in
// forward. Thread rule: one thread at a time. The sums are collectives in the group: its ranks run the same layers on the same
// tokens in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "foundation/base/result.h"
#include "model/layers/spread_rows.h"

namespace mortise {

// The ranks of the group. Errors are kept: status() tells the first one, and numbers after it have no meaning.
class TensorRanks {
 public:
  virtual ~TensorRanks() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // Which of the groups of the run this is, and how many there are. All have the same weights.
  [[nodiscard]] virtual int group() const = 0;
  [[nodiscard]] virtual int num_groups() const = 0;
  // tensor = the sum over the ranks, with the same bits on each.
  virtual void sum(const at::Tensor& tensor) = 0;
  // The same over the ranks [k size, (k + 1) size) of the group to which this one belongs.
  virtual void sum_of_neighbours(const at::Tensor& tensor, int size) = 0;
  // output = what each rank has, in rank order.
  virtual void gather(const at::Tensor& input, const at::Tensor& output) = 0;
  // output = what each rank has for this one, in rank order; input = what this rank has for each of them. The sizes count
  // numbers, and may be 0.
  virtual void exchange(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                        std::span<const int64_t> output_sizes) = 0;
  [[nodiscard]] virtual Result<> status() const = 0;
};

// The tokens of the vocabulary whose rows of embedding and head this rank has.
struct VocabularyShare {
  std::shared_ptr<TensorRanks> ranks;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t most = 0;   // the most that a rank of the group has
  int64_t whole = 0;  // tokens of the vocabulary
};

// The rows of an embedding for all ids, of which this rank has its share: weight_VH [most, H].
at::Tensor split_embedding(const at::Tensor& weight_VH, const at::Tensor& ids_N, const VocabularyShare& share);
// The same if these rows come from several ranks, too.
at::Tensor split_embedding(const at::Tensor& weight_VH, const at::Tensor& ids_N, const VocabularyShare& share,
                           SpreadRows& rows);

// x as it is, in front of matrices that are split by rows. Its gradient is the sum of those of the ranks.
at::Tensor enter_split(const at::Tensor& x, const std::shared_ptr<TensorRanks>& ranks);
// The sum of the ranks' x, behind a matrix that is split by columns. The gradient passes as it is.
at::Tensor leave_split(const at::Tensor& x, const std::shared_ptr<TensorRanks>& ranks);

}  // namespace mortise
