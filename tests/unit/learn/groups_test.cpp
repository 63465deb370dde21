// Groups of parameters (optim.groups) in updates: frozen ones get no gradient and keep their bits, and the others learn as
// without them, for every split, rank, precision, and with adapters. And what a group that fits no parameter says.
#include <c10/core/GradMode.h>

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "learn/update/critic_learner.h"
#include "learn/update/sft_learner.h"
#include "learner_fixture.h"
#include "moe_config.h"
#include "optimizer_cases.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "train/run/run_options.h"

namespace mortise {
namespace {

using test::on_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGroups = "actor.optim.groups.";

Model small_model(const std::string& dtype, int64_t num_layers = 3) {
  return Model::random(small_config(17, num_layers), 5, dtype).value();
}

// A model with the groups of some overrides, and its optimizer.
struct GroupedPolicy {
  LoadedConfig loaded;
  Model model;
  ParameterGroups groups;
  Optimizer optimizer;

  GroupedPolicy(const std::vector<std::string>& settings, Model given, Communicator& ranks = alone())
      : loaded(load_config(default_env(), "", settings).value()),
        model(std::move(given)),
        groups(group_and_freeze(loaded, "actor.optim", model).value()),
        optimizer(
            make_optimizer(model, loaded.config.actor.optim, groups, "actor.optim", spread(ranks), RoundingSeed{})) {
    at::set_num_threads(1);
  }
  GroupedPolicy(const std::string& pattern, const std::string& dtype)
      : GroupedPolicy(frozen(pattern), small_model(dtype)) {}

  ZeroOptions spread(Communicator& ranks) {
    EXPECT_TRUE(spread_weights(loaded.config, ranks, loaded.config.actor.optim, model).ok());
    return zero_options(loaded.config, ranks, model);
  }

  static std::vector<std::string> frozen(const std::string& pattern) {
    if (pattern.empty()) return {};
    return {std::string(kGroups) + "still.match='" + pattern + "'", std::string(kGroups) + "still.freeze=true"};
  }

  // Not clipped, because clipping changes the gradients too.
  SftReport update(const StepTable& batch, LearnerOptions options, double lr, int64_t index = 1) {
    options.grad_clip = 0.0;
    auto report = sft_update(model, optimizer, batch, options, {lr, index});
    EXPECT_TRUE(report.ok()) << report.error().to_string();
    return std::move(report).value();
  }
};

const RandomRows& rows() {
  static const RandomRows data(/*on_policy=*/false, {.vocab = 17});
  return data;
}

// Patterns that freeze ends, layers, parts of fused matrices, and all but the head or the last norm.
const std::vector<std::string>& patterns() {
  static const std::vector<std::string> all{"embed_tokens",
                                            "embed_tokens|lm_head",
                                            "layers\\.0\\.",
                                            "embed_tokens|layers\\.[01]\\.",
                                            "layers\\.2\\.|norm",
                                            "[qk]_proj",
                                            "v_proj.weight|gate_proj|o_proj",
                                            "self_attn",
                                            "bias|norm",
                                            "embed|layers\\.\\d+\\.(?!input_layernorm)",
                                            "embed|layers",
                                            "^model\\.(?!norm)|lm_head"};
  return all;
}

TEST(ParameterGroups, FrozenOnesGetNoGradientAndTheOthersTheSameBits) {
  for (const std::string dtype : {"float32", "float64", "bfloat16"}) {
    for (const LayerPath path : {LayerPath::kFast, LayerPath::kPlain}) {
      LearnerOptions options = cut_by({4, 0});
      options.pass.path = path;
      GroupedPolicy all("", dtype);
      const double whole_norm = all.update(rows().batch, options, 0.0).grad_norm;
      for (const std::string& pattern : patterns()) {
        for (const bool recomputes : {false, true}) {
          SCOPED_TRACE(dtype + " " + pattern);
          GroupedPolicy some(pattern, dtype);
          LearnerOptions same = options;
          if (recomputes) same.pass.activation_bytes = 0;
          const double norm = some.update(rows().batch, same, 0.0).grad_norm;
          EXPECT_LT(norm, whole_norm);
          size_t num_frozen = 0;
          for (size_t i = 0; i < some.model.parameters().size(); ++i) {
            const NamedParameter& p = some.model.parameters()[i];
            if (is_frozen(some.groups, p.name)) {
              ++num_frozen;
              EXPECT_FALSE(p.tensor.grad().defined()) << p.name;
              continue;
            }
            ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
            EXPECT_TRUE(p.tensor.grad().equal(all.model.parameters()[i].tensor.grad())) << p.name;
          }
          EXPECT_GT(num_frozen, 0U);
          EXPECT_EQ(some.optimizer.parameters().size() + num_frozen, some.model.parameters().size());
        }
      }
    }
  }
}

// A slice of the gradient of a fused matrix would keep the rows of the frozen leaves.
TEST(ParameterGroups, FrozenRowsOfAFusedMatrixTakeNoMemory) {
  GroupedPolicy policy("[qk]_proj|gate_proj", "float32");
  policy.update(rows().batch, cut_by(kAll), 0.0);
  for (const NamedParameter& p : policy.model.parameters()) {
    if (!p.tensor.grad().defined()) continue;
    EXPECT_EQ(p.tensor.grad().storage().nbytes(), p.tensor.nbytes()) << p.name;
  }
}

TEST(ParameterGroups, TheSplitDoesNotMatter) {
  for (const auto& [dtype, tolerance] : {std::pair("float64", 1e-12), {"float32", 1e-5}}) {
    for (const std::string& pattern : patterns()) {
      std::vector<std::vector<at::Tensor>> gradients;
      for (const MicroBatchOptions& cut : {kAll, MicroBatchOptions{1, 0}, MicroBatchOptions{0, 24}}) {
        GroupedPolicy policy(pattern, dtype);
        policy.update(rows().batch, cut_by(cut), 0.0);
        std::vector<at::Tensor>& all = gradients.emplace_back();
        for (const OptimizedParameter& p : policy.optimizer.parameters()) {
          // The gradient of a key's bias is 0 but for rounding.
          if (!p.name.ends_with("k_proj.bias")) all.push_back(p.tensor.grad().clone());
        }
      }
      for (size_t i = 1; i < gradients.size(); ++i)
        EXPECT_LE(worst_relative_l2(gradients[i], gradients[0]), tolerance) << dtype << " " << pattern;
    }
  }
}

// grad_norm, and with it clipping, is of what is trained.
TEST(ParameterGroups, FrozenOnesDoNotCountInTheNorm) {
  GroupedPolicy policy("embed_tokens|mlp", "float64");
  const double norm = policy.update(rows().batch, cut_by(kAll), 0.0).grad_norm;
  double squares = 0.0;
  for (const OptimizedParameter& p : policy.optimizer.parameters())
    squares += std::pow(p.tensor.grad().norm().item<double>(), 2);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-12 * norm);
}

struct Learnt {
  std::vector<at::Tensor> weights;
  std::vector<double> norms;
};

Learnt learn(const std::string& pattern, const std::string& optimizer, const std::string& dtype, Communicator& ranks,
             bool deterministic, int64_t stage, bool has_masters = true, LayerPath path = LayerPath::kFast) {
  std::vector<std::string> settings = GroupedPolicy::frozen(pattern);
  if (!has_masters) settings.emplace_back("actor.optim.master_weights=false");
  settings.insert(settings.end(), {"actor.optim.optimizer=" + optimizer, "ranks.zero_stage=" + std::to_string(stage),
                                   std::string(kGroups) + "rest.match='.'", std::string(kGroups) + "rest.lr_scale=3"});
  GroupedPolicy policy(settings, small_model(dtype), ranks);
  LearnerOptions options = cut_by({3, 0});
  options.ranks = {&ranks, deterministic};
  options.pass.path = path;
  Learnt out;
  for (int64_t update = 1; update <= 2; ++update)
    out.norms.push_back(policy.update(rows().batch, options, 1e-2, update).grad_norm);
  const auto whole = WholeWeights::gather({&policy.model}).value();
  for (const NamedParameter& p : policy.model.numbers()) out.weights.push_back(p.tensor.detach().clone());
  return out;
}

TEST(ParameterGroups, EveryRankAndStageLearnsTheSame) {
  const Model start = small_model("float64");
  for (const size_t place : {0U, 2U, 3U, 6U, 9U, 10U}) {
    const std::string& pattern = patterns()[place];
    for (const std::string optimizer : {"adamw", "muon"}) {
      for (const bool deterministic : {false, true}) {
        const Learnt alone_did = learn(pattern, optimizer, "float64", alone(), deterministic, 0);
        for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{2, 0}, {2, 1}, {3, 2}, {2, 3}, {3, 3}}) {
          SCOPED_TRACE(pattern + " " + optimizer + " " + std::to_string(size) + " ranks, ZeRO " +
                       std::to_string(stage));
          std::vector<Learnt> by_rank(static_cast<size_t>(size));
          on_ranks(size, [&, stage = stage](Communicator& ranks) {
            by_rank[static_cast<size_t>(ranks.rank())] =
                learn(pattern, optimizer, "float64", ranks, deterministic, stage);
          });
          for (const Learnt& rank : by_rank) {
            for (size_t i = 0; i < rank.norms.size(); ++i)
              EXPECT_NEAR(rank.norms[i], alone_did.norms[i], 1e-12 * alone_did.norms[i]);
            for (size_t i = 0; i < rank.weights.size(); ++i) {
              const at::Tensor &got = rank.weights[i], &want = alone_did.weights[i];
              const std::string& name = start.parameters()[i].name;
              // Muon rounds to bfloat16.
              const double tolerance = deterministic ? 0.0 : optimizer == "adamw" ? 1e-9 : 1e-1;
              EXPECT_LE((got - want).norm().item<double>(), tolerance * (1.0 + want.norm().item<double>())) << name;
              EXPECT_TRUE(got.equal(by_rank[0].weights[i])) << name;
            }
          }
        }
      }
    }
  }
}

// Without master weights each rank rounds its numbers as one process does.
TEST(ParameterGroups, RanksThatShareBfloat16WeightsLearnTheSame) {
  const std::string frozen = "k_proj|norm";
  for (const std::string optimizer : {"adamw", "muon", "adafactor"}) {
    for (const bool has_masters : {true, false}) {
      const LayerPath path = optimizer == "adafactor" ? LayerPath::kPlain : LayerPath::kFast;
      const Learnt alone_did = learn(frozen, optimizer, "bfloat16", alone(), true, 0, has_masters, path);
      for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{2, 1}, {3, 2}, {2, 3}, {3, 3}}) {
        SCOPED_TRACE(optimizer + (has_masters ? "" : " without masters") + ", " + std::to_string(size) +
                     " ranks, ZeRO " + std::to_string(stage));
        on_ranks(size, [&, stage = stage](Communicator& ranks) {
          const Learnt rank = learn(frozen, optimizer, "bfloat16", ranks, true, stage, has_masters, path);
          EXPECT_EQ(rank.norms, alone_did.norms);
          for (size_t i = 0; i < rank.weights.size(); ++i) {
            EXPECT_EQ(rank.weights[i].scalar_type(), alone_did.weights[i].scalar_type()) << i;
            EXPECT_TRUE(rank.weights[i].equal(alone_did.weights[i])) << i;
          }
        });
      }
    }
  }
}

TEST(ParameterGroups, FrozenWeightsKeepTheirBits) {
  for (const std::string dtype : {"float32", "float64", "bfloat16"}) {
    for (const std::string masters : {"true", "false"}) {
      if (masters == "false" && dtype != "bfloat16") continue;
      for (const test::RuleCase& one : test::rule_cases()) {
        const std::string optimizer = one.name.substr(0, one.name.find('_'));
        if (one.name != optimizer && one.name != "adamw_8bit") continue;
        std::vector<std::string> settings = GroupedPolicy::frozen("embed|layers\\.1\\.|q_proj|norm");
        settings.insert(settings.end(), {"actor.optim.optimizer=" + one.name, "actor.optim.min_8bit_size=64",
                                         "actor.optim.master_weights=" + masters, "actor.optim.weight_decay=0.1"});
        GroupedPolicy policy(settings, small_model(dtype));
        const Model start = small_model(dtype);
        const std::vector<NamedParameter> before = start.numbers();
        for (int64_t update = 1; update <= 3; ++update) policy.update(rows().batch, cut_by({4, 0}), 0.02, update);
        const std::vector<NamedParameter> after = policy.model.numbers();
        for (size_t i = 0; i < after.size(); ++i) {
          const std::string& name = after[i].name;
          const at::Tensor was = before[i].tensor.detach().to(after[i].tensor.scalar_type());
          EXPECT_EQ(after[i].tensor.detach().equal(was), is_frozen(policy.groups, name))
              << dtype << " " << one.name << " " << name;
        }
      }
    }
  }
}

// The pattern sees the names of the adapter's folder.
TEST(ParameterGroups, AdaptersHaveGroupsToo) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    Model model = small_model(dtype);
    ASSERT_OK(model.train_lora({.rank = 2, .alpha = 4.0}, 4));
    std::vector<at::Tensor> before;
    for (const NamedParameter& p : model.trainable()) before.push_back(p.tensor.detach().clone());
    GroupedPolicy policy(GroupedPolicy::frozen("lora_A|layers\\.0\\."), std::move(model));
    EXPECT_EQ(policy.model.lowest_backward(), 2);
    for (int64_t update = 1; update <= 2; ++update) policy.update(rows().batch, cut_by({4, 0}), 0.02, update);
    const std::vector<NamedParameter>& after = policy.model.trainable();
    for (size_t i = 0; i < after.size(); ++i) {
      const bool is_still =
          after[i].name.find("lora_A") != std::string::npos || after[i].name.find("layers.0.") != std::string::npos;
      EXPECT_EQ(after[i].tensor.detach().equal(before[i]), is_still) << after[i].name;
    }
  }
}

TEST(ParameterGroups, ACriticMayLearnItsHeadAlone) {
  Model model = Model::random(as_classifier(small_model("float64").config(), 1).value(), 3, "float64").value();
  const Model start = Model::random(as_classifier(small_model("float64").config(), 1).value(), 3, "float64").value();
  const std::vector<std::string> settings{"critic.optim.groups.body.match='^model'",
                                          "critic.optim.groups.body.freeze=true"};
  const LoadedConfig loaded = load_config(default_env(), "", settings).value();
  const ParameterGroups groups = group_and_freeze(loaded, "critic.optim", model).value();
  EXPECT_EQ(model.lowest_backward(), 4);
  Optimizer optimizer = make_optimizer(model, loaded.config.critic.optim, groups, "critic.optim", {}, RoundingSeed{});
  RandomRows data(false, {.vocab = 17});
  StepTable& batch = data.batch;
  batch.put<column::Returns>(std::vector<float>(static_cast<size_t>(batch.num_tokens()), 1.0F));
  CriticOptions options;
  options.learner = cut_by(kAll);
  CriticLearner learner(model, optimizer, options);
  batch.put<column::Values>(learner.values(batch).value());
  EXPECT_GT(learner.update(batch, all_rows(batch), 1e-2).value().grad_norm, 0.0);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const NamedParameter& p = model.parameters()[i];
    EXPECT_EQ(p.tensor.equal(start.parameters()[i].tensor), p.name != kScoreHead) << p.name;
  }
}

TEST(ParameterGroups, TheFirstThatMatchesCounts) {
  const std::string g = kGroups;
  GroupedPolicy policy(
      {"actor.optim.lr=2e-3", g + "a.match='layers\\.1\\.'", g + "a.lr=1e-3", g + "b.match='mlp|k_proj.bias'",
       g + "b.weight_decay=0.25", g + "c.match='^model.norm|mlp'", g + "c.freeze=true"},
      small_model("float32"));
  for (const OptimizedParameter& p : policy.optimizer.parameters()) {
    const bool is_a = p.name.find("layers.1.") != std::string::npos;
    const bool is_b = !is_a && (p.name.find("mlp") != std::string::npos || p.name.ends_with("k_proj.bias"));
    EXPECT_EQ(p.lr_scale, is_a ? 0.5 : 1.0) << p.name;
    EXPECT_EQ(p.weight_decay, is_b ? std::optional(0.25) : std::nullopt) << p.name;
    EXPECT_NE(p.name, "model.norm.weight");
  }
  EXPECT_EQ(policy.optimizer.parameters().size() + 1, policy.model.parameters().size());
}

// Muon steps by AdamW what a group says, as AdamW alone does, and by Muon what it says.
TEST(ParameterGroups, MuonMayLeaveMatricesToAdamW) {
  const std::string g = kGroups;
  const auto learnt = [](const std::vector<std::string>& settings) {
    GroupedPolicy policy(settings, small_model("float32"));
    policy.update(rows().batch, cut_by(kAll), 1e-2);
    std::map<std::string, at::Tensor> out;
    for (const NamedParameter& p : policy.model.parameters()) out[p.name] = p.tensor.detach().clone();
    return out;
  };
  const auto adamw = learnt({}), muon = learnt({"actor.optim.optimizer=muon"});
  const auto mixed = learnt({"actor.optim.optimizer=muon", g + "a.match=down_proj", g + "a.optimizer=adamw",
                             g + "b.match=embed", g + "b.optimizer=muon"});
  const std::string down = "model.layers.0.mlp.down_proj.weight", up = "model.layers.0.mlp.up_proj.weight",
                    embedding = "model.embed_tokens.weight";
  EXPECT_TRUE(mixed.at(down).equal(adamw.at(down)));
  EXPECT_FALSE(muon.at(down).equal(adamw.at(down)));
  EXPECT_TRUE(mixed.at(up).equal(muon.at(up)));
  EXPECT_TRUE(muon.at(embedding).equal(adamw.at(embedding)));
  EXPECT_FALSE(mixed.at(embedding).equal(muon.at(embedding)));
}

TEST(ParameterGroups, FrozenOnesHaveNoState) {
  GroupedPolicy policy("embed_tokens|layers", "float32");
  StateSnapshot snapshot;
  StateWriter writer("actor.optim", &snapshot);
  ASSERT_OK(policy.optimizer.save_state(writer));
  for (const TensorView& tensor : snapshot.tensors) {
    EXPECT_EQ(std::string(tensor.name).find("embed"), std::string::npos) << tensor.name;
    EXPECT_EQ(std::string(tensor.name).find("layers"), std::string::npos) << tensor.name;
  }
  EXPECT_EQ(snapshot.tensors.size(), 2 * policy.optimizer.parameters().size());
}

TEST(ParameterGroups, AResumeNamesTheParameterThatIsFrozenOtherwise) {
  const auto told = [](const std::vector<std::string>& before, const std::vector<std::string>& now) {
    const auto policy = [](const std::vector<std::string>& settings) {
      return GroupedPolicy(settings, small_model("float32"));
    };
    GroupedPolicy saved = policy(before), loaded = policy(now);
    StatefulRegistry from, into;
    EXPECT_OK(from.add(saved.optimizer));
    EXPECT_OK(into.add(loaded.optimizer));
    const StateSnapshot snapshot = from.save().value();
    const Result<> done = into.load(snapshot, "run/global_step_1");
    return done.ok() ? std::string("ok") : done.error().to_string();
  };
  const std::vector<std::string> none, ends = GroupedPolicy::frozen("embed_tokens|lm_head");
  EXPECT_EQ(told(ends, ends), "ok");
  const auto back =
      HasSubstr("set actor.optim.groups back, or start a new run with model.path = \"run/global_step_1/huggingface\"");
  const std::string freezes = "'actor.optim.groups' freezes ", lets = "'actor.optim.groups' does not freeze ";
  EXPECT_THAT(told(none, ends), AllOf(HasSubstr(freezes + "lm_head.weight, which the run of the checkpoint trained"),
                                      HasSubstr("run/global_step_1: "), back));
  EXPECT_THAT(told(ends, none), AllOf(HasSubstr(lets + "lm_head.weight, which the run of the checkpoint froze"), back));
  EXPECT_THAT(told(ends, GroupedPolicy::frozen("layers")), HasSubstr(freezes)) << "and others are not frozen now";
  // It could be an adapter.
  EXPECT_THAT(told(ends, GroupedPolicy::frozen("layers|norm")), HasSubstr("is missing"));
  // Another optimizer has other states of the same parameters, whatever is frozen.
  for (const std::string optimizer : {"muon", "lion", "adafactor"}) {
    std::vector<std::string> other = ends;
    other.push_back("actor.optim.optimizer=" + optimizer);
    EXPECT_THAT(told(none, other), AllOf(HasSubstr("state 'actor.optim/"), Not(HasSubstr("groups")))) << optimizer;
  }
}

TEST(ParameterGroups, ErrorsNameTheGroupAndCloseNames) {
  const Model model = small_model("float32");
  std::vector<NamedParameter> parameters = model.parameters();
  const auto error = [&](const std::vector<std::string>& settings) {
    const LoadedConfig loaded = load_config(default_env(), "", settings).value();
    const auto groups = group_parameters(loaded, "actor.optim", parameters);
    return groups.ok() ? std::string("ok") : groups.error().to_string();
  };
  const std::string g = kGroups;
  EXPECT_THAT(error({g + "a.match='embed_token$'", g + "a.freeze=true"}),
              AllOf(HasSubstr("'actor.optim.groups.a.match' is 'embed_token$', which matches no parameter's name"),
                    HasSubstr("did you mean 'embed_tokens'")));
  EXPECT_THAT(error({g + "a.match=zzzzzzzz"}), HasSubstr("names are like model.embed_tokens.weight and "));
  EXPECT_THAT(error({g + "a.match=mlp", g + "b.match=down_proj"}),
              HasSubstr("'actor.optim.groups.b' has no parameter left: earlier groups have all that it matches"));
  EXPECT_THAT(error({g + "a.match='.'", g + "a.freeze=true"}),
              HasSubstr("'actor.optim.groups' freezes every parameter"));
  EXPECT_EQ(error({g + "a.match='^model.norm'", g + "b.match='.'", g + "b.freeze=true"}), "ok");
  const std::string muon = "actor.optim.optimizer=muon";
  EXPECT_THAT(
      error({muon, g + "a.match='norm|bias'", g + "a.optimizer=muon"}),
      AllOf(HasSubstr("'actor.optim.groups.a.optimizer' is muon, which updates matrices only, but the group has no "
                      "matrix"),
            HasSubstr("match matrices with actor.optim.groups.a.match")));
  EXPECT_EQ(error({muon, g + "a.match='norm|bias'", g + "a.optimizer=adamw"}), "ok");
  EXPECT_EQ(error({muon, g + "a.match='norm|down_proj'", g + "a.optimizer=muon"}), "ok");
  EXPECT_THAT(error({muon, g + "a.match=_proj.weight", g + "b.match='_proj|norm'", g + "b.optimizer=muon"}),
              HasSubstr("'actor.optim.groups.b.optimizer' is muon"));
  std::erase_if(parameters, [](const NamedParameter& p) { return p.name == "lm_head.weight"; });  // tied embeddings
  EXPECT_THAT(error({g + "a.match=lm_head"}), HasSubstr("the head of this model is its embedding: write model.embed"));
  parameters = Model::random(stacked_moe_config(), 5).value().parameters();  // the biases of all experts in one tensor
  EXPECT_THAT(error({muon, g + "a.match=_proj_bias", g + "a.optimizer=muon"}), HasSubstr("the group has no matrix"));
  EXPECT_EQ(error({muon, g + "a.match=experts", g + "a.optimizer=muon"}), "ok");
}

// Where the backward pass of an update ends.
TEST(ParameterGroups, TheLowestLayerThatBackwardReaches) {
  const auto lowest = [](const std::string& pattern) {
    return GroupedPolicy(pattern, "float32").model.lowest_backward();
  };
  EXPECT_EQ(lowest(""), 1);
  EXPECT_EQ(lowest("layers"), 1);
  EXPECT_EQ(lowest("embed"), 1);
  EXPECT_EQ(lowest("embed|layers\\.0\\."), 2);
  EXPECT_EQ(lowest("embed|layers\\.[01]\\.|norm|bias"), 3);
  EXPECT_EQ(lowest("embed|layers"), 4) << "the last norm is behind the layers";
}

}  // namespace
}  // namespace mortise
