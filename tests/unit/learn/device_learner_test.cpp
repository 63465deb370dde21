// Learning by the code of a device, on CPU tensors: the same trajectory as on the CPU, through updates with a KL term, a
// whole-update loss, and a save of the optimizer.
#include <algorithm>
#include <cmath>
#include <optional>

#include "foundation/base/stateful.h"
#include "learner_fixture.h"
#include "support/as_device.h"

namespace mortise {
namespace {

// Two policies that start alike; the second computes by operators.
struct Pair {
  TestPolicy kernels, device;
  explicit Pair(const std::string& dtype) : kernels(dtype), device(dtype) {
    EXPECT_TRUE(device.model.move_to(kAsDevice).ok());
  }
  double difference() const {
    double worst = 0.0;
    for (size_t i = 0; i < kernels.model.parameters().size(); ++i) {
      const at::Tensor a = kernels.model.parameters()[i].tensor, b = device.model.parameters()[i].tensor;
      worst = std::max(worst, (a - b).norm().item<double>() / a.norm().item<double>());
    }
    return worst;
  }
};

UpdateReport update(TestPolicy& policy, ActorObjective& objective, const StepTable& batch,
                    const LearnerOptions& options, int64_t step) {
  ActorLearner learner(policy.model, policy.optimizer, objective, options);
  auto done = learner.update(batch, all_rows(batch), {.lr = 0.01, .step = step, .update_index = step});
  EXPECT_TRUE(done.ok()) << done.error().to_string();
  return done.ok() ? *std::move(done) : UpdateReport();
}

// Losses of one token, of rows, and of the whole update; entropy and KL terms; small head chunks.
TEST(DeviceLearner, UpdatesFollowTheSameTrajectory) {
  const RandomRows rows(false);
  for (const char* loss : {"vanilla", "gspo", "clip_cov"}) {
    std::vector<std::string> settings{std::string("actor.policy_loss.loss_mode=") + loss, "actor.use_kl_loss=true",
                                      "actor.entropy_coeff=0.01"};
    if (loss == std::string("clip_cov")) {
      settings.emplace_back("actor.policy_loss.clip_cov_ratio=0.2");
      settings.emplace_back("actor.policy_loss.clip_cov_lb=0.02");
    }
    TestObjective by_kernels(settings), by_operators(settings);
    Pair pair("float64");
    LearnerOptions options = cut_by({3, 0});
    options.head.chunk_bytes = 1;
    for (int64_t step = 1; step <= 6; ++step) {
      const UpdateReport a = update(pair.kernels, by_kernels.objective, rows.batch, options, step);
      const UpdateReport b = update(pair.device, by_operators.objective, rows.batch, options, step);
      EXPECT_NEAR(a.sums.loss, b.sums.loss, 1e-10) << loss;
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-9) << loss;
      EXPECT_GT(a.grad_norm, 0.0) << loss;
    }
    EXPECT_LT(pair.difference(), 1e-10) << loss;
  }
}

TEST(DeviceLearner, Float32TrajectoriesStayClose) {
  const RandomRows rows(false);
  TestObjective by_kernels({}), by_operators({});
  Pair pair("float32");
  for (int64_t step = 1; step <= 4; ++step) {
    update(pair.kernels, by_kernels.objective, rows.batch, cut_by(kAll), step);
    update(pair.device, by_operators.objective, rows.batch, cut_by(kAll), step);
  }
  EXPECT_LT(pair.difference(), 2e-3);  // AdamW magnifies the last bits of small gradients
}

TEST(DeviceLearner, LogProbsOfPolicyAndReferenceAreThoseOfTheCpu) {
  const RandomRows rows(false);
  TestObjective objective({});
  Pair pair("float64");
  const Model reference = pair.device.model.clone_frozen();
  EXPECT_TRUE(reference.device().by_operators);
  ActorLearner kernels(pair.kernels.model, pair.kernels.optimizer, objective.objective, cut_by({4, 0}));
  ActorLearner device(pair.device.model, pair.device.optimizer, objective.objective, cut_by({4, 0}));
  std::vector<float> want_entropy, entropy;
  const auto want = kernels.log_probs(pair.kernels.model, rows.batch, nullptr, &want_entropy);
  const auto got = device.log_probs(reference, rows.batch, nullptr, &entropy);
  ASSERT_TRUE(want.ok() && got.ok());
  for (size_t t = 0; t < want->size(); ++t) {
    EXPECT_NEAR((*got)[t], (*want)[t], 1e-6);
    EXPECT_NEAR(entropy[t], want_entropy[t], 1e-6);
  }
}

// A policy that trains an adapter, with its reference in the same memory.
struct AdaptedPolicy {
  TestPolicy policy{"float64"};
  std::vector<OptimizedParameter> trained;
  std::optional<AdamW> optimizer;

  AdaptedPolicy(const LoraChoice& choice, bool on_device) {
    EXPECT_TRUE(policy.model.move_to(on_device ? kAsDevice : ComputeDevice()).ok());
    const auto started = policy.model.train_lora(choice, 4);
    EXPECT_TRUE(started.ok()) << started.error().to_string();
    for (const NamedParameter& p : policy.model.trainable()) trained.push_back({p.name, p.tensor, true});
    optimizer.emplace(trained, AdamWOptions{});
  }

  // The loss and the gradient's norm of each update, and the log-probs of policy and reference after it.
  std::vector<double> learn(ActorObjective& objective, const StepTable& batch) {
    LearnerOptions options = cut_by({4, 0});
    options.seed = 17;
    ActorLearner learner(policy.model, *optimizer, objective, options);
    std::vector<double> numbers;
    for (int64_t step = 1; step <= 4; ++step) {
      const auto done = learner.update(batch, all_rows(batch), {.lr = 0.02, .step = step, .update_index = step});
      EXPECT_TRUE(done.ok()) << done.error().to_string();
      if (!done.ok()) return numbers;
      EXPECT_GT(done->grad_norm, 0.0);
      numbers.insert(numbers.end(), {done->sums.loss, done->grad_norm});
      const Model base = policy.model.base_view();
      for (const Model* model : {static_cast<const Model*>(&policy.model), &base}) {
        const auto log_prob = learner.log_probs(*model, batch);
        EXPECT_TRUE(log_prob.ok());
        numbers.insert(numbers.end(), log_prob->begin(), log_prob->end());
      }
    }
    return numbers;
  }
};

TEST(DeviceLearner, AdaptersFollowTheSameTrajectory) {
  const RandomRows rows(false);
  const LoraChoice plain{.rank = 3, .alpha = 6.0, .dropout = 0.2};
  LoraChoice dora = plain, whole = plain;
  dora.use_dora = true;
  whole.modules_to_save = {"lm_head"};
  for (const LoraChoice& choice : {plain, dora, whole}) {
    TestObjective by_kernels({"actor.use_kl_loss=true"}), by_operators({"actor.use_kl_loss=true"});
    AdaptedPolicy kernels(choice, false), device(choice, true);
    const std::vector<double> want = kernels.learn(by_kernels.objective, rows.batch);
    const std::vector<double> got = device.learn(by_operators.objective, rows.batch);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * std::max(1.0, std::abs(want[i]))) << i;
  }
}

TEST(DeviceLearner, TheSplitOfAnUpdateChangesNothing) {
  const RandomRows rows(false);
  TestObjective objective({"actor.policy_loss.loss_mode=gspo"});
  std::vector<std::vector<at::Tensor>> gradients;
  for (const MicroBatchOptions& cut : {kAll, MicroBatchOptions{1, 0}, MicroBatchOptions{0, 24}}) {
    TestPolicy policy("float64");
    ASSERT_TRUE(policy.model.move_to(kAsDevice).ok());
    gradients.push_back(policy.gradients(objective.objective, rows.batch, cut_by(cut)));
  }
  EXPECT_LT(worst_relative_l2(gradients[1], gradients[0]), 1e-12);
  EXPECT_LT(worst_relative_l2(gradients[2], gradients[0]), 1e-12);
}

TEST(DeviceLearner, ASavedOptimizerContinuesTheSameWay) {
  const RandomRows rows(false);
  TestObjective objective({});
  TestPolicy straight("float64"), resumed("float64");
  for (TestPolicy* policy : {&straight, &resumed}) ASSERT_TRUE(policy->model.move_to(kAsDevice).ok());
  update(straight, objective.objective, rows.batch, cut_by(kAll), 1);
  StatefulRegistry saved, loaded;
  ASSERT_TRUE(saved.add(straight.optimizer).ok() && loaded.add(resumed.optimizer).ok());
  const auto snapshot = saved.save();
  ASSERT_TRUE(snapshot.ok()) << snapshot.error().to_string();
  const auto restored = loaded.load(*snapshot, "memory");
  ASSERT_TRUE(restored.ok()) << restored.error().to_string();
  resumed.model.copy_numbers(straight.model);
  for (int64_t step = 2; step <= 3; ++step) {
    update(straight, objective.objective, rows.batch, cut_by(kAll), step);
    update(resumed, objective.objective, rows.batch, cut_by(kAll), step);
  }
  for (size_t i = 0; i < straight.model.parameters().size(); ++i)
    EXPECT_TRUE(straight.model.parameters()[i].tensor.equal(resumed.model.parameters()[i].tensor));
}

}  // namespace
}  // namespace mortise
