// The KL over the whole vocabulary in updates: against plain torch, for every cut, with an adapter, measured only.
#include "plain_term.h"

namespace mortise {
namespace {

const std::vector<std::string> kFull{"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full",
                                     "actor.loss_agg_mode=token-mean"};

// sum_v p (log p - log q).
PlainTerm plain_full_kl(Model& model, const Model& reference, const StepTable& batch, double temperature) {
  return plain_term(model, reference, batch, temperature, [](const at::Tensor& log_p, const at::Tensor& log_q) {
    return (log_p.exp() * (log_p - log_q)).sum(-1);
  });
}

// Rows without advantage, so that the term is all there is, and the policy loss on top of it.
TEST(FullKlTerm, TheFullKlIsThatOfPlainTorch) {
  TestObjective run(kFull);
  EXPECT_TRUE(run.objective.needs_reference());
  EXPECT_FALSE(run.objective.needs_ref_log_prob());
  TestPolicy policy("float64"), other("float64", 29, 2, /*seed=*/6);
  RandomRows data(false);
  data.batch.drop<column::RefLogProb>();
  data.batch.make<column::Advantages>();  // zeros
  const Model reference = other.model.clone_frozen();
  const PlainTerm want = plain_full_kl(policy.model, reference, data.batch, 0.9);
  LearnerOptions options = cut_by({3, 0});
  options.temperature = 0.9;
  options.reference = &reference;
  options.head.chunk_bytes = 1;
  UpdateReport report;
  const auto grads = policy.gradients(run.objective, data.batch, options, &report);
  EXPECT_LE(worst_relative_l2(grads, want.grads), 1e-7);  // weights and coefficients of tokens are float
  EXPECT_GT(want.mean, 0.1);
  EXPECT_NEAR(report.sums.kl / static_cast<double>(report.sums.num_tokens), want.mean, 1e-12);
  EXPECT_NEAR(report.sums.kl_loss, want.mean, 1e-6);
  EXPECT_NEAR(report.sums.loss, 0.3 * want.mean, 1e-6);

  options.reference = nullptr;
  ActorLearner learner(policy.model, policy.optimizer, run.objective, options);
  const std::vector<int64_t> rows{0};
  EXPECT_FALSE(learner.update(data.batch, rows, {}).ok());
}

TEST(FullKlTerm, TheFullKlDoesNotDependOnTheCut) {
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {  // local to tokens, to rows, over the update
    std::vector<std::string> overrides = kFull;
    overrides.push_back("actor.policy_loss.loss_mode=" + loss);
    TestObjective run(overrides);
    for (const std::string dtype : {"float32", "float64"}) {
      TestPolicy policy(dtype), other(dtype, 29, 2, /*seed=*/6);
      const RandomRows data(false);
      const auto with = [&](const MicroBatchOptions& cut) {
        LearnerOptions options = cut_by(cut);
        options.reference = &other.model;
        return options;
      };
      UpdateReport whole_report, part_report;
      const auto whole = policy.gradients(run.objective, data.batch, with(kAll), &whole_report);
      for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {5, 0}, {0, 25}}) {
        const auto parts = policy.gradients(run.objective, data.batch, with(cut), &part_report);
        EXPECT_LE(worst_relative_l2(parts, whole), dtype == "float32" ? 1e-5 : 1e-12) << loss << " rows " << cut.rows;
        EXPECT_NEAR(part_report.sums.loss, whole_report.sums.loss, 1e-5);
        EXPECT_NEAR(part_report.sums.kl, whole_report.sums.kl, 1e-5 * whole_report.sums.kl);
      }
      // The term comes on top of the policy loss.
      TestObjective alone({"actor.policy_loss.loss_mode=" + loss, "actor.loss_agg_mode=token-mean"});
      const auto without = policy.gradients(alone.objective, data.batch, cut_by({5, 0}));
      const PlainTerm term = plain_full_kl(policy.model, other.model, data.batch, 1.0);
      std::vector<at::Tensor> both;
      for (size_t i = 0; i < without.size(); ++i) both.push_back(without[i] + term.grads[i]);
      EXPECT_LE(worst_relative_l2(whole, both), dtype == "float32" ? 1e-5 : 1e-6) << loss;
    }
  }
}

// An adapter's reference is its base, in the same memory.
TEST(FullKlTerm, TheFullKlOfAnAdapterIsToItsBase) {
  TestObjective run(kFull);
  TestPolicy policy("float64");
  Model& model = policy.model;
  const Model base = model.clone_frozen();
  ASSERT_TRUE(model.train_lora({.rank = 3, .alpha = 6.0}, 4).ok());
  std::vector<OptimizedParameter> trained;
  for (const NamedParameter& p : model.trainable()) trained.push_back({p.name, p.tensor, true});
  AdamW optimizer(trained, {});
  RandomRows data(false);
  data.batch.make<column::Advantages>();  // zeros
  const Model view = model.base_view();
  LearnerOptions options = cut_by({5, 0});
  options.reference = &view;
  options.grad_clip = 0.0;
  ActorLearner learner(model, optimizer, run.objective, options);
  const std::vector<int64_t> rows = all_rows(data.batch);
  EXPECT_NEAR(learner.update(data.batch, rows, {}).value().sums.kl, 0.0, 1e-10) << "B begins as 0";
  uint64_t seed = 30;
  for (const NamedParameter& p : model.trainable()) {
    RandomStream stream({seed++, RandomPurpose::kTest, 0, 0, 0});
    at::Tensor values = p.tensor.detach();
    for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<double>()[i] = 0.3 * stream.next_normal();
  }
  model.weights_changed();
  const UpdateReport report = learner.update(data.batch, rows, {}).value();
  std::vector<at::Tensor> grads;
  for (const NamedParameter& p : model.trainable()) grads.push_back(p.tensor.grad().clone());
  const PlainTerm want = plain_full_kl(model, base, data.batch, 1.0);
  EXPECT_GT(want.mean, 1e-3);
  EXPECT_NEAR(report.sums.kl / static_cast<double>(report.sums.num_tokens), want.mean, 1e-12);
  EXPECT_LE(worst_relative_l2(grads, want.grads), 1e-7);
}

TEST(FullKlTerm, AFullKlWithoutACoefficientIsOnlyMeasured) {
  std::vector<std::string> overrides = kFull;
  overrides[1] = "actor.kl_loss_coef=0";
  TestObjective run(overrides);
  TestPolicy policy("float32"), other("float32", 29, 2, /*seed=*/6);
  RandomRows data(false);
  data.batch.make<column::Advantages>();  // zeros
  LearnerOptions options = cut_by({5, 0});
  options.reference = &other.model;
  UpdateReport report;
  policy.gradients(run.objective, data.batch, options, &report);
  EXPECT_GT(report.sums.kl, 0.1);
  EXPECT_EQ(report.grad_norm, 0.0);
}

}  // namespace
}  // namespace mortise
