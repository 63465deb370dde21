// Sequence parallel: updates of ranks that share the tokens of their passes give the numbers of one rank. Losses of every
// coupling, the critic, supervised updates, mixtures of experts, adapters with dropout, windows, recomputed layers, a
// teacher, bfloat16, references with other groups, every stage of ZeRO, and groups as large as a half and as the whole
// run.
#include <c10/core/GradMode.h>

#include <optional>

#include "foundation/batch/expert_choices.h"
#include "meshes.h"
#include "moe_config.h"
#include "support/long_run.h"

namespace mortise {
namespace {

using test::on_ranks;

// The model has four heads and two key-value heads: groups of four repeat them.
const std::vector<Mesh> kMeshes{{2, 2}, {4, 4}, {4, 2, 1}, {4, 2, 2}, {4, 2, 3}};

TEST(Sequence, Float64UpdatesAreEqualTo1e12) { expect_float64_updates_of_one_rank(kMeshes); }

TEST(Sequence, Float32GradientsAreEqualTo1e6) { expect_float32_gradients_of_one_rank({4, 2}); }

// One size of the groups: the same bits for any number of groups and every stage.
TEST(Sequence, DeterministicUpdatesAreEqualToTheBit) {
  for (const Case& one : cases()) expect_same_bits(one, "float32", {2, 2}, {{6, 2}, {4, 2, 1}, {4, 2, 3}});
}

TEST(Sequence, CriticAndSupervisedUpdatesAreEqualToo) {
  for (const auto& weights_after : {&weights_after_critic, &weights_after_sft}) {
    const std::vector<at::Tensor> expected = weights_after("float64", alone(), false, 0, 1, 0);
    for (const bool deterministic : {false, true}) {
      for (const Mesh& mesh : kMeshes) {
        SCOPED_TRACE(name_of(mesh));
        on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
          const std::vector<at::Tensor> weights =
              weights_after("float64", communicator, deterministic, mesh.zero_stage, mesh.sequence_size, 0);
          for (size_t i = 0; i < weights.size(); ++i)
            EXPECT_LE((weights[i] - expected[i]).norm().item<double>(), 1e-12 * expected[i].norm().item<double>());
        });
      }
    }
  }
}

// The gradient of one update of the policy that `make` gives, on each rank; the sums are made by the ranks.
using Gradients = std::vector<at::Tensor>;

struct Variant {
  const char* name;
  std::function<ModelConfig()> config;
  std::function<void(Model&)> change = {};
  std::function<void(LearnerOptions&)> options = {};
  bool filters = false;  // the sampler's filters
};

ModelConfig dense_config() {
  return make_qwen2_config({.vocab_size = kShape.vocab,
                            .hidden_size = 16,
                            .intermediate_size = 24,
                            .num_layers = 3,
                            .num_heads = 4,
                            .num_kv_heads = 2,
                            .initializer_range = 0.3})
      .value();
}

void adapt(Model& model, double dropout) {
  EXPECT_TRUE(model.train_lora({.rank = 3, .alpha = 6.0, .dropout = dropout}, 4).ok());
  uint64_t seed = 30;
  for (const NamedParameter& p : model.trainable()) {
    RandomStream stream({seed++, RandomPurpose::kTest, 0, 0, 0});
    at::Tensor values = p.tensor.detach();
    for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<double>()[i] = 0.3 * stream.next_normal();
  }
  model.weights_changed();
}

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"norms of q and k, windows, caps",
       [] {
         ModelConfig config = dense_config();
         config.qk_norm = true;
         config.attention_softcap = 2.0;
         config.windows = {5, 0, 3};
         return config;
       }},
      {"plain layers", dense_config, {}, [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; }},
      {"all layers again", dense_config, {}, [](LearnerOptions& options) { options.pass.activation_bytes = 0; }},
      {"prompts not shared", dense_config, {}, [](LearnerOptions& options) { options.pass.share_prompts = false; }},
      {"an adapter with dropout, all layers again", dense_config, [](Model& model) { adapt(model, 0.3); },
       [](LearnerOptions& options) { options.pass.activation_bytes = 0; }},
      {"experts with losses of their routers",
       moe_config,
       {},
       [](LearnerOptions& options) {
         options.router_losses = {0.3, 0.02};
       }},
      {"windows, sinks and experts of gpt-oss", stacked_moe_config, {}, {}},
      {"filters of the sampler", dense_config, {}, {}, true},
      {"a teacher",
       dense_config,
       {},
       [](LearnerOptions& options) {
         static const Model teacher = Model::random(dense_config(), 6, "float64").value().clone_frozen();
         options.teacher_loss = {&teacher, 0.3, 0.4};
       }},
  };
  return all;
}

struct Update {
  Gradients gradients;
  UpdateReport report;
};

Update update_of(const Variant& variant, Communicator& communicator, int sequence_size, const MicroBatchOptions& cut) {
  const RowsShape shape{.vocab = 17, .groups = 5, .samples = 4, .max_length = 12};
  RandomRows data(false, shape);
  Model model = Model::random(variant.config(), 5, "float64").value();
  if (variant.change) variant.change(model);
  std::vector<OptimizedParameter> trained;
  for (const NamedParameter& p : model.trainable()) trained.push_back({p.name, p.tensor, true});
  AdamW optimizer(trained, AdamWOptions{});
  const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.02"});
  LearnerOptions options = cut_by(cut);
  if (variant.options) variant.options(options);
  options.grad_clip = 0.0;
  options.seed = 17;
  share(options, communicator, false, sequence_size);
  ActorLearner learner(model, optimizer, objective->objective, options);
  if (variant.filters) {
    const auto mask = data.batch.get<column::ResponseMask>();
    data.batch.put<column::SampleMask>({mask.begin(), mask.end()});
    const Sampling sampling{.temperature = 1.0, .top_p = 0.8, .min_p = 0.01, .repetition_penalty = 1.2};
    EXPECT_LT(learner.keep_tokens(data.batch, sampling).value().num_kept, 17 * data.batch.num_tokens());
  }
  Update out;
  out.report = learner.update(data.batch, all_rows(data.batch), {.update_index = 5}).value();
  for (const OptimizedParameter& p : optimizer.parameters()) out.gradients.push_back(p.tensor.grad().clone());
  return out;
}

TEST(Sequence, EveryKindOfLayerGivesTheSameGradient) {
  for (const Variant& variant : variants()) {
    for (const MicroBatchOptions& cut : {MicroBatchOptions{3, 0}, MicroBatchOptions{1000, 0}}) {
      const Update expected = update_of(variant, alone(), 1, cut);
      // A pass of all rows is shared in one way.
      const bool takes_all = cut.rows == 3 || test::is_long();
      for (const Mesh& mesh : takes_all ? std::vector<Mesh>{{2, 2}, {4, 2}, {4, 4}} : std::vector<Mesh>{{2, 2}}) {
        SCOPED_TRACE(std::string(variant.name) + ", " + name_of(mesh));
        on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
          const Update got = update_of(variant, communicator, mesh.sequence_size, cut);
          expect_same_reports(got.report, expected.report, 1e-10);
          EXPECT_LE(relative_l2_of_all(got.gradients, expected.gradients), 1e-11);
        });
      }
    }
  }
}

// Parts of the sums over tokens are rounded in other places than for one rank. This shows far less than the rounding of
// the products.
TEST(Sequence, Bfloat16ShowsThePartsFarLessThanItsRounding) {
  const RandomRows data(false, kShape);
  const auto gradients = [&](const std::string& dtype, Communicator& communicator, int sequence_size) {
    TestPolicy policy(dtype, kShape.vocab);
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.05"});
    LearnerOptions options = cut_by(kCut);
    share(options, communicator, false, sequence_size);
    return policy.gradients(objective->objective, data.batch, options);
  };
  const Gradients expected = gradients("bfloat16", alone(), 1);
  const double rounding = relative_l2_of_all(expected, gradients("float32", alone(), 1));
  EXPECT_GT(rounding, 1e-3);
  for (const Mesh& mesh : std::vector<Mesh>{{2, 2}, {4, 2}, {4, 4}}) {
    SCOPED_TRACE(name_of(mesh));
    on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      EXPECT_LT(relative_l2_of_all(gradients("bfloat16", communicator, mesh.sequence_size), expected), 0.2 * rounding);
    });
  }
}

TEST(Sequence, DeterministicBfloat16UpdatesAreEqualToTheBit) {
  expect_same_bits(cases().front(), "bfloat16", {2, 2}, {{6, 2}, {4, 2, 1}, {4, 2, 2}});
}

// Passes of the reference run in groups of their own, between those of the policy.
TEST(Sequence, TheReferenceMayHaveGroupsOfAnotherSize) {
  const RandomRows data(false, kShape);
  const auto pass = [&](Communicator& communicator, int actor_size, int reference_size, Gradients& gradients) {
    TestPolicy policy("float64", kShape.vocab), reference("float64", kShape.vocab, 2, /*seed=*/6);
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
    LearnerOptions options = cut_by(kCut);
    options.grad_clip = 0.0;
    options.reference = &reference.model;
    share(options, communicator, false, actor_size);
    options.reference_sequence = sequence_group_of(communicator, reference_size);
    ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    std::vector<float> out = learner.log_probs(policy.model, data.batch).value();
    const std::vector<float> of_reference = learner.log_probs(reference.model, data.batch).value();
    out.insert(out.end(), of_reference.begin(), of_reference.end());
    EXPECT_TRUE(learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2}).ok());
    for (const OptimizedParameter& p : policy.optimizer.parameters()) gradients.push_back(p.tensor.grad().clone());
    return out;
  };
  Gradients expected_gradients;
  const std::vector<float> expected = pass(alone(), 1, 1, expected_gradients);
  for (const auto& [actor_size, reference_size] : std::vector<std::pair<int, int>>{{1, 2}, {2, 1}, {2, 4}, {4, 2}}) {
    SCOPED_TRACE(std::to_string(actor_size) + " and " + std::to_string(reference_size));
    on_ranks(4, [&, actor = actor_size, other = reference_size](Communicator& communicator) {
      Gradients gradients;
      const std::vector<float> got = pass(communicator, actor, other, gradients);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-6 * (1.0 + std::abs(expected[i])));
      EXPECT_LE(relative_l2_of_all(gradients, expected_gradients), 1e-12);
    });
  }
}

// Fewer tokens than ranks: some have none, and take part in every exchange.
TEST(Sequence, RanksWithoutTokensHelpTheOthers) {
  const auto learn_few = [](Communicator& communicator, int sequence_size) {
    const RowsShape shape{.vocab = 17, .groups = 1, .samples = 1, .max_length = 1};
    const RandomRows data(false, shape);
    TestPolicy policy("float64", 17);
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
    LearnerOptions options = cut_by({1, 0});
    share(options, communicator, false, sequence_size);
    return policy.gradients(objective->objective, data.batch, options);
  };
  const Gradients expected = learn_few(alone(), 1);
  on_ranks(4, [&](Communicator& communicator) {
    const Gradients got = learn_few(communicator, 4);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LE((got[i] - expected[i]).norm().item<double>(), 1e-12 * (1.0 + expected[i].norm().item<double>())) << i;
  });
}

// What routing replay keeps of a pass is whole on every rank.
TEST(Sequence, ExpertsOfAllTokensAreRecorded) {
  const RandomRows data(false);
  const auto record = [&](Communicator& communicator, int sequence_size) {
    TestPolicy policy(moe_config(), "float64", 5);
    const auto objective = objective_of({"actor.policy_loss.loss_mode=vanilla"});
    LearnerOptions options = cut_by({3, 0});
    share(options, communicator, false, sequence_size);
    const ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    ExpertChoices experts;
    EXPECT_TRUE(learner.log_probs(policy.model, data.batch, nullptr, nullptr, &experts).ok());
    std::vector<uint16_t> all;
    for (int64_t row = 0; row < data.batch.num_rows(); ++row) {
      const auto of_row = experts.of_row(row);
      all.insert(all.end(), of_row.begin(), of_row.end());
    }
    return all;
  };
  const std::vector<uint16_t> expected = record(alone(), 1);
  EXPECT_GT(expected.size(), 100U);
  on_ranks(4, [&](Communicator& communicator) { EXPECT_EQ(record(communicator, 2), expected); });
}

// Each rank keeps the activations of its own tokens alone.
TEST(Sequence, ARankHasAPartOfTheTokens) {
  const RandomRows data(false, kShape);
  const std::vector<int64_t> rows = all_rows(data.batch);
  TestPolicy whole("float64", kShape.vocab);
  const int64_t all = forward_rows(whole.model, data.batch, rows).value().targets_R.numel();
  std::vector<int64_t> own(4, 0);
  on_ranks(4, [&](Communicator& communicator) {
    TestPolicy policy("float64", kShape.vocab);
    PassOptions pass;
    pass.sequence = std::make_shared<SequenceGroup>(communicator, 4);
    const PackedForward forward = forward_rows(policy.model, data.batch, rows, pass).value();
    EXPECT_EQ(forward.targets.num_targets(), all);
    EXPECT_EQ(forward.hidden_RH.size(0), forward.targets_R.numel());
    own[static_cast<size_t>(communicator.rank())] = forward.targets_R.numel();
  });
  EXPECT_EQ(own[0] + own[1] + own[2] + own[3], all);
  EXPECT_LT(*std::ranges::max_element(own), all / 2);
}

}  // namespace
}  // namespace mortise
