// The divergence to a teacher against ATen with autograd, by the formulas of TRL's GKDTrainer.generalized_jsd_loss.
#include "model/head/divergence.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "head_pair.h"

namespace mortise {
namespace {

// TRL: kl_div(input, target, log_target) is sum exp(target) (target - input).
at::Tensor kl_div(const at::Tensor& input, const at::Tensor& target) {
  return (target.exp() * (target - input)).sum(-1);
}

at::Tensor trl_jsd(const at::Tensor& student, const at::Tensor& teacher, double beta) {
  if (beta == 0.0) return kl_div(student, teacher);
  if (beta == 1.0) return kl_div(teacher, student);
  const at::Tensor mixture = at::logsumexp(at::stack({student + std::log1p(-beta), teacher + std::log(beta)}), {0});
  return beta * kl_div(mixture, teacher) + (1 - beta) * kl_div(mixture, student);
}

struct TeacherJudge {
  at::Tensor values, d_hidden, d_weight;
};

TeacherJudge judge_divergence(const HeadPair& pair, double beta, double temperature) {
  const auto log_probs = [&](const at::Tensor& hidden, const VocabularyHead& head) {
    return at::log_softmax(head_logits(hidden, head) / temperature, -1);
  };
  const at::Tensor hidden = pair.policy.hidden_RH.to(at::kDouble).clone();
  const at::Tensor weight = pair.policy.head.weight_VH.to(at::kDouble).clone();
  hidden.requires_grad_(true);
  weight.requires_grad_(true);
  const at::Tensor student = log_probs(hidden, VocabularyHead(weight, pair.policy.head.softcap));
  const at::Tensor teacher =
      log_probs(pair.other.hidden_RH.to(at::kDouble),
                VocabularyHead(pair.other.head.weight_VH.to(at::kDouble), pair.other.head.softcap));
  const at::Tensor values = trl_jsd(student, teacher, beta);
  at::Tensor sum = values[0] * pair.weight[0];
  for (int64_t r = 1; r < values.size(0); ++r) sum = sum + values[r] * pair.weight[static_cast<size_t>(r)];
  sum.backward();
  return {values.detach(), hidden.grad(), weight.grad()};
}

at::Tensor tensor_of_values(const std::vector<double>& values) {
  const at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<double>());
  return out;
}

TEST(Divergence, ValuesAndGradientsEqualTrlsFormula) {
  struct HeadSize {
    int64_t rows, width, vocab;
  };
  for (const HeadSize& s : {HeadSize{1, 3, 2}, HeadSize{65, 4, 2048}, HeadSize{70, 6, 2049}, HeadSize{12, 5, 4500}}) {
    for (const double beta : {0.0, 0.1, 0.5, 0.9, 1.0}) {
      for (const double softcap : {0.0, 1.7}) {
        SCOPED_TRACE(std::to_string(s.vocab) + " beta " + std::to_string(beta) + " cap " + std::to_string(softcap));
        const HeadPair pair = make_head_pair(s.rows, s.width, s.vocab, softcap);
        const TeacherJudge want = judge_divergence(pair, beta, 0.8);
        const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH);
        const at::Tensor d_weight = random_tensor({s.vocab, s.width}, 9);  // is added to
        const at::Tensor before = d_weight.clone();
        const std::vector<double> values =
            head_divergence(pair.policy, pair.other, beta, 0.8, pair.weight, d_hidden, d_weight, {.chunk_bytes = 1});
        EXPECT_CLOSE(tensor_of_values(values), want.values, 1e-11);
        EXPECT_CLOSE(d_hidden, want.d_hidden, 1e-10);
        EXPECT_CLOSE(d_weight - before, want.d_weight, 1e-10);
      }
    }
  }
}

// Also where one distribution has next to nothing of what the other has.
TEST(Divergence, Float32IsCloseToDouble) {
  for (const double beta : {0.0, 0.5, 0.9}) {
    for (const double scale : {0.3, 3.0}) {
      SCOPED_TRACE(std::to_string(beta) + " scale " + std::to_string(scale));
      const HeadPair pair = make_head_pair(40, 32, 3000, 0.0, at::kFloat, scale,
                                           /*first_seed=*/11);  // the judge is exact enough for these
      const TeacherJudge want = judge_divergence(pair, beta, 1.0);
      const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH);
      const at::Tensor d_weight = at::zeros_like(pair.policy.head.weight_VH);
      const std::vector<double> values =
          head_divergence(pair.policy, pair.other, beta, 1.0, pair.weight, d_hidden, d_weight);
      EXPECT_CLOSE(tensor_of_values(values), want.values, 1e-5 * want.values.abs().max().item<double>());
      // Where the policy is sure of one token, its gradient is nearly nothing: the difference of terms as large as the
      // values. The judge, which knows no better, rounds these terms in double.
      const double term = want.values.abs().max().item<double>() * std::ranges::max(pair.weight) *
                          pair.policy.head.weight_VH.abs().max().item<double>();
      const double bound =
          2e-5 + 8 * std::numeric_limits<double>::epsilon() * term / want.d_hidden.abs().max().item<double>();
      EXPECT_LT(bound, 0.05) << "the judge is exact enough to compare with";
      EXPECT_LT(relative_l2(d_hidden, want.d_hidden), bound);
      EXPECT_LT(relative_l2(d_weight, want.d_weight), bound);
    }
  }
}

TEST(Divergence, OfAPolicyWithItselfIsNothing) {
  HeadPair pair = make_head_pair(10, 6, 2100, 0.0);
  pair.other = pair.policy;
  for (const double beta : {0.0, 0.5, 1.0}) {
    const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH);
    for (const double value : head_divergence(pair.policy, pair.other, beta, 1.3, pair.weight, d_hidden, at::Tensor()))
      EXPECT_NEAR(value, 0.0, 1e-14);
    EXPECT_LT(d_hidden.abs().max().item<double>(), 1e-12);
  }
}

TEST(Divergence, TokensWithoutWeightSendNothingBack) {
  HeadPair pair = make_head_pair(66, 4, 30, 0.0);
  const TeacherJudge want = judge_divergence(pair, 0.5, 1.0);
  pair.other.hidden_RH[2].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor d_hidden = at::empty_like(pair.policy.hidden_RH);
  head_divergence(pair.policy, pair.other, 0.5, 1.0, pair.weight, d_hidden, at::Tensor());
  EXPECT_CLOSE(d_hidden, want.d_hidden, 1e-10);
}

}  // namespace
}  // namespace mortise
