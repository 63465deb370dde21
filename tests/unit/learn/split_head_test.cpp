// A head of which each rank has the rows of its tokens: log-probs, kept tokens and comparisons of whole distributions give the
// numbers and gradients of the whole head, also where the vocabulary does not divide, and where the rows come in windows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "foundation/base/rng.h"
#include "learn/update/tensor_group.h"
#include "model/head/divergence.h"
#include "model/head/kept_head.h"
#include "model/head/shared_vocabulary.h"
#include "model/head/squared_probs.h"
#include "model/weights/tensor_split.h"
#include "support/thread_ranks.h"
#include "unit/model/test_windows.h"

namespace mortise {
namespace {

constexpr int64_t kNum = 9, kWidth = 6, kVocab = 17;
constexpr int64_t kLargeVocab = 4 * kHeadWindowRows + 17;  // two or three windows for each of two or three ranks
constexpr double kTemperature = 0.8;

at::Tensor filled(at::IntArrayRef sizes, uint64_t seed) {
  at::Tensor out = at::empty(sizes, at::kDouble);
  RandomStream stream({seed, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t i = 0; i < out.numel(); ++i) out.mutable_data_ptr<double>()[i] = stream.next_normal();
  return out;
}

// What the passes give with the whole head, or with a share of it, or with windows of a share. The gradient of the weight is
// always that of the whole head.
class SplitHead {
 public:
  SplitHead(double softcap, int64_t vocab, std::shared_ptr<const VocabularyShare> share, bool has_windows = false)
      : share_(std::move(share)),
        vocab_(vocab),
        head_(rows(filled({vocab, kWidth}, 2)), softcap),
        other_(rows(filled({vocab, kWidth}, 3)), softcap) {
    head_.share = other_.share = share_;
    if (!has_windows) return;
    windows_.emplace(matrix(head_), d_matrix_ = at::zeros({share_->most, kWidth}, at::kDouble));
    other_windows_.emplace(matrix(other_), at::Tensor());
    windows_->pair_with(*other_windows_);
    for (VocabularyHead* const head : {&head_, &other_}) head->weight_VH = head->weight_VH.mul(std::nan(""));
    head_.rows = &*windows_;
    other_.rows = &*other_windows_;
  }

  std::vector<at::Tensor> numbers() {
    const LogProbs probs = head_log_prob(hidden_, head_, targets_, kTemperature, true);
    add({probs.log_prob_R, probs.entropy_R, head_sum_pi_squared(hidden_, head_, kTemperature)});
    for (const bool has_norms : {false, true}) {
      for (const at::Tensor& entropy : {at::Tensor(), by_entropy_}) {
        add_gradients([&](const at::Tensor& d_hidden, const at::Tensor& d_weight) {
          head_backward(hidden_, head_, targets_, kTemperature, by_log_prob_, entropy, d_hidden, d_weight,
                        has_norms ? std::span<const TokenNorm>(probs.norms_R) : std::span<const TokenNorm>());
        });
      }
    }
    add_kept();
    const VocabularyHead whole_other(filled({vocab_, kWidth}, 3), other_.softcap);
    for (const double beta : {0.0, 0.4, 1.0}) {
      for (const VocabularyHead& other : {other_, whole_other}) {  // a teacher's head is whole
        add_gradients([&](const at::Tensor& d_hidden, const at::Tensor& d_weight) {
          const std::vector<double> weight(kNum, 0.3);
          add({at::tensor(
              head_divergence({hidden_, head_}, {hidden_, other}, beta, kTemperature, weight, d_hidden, d_weight),
              at::kDouble)});
        });
      }
    }
    return numbers_;
  }

 private:
  [[nodiscard]] at::Tensor rows(const at::Tensor& whole) const {
    return share_ == nullptr ? whole : whole.narrow(0, share_->begin, share_->count).contiguous();
  }
  // As a rank has it, which may have a row more than it uses.
  [[nodiscard]] VocabularyHead matrix(const VocabularyHead& head) const {
    const at::Tensor all = at::empty({share_->most, kWidth}, at::kDouble).fill_(std::nan(""));
    all.narrow(0, 0, share_->count).copy_(head.weight_VH);
    return {all, head.softcap};
  }
  void add(const std::vector<at::Tensor>& numbers) { numbers_.insert(numbers_.end(), numbers.begin(), numbers.end()); }

  void add_gradients(const std::function<void(const at::Tensor&, const at::Tensor&)>& pass) {
    const at::Tensor d_hidden = at::zeros({kNum, kWidth}, at::kDouble);
    if (windows_) d_matrix_.zero_();
    const at::Tensor d_weight =
        windows_ ? d_matrix_.narrow(0, 0, share_->count) : at::zeros(head_.weight_VH.sizes(), at::kDouble);
    pass(d_hidden, windows_ ? at::Tensor() : d_weight);
    const at::Tensor whole = at::zeros({vocab_, kWidth}, at::kDouble);
    whole.narrow(0, share_ == nullptr ? 0 : share_->begin, d_weight.size(0)).copy_(d_weight);
    if (share_ != nullptr) share_->ranks->sum(whole);
    add({d_hidden, whole});
  }

  void add_kept() {
    Sampling sampling;
    sampling.top_k = 5;
    const std::vector<uint8_t> mask(kNum, 1);
    int64_t num_missing = 0;
    const KeptTokens kept = find_kept_tokens(hidden_, head_, targets_, sampling, mask, {}, &num_missing);
    add({at::tensor(std::vector<double>(kept.ids.begin(), kept.ids.end()), at::kDouble),
         kept_log_prob(hidden_, head_, targets_, kTemperature, kept).log_prob_R});
    add_gradients([&](const at::Tensor& d_hidden, const at::Tensor& d_weight) {
      kept_backward(hidden_, head_, targets_, kTemperature, kept, by_log_prob_, by_entropy_, d_hidden, d_weight);
    });
  }

  std::shared_ptr<const VocabularyShare> share_;
  int64_t vocab_;
  VocabularyHead head_, other_;
  at::Tensor d_matrix_;
  std::optional<TestWindows> windows_, other_windows_;
  at::Tensor hidden_ = filled({kNum, kWidth}, 1), by_log_prob_ = filled({kNum}, 4), by_entropy_ = filled({kNum}, 5);
  at::Tensor targets_ = at::arange(kNum, at::kLong).mul(vocab_ / 2 - 1).remainder(vocab_);
  std::vector<at::Tensor> numbers_;
};

// 5 tokens are 2, 2, 1 and 0 on 4 ranks: the last one would have no logits to take a maximum of.
TEST(SplitHead, EachRankHasTokens) {
  EXPECT_TRUE(can_split_vocabulary(kVocab, 4));
  EXPECT_TRUE(can_split_vocabulary(7, 4));
  EXPECT_TRUE(can_split_vocabulary(1, 1));
  EXPECT_FALSE(can_split_vocabulary(5, 4));
  EXPECT_FALSE(can_split_vocabulary(3, 4));
}

void expect_numbers_of_whole_head(int64_t vocab, bool has_windows) {
  for (const double softcap : {0.0, 1.5}) {
    const std::vector<at::Tensor> expected = SplitHead(softcap, vocab, nullptr).numbers();
    for (const int num_ranks : {2, 3}) {
      test::on_ranks(num_ranks, [&](Communicator& communicator) {
        const auto ranks = std::make_shared<TensorGroup>(communicator, num_ranks);
        const int64_t begin = vocab * ranks->rank() / num_ranks, end = vocab * (ranks->rank() + 1) / num_ranks;
        const auto share = std::make_shared<const VocabularyShare>(
            VocabularyShare{ranks, begin, end - begin, (vocab + num_ranks - 1) / num_ranks, vocab});
        const std::vector<at::Tensor> got = SplitHead(softcap, vocab, share, has_windows).numbers();
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].sizes(), expected[i].sizes()) << i;
          EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 1e-12) << i;
        }
      });
    }
  }
}

TEST(SplitHead, GivesTheNumbersOfTheWholeHead) { expect_numbers_of_whole_head(kVocab, /*has_windows=*/false); }

TEST(SplitHead, GivesTheNumbersOfTheWholeHeadInWindows) {
  expect_numbers_of_whole_head(kLargeVocab, /*has_windows=*/true);
}

// Passes without a gradient of the head make none, and a frozen head is not read again to send it.
TEST(SplitHead, HasNoGradientThatNobodyWants) {
  test::on_ranks(2, [&](Communicator& communicator) {
    const auto ranks = std::make_shared<TensorGroup>(communicator, 2);
    const int64_t half = kLargeVocab / 2, begin = ranks->rank() == 0 ? 0 : half;
    const int64_t most = kLargeVocab - half, count = ranks->rank() == 0 ? half : most;
    const auto share = std::make_shared<const VocabularyShare>(VocabularyShare{ranks, begin, count, most, kLargeVocab});
    const VocabularyHead rows(filled({most, kWidth}, 2));
    const at::Tensor gradient = at::zeros({most, kWidth}, at::kDouble);
    TestWindows windows(rows, gradient);
    VocabularyHead own = windows.head();
    own.weight_VH = own.weight_VH.narrow(0, 0, count);
    own.share = share;
    for (const WholeHead::Windows use : {WholeHead::Windows::kGather, WholeHead::Windows::kStay}) {
      EXPECT_FALSE(WholeHead(own, use).d_weight_VH().defined()) << "a pass without gradients";
      const int64_t walks = windows.num_walks_back();
      for (const bool is_frozen : {true, false}) {
        const WholeHead whole(own, use, is_frozen, {});
        EXPECT_EQ(whole.d_weight_VH().defined(), !is_frozen);
        whole.add_gradient();
        EXPECT_EQ(windows.num_walks_back() - walks, is_frozen ? 0 : 1);
      }
    }
  });
}

}  // namespace
}  // namespace mortise
