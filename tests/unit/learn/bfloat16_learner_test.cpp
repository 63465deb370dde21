// Updates with model.dtype = "bfloat16": how far the split of the rows shows in the gradient, and models without master
// weights (optim.master_weights = false).
#include <ATen/ops/ones_like.h>

#include "learn/optim/rounded_step.h"
#include "learn/update/finite_step.h"
#include "learner_fixture.h"
#include "model/weights/rounded_matrices.h"
#include "optimizer_cases.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

// Float32 sums in another order differ in their last bits. Where such a number enters a product, its rounding to
// bfloat16 turns over once in some ten thousand numbers, which changes it by up to 2^-8. Both together stay far below the
// rounding itself, which is what the gradient of the float32 model shows.
TEST(Bfloat16Learner, TheSplitShowsFarLessThanTheRounding) {
  TestObjective vanilla({"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.05"});
  const RandomRows rows(false);
  TestPolicy policy("bfloat16"), exact("float32");
  const auto whole = policy.gradients(vanilla.objective, rows.batch, cut_by(kAll));
  for (const at::Tensor& gradient : whole) ASSERT_EQ(gradient.scalar_type(), at::kFloat);
  const double rounding = relative_l2_of_all(whole, exact.gradients(vanilla.objective, rows.batch, cut_by(kAll)));
  EXPECT_GT(rounding, 2e-3);
  EXPECT_LT(rounding, 5e-2);
  for (const MicroBatchOptions& cut : {MicroBatchOptions{1, 0}, MicroBatchOptions{3, 0}, MicroBatchOptions{0, 24}}) {
    LearnerOptions options = cut_by(cut);
    for (const bool recompute : {false, true}) {
      if (recompute) options.pass.activation_bytes = 0;
      const double split = relative_l2_of_all(policy.gradients(vanilla.objective, rows.batch, options), whole);
      EXPECT_LT(split, 0.2 * rounding) << cut.rows << " " << cut.token_budget;
    }
  }
}

Model small_model() { return two_layer_model(29, "bfloat16"); }

std::vector<OptimizedParameter> parameters_of(const Model& model) {
  std::vector<OptimizedParameter> out;
  for (const NamedParameter& p : model.parameters()) {
    const bool is_embedding = p.name == "model.embed_tokens.weight";
    out.push_back({p.name, p.tensor, p.decay, is_embedding ? ParameterRole::kEmbedding : ParameterRole::kHidden});
  }
  return out;
}

void set_gradients(const Model& model, uint64_t update) {
  uint64_t seed = 1000 * update;
  for (const NamedParameter& p : model.parameters()) {
    RandomStream stream({seed++, RandomPurpose::kTest, 0, 0, 0});
    at::Tensor gradient = at::ones_like(p.tensor.detach());
    for (int64_t i = 0; i < gradient.numel(); ++i)
      gradient.mutable_data_ptr<float>()[i] = static_cast<float>(0.1 * stream.next_normal());
    p.tensor.mutable_grad() = gradient;
  }
}

// The masters of `model` are what its copies say.
void widen_all(const Model& model) {
  for (size_t layer = 0; layer < model.weights().layers.size(); ++layer) {
    free_masters(model.weights(), layer);
    widen_masters(model.weights(), layer);
  }
}

// Layer by layer from bfloat16, each rule does what it does with all masters in memory, which are then rounded.
TEST(NoMasters, EveryOptimizerStepsAsFromMasters) {
  const RoundingSeed seed{7, RandomPurpose::kRounding};
  for (const test::RuleCase& one : test::rule_cases()) {
    Model model = small_model(), twin = small_model();
    model.drop_masters();
    Optimizer optimizer(parameters_of(model), one.rule(), one.weight_decay);
    optimizer.step_rounded(std::make_shared<const RoundedStep>(model, optimizer.parameters(), seed));
    Optimizer whole(parameters_of(twin), one.rule(), one.weight_decay);
    const auto start = small_model().numbers();
    for (int64_t update = 1; update <= 2; ++update) {
      set_gradients(model, static_cast<uint64_t>(update));
      set_gradients(twin, static_cast<uint64_t>(update));
      widen_all(twin);
      ASSERT_OK(optimizer.step(one.lr));
      ASSERT_OK(whole.step(one.lr));
      for (size_t layer = 0; layer < twin.weights().layers.size(); ++layer)
        round_stochastically(twin.weights(), layer,
                             derive_philox_key(seed.seed, seed.purpose, static_cast<uint64_t>(update)));
    }
    twin.drop_masters();
    const auto got = model.numbers(), want = twin.numbers();
    int64_t num_rounded = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].tensor.equal(want[i].tensor)) << one.name << " " << got[i].name;
      EXPECT_FALSE(got[i].tensor.to(at::kFloat).equal(start[i].tensor)) << one.name << " " << got[i].name;
      if (got[i].tensor.scalar_type() == at::kBFloat16) ++num_rounded;
    }
    EXPECT_EQ(num_rounded, 2 * 7) << one.name;
  }
}

// Steps of a hundredth of the distance between bfloat16 numbers: rounded to the nearest, the weights would never move.
TEST(NoMasters, SmallStepsCountOnAverage) {
  Model model = small_model();
  model.drop_masters();
  Optimizer optimizer(parameters_of(model), make_sgd({}), 0.0);
  optimizer.step_rounded(std::make_shared<const RoundedStep>(model, optimizer.parameters(), RoundingSeed{3}));
  const at::Tensor before = model.weights().rounded[1].gate_up_2IH.to(at::kDouble);
  constexpr int kUpdates = 100;
  constexpr double kStep = 2e-6;
  for (int update = 0; update < kUpdates; ++update) {
    for (const NamedParameter& p : model.parameters()) p.tensor.mutable_grad() = at::ones_like(p.tensor.detach());
    ASSERT_OK(optimizer.step(kStep));
  }
  const at::Tensor moved = before - model.weights().rounded[1].gate_up_2IH.to(at::kDouble);
  // The mean of 12,288 weights, whose distances to their neighbours are about 2^-11.
  EXPECT_NEAR(moved.mean().item<double>(), kUpdates * kStep, 0.15 * kUpdates * kStep);
}

// The learner's passes and its step, without masters in between.
TEST(NoMasters, AnUpdateLeavesNoMastersInMemory) {
  TestObjective vanilla({"actor.policy_loss.loss_mode=vanilla"});
  const RandomRows rows(false);
  TestPolicy with("bfloat16"), without("bfloat16");
  without.model.drop_masters();
  without.optimizer.step_rounded(
      std::make_shared<const RoundedStep>(without.model, without.optimizer.parameters(), RoundingSeed{3}));
  const auto want = with.gradients(vanilla.objective, rows.batch, cut_by(kAll));
  const auto got = without.gradients(vanilla.objective, rows.batch, cut_by(kAll));  // with learning rate 0
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
  ActorLearner learner(without.model, without.optimizer, vanilla.objective, cut_by(kAll));
  const auto numbers = [&] {
    std::vector<at::Tensor> out;
    for (const NamedParameter& p : without.model.numbers()) out.push_back(p.tensor.detach().clone());
    return out;
  };
  const auto before = numbers();
  ASSERT_OK(learner.update(rows.batch, all_rows(rows.batch), {.lr = 1e-2, .update_index = 2}));
  const auto after = numbers();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_FALSE(after[i].equal(before[i])) << i;
  EXPECT_EQ(std::ranges::count_if(after, [](const at::Tensor& t) { return t.scalar_type() == at::kBFloat16; }), 2 * 7);
}

}  // namespace
}  // namespace mortise
