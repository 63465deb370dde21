// Supervised rows in the updates of the policy: against plain torch, for losses of every coupling, for every cut. The
// schedule of mu against numbers from its formula.
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "learn/objective/sft_mix_schedule.h"
#include "learner_fixture.h"
#include "model/head/log_prob_head.h"

namespace mortise {
namespace {

constexpr double kMu = 0.3;

// Rows of other lengths and groups than those of the policy.
RandomRows recorded() { return RandomRows(false, {.vocab = 29, .groups = 5, .samples = 1, .max_length = 7}); }

// 32 tokens count, and all advantages are short binary fractions: the gradients of the policy's rows by log-probs are
// then exact in float.
RandomRows exact_rows() {
  RandomRows data(/*on_policy=*/true);
  std::vector<uint8_t> mask(data.batch.get<column::ResponseMask>().begin(),
                            data.batch.get<column::ResponseMask>().end());
  int64_t left = 32;
  for (uint8_t& m : mask) m = m != 0 && left-- > 0 ? 1 : 0;
  EXPECT_LE(left, 0);
  std::vector<float> advantages(data.batch.get<column::Advantages>().begin(),
                                data.batch.get<column::Advantages>().end());
  for (float& advantage : advantages) advantage = std::round(advantage * 64.0F) / 64.0F;
  data.batch.put<column::ResponseMask>(std::move(mask));
  data.batch.put<column::Advantages>(std::move(advantages));
  return data;
}

struct Outcome {
  std::vector<at::Tensor> grads;
  UpdateReport report;
};

Outcome mixed(TestPolicy& policy, ActorObjective& objective, const StepTable& batch, LearnerOptions options,
              const SupervisedMix& mix) {
  options.grad_clip = 0.0;
  ActorLearner learner(policy.model, policy.optimizer, objective, options);
  Outcome out;
  UpdatePlace place;
  place.mix = mix;
  auto done = learner.update(batch, all_rows(batch), place);
  EXPECT_TRUE(done.ok()) << done.error().to_string();
  if (done.ok()) out.report = std::move(done).value();
  for (const NamedParameter& p : policy.model.parameters()) out.grads.push_back(p.tensor.grad().clone());
  return out;
}

// [N] log-probs of all tokens, in the graph of plain torch.
at::Tensor plain_log_probs(const Model& model, const StepTable& batch) {
  const PackedForward forward = forward_rows(model, batch, all_rows(batch)).value();
  const at::Tensor all = at::log_softmax(head_logits(forward.selected_RH, model.head_weight()), -1);
  return all.gather(-1, forward.targets_R.unsqueeze(-1)).squeeze(-1);
}

at::Tensor column_of(std::span<const float> values) {
  const std::vector<double> copy(values.begin(), values.end());
  return at::tensor(copy, at::kDouble);
}
at::Tensor mask_of(const StepTable& batch) {
  const auto mask = batch.get<column::ResponseMask>();
  const std::vector<double> copy(mask.begin(), mask.end());
  return at::tensor(copy, at::kDouble);
}

// The supervised loss in plain torch; `rows_per_mean` as in SupervisedRows.
at::Tensor plain_supervised(const Model& model, const StepTable& batch, bool phi, int64_t rows_per_mean) {
  const at::Tensor log_probs = plain_log_probs(model, batch), mask = mask_of(batch);
  const at::Tensor p = log_probs.detach().exp();
  at::Tensor losses = -log_probs * mask;
  if (phi) losses = losses * (p * (1 - p));
  if (rows_per_mean == 0) return losses.sum() / mask.sum();
  at::Tensor sum;
  double count = 0;
  const auto offsets = batch.row_offsets();
  for (int64_t row = 0; row < batch.num_rows(); row += rows_per_mean) {
    const int64_t end = std::min(batch.num_rows(), row + rows_per_mean);
    const int64_t from = offsets[static_cast<size_t>(row)], to = offsets[static_cast<size_t>(end)];
    const at::Tensor tokens = mask.slice(0, from, to).sum();
    if (tokens.item<double>() == 0) continue;
    const at::Tensor mean = losses.slice(0, from, to).sum() / tokens;
    sum = sum.defined() ? sum + mean : mean;
    ++count;
  }
  return sum / count;
}

std::vector<at::Tensor> gradients_of(Model& model, const at::Tensor& loss) {
  model.zero_grad();
  loss.backward();
  std::vector<at::Tensor> out;
  for (const NamedParameter& p : model.parameters()) out.push_back(p.tensor.grad().clone());
  return out;
}

TEST(SftMix, IsThatOfPlainTorch) {
  TestObjective run({"actor.loss_agg_mode=token-mean"});
  TestPolicy policy("float64");
  const RandomRows data = exact_rows(), examples = recorded();
  for (const bool phi : {false, true}) {
    for (const int64_t rows_per_mean : {0, 2}) {
      const at::Tensor supervised = plain_supervised(policy.model, examples.batch, phi, rows_per_mean);
      const at::Tensor log_probs = plain_log_probs(policy.model, data.batch);
      const at::Tensor ratio = (log_probs - log_probs.detach()).exp();
      const at::Tensor policy_loss =
          -(ratio * column_of(data.batch.get<column::Advantages>()) * mask_of(data.batch)).sum() / 32.0;
      const at::Tensor loss = (1 - kMu) * policy_loss + kMu * supervised;
      const auto want = gradients_of(policy.model, loss);
      const SupervisedMix mix{{&examples.batch, phi, rows_per_mean}, kMu};
      const Outcome got = mixed(policy, run.objective, data.batch, cut_by({3, 0}), mix);
      EXPECT_LE(worst_relative_l2(got.grads, want), 1e-10) << phi << rows_per_mean;
      EXPECT_NEAR(got.report.sums.loss, loss.item<double>(), 1e-10);
      EXPECT_NEAR(*got.report.metrics.value("actor/sft_mix_loss"), supervised.item<double>(), 1e-10);
      EXPECT_EQ(*got.report.metrics.value("actor/sft_mix_tokens"), mask_of(examples.batch).sum().item<double>());
      const at::Tensor probs = plain_log_probs(policy.model, examples.batch).exp() * mask_of(examples.batch);
      EXPECT_NEAR(*got.report.metrics.value("actor/sft_mix_prob"),
                  probs.sum().item<double>() / mask_of(examples.batch).sum().item<double>(), 1e-10);
      EXPECT_GT(supervised.item<double>(), 0.05);
    }
  }
}

// Losses local to tokens, to rows and over the update, an entropy bonus, and terms over the vocabulary.
const std::vector<std::vector<std::string>> kLosses{
    {"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.05"},
    {"actor.policy_loss.loss_mode=gspo"},
    {"actor.policy_loss.loss_mode=kl_cov", "actor.entropy_coeff=0.05"},
    {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full"},
};

LearnerOptions with_others(const MicroBatchOptions& cut, const Model& other) {
  LearnerOptions options = cut_by(cut);
  options.temperature = 0.9;  // not of the supervised rows
  options.reference = &other;
  options.teacher_loss = {&other, 0.2, 0.4};
  return options;
}

TEST(SftMix, LeavesThePolicysPartAsItIs) {
  const RandomRows data(false), examples = recorded();
  for (const std::vector<std::string>& settings : kLosses) {
    TestObjective run(settings);
    TestPolicy policy("float64"), other("float64", 29, 2, /*seed=*/6);
    const Model frozen = other.model.clone_frozen();
    const Outcome plain = mixed(policy, run.objective, data.batch, with_others({4, 0}, frozen), {});
    const auto supervised = gradients_of(policy.model, plain_supervised(policy.model, examples.batch, false, 0));
    for (const double mu : {kMu, 1.0}) {
      const SupervisedMix mix{{&examples.batch, false, 0}, mu};
      const Outcome got = mixed(policy, run.objective, data.batch, with_others({4, 0}, frozen), mix);
      std::vector<at::Tensor> want;
      for (size_t i = 0; i < supervised.size(); ++i) want.push_back((1 - mu) * plain.grads[i] + mu * supervised[i]);
      EXPECT_LE(worst_relative_l2(got.grads, want), 1e-12) << settings.front() << " " << mu;
      EXPECT_EQ(got.report.sums.pg_loss, plain.report.sums.pg_loss);
      EXPECT_EQ(got.report.sums.entropy, plain.report.sums.entropy);
      EXPECT_EQ(got.report.sums.kl, plain.report.sums.kl);
      EXPECT_EQ(got.report.sums.num_tokens, plain.report.sums.num_tokens);
    }
  }
}

TEST(SftMix, DoesNotDependOnTheCut) {
  const RandomRows data(false), examples = recorded();
  const SupervisedMix mix{{&examples.batch, true, 2}, kMu};
  for (const std::vector<std::string>& settings : kLosses) {
    TestObjective run(settings);
    for (const std::string dtype : {"float32", "float64"}) {
      TestPolicy policy(dtype), other(dtype, 29, 2, /*seed=*/6);
      const Model frozen = other.model.clone_frozen();
      const Outcome whole = mixed(policy, run.objective, data.batch, with_others(kAll, frozen), mix);
      for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {2, 0}, {5, 0}, {0, 25}}) {
        const Outcome parts = mixed(policy, run.objective, data.batch, with_others(cut, frozen), mix);
        EXPECT_LE(worst_relative_l2(parts.grads, whole.grads), dtype == "float32" ? 1e-5 : 1e-12)
            << settings.front() << " rows " << cut.rows;
        EXPECT_NEAR(parts.report.sums.loss, whole.report.sums.loss, 1e-5);
      }
    }
  }
}

// A supervised token whose embedding is not finite: neither its row nor the policy's rows are learnt.
TEST(SftMix, SkipsAnUpdateThatIsNotFinite) {
  TestObjective run({"actor.loss_agg_mode=token-mean"});
  TestPolicy policy("float32");
  const RandomRows data(true, {.vocab = 20}), examples = recorded();
  const std::vector<std::vector<int64_t>>& prompts = examples.prompts;
  const bool has_more = std::ranges::any_of(
      prompts, [](const auto& ids) { return std::ranges::any_of(ids, [](int64_t id) { return id >= 20; }); });
  ASSERT_TRUE(has_more);
  {
    c10::NoGradGuard no_grad;
    policy.model.weights().embedding_VH.slice(0, 20).fill_(std::nanf(""));
  }
  ActorLearner learner(policy.model, policy.optimizer, run.objective, cut_by({3, 0}));
  const at::Tensor& weight = policy.model.parameters().back().tensor;
  const at::Tensor before = weight.detach().clone();
  UpdatePlace place;
  place.lr = 1e-2;
  place.mix = {{&examples.batch, false, 0}, kMu};
  const UpdateReport mixed = learner.update(data.batch, all_rows(data.batch), place).value();
  EXPECT_TRUE(mixed.skipped);
  EXPECT_TRUE(weight.equal(before));
  place.mix = {};
  EXPECT_FALSE(learner.update(data.batch, all_rows(data.batch), place).value().skipped);
  EXPECT_FALSE(weight.equal(before));
}

TEST(SftMix, MuRisesFallsByACosineAndStays) {
  SftMixConfig mix;
  mix.mu_peak = 0.9;
  mix.mu_valley = 0.05;
  mix.mu_warmup_steps = 4;
  mix.mu_decay_steps = 10;
  EXPECT_EQ(sft_mix_mu(mix, 0), 0.0);
  EXPECT_DOUBLE_EQ(sft_mix_mu(mix, 2), 0.45);
  EXPECT_DOUBLE_EQ(sft_mix_mu(mix, 4), 0.9);
  EXPECT_NEAR(sft_mix_mu(mix, 6), 0.818832222609, 1e-11);  // 0.05 + 0.85 (1 + cos(pi / 5)) / 2
  EXPECT_NEAR(sft_mix_mu(mix, 9), 0.475, 1e-15);
  EXPECT_EQ(sft_mix_mu(mix, 14), 0.05);
  EXPECT_EQ(sft_mix_mu(mix, 1000), 0.05);
  mix.mu_valley.reset();
  EXPECT_DOUBLE_EQ(sft_mix_mu(mix, 9), 0.9);
  EXPECT_EQ(sft_mix_mu(mix, 1000), 0.9);
  mix.mu_warmup_steps = mix.mu_decay_steps = 0;
  EXPECT_EQ(sft_mix_mu(mix, 0), 0.9);
}

}  // namespace
}  // namespace mortise
