// The gradient of an update does not depend on how its rows are cut: every loss and aggregation mode, with KL in the
// loss and an entropy bonus, groups cut in two, and rows without advantage.
#include "learn/update/actor_learner.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <numeric>

#include "config/load.h"
#include "foundation/base/rng.h"
#include "foundation/batch/token_weight.h"

namespace mortise {
namespace {

constexpr int64_t kVocab = 29;
constexpr int64_t kGroups = 4;
constexpr int64_t kSamples = 3;

// Rows of random lengths (one of them empty); the groups 1 and 3 have no advantage.
struct Batch {
  std::vector<std::vector<int64_t>> prompts, responses;
  TrainBatch batch;

  explicit Batch(bool on_policy) {
    RandomStream stream({7, RandomPurpose::kTest, 0, 0, 0});
    const auto ids = [&](size_t n) {
      std::vector<int64_t> out(n);
      for (int64_t& id : out) id = static_cast<int64_t>(stream.next_below(kVocab));
      return out;
    };
    for (int64_t g = 0; g < kGroups; ++g) {
      const std::vector<int64_t> prompt = ids(2 + static_cast<size_t>(g));
      for (int64_t s = 0; s < kSamples; ++s) {
        prompts.push_back(prompt);
        responses.push_back(ids(g == 2 && s == 1 ? 0 : 1 + stream.next_below(9)));
        batch.group_index.push_back(g);
      }
    }
    batch.row_offsets = {0};
    for (size_t i = 0; i < prompts.size(); ++i) {
      batch.prompt_ids.emplace_back(prompts[i]);
      batch.response_ids.emplace_back(responses[i]);
      const double advantage = batch.group_index[i] % 2 == 0 ? stream.next_normal() : 0.0;
      for (size_t t = 0; t < responses[i].size(); ++t) {
        batch.response_mask.push_back(stream.next_below(5) == 0 ? 0 : 1);
        batch.advantages.push_back(static_cast<float>(advantage));
        const double log_prob = -3.3 + 0.3 * stream.next_normal();
        if (!on_policy) batch.old_log_prob.push_back(static_cast<float>(log_prob));
        batch.ref_log_prob.push_back(static_cast<float>(log_prob - 0.1));
      }
      batch.row_offsets.push_back(static_cast<int64_t>(batch.response_mask.size()));
    }
  }
};

class TestRun {
 public:
  TestRun(const std::vector<std::string>& overrides, const std::string& dtype)
      : loaded_(load_config(default_env(), "", overrides).value()),
        registry_(PluginRegistry::open(options()).value()),
        objective_(ActorObjective::create(registry_, loaded_.config, {}).value()),
        dtype_(dtype) {
    at::set_num_threads(1);  // the tensors are tiny
  }

  // The gradient of every parameter after one update with learning rate 0.
  std::vector<at::Tensor> gradients(const Batch& data, const MicroBatchOptions& cut, UpdateReport* report = nullptr) {
    ModelConfig config = make_qwen2_config({.vocab_size = kVocab,
                                            .hidden_size = 16,
                                            .intermediate_size = 24,
                                            .num_layers = 2,
                                            .num_heads = 4,
                                            .num_kv_heads = 2,
                                            .initializer_range = 0.3})
                             .value();
    Model model = Model::random(config, 5, dtype_).value();
    std::vector<OptimizedParameter> parameters;
    for (const NamedParameter& p : model.parameters()) parameters.push_back({p.name, p.tensor, true});
    AdamW optimizer(parameters, {});
    LearnerOptions options;
    options.micro_batch = cut;
    ActorLearner learner(model, optimizer, objective_, options);
    std::vector<int64_t> rows(static_cast<size_t>(data.batch.num_rows()));
    std::iota(rows.begin(), rows.end(), 0);
    auto done = learner.update(data.batch, rows, 0.0, 1, 1);
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    if (report != nullptr) *report = std::move(done).value();
    std::vector<at::Tensor> grads;
    for (const NamedParameter& p : model.parameters()) grads.push_back(p.tensor.grad().clone());
    return grads;
  }

 private:
  static RegistryOptions options() {
    RegistryOptions options;
    options.use_environment = options.use_user_packs = false;
    options.builtin_dir = std::filesystem::path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
    return options;
  }

  LoadedConfig loaded_;
  PluginRegistry registry_;
  ActorObjective objective_;
  std::string dtype_;
};

double worst_relative_l2(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double norm = b[i].norm().item<double>();
    EXPECT_GT(norm, 0.0) << "parameter " << i << " got no gradient, so nothing is compared";
    worst = std::max(worst, (a[i] - b[i]).norm().item<double>() / norm);
  }
  return worst;
}

const MicroBatchOptions kAll{1000, 0};

void expect_same_gradient(const std::vector<std::string>& overrides, bool on_policy, const std::string& dtype,
                          double tolerance) {
  TestRun run(overrides, dtype);
  const Batch data(on_policy);
  UpdateReport whole_report, part_report;
  const auto whole = run.gradients(data, kAll, &whole_report);
  for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {2, 0}, {5, 0}, {0, 12}, {0, 25}, {0, 4096}}) {
    const auto parts = run.gradients(data, cut, &part_report);
    EXPECT_LE(worst_relative_l2(parts, whole), tolerance)
        << ::testing::PrintToString(overrides) << " rows " << cut.rows << " tokens " << cut.token_budget;
    EXPECT_NEAR(part_report.sums.loss, whole_report.sums.loss, 1e-5 * (1.0 + std::abs(whole_report.sums.loss)));
    EXPECT_NEAR(part_report.grad_norm, whole_report.grad_norm, 1e-4 * whole_report.grad_norm);
    EXPECT_EQ(part_report.sums.num_tokens, whole_report.sums.num_tokens);
  }
}

TEST(ActorLearner, EveryCutGivesTheSameGradient) {
  for (const std::string loss : {"vanilla", "gspo"}) {
    for (const std::string_view mode : loss_agg_mode_names()) {
      for (const bool on_policy : {false, true}) {
        expect_same_gradient(
            {"actor.policy_loss.loss_mode=" + loss, "actor.loss_agg_mode=" + std::string(mode), "actor.grad_clip=0"},
            on_policy, "float32", 1e-5);
      }
    }
  }
}

TEST(ActorLearner, AlsoWithKlAndEntropyInTheLoss) {
  for (const std::string kl : {"k1", "k2", "low_var_kl"}) {
    expect_same_gradient(
        {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=" + kl, "actor.entropy_coeff=0.05"},
        false, "float32", 1e-5);
  }
}

// The loss reads float32 log-probs whatever the model's dtype, hence not 1e-15.
TEST(ActorLearner, CloserInFloat64) { expect_same_gradient({}, false, "float64", 1e-6); }

TEST(ActorLearner, RowsWithoutAdvantageAreSeenButSendNothingBack) {
  TestRun run({"actor.policy_loss.loss_mode=vanilla", "actor.loss_agg_mode=seq-mean-token-sum"}, "float32");
  Batch data(true);
  UpdateReport report;
  const auto whole = run.gradients(data, kAll, &report);
  EXPECT_EQ(report.sums.num_tokens,
            std::accumulate(data.batch.response_mask.begin(), data.batch.response_mask.end(), 0));
  std::fill(data.batch.advantages.begin(), data.batch.advantages.end(), 0.0F);
  const auto none = run.gradients(data, {0, 20}, &report);
  for (const at::Tensor& grad : none) {
    ASSERT_TRUE(grad.defined());
    EXPECT_EQ(grad.norm().item<double>(), 0.0);
  }
  EXPECT_EQ(report.grad_norm, 0.0);
  EXPECT_FALSE(report.skipped);
  EXPECT_GT(report.sums.entropy, 0.0);
}

// Correction by the current policy: what one micro-batch rejects is told from the whole update.
TEST(ActorLearner, BypassModeDoesNotDependOnTheCut) {
  const std::string table = "algorithm.rollout_correction.";
  for (const std::string preset : {"bypass_pg_is", "bypass_pg_geo_rs_token_tis", "bypass_ppo_clip_k3_rs"}) {
    std::vector<std::string> overrides{table + "preset=" + preset, table + "rollout_is_batch_normalize=true"};
    if (preset.ends_with("k3_rs"))
      overrides.push_back(table + "rollout_rs_threshold=0.6");
    else if (preset != "bypass_pg_is")
      overrides.push_back(table + "rollout_rs_threshold=0.5_3.0");
    expect_same_gradient(overrides, false, "float32", 1e-5);
  }
}

// What is rejected leaves the token-mean's count too, as in verl.
TEST(ActorObjective, BypassModeWeighsTheKeptTokensAlone) {
  const LoadedConfig loaded =
      load_config(default_env(), "",
                  std::vector<std::string>{"algorithm.rollout_correction.preset=bypass_pg_geo_rs_seq_tis",
                                           "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0"})
          .value();
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  options.builtin_dir = std::filesystem::path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
  PluginRegistry registry = PluginRegistry::open(options).value();
  ActorObjective objective = ActorObjective::create(registry, loaded.config, {}).value();
  EXPECT_EQ(objective.coupling(), Coupling::kUpdate);
  const std::vector<int64_t> offsets = {0, 2, 3}, ids = {0, 1}, groups = {0, 0};
  const std::vector<float> log_prob = {-1.0F, -2.0F, -4.0F}, rollout = {-1.1F, -1.6F, -2.0F},
                           advantages = {1.0F, 1.0F, 1.0F}, weight = {1.0F / 3, 1.0F / 3, 1.0F / 3};
  const std::vector<uint8_t> mask = {1, 1, 1};
  std::vector<float> grad(3);
  ObjectiveInput in;
  in.layout = {offsets, ids, groups};
  in.log_prob = log_prob;
  in.old_log_prob = in.rollout_log_prob = rollout;
  in.advantages = advantages;
  in.weight = weight;
  in.response_mask = mask;
  MetricSet metrics;
  const ObjectiveSums sums = objective.evaluate(in, {grad, {}}, &metrics).value();
  const double w = std::exp(0.1 - 0.4);  // of the first row; the second, at e^-2, is rejected
  EXPECT_NEAR(sums.pg_loss, w * 3.0 / 2.0, 1e-6);
  EXPECT_NEAR(grad[0], -w / 2.0, 1e-6);
  EXPECT_EQ(grad[2], 0.0F);
  EXPECT_NEAR(metrics.value("rollout_corr/rollout_rs_seq_masked_fraction").value_or(-1), 0.5, 1e-9);
}

// A correction weight scales the policy term and leaves the KL term alone.
TEST(ActorObjective, RolloutIsWeightsAreTheEnginesOwn) {
  const std::vector<std::string> overrides = {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.5"};
  const LoadedConfig loaded = load_config(default_env(), "", overrides).value();
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  options.builtin_dir = std::filesystem::path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
  PluginRegistry registry = PluginRegistry::open(options).value();
  ActorObjective objective = ActorObjective::create(registry, loaded.config, {}).value();
  const std::vector<int64_t> offsets = {0, 2}, ids = {0}, groups = {0};
  const std::vector<float> log_prob = {-1.0F, -2.0F}, ref = {-1.5F, -1.0F}, advantages = {1.0F, -2.0F},
                           weight = {0.5F, 0.5F}, threes = {3.0F, 3.0F};
  const std::vector<uint8_t> mask = {1, 1};
  std::vector<float> plain_grad(2), grad(2);
  ObjectiveInput in;
  in.layout = {offsets, ids, groups};
  in.log_prob = in.old_log_prob = log_prob;
  in.ref_log_prob = ref;
  in.advantages = advantages;
  in.weight = weight;
  in.response_mask = mask;
  const ObjectiveSums plain = objective.evaluate(in, {plain_grad, {}}, nullptr).value();
  in.rollout_is_weights = threes;
  const ObjectiveSums corrected = objective.evaluate(in, {grad, {}}, nullptr).value();
  EXPECT_NEAR(plain.pg_loss, 0.5, 1e-6);  // -(1 - 2) / 2 at ratio 1
  EXPECT_NEAR(corrected.pg_loss, 1.5, 1e-6);
  EXPECT_GT(plain.kl_loss, 0.0);
  EXPECT_DOUBLE_EQ(corrected.kl_loss, plain.kl_loss);
  EXPECT_NEAR(grad[0] - plain_grad[0], -1.0, 1e-6);  // twice more of -advantage x weight
  EXPECT_NEAR(grad[1] - plain_grad[1], 2.0, 1e-6);
}

}  // namespace
}  // namespace mortise
