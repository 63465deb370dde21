// LoRA dropout in updates: gradients that do not depend on the cut, masks of the update, and passes that have none.
#include <gtest/gtest.h>

#include <optional>

#include "learn/update/sft_learner.h"
#include "learner_fixture.h"

namespace mortise {
namespace {

// A policy whose adapter has moved from its start.
struct AdaptedPolicy {
  TestPolicy policy{"float64"};
  std::vector<OptimizedParameter> trained;
  std::optional<AdamW> optimizer;

  explicit AdaptedPolicy(double dropout) {
    EXPECT_TRUE(policy.model.train_lora({.rank = 3, .alpha = 6.0, .dropout = dropout}, 4).ok());
    uint64_t seed = 30;
    for (const NamedParameter& p : policy.model.trainable()) {
      RandomStream stream({seed++, RandomPurpose::kTest, 0, 0, 0});
      at::Tensor values = p.tensor.detach();
      for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<double>()[i] = 0.3 * stream.next_normal();
      trained.push_back({p.name, p.tensor, true});
    }
    policy.model.weights_changed();
    optimizer.emplace(trained, AdamWOptions{});
  }

  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> out;
    for (const NamedParameter& p : policy.model.trainable()) out.push_back(p.tensor.grad().clone());
    return out;
  }

  // The gradients of one update with learning rate 0.
  std::vector<at::Tensor> gradients(TestObjective& run, const StepTable& batch, LearnerOptions options,
                                    const UpdatePlace& place) {
    options.grad_clip = 0.0;
    options.seed = 17;
    ActorLearner learner(policy.model, *optimizer, run.objective, options);
    EXPECT_TRUE(learner.update(batch, all_rows(batch), place).ok());
    return take_gradients();
  }
};

// A loss of single tokens, one of rows, and one that measures the whole update first: its pass has the same masks.
TEST(LoraDropoutLearner, EveryCutGivesTheSameGradient) {
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {
    TestObjective run({"actor.policy_loss.loss_mode=" + loss, "actor.use_kl_loss=true", "actor.kl_loss_coef=0.3"});
    AdaptedPolicy adapted(0.3);
    const RandomRows data(/*on_policy=*/false);
    const UpdatePlace place{.update_index = 5};
    const auto whole = adapted.gradients(run, data.batch, cut_by(kAll), place);
    for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {2, 0}, {5, 0}, {0, 12}, {0, 25}}) {
      for (const bool share : {true, false}) {
        LearnerOptions options = cut_by(cut);
        options.pass.share_prompts = share;
        EXPECT_LE(worst_relative_l2(adapted.gradients(run, data.batch, options, place), whole), 1e-6)
            << loss << " rows " << cut.rows << " tokens " << cut.token_budget << " shared " << share;
      }
    }
    LearnerOptions again = cut_by({5, 0});
    again.pass.activation_bytes = 0;  // every layer is computed again
    EXPECT_LE(worst_relative_l2(adapted.gradients(run, data.batch, again, place), whole), 1e-6) << loss;
    // The next update drops other features.
    EXPECT_GE(worst_relative_l2(adapted.gradients(run, data.batch, cut_by(kAll), {.update_index = 6}), whole), 1e-2);
  }
}

// old_log_prob is the sampling policy's, without dropout; it does not stand for the update's own pass.
TEST(LoraDropoutLearner, LogProbsHaveNoneAndAreNotTakenForTheUpdates) {
  TestObjective run({"actor.policy_loss.loss_mode=kl_cov"});
  AdaptedPolicy adapted(0.3), without(0.0);
  RandomRows data(/*on_policy=*/true);
  LearnerOptions options = cut_by({4, 0});
  options.seed = 17;
  ActorLearner learner(adapted.policy.model, *adapted.optimizer, run.objective, options);
  ActorLearner plain(without.policy.model, *without.optimizer, run.objective, options);
  std::vector<float> entropy;
  const auto old = learner.log_probs(adapted.policy.model, data.batch, nullptr, &entropy).value();
  EXPECT_EQ(old, plain.log_probs(without.policy.model, data.batch).value());
  data.batch.put<column::OldLogProb>(old);
  data.batch.put<column::OldEntropy>(entropy);
  std::vector<float> measured(old.size());
  const UpdatePlace place{.update_index = 1, .old_is_current = true, .log_prob_out = measured};
  ASSERT_TRUE(learner.update(data.batch, all_rows(data.batch), place).ok());
  double largest = 0.0;
  for (size_t t = 0; t < old.size(); ++t)
    largest = std::max(largest, std::abs(static_cast<double>(old[t] - measured[t])));
  EXPECT_GT(largest, 1e-3) << "the update's log-probs have dropout";
}

TEST(LoraDropoutLearner, SupervisedUpdatesHaveItToo) {
  const auto gradients = [](double dropout, const MicroBatchOptions& cut, int64_t update) {
    AdaptedPolicy adapted(dropout);
    LearnerOptions options = cut_by(cut);
    options.grad_clip = 0.0;
    options.seed = 17;
    const RandomRows data(/*on_policy=*/false);
    EXPECT_TRUE(sft_update(adapted.policy.model, *adapted.optimizer, data.batch, options, {0.0, update}).ok());
    return adapted.take_gradients();
  };
  const auto whole = gradients(0.3, kAll, 1);
  EXPECT_LE(worst_relative_l2(gradients(0.3, {2, 0}, 1), whole), 1e-9);
  EXPECT_GE(worst_relative_l2(gradients(0.3, kAll, 2), whole), 1e-2);
  EXPECT_GE(worst_relative_l2(gradients(0.0, kAll, 1), whole), 1e-2);
}

}  // namespace
}  // namespace mortise
