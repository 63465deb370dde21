// Log-probs over kept tokens against ATen with autograd: a log-softmax of all logits where the others are masked out.
#include "model/head/kept_head.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "torch_helpers.h"

namespace mortise {
namespace {

struct KeptCase {
  at::Tensor hidden, weight, targets;
  double softcap = 0.0;
  KeptTokens kept;
  at::Tensor grad_log_prob, grad_entropy;
};

// Between one and all tokens at each place. With penalties, every third token was seen and a few are shifted.
KeptCase make_kept_case(int64_t rows, int64_t width, int64_t vocab, double softcap, bool penalties,
                        at::ScalarType dtype = at::kDouble) {
  KeptCase out;
  out.hidden = random_tensor({rows, width}, 1, dtype);
  out.weight = random_tensor({vocab, width}, 2, dtype);
  out.grad_log_prob = random_tensor({rows}, 3, dtype);
  out.grad_entropy = random_tensor({rows}, 4, dtype);
  out.softcap = softcap;
  out.targets = at::empty({rows}, at::kLong);
  out.kept.repetition_penalty = penalties ? 1.3 : 1.0;
  RandomStream stream({6, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t r = 0; r < rows; ++r) {
    const auto target = static_cast<int64_t>(stream.next_below(static_cast<uint64_t>(vocab)));
    out.targets.mutable_data_ptr<int64_t>()[r] = target;
    const uint64_t sparse = r == 0 ? 1 : 1 + stream.next_below(6);
    for (int64_t id = 0; id < vocab; ++id) {
      if (id != target && stream.next_below(sparse) != 0) continue;
      out.kept.ids.push_back(static_cast<int32_t>(id));
      if (!penalties) continue;
      out.kept.is_seen.push_back(id % 3 == 0 ? 1 : 0);
      out.kept.shift.push_back(id % 5 == 0 ? 0.4F : 0.0F);
    }
    out.kept.offsets.push_back(static_cast<int64_t>(out.kept.ids.size()));
  }
  return out;
}

struct KeptJudge {
  at::Tensor log_prob, entropy, d_hidden, d_weight;
};

KeptJudge judge_kept(const KeptCase& from, double temperature) {
  const at::Tensor hidden = from.hidden.to(at::kDouble).clone(), weight = from.weight.to(at::kDouble).clone();
  hidden.requires_grad_(true);
  weight.requires_grad_(true);
  at::Tensor logits = head_logits(hidden, VocabularyHead(weight, from.softcap));
  const at::Tensor is_kept = at::zeros_like(logits).to(at::kBool), is_seen = at::zeros_like(is_kept);
  const at::Tensor shift = at::zeros_like(logits).detach();
  for (int64_t r = 0; r < hidden.size(0); ++r) {
    const auto first = static_cast<size_t>(from.kept.offsets[static_cast<size_t>(r)]);
    const auto ids = from.kept.at(r);
    for (size_t i = 0; i < ids.size(); ++i) {
      is_kept[r][ids[i]].fill_(true);
      if (from.kept.shift.empty()) continue;
      is_seen[r][ids[i]].fill_(from.kept.is_seen[first + i] != 0);
      shift[r][ids[i]].fill_(static_cast<double>(from.kept.shift[first + i]));
    }
  }
  const double p = from.kept.repetition_penalty;
  logits = at::where(is_seen, at::where(logits < 0, logits * p, logits / p), logits) - shift;
  const at::Tensor masked =
      at::where(is_kept, logits / temperature, at::full_like(logits, -std::numeric_limits<double>::infinity()));
  const at::Tensor log_p = at::log_softmax(masked, -1);
  const at::Tensor safe = at::where(is_kept, log_p, at::zeros_like(log_p));
  KeptJudge out;
  out.log_prob = log_p.gather(1, from.targets.unsqueeze(1)).squeeze(1);
  out.entropy = -(log_p.exp() * safe).sum(-1);
  ((out.log_prob * from.grad_log_prob.to(at::kDouble)).sum() + (out.entropy * from.grad_entropy.to(at::kDouble)).sum())
      .backward();
  out.d_hidden = hidden.grad();
  out.d_weight = weight.grad();
  return out;
}

TEST(KeptHead, ValuesAndGradientsEqualAutograd) {
  for (const bool penalties : {false, true}) {
    for (const double softcap : {0.0, 1.7}) {
      SCOPED_TRACE(softcap);
      const KeptCase from = make_kept_case(130, 70, 31, softcap, penalties);
      const KeptJudge want = judge_kept(from, 0.8);
      const VocabularyHead head(from.weight, softcap);
      const LogProbs probs = kept_log_prob(from.hidden, head, from.targets, 0.8, from.kept);
      EXPECT_CLOSE(probs.log_prob_R, want.log_prob, 1e-7);  // shifts are float
      EXPECT_CLOSE(probs.entropy_R, want.entropy, 1e-7);
      const at::Tensor d_hidden = at::empty_like(from.hidden), d_weight = random_tensor({31, 70}, 9);
      const at::Tensor before = d_weight.clone();
      kept_backward(from.hidden, head, from.targets, 0.8, from.kept, from.grad_log_prob, from.grad_entropy, d_hidden,
                    d_weight);
      EXPECT_CLOSE(d_hidden, want.d_hidden, 1e-6);
      EXPECT_CLOSE(d_weight - before, want.d_weight, 1e-6);
    }
  }
}

TEST(KeptHead, Float32IsCloseToDouble) {
  const KeptCase from = make_kept_case(70, 48, 200, 0.0, false, at::kFloat);
  const KeptJudge want = judge_kept(from, 1.0);
  const at::Tensor d_hidden = at::empty_like(from.hidden), d_weight = at::zeros_like(from.weight);
  const LogProbs probs = kept_log_prob(from.hidden, from.weight, from.targets, 1.0, from.kept);
  EXPECT_LT(relative_l2(probs.log_prob_R, want.log_prob), 1e-6);
  kept_backward(from.hidden, from.weight, from.targets, 1.0, from.kept, from.grad_log_prob, from.grad_entropy, d_hidden,
                d_weight);
  EXPECT_LT(relative_l2(d_hidden, want.d_hidden), 3e-6);
  EXPECT_LT(relative_l2(d_weight, want.d_weight), 3e-6);
}

// The whole vocabulary kept is the ordinary head.
TEST(KeptHead, OfAllTokensIsTheOrdinaryHead) {
  KeptCase from = make_kept_case(9, 5, 12, 0.0, false);
  from.kept = {};
  for (int64_t r = 0; r < 9; ++r) {
    for (int32_t id = 0; id < 12; ++id) from.kept.ids.push_back(id);
    from.kept.offsets.push_back(12 * (r + 1));
  }
  const LogProbs want = head_log_prob(from.hidden, from.weight, from.targets, 1.1, true);
  const LogProbs have = kept_log_prob(from.hidden, from.weight, from.targets, 1.1, from.kept);
  EXPECT_CLOSE(have.log_prob_R, want.log_prob_R, 1e-12);
  EXPECT_CLOSE(have.entropy_R, want.entropy_R, 1e-12);
}

TEST(KeptHead, FindsWhatFiltersAndPenaltiesLeave) {
  // The logits of each place are those of `hidden`.
  const at::Tensor hidden = at::zeros_like(random_tensor({3, 4}, 1)), weight = at::zeros_like(random_tensor({4, 4}, 1));
  for (int64_t i = 0; i < 4; ++i) weight[i][i].fill_(1.0);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 4; ++i) hidden[r][i].fill_(static_cast<double>(i));
  }
  const at::Tensor targets = at::zeros_like(hidden).to(at::kLong).select(1, 0).contiguous();  // token 0
  const Sampling sampling{.temperature = 2.0, .top_k = 2, .repetition_penalty = 2.0, .presence_penalty = 1.0};
  const std::vector<uint8_t> mask{1, 0, 1};
  std::vector<PlaceEdits> edits(3);
  edits[2] = {{2}, {{3, 4}, {1, 0}}};  // 2 is forbidden; 3 came four times, 1 is in the prompt
  int64_t missing = 0;
  const KeptTokens kept = find_kept_tokens(hidden, weight, targets, sampling, mask, edits, &missing);
  EXPECT_EQ(kept.offsets, (std::vector<int64_t>{0, 3, 4, 7}));
  EXPECT_EQ(kept.ids, (std::vector<int32_t>{0, 2, 3, 0, 0, 1, 3}));  // the target is always there
  EXPECT_EQ(missing, 2);
  EXPECT_EQ(kept.is_seen, (std::vector<uint8_t>{0, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(kept.shift, (std::vector<float>{0, 0, 0, 0, 0, 0, 1}));
  // 0, 1/2 and 3/2 - 1, over the temperature 2.
  const LogProbs probs = kept_log_prob(hidden, weight, targets, 2.0, kept);
  EXPECT_NEAR(probs.log_prob_R[1].item<double>(), 0.0, 1e-15);
  EXPECT_NEAR(probs.log_prob_R[2].item<double>(), -std::log(1 + 2 * std::exp(0.25)), 1e-12);
}

}  // namespace
}  // namespace mortise
