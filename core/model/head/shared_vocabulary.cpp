// See shared_vocabulary.h.
#include "model/head/shared_vocabulary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace mortise {
namespace {

constexpr int64_t kSentNumbers = 4;  // for each token

// The whole weight, from each rank's rows. Some rows of each rank at a time.
at::Tensor gathered_weight(const at::Tensor& own_VH, const VocabularyShare& share) {
  constexpr int64_t kMostNumbers = int64_t{4} << 20;  // those of all ranks
  const int64_t width = own_VH.size(1), num_ranks = share.ranks->size();
  const at::Tensor whole = at::empty({share.whole, width}, own_VH.options());
  const int64_t at_once = std::max<int64_t>(1, kMostNumbers / (width * num_ranks));
  for (int64_t begin = 0; begin < share.most; begin += at_once) {
    const int64_t count = std::min(at_once, share.most - begin);
    const at::Tensor sent = at::zeros({count, width}, own_VH.options());
    const int64_t used = std::min(count, share.count - begin);
    if (used > 0) sent.narrow(0, 0, used).copy_(own_VH.narrow(0, begin, used));
    const at::Tensor parts = at::empty({num_ranks, count, width}, own_VH.options());
    share.ranks->gather(sent.view({-1}), parts.view({-1}));
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      const int64_t first = share.whole * rank / num_ranks, behind = share.whole * (rank + 1) / num_ranks;
      const int64_t rows = std::min(count, behind - first - begin);
      if (rows > 0) whole.narrow(0, first + begin, rows).copy_(parts.select(0, rank).narrow(0, 0, rows));
    }
  }
  return whole;
}

}  // namespace

at::Tensor of_all_ranks(const VocabularyShare& share, const at::Tensor& own) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), share.ranks->size());
  const at::Tensor all = at::empty(sizes, own.options());
  share.ranks->gather(own.view({-1}), all.view({-1}));
  return all;
}

VocabularyHead rows_of_share(const VocabularyHead& head, const std::shared_ptr<const VocabularyShare>& share) {
  if (share == nullptr || head.share != nullptr) return head;
  TORCH_CHECK(head.rows == nullptr, "head: a share of the vocabulary next to windows of a whole head");
  VocabularyHead own = head;
  own.weight_VH = head.weight_VH.narrow(0, share->begin, share->count);
  own.share = share;
  return own;
}

void join_stats(const VocabularyShare& share, double inverse_temperature, std::span<RowStats> stats,
                std::span<double> target_logits) {
  const auto num_rows = static_cast<int64_t>(stats.size());
  const at::Tensor own = at::empty({num_rows, kSentNumbers}, at::kDouble);
  auto* sent = own.mutable_data_ptr<double>();
  for (size_t r = 0; r < stats.size(); ++r) {
    for (const double number : {stats[r].max, stats[r].sum, stats[r].weighted, target_logits[r]}) *sent++ = number;
  }
  const at::Tensor all = of_all_ranks(share, own);
  for (int64_t r = 0; r < num_rows; ++r) {
    const auto place = static_cast<size_t>(r);
    for (int64_t rank = 0; rank < share.ranks->size(); ++rank) {
      const double* const from = numbers_of_rank(all, rank, r);
      const RowStats of_rank{from[0], from[1], from[2]};
      stats[place] = rank == 0 ? of_rank : stats[place].merged(of_rank, inverse_temperature);
      target_logits[place] = rank == 0 ? from[3] : target_logits[place] + from[3];
    }
  }
}

void sum_hidden_gradient(const VocabularyHead& head, const at::Tensor& d_hidden_RH) {
  if (head.share != nullptr && d_hidden_RH.defined() && d_hidden_RH.numel() > 0) head.share->ranks->sum(d_hidden_RH);
}

WholeHead::WholeHead(const VocabularyHead& head, Windows windows) : head_(head), share_(head.share) {
  const at::NoGradGuard no_grad;
  if (head.rows != nullptr && (windows == Windows::kGather || share_ != nullptr)) {
    head_.weight_VH = at::empty(head.weight_VH.sizes(), head.weight_VH.options());
    head_.rows = nullptr;
    head.rows->walk([&](int64_t first, const at::Tensor& rows) {
      const at::Tensor used = used_rows(head, first, rows);
      if (used.defined()) head_.weight_VH.narrow(0, first, used.size(0)).copy_(used);
    });
  }
  if (share_ == nullptr) return;
  head_.weight_VH = gathered_weight(head_.weight_VH, *share_);
  head_.share = nullptr;
}

WholeHead::WholeHead(const VocabularyHead& head, Windows windows, bool is_frozen, const at::Tensor& d_weight_VH)
    : WholeHead(head, windows) {
  if (is_frozen) return;
  own_d_weight_VH_ = d_weight_VH_ = d_weight_VH;
  if (share_ == nullptr) return;
  own_rows_ = head.rows;
  if (d_weight_VH.defined() || own_rows_ != nullptr)
    d_weight_VH_ = at::zeros(head_.weight_VH.sizes(), head_.weight_VH.options());
}

void WholeHead::add_gradient() const {
  if (share_ == nullptr || !d_weight_VH_.defined()) return;
  const at::Tensor own = d_weight_VH_.narrow(0, share_->begin, share_->count);
  if (own_d_weight_VH_.defined()) own_d_weight_VH_.add_(own);
  if (own_rows_ == nullptr) return;
  own_rows_->walk_back([&](int64_t first, const at::Tensor& rows, const at::Tensor& d_rows) {
    const int64_t count = std::min(rows.size(0), share_->count - first);
    if (d_rows.defined() && count > 0) d_rows.narrow(0, 0, count).add_(own.narrow(0, first, count));
  });
}

}  // namespace mortise
