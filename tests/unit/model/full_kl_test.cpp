// The KL of two heads over the whole vocabulary against ATen with autograd over all logits at once.
#include "model/head/full_kl.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "head_pair.h"

namespace mortise {
namespace {

at::Tensor plain_kl(const HeadSide& policy, const HeadSide& reference, double temperature) {
  const at::Tensor log_p = at::log_softmax(head_logits(policy.hidden_RH, policy.head) / temperature, -1);
  const at::Tensor log_q = at::log_softmax(head_logits(reference.hidden_RH, reference.head) / temperature, -1);
  return (log_p.exp() * (log_p - log_q)).sum(-1);
}

at::Tensor as_tensor(const std::vector<double>& values) {
  const at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<double>());
  return out;
}

struct Judged {
  at::Tensor kl, d_hidden, d_weight;
};

Judged judge_kl(const HeadPair& pair, double temperature) {
  const auto doubled = [](const HeadSide& side) {
    return HeadSide{side.hidden_RH.to(at::kDouble).clone(),
                    VocabularyHead(side.head.weight_VH.to(at::kDouble).clone(), side.head.softcap)};
  };
  HeadSide policy = doubled(pair.policy);
  policy.hidden_RH.requires_grad_(true);
  policy.head.weight_VH.requires_grad_(true);
  const at::Tensor kl = plain_kl(policy, doubled(pair.other), temperature);
  (kl * as_tensor(pair.weight)).sum().backward();
  return {kl.detach(), policy.hidden_RH.grad(), policy.head.weight_VH.grad()};
}

// Vocabularies around the block of 2,048 columns, rows around the chunk of 64.
struct Shape {
  int64_t rows, width, vocab;
};
constexpr Shape kKlShapes[] = {{1, 3, 2}, {5, 8, 17}, {65, 4, 2048}, {70, 6, 2049}, {130, 5, 4500}};

TEST(FullKl, ValuesAndGradientsEqualAutograd) {
  for (const Shape& s : kKlShapes) {
    for (const double softcap : {0.0, 1.7}) {
      for (const double temperature : {1.0, 0.8}) {
        SCOPED_TRACE(std::to_string(s.vocab) + " cap " + std::to_string(softcap));
        const HeadPair pair = make_head_pair(s.rows, s.width, s.vocab, softcap);
        const Judged want = judge_kl(pair, temperature);
        const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH);
        const at::Tensor d_weight = random_tensor({s.vocab, s.width}, 9);  // is added to
        const at::Tensor before = d_weight.clone();
        const std::vector<double> kl =
            head_full_kl(pair.policy, pair.other, temperature, pair.weight, d_hidden, d_weight, {.chunk_bytes = 1});
        EXPECT_CLOSE(as_tensor(kl), want.kl, 1e-11);
        EXPECT_CLOSE(d_hidden, want.d_hidden, 1e-10);
        EXPECT_CLOSE(d_weight - before, want.d_weight, 1e-10);
        EXPECT_GT(want.kl.min().item<double>(), 0.0);
      }
    }
  }
}

TEST(FullKl, Float32IsCloseToDouble) {
  const HeadPair pair = make_head_pair(100, 32, 5000, 0.0, at::kFloat, 0.3);
  const Judged want = judge_kl(pair, 1.0);
  const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH),
                   d_weight = at::zeros_like(pair.policy.head.weight_VH);
  const std::vector<double> kl = head_full_kl(pair.policy, pair.other, 1.0, pair.weight, d_hidden, d_weight);
  EXPECT_CLOSE(as_tensor(kl), want.kl, 2e-6 * want.kl.abs().max().item<double>());
  EXPECT_LT(relative_l2(d_hidden, want.d_hidden), 3e-6);
  EXPECT_LT(relative_l2(d_weight, want.d_weight), 3e-6);
}

TEST(FullKl, OfAPolicyWithItselfIsExactlyNothing) {
  HeadPair pair = make_head_pair(70, 6, 2100, 0.0, at::kFloat);
  pair.other = pair.policy;
  const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH),
                   d_weight = at::zeros_like(pair.policy.head.weight_VH);
  for (const double kl : head_full_kl(pair.policy, pair.other, 1.3, pair.weight, d_hidden, d_weight))
    EXPECT_EQ(kl, 0.0);
  EXPECT_EQ(d_hidden.abs().max().item<double>(), 0.0);
  EXPECT_EQ(d_weight.abs().max().item<double>(), 0.0);
}

// Logits of a token with weight 0 may be anything. Without gradients the values are the same.
TEST(FullKl, TokensWithoutWeightSendNothingBack) {
  HeadPair pair = make_head_pair(66, 4, 30);
  const Judged want = judge_kl(pair, 1.0);
  pair.other.hidden_RH[2].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH);
  const std::vector<double> kl = head_full_kl(pair.policy, pair.other, 1.0, pair.weight, d_hidden, at::Tensor());
  EXPECT_TRUE(std::isnan(kl[2]));
  EXPECT_CLOSE(d_hidden, want.d_hidden, 1e-10);
  const std::vector<double> nothing(66, 0.0);
  const std::vector<double> again = head_full_kl(pair.policy, pair.other, 1.0, nothing, d_hidden, at::Tensor());
  EXPECT_EQ(d_hidden.abs().max().item<double>(), 0.0);
  for (size_t r = 0; r < kl.size(); ++r) {
    if (r == 2) continue;
    EXPECT_EQ(again[r], kl[r]);
  }
  EXPECT_TRUE(head_full_kl({pair.policy.hidden_RH.narrow(0, 0, 0), pair.policy.head},
                           {pair.other.hidden_RH.narrow(0, 0, 0), pair.other.head}, 1.0, {}, at::Tensor(), at::Tensor())
                  .empty());
}

}  // namespace
}  // namespace mortise
