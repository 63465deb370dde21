// Tensor parallel: the state of every kind of optimizer that ranks save together is that of one rank, and any mesh continues
// from it.
#include <ATen/ops/ones_like.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "learn/optim/group_step.h"
#include "learn/optim/rules.h"
#include "meshes.h"
#include "moe_config.h"
#include "support/joined_state.h"

namespace mortise {
namespace {

using test::on_ranks;
using Weights = std::vector<at::Tensor>;

Mesh groups_of(int num_ranks, int tensor_size) { return {num_ranks, 1, 0, tensor_size}; }

StateSnapshot snapshot_of(const Stateful& object) {
  StateSnapshot snapshot;
  StateWriter writer(object.state_name(), &snapshot);
  EXPECT_OK(object.save_state(writer));
  EXPECT_OK(writer.status());
  return snapshot;
}

std::vector<double> numbers_of(const TensorView& tensor) {
  const auto all = [&](auto zero) {
    const auto typed = tensor.as<decltype(zero)>();
    return std::vector<double>(typed.begin(), typed.end());
  };
  if (tensor.dtype == DType::kU8) return all(uint8_t{});
  return tensor.dtype == DType::kF32 ? all(float{}) : all(double{});
}

void expect_near_state(const StateSnapshot& got, const StateSnapshot& want) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (size_t i = 0; i < got.tensors.size(); ++i) {
    ASSERT_EQ(got.tensors[i].name, want.tensors[i].name);
    ASSERT_EQ(got.tensors[i].shape, want.tensors[i].shape) << got.tensors[i].name;
    const std::vector<double> a = numbers_of(got.tensors[i]), b = numbers_of(want.tensors[i]);
    for (size_t n = 0; n < a.size(); ++n) ASSERT_NEAR(a[n], b[n], 1e-9) << got.tensors[i].name;
  }
}

using MakeRule = std::function<std::unique_ptr<const UpdateRule>()>;

std::unique_ptr<const UpdateRule> adamw_rule() { return make_adamw({}); }

// The state of the optimizer that the ranks save together is what one rank saves, and any mesh continues from it. So are the
// weights.
void expect_states_of_one_rank(const ModelConfig& config, const std::vector<Mesh>& meshes,
                               const MakeRule& rule = adamw_rule) {
  const RandomRows data(false, kShape);
  // All ranks' states and the weights behind an update.
  const auto saved_by = [&](const Mesh& mesh, StateSnapshot* from, test::JoinedState& joined) {
    Weights weights;
    on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      const ZeroOptions zero{&communicator, mesh.zero_stage};
      Model model = TestPolicy::make_model(config, "float64", /*seed=*/5, zero, mesh.tensor_size);
      Optimizer optimizer(TestPolicy::parameters(model), rule(), 0.01, "actor.optim",
                          TestPolicy::spread_model(model, zero));
      const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
      LearnerOptions options = cut_by(kCut);
      share(options, communicator, false, 1, mesh.tensor_size);
      if (from != nullptr) {
        StateReader reader(optimizer.state_name(), from, "here");
        EXPECT_OK(optimizer.load_state(reader));
        EXPECT_TRUE(reader.unread_keys().empty());
      }
      ActorLearner learner(model, optimizer, objective->objective, options);
      EXPECT_TRUE(learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2}).ok());
      joined.add(snapshot_of(optimizer));
      const auto whole = WholeWeights::gather({&model}).value();
      if (communicator.is_main()) weights = weights_of(model);
    });
    return weights;
  };
  test::JoinedState of_one, later_of_one;
  const Weights weights = saved_by({}, nullptr, of_one);
  StateSnapshot expected = of_one.snapshot();
  const Weights later_weights = saved_by({}, &expected, later_of_one);
  const StateSnapshot later = later_of_one.snapshot();
  const auto expect_weights = [](const Weights& got, const Weights& want) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), 1e-9) << i;
  };
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(name_of(mesh));
    test::JoinedState joined, continued, by_mesh;
    expect_weights(saved_by(mesh, nullptr, joined), weights);
    StateSnapshot state = joined.snapshot();
    expect_near_state(state, expected);
    saved_by({}, &state, continued);
    expect_near_state(continued.snapshot(), later);
    expect_weights(saved_by(mesh, &expected, by_mesh), later_weights);
    expect_near_state(by_mesh.snapshot(), later);
  }
}

// Rules that step whole parameters do so on one rank of a group.
TEST(TensorParallel, RulesOfWholeParametersGiveTheSameWeightsAndStates) {
  const std::vector<std::pair<std::string, MakeRule>> rules{
      {"Adafactor", [] { return make_adafactor({.beta1 = 0.9, .scale_parameter = true}); }},
      {"Muon", [] { return make_muon({}); }},
      {"8-bit AdamW", [] {
         return make_adamw_8bit({{}, /*min_size=*/16, /*embeddings_too=*/true});
       }}};
  const std::vector<ModelConfig> configs{small_config(kShape.vocab, 2), fused_config(kShape.vocab, 2),
                                         stacked_moe_config()};
  for (size_t i = 0; i < rules.size(); ++i) {
    SCOPED_TRACE(rules[i].first);
    expect_states_of_one_rank(configs[i], half_of({groups_of(2, 2), groups_of(4, 4), {4, 1, 2, 2}, {4, 1, 3, 2}}, i),
                              rules[i].second);
  }
  expect_states_of_one_rank(configs[0], {groups_of(4, 4)}, rules[0].second);
}

// Masters in files leave memory when a step is done with them (model/tensor/offload.h).
TEST(TensorParallel, AStepOfWholeParametersIsDoneWithEachPartOnce) {
  on_ranks(2, [&](Communicator& communicator) {
    Model model = TestPolicy::make_model(small_config(kShape.vocab, 2), "float64", /*seed=*/5, {&communicator, 0}, 2);
    const std::vector<OptimizedParameter> parameters = TestPolicy::parameters(model);
    GroupStep group(*model.model_part(), parameters);
    std::vector<size_t> all(parameters.size());
    std::iota(all.begin(), all.end(), size_t{0});
    group.deal(all);
    std::vector<StepPart> parts;
    std::map<const void*, double> sums;  // before the step, by the place of the weights
    for (const OptimizedParameter& parameter : parameters) {
      const at::Tensor weights = parameter.tensor.detach();
      parts.push_back({&parameter, weights, at::ones_like(weights), {}, 1.0, 0.0});
      if (group.is_split(parts.size() - 1)) sums[weights.const_data_ptr()] = weights.sum().item<double>();
    }
    const auto step = [](std::span<StepPart> some) {
      for (StepPart& part : some) part.weights.add_(part.gradient);
    };
    const auto done = [&](const at::Tensor& weights) {
      const auto before = sums.extract(weights.const_data_ptr());
      ASSERT_FALSE(before.empty()) << "it was done before, or is not split";
      EXPECT_GT(weights.sum().item<double>(), before.mapped() + 1.0);
    };
    EXPECT_OK(group.step(parts, all, step, done));
    EXPECT_TRUE(sums.empty());
  });
}

TEST(TensorParallel, SavedStatesDoNotDependOnTheMesh) {
  expect_states_of_one_rank(
      small_config(kShape.vocab, 2),
      {groups_of(2, 2), groups_of(4, 4), groups_of(4, 2), {4, 1, 1, 2}, {8, 1, 2, 4}, {4, 1, 3, 2}});
}

// Fused matrices are saved in several ranges, of which ranks with the same key-value head save one. The experts of gpt-oss
// are tensors with three dimensions.
TEST(TensorParallel, SavedStatesOfFusedAndStackedMatricesDoNotDependOnTheMesh) {
  for (const ModelConfig& config : {fused_config(kShape.vocab, 2), stacked_moe_config()})
    expect_states_of_one_rank(config, {groups_of(2, 2), groups_of(4, 4), {4, 1, 1, 2}, {8, 1, 2, 4}, {4, 1, 3, 2}});
}

}  // namespace
}  // namespace mortise
