// The head of which each rank has the rows of its tokens (VocabularyHead::share), as Megatron's vocab-parallel cross entropy
// (Shoeybi et al. 2019, arXiv:1909.08053): what the passes exchange. Private to this folder.
//
// Passes work on a rank's rows: for each token the ranks exchange maximum, sums and the target's logit, and add their terms of
// the gradient of its hidden state. Those that compare two distributions exchange the sums of both. Passes that filter
// distributions gather the head, and all ranks compute the same. Cost for R tokens: 32 R bytes from each rank, for two
// distributions up to 80 R, and a sum of [R, H]; of a gathered head the memory of the whole head, and with its gradient twice
// that. Thread rule: one thread; collectives of the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "model/head/log_prob_head.h"
#include "model/head/row_softmax.h"

namespace mortise {

// The place of a target among this rank's rows, or outside of them.
inline int64_t own_row(const VocabularyHead& head, int64_t target) {
  return head.share == nullptr ? target : target - head.share->begin;
}
inline bool is_own_row(const VocabularyHead& head, int64_t row) {
  return head.share == nullptr || (row >= 0 && row < head.share->count);
}

// The rows of a window that the head has: the matrix of a rank that shares the vocabulary may end with one that is unused.
// Undefined: none of them.
inline at::Tensor used_rows(const VocabularyHead& head, int64_t first, const at::Tensor& rows) {
  const int64_t count = std::min(rows.size(0), head.weight_VH.size(0) - first);
  return count > 0 ? rows.narrow(0, 0, count) : at::Tensor();
}

// [ranks, ...]: this tensor of each rank, in rank order.
at::Tensor of_all_ranks(const VocabularyShare& share, const at::Tensor& own);
// The numbers of a row in such a tensor [ranks, rows, width] of doubles.
inline const double* numbers_of_rank(const at::Tensor& all, int64_t rank, int64_t row) {
  return all.const_data_ptr<double>() + (rank * all.size(1) + row) * all.size(2);
}

// This rank's rows of a head that may be whole; the head itself if nothing is shared.
VocabularyHead rows_of_share(const VocabularyHead& head, const std::shared_ptr<const VocabularyShare>& share);

// The stats of this rank's rows become those of the whole vocabulary, in the order of the ranks. `target_logits` are 0 where
// another rank has the target.
void join_stats(const VocabularyShare& share, double inverse_temperature, std::span<RowStats> stats,
                std::span<double> target_logits);

// The terms of all ranks. Undefined: nothing.
void sum_hidden_gradient(const VocabularyHead& head, const at::Tensor& d_hidden_RH);

// A head as it is, or gathered, also from windows of its rows. These stay if the head is not shared and kStay asks for
// it.
class WholeHead {
 public:
  enum class Windows { kGather, kStay };
  // For a pass without a gradient of the head.
  WholeHead(const VocabularyHead& head, Windows windows);
  // add_gradient() adds the gradient of a shared head to this rank's rows, or sends it to the owners of their windows.
  // Without a share, a head that was gathered from windows takes none. `d_weight_VH` may be undefined.
  WholeHead(const VocabularyHead& head, Windows windows, bool is_frozen, const at::Tensor& d_weight_VH);
  WholeHead(const WholeHead&) = delete;
  WholeHead& operator=(const WholeHead&) = delete;

  [[nodiscard]] const VocabularyHead& head() const { return head_; }
  [[nodiscard]] const at::Tensor& d_weight_VH() const { return d_weight_VH_; }
  void add_gradient() const;

 private:
  VocabularyHead head_;
  SpreadRows* own_rows_ = nullptr;  // which get the gradient of a shared head; null: none
  at::Tensor own_d_weight_VH_, d_weight_VH_;
  std::shared_ptr<const VocabularyShare> share_;  // null: it was whole
};

}  // namespace mortise
