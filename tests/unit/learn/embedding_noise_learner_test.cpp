// NEFTune in updates: gradients that do not depend on the cut, and passes that have no noise.
#include <gtest/gtest.h>

#include <optional>

#include "learn/update/sft_learner.h"
#include "learner_fixture.h"

namespace mortise {
namespace {

struct NoisyPolicy {
  TestPolicy policy{"float64"};
  std::vector<OptimizedParameter> trained;
  std::optional<AdamW> optimizer;

  NoisyPolicy() {
    for (const NamedParameter& p : policy.model.trainable()) trained.push_back({p.name, p.tensor, true});
    optimizer.emplace(trained, AdamWOptions{});
  }
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> out;
    for (const NamedParameter& p : policy.model.trainable()) out.push_back(p.tensor.grad().clone());
    return out;
  }
  // The gradients of one update with learning rate 0.
  std::vector<at::Tensor> gradients(TestObjective& run, const StepTable& batch, LearnerOptions options,
                                    const UpdatePlace& place, double alpha) {
    options.grad_clip = 0.0;
    options.seed = 17;
    options.pass.noise_alpha = alpha;
    ActorLearner learner(policy.model, *optimizer, run.objective, options);
    EXPECT_TRUE(learner.update(batch, all_rows(batch), place).ok());
    return take_gradients();
  }
};

TEST(EmbeddingNoiseLearner, EveryCutGivesTheSameGradient) {
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {
    TestObjective run({"actor.policy_loss.loss_mode=" + loss, "actor.use_kl_loss=true", "actor.kl_loss_coef=0.3"});
    NoisyPolicy noisy;
    const RandomRows data(/*on_policy=*/false);
    const UpdatePlace place{.update_index = 5};
    const auto whole = noisy.gradients(run, data.batch, cut_by(kAll), place, 5.0);
    for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {2, 0}, {5, 0}, {0, 25}})
      EXPECT_LE(worst_relative_l2(noisy.gradients(run, data.batch, cut_by(cut), place, 5.0), whole), 1e-6)
          << loss << " rows " << cut.rows << " tokens " << cut.token_budget;
    LearnerOptions again = cut_by({5, 0});
    again.pass.activation_bytes = 0;  // every layer is computed again
    EXPECT_LE(worst_relative_l2(noisy.gradients(run, data.batch, again, place, 5.0), whole), 1e-6) << loss;
    // Each update has its own noise, and 0 is none.
    EXPECT_GE(worst_relative_l2(noisy.gradients(run, data.batch, cut_by(kAll), {.update_index = 6}, 5.0), whole), 1e-3);
    EXPECT_GE(worst_relative_l2(noisy.gradients(run, data.batch, cut_by(kAll), place, 0.0), whole), 1e-3);
  }
}

// old_log_prob is the sampling policy's, without noise; it does not stand for the update's own pass.
TEST(EmbeddingNoiseLearner, LogProbsHaveNoneAndAreNotTakenForTheUpdates) {
  TestObjective run({"actor.policy_loss.loss_mode=kl_cov"});
  NoisyPolicy noisy;
  RandomRows data(/*on_policy=*/true);
  LearnerOptions options = cut_by({4, 0});
  ActorLearner plain(noisy.policy.model, *noisy.optimizer, run.objective, options);
  options.pass.noise_alpha = 5.0;
  ActorLearner learner(noisy.policy.model, *noisy.optimizer, run.objective, options);
  std::vector<float> entropy;
  const auto old = learner.log_probs(noisy.policy.model, data.batch, nullptr, &entropy).value();
  EXPECT_EQ(old, plain.log_probs(noisy.policy.model, data.batch).value());
  data.batch.put<column::OldLogProb>(old);
  data.batch.put<column::OldEntropy>(entropy);
  std::vector<float> measured(old.size());
  const UpdatePlace place{.update_index = 1, .old_is_current = true, .log_prob_out = measured};
  ASSERT_TRUE(learner.update(data.batch, all_rows(data.batch), place).ok());
  double largest = 0.0;
  for (size_t t = 0; t < old.size(); ++t)
    largest = std::max(largest, std::abs(static_cast<double>(old[t] - measured[t])));
  EXPECT_GT(largest, 1e-3) << "the update's log-probs have noise";
}

TEST(EmbeddingNoiseLearner, SupervisedUpdatesHaveItToo) {
  const auto gradients = [](double alpha, const MicroBatchOptions& cut) {
    NoisyPolicy noisy;
    LearnerOptions options = cut_by(cut);
    options.grad_clip = 0.0;
    options.pass.noise_alpha = alpha;
    const RandomRows data(/*on_policy=*/false);
    EXPECT_TRUE(sft_update(noisy.policy.model, *noisy.optimizer, data.batch, options, {0.0, 1}).ok());
    return noisy.take_gradients();
  };
  const auto whole = gradients(5.0, kAll);
  EXPECT_LE(worst_relative_l2(gradients(5.0, {2, 0}), whole), 1e-9);
  EXPECT_GE(worst_relative_l2(gradients(0.0, kAll), whole), 1e-3);
}

}  // namespace
}  // namespace mortise
