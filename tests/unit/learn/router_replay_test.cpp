// Routing replay in passes and updates: the experts of a pass are taken again by other weights, for every cut and with
// ranks, and what a pass records is what its routers chose.
#include <ATen/core/grad_mode.h>

#include <mutex>

#include "learner_fixture.h"
#include "moe_config.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"

namespace mortise {
namespace {

// Other weights, and so other choices of the routers.
void move_weights(Model& model) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 70;
  for (const NamedParameter& p : model.parameters()) {
    RandomStream stream({seed++, RandomPurpose::kTest, 0, 0, 0});
    auto* const x = p.tensor.mutable_data_ptr<double>();
    for (int64_t i = 0; i < p.tensor.numel(); ++i) x[i] += 0.1 * stream.next_normal();
  }
  model.weights_changed();
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i] - b[i])));
  return most;
}

TEST(RouterReplay, APassTakesTheRecordedExperts) {
  TestObjective run({"actor.loss_agg_mode=token-mean"});
  TestPolicy policy(moe_config(), "float64", 5);
  RandomRows data(false);
  const ActorLearner learner(policy.model, policy.optimizer, run.objective, cut_by({4, 0}));
  ExpertChoices recorded;
  const auto before = learner.log_probs(policy.model, data.batch, nullptr, nullptr, &recorded).value();
  EXPECT_EQ(recorded.width, 4);  // two layers with experts, two experts of each
  ASSERT_EQ(recorded.num_rows(), data.batch.num_rows());
  const auto prompt = data.batch.row(0).prompt_ids.size();
  EXPECT_EQ(recorded.of_row(0).size(), 4 * (prompt + data.batch.row(0).response_ids.size()));
  EXPECT_EQ(recorded.of_row(0).back(), kNoExpert);  // the last token is no input

  move_weights(policy.model);
  ExpertChoices chosen, again;
  const auto own = learner.log_probs(policy.model, data.batch, nullptr, nullptr, &chosen).value();
  ASSERT_NE(chosen.experts, recorded.experts) << "the moved routers choose the same, so nothing is tested";
  data.batch.replay(recorded);
  const auto replayed = learner.log_probs(policy.model, data.batch, nullptr, nullptr, &again).value();
  EXPECT_EQ(again.experts, recorded.experts);
  EXPECT_GT(largest_difference(own, replayed), 1e-4);
  // Another model chooses for itself: the reference has its own routers.
  const Model other = policy.model.clone_frozen();
  EXPECT_EQ(learner.log_probs(other, data.batch).value(), own);
  // A model is not changed by its own choices.
  data.batch.replay(chosen);
  EXPECT_EQ(learner.log_probs(policy.model, data.batch).value(), own);
}

TEST(RouterReplay, UpdatesDoNotDependOnTheCut) {
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {
    TestObjective run({"actor.loss_agg_mode=token-mean", "actor.policy_loss.loss_mode=" + loss});
    // gspo's rows pass the experts of gpt-oss.
    TestPolicy policy(loss == "gspo" ? stacked_moe_config() : moe_config(), "float64", 5);
    RandomRows data(false);
    const ActorLearner learner(policy.model, policy.optimizer, run.objective, cut_by({4, 0}));
    ExpertChoices recorded;
    ASSERT_OK(learner.log_probs(policy.model, data.batch, nullptr, nullptr, &recorded));
    move_weights(policy.model);
    const auto free = policy.gradients(run.objective, data.batch, cut_by({1000, 0, false}));
    data.batch.replay(recorded);
    LearnerOptions options = cut_by({1000, 0, false});
    options.router_losses = {0.3, 0.02};
    const auto whole = policy.gradients(run.objective, data.batch, options);
    EXPECT_GT(worst_relative_l2(whole, free), 1e-2);
    for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {5, 0}, {0, 25}}) {
      for (const bool shares : {true, false}) {
        options.micro_batch = cut;
        options.pass.share_prompts = shares;
        if (!shares) options.pass.activation_bytes = 0;
        const auto parts = policy.gradients(run.objective, data.batch, options);
        EXPECT_LE(worst_relative_l2(parts, whole), 1e-12) << loss << " rows " << cut.rows << " shares " << shares;
      }
    }
  }
}

TEST(RouterReplay, RanksRecordTheSame) {
  const auto record = [](Communicator& communicator) {
    TestPolicy policy(moe_config(), "float64", 5);
    static std::mutex mutex;
    std::unique_ptr<TestObjective> run;
    {
      const std::lock_guard lock(mutex);
      run = std::make_unique<TestObjective>(std::vector<std::string>{"actor.loss_agg_mode=token-mean"});
    }
    const RandomRows data(false);
    LearnerOptions options = cut_by({3, 0});
    options.ranks = {&communicator, false};
    const ActorLearner learner(policy.model, policy.optimizer, run->objective, options);
    ExpertChoices recorded;
    EXPECT_TRUE(learner.log_probs(policy.model, data.batch, nullptr, nullptr, &recorded).ok());
    return recorded;
  };
  const ExpertChoices alone_recorded = record(alone());
  ASSERT_FALSE(alone_recorded.empty());
  test::on_ranks(3, [&](Communicator& communicator) {
    const ExpertChoices theirs = record(communicator);
    EXPECT_EQ(theirs.experts, alone_recorded.experts);
    EXPECT_EQ(theirs.offsets, alone_recorded.offsets);
  });
}

}  // namespace
}  // namespace mortise
