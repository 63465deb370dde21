// The losses of routers in updates: against finite differences and transformers, for every cut of the rows, with ranks,
// and in supervised updates. transformers needs a Python in MORTISE_ORACLES_PYTHON; without it its test is skipped, aloud.
#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "learn/update/sft_learner.h"
#include "learner_fixture.h"
#include "moe_config.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"

namespace mortise {
namespace {

LearnerOptions with_losses(const MicroBatchOptions& cut, double aux, double z) {
  LearnerOptions options = cut_by(cut);
  options.router_losses = {aux, z};
  return options;
}

double told(const UpdateReport& report, const char* name) { return report.metrics.value(name).value(); }

TEST(RouterLosses, DoNotDependOnTheCut) {
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {  // local to tokens, to rows, over the update
    TestObjective run({"actor.loss_agg_mode=token-mean", "actor.policy_loss.loss_mode=" + loss});
    for (const std::string dtype : {"float32", "float64"}) {
      // gspo's rows pass the experts of gpt-oss.
      TestPolicy policy(loss == "gspo" ? stacked_moe_config() : moe_config(), dtype, 5);
      const RandomRows data(false);
      UpdateReport whole_report, part_report;
      const auto whole =
          policy.gradients(run.objective, data.batch, with_losses({1000, 0, false}, 0.3, 0.02), &whole_report);
      EXPECT_GE(told(whole_report, "actor/expert_load/max"), 1.0);
      EXPECT_LE(told(whole_report, "actor/expert_load/min"), 1.0);
      for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {5, 0}, {0, 25}}) {
        for (const bool shares : {true, false}) {
          LearnerOptions options = with_losses(cut, 0.3, 0.02);
          options.pass.share_prompts = shares;
          if (!shares) options.pass.activation_bytes = 0;  // all layers are computed again in backward
          const auto parts = policy.gradients(run.objective, data.batch, options, &part_report);
          EXPECT_LE(worst_relative_l2(parts, whole), dtype == "float32" ? 1e-5 : 1e-12) << loss << " rows " << cut.rows;
          EXPECT_NEAR(part_report.sums.loss, whole_report.sums.loss, 1e-5);
          for (const char* name : {"actor/router_aux_loss", "actor/router_z_loss", "actor/expert_load/max"})
            EXPECT_NEAR(told(part_report, name), told(whole_report, name), 1e-5) << name;
        }
      }
    }
  }
}

// Rows without advantage learn nothing from the policy loss. The gradient is that of the two losses alone.
TEST(RouterLosses, GradientsAreFiniteDifferences) {
  TestObjective run({"actor.loss_agg_mode=token-mean"});
  for (const auto& [config, is_plain] :
       {std::pair{moe_config(), false}, std::pair{moe_config(), true}, std::pair{stacked_moe_config(), false}}) {
    TestPolicy policy(config, "float64", 5);
    RandomRows data(false);
    data.batch.make<column::Advantages>();
    LearnerOptions options = with_losses({4, 0}, 0.3, 0.02);
    if (is_plain) options.pass.path = LayerPath::kPlain;
    UpdateReport report;
    const auto grads = policy.gradients(run.objective, data.batch, options, &report);
    EXPECT_NEAR(report.sums.loss,
                0.3 * told(report, "actor/router_aux_loss") + 0.02 * told(report, "actor/router_z_loss"), 1e-12);
    constexpr double kStep = 1e-5;
    int num_checked = 0;
    for (size_t p = 0; p < grads.size(); ++p) {
      const NamedParameter& parameter = policy.model.parameters()[p];
      const int64_t i = parameter.tensor.numel() / 3;
      const double gradient = grads[p].contiguous().const_data_ptr<double>()[i];
      double& element = parameter.tensor.detach().mutable_data_ptr<double>()[i];
      const double kept = element;
      const auto loss_at = [&](double value) {
        element = value;
        UpdateReport at_value;
        policy.gradients(run.objective, data.batch, options, &at_value);
        return at_value.sums.loss;
      };
      const double above = loss_at(kept + kStep), below = loss_at(kept - kStep);
      element = kept;
      EXPECT_NEAR(gradient, (above - below) / (2 * kStep), 1e-7) << parameter.name;
      if (std::abs(gradient) > 1e-6) ++num_checked;
    }
    EXPECT_GT(num_checked, 10);
  }
}

TEST(RouterLosses, RanksGetTheSame) {
  const auto learn = [](Communicator& communicator, int64_t stage, const ModelConfig& config) {
    TestPolicy policy(config, "float64", 5, {&communicator, stage});
    static std::mutex mutex;
    std::unique_ptr<TestObjective> run;
    {
      const std::lock_guard lock(mutex);
      run = std::make_unique<TestObjective>(std::vector<std::string>{"actor.loss_agg_mode=token-mean"});
    }
    const RandomRows data(false);
    LearnerOptions options = with_losses({3, 0}, 0.3, 0.02);
    options.ranks = {&communicator, true};
    ActorLearner learner(policy.model, policy.optimizer, run->objective, options);
    const UpdateReport report = learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2}).value();
    return std::pair(told(report, "actor/router_aux_loss"), report.grad_norm);
  };
  for (const ModelConfig& config : {moe_config(), stacked_moe_config()}) {
    const std::pair<double, double> want = learn(alone(), 0, config);
    for (const int64_t stage : {0, 3}) {
      test::on_ranks(3, [&](Communicator& communicator) {
        const auto [aux, norm] = learn(communicator, stage, config);
        EXPECT_EQ(aux, want.first);
        EXPECT_NEAR(norm, want.second, 1e-12);
      });
    }
  }
}

TEST(RouterLosses, AreOffForDenseModelsAndByDefault) {
  TestObjective run({"actor.loss_agg_mode=token-mean"});
  const RandomRows data(false);
  UpdateReport report;
  TestPolicy dense("float64");
  dense.gradients(run.objective, data.batch, with_losses(kAll, 0.3, 0.02), &report);
  EXPECT_FALSE(report.metrics.value("actor/router_aux_loss").has_value());
  TestPolicy mixture(moe_config(), "float64", 5);
  mixture.gradients(run.objective, data.batch, cut_by(kAll), &report);
  EXPECT_FALSE(report.metrics.value("actor/router_aux_loss").has_value());
  LearnerOptions of_model = cut_by(kAll);
  of_model.router_losses.aux_coef.reset();  // 0.001, the model's own
  const double without = report.sums.loss;
  mixture.gradients(run.objective, data.batch, of_model, &report);
  EXPECT_NEAR(report.sums.loss, without + 0.001 * told(report, "actor/router_aux_loss"), 1e-9);
}

// What transformers computes for padded rows and their attention mask.
TEST(RouterLosses, AreThoseOfTransformers) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: transformers did not check the losses of routers";
  const test::TempDir dir;
  const RandomRows rows(false);
  std::vector<TableRow> learnt;
  Json problem = {{"rows", Json::array()}, {"prompt_lengths", Json::array()}};
  size_t num_tokens = 0;
  for (size_t i = 0; i < rows.responses.size(); ++i) {
    if (rows.responses[i].empty()) continue;
    learnt.push_back({rows.prompts[i], rows.responses[i], static_cast<int64_t>(i) / 3});
    std::vector<int64_t> ids = rows.prompts[i];
    ids.insert(ids.end(), rows.responses[i].begin(), rows.responses[i].end());
    problem["rows"].push_back(ids);
    problem["prompt_lengths"].push_back(rows.prompts[i].size());
    num_tokens += rows.responses[i].size();
  }
  StepTable table(std::move(learnt));
  table.put<column::ResponseMask>(std::vector<uint8_t>(num_tokens, 1));
  ASSERT_OK(write_file(default_env(), dir.path() / "rows.json", dump_json(problem)));
  const std::vector<std::string> names{"qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss"};
  std::string command = std::string(python) + " " + MORTISE_SOURCE_DIR + "/tests/unit/learn/router_oracle.py " +
                        (dir.path() / "rows.json").string() + " " + dir.path().string();
  for (const std::string& name : names)
    command += std::string(" ") + MORTISE_SOURCE_DIR + "/tests/golden/models/" + name;
  ASSERT_EQ(std::system((command + " 2>/dev/null").c_str()), 0) << command;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Path golden = Path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name;
    Model model = Model::load(default_env(), golden, "float64").value();
    AdamW optimizer(TestPolicy::parameters(model), {});
    LearnerOptions options = with_losses({4, 0}, 0.7, 0.0);
    options.grad_clip = 0.0;
    const SftReport report = sft_update(model, optimizer, table, options, {.lr = 0.0}).value();
    const auto theirs = SafetensorsFile::open(default_env(), dir.path() / (name + ".safetensors"));
    ASSERT_TRUE(theirs.ok()) << theirs.error().to_string();
    const auto number = [&](const char* tensor) {
      double value = 0.0;
      std::memcpy(&value, (*theirs->get(tensor)).bytes.data(), sizeof(value));
      return value;
    };
    EXPECT_NEAR(report.metrics.value("actor/router_aux_loss").value(), number("aux_loss"), 1e-5);  // theirs is float32
    EXPECT_NEAR(report.loss, number("loss"), 1e-5);
    int num_compared = 0;
    for (const NamedParameter& parameter : model.parameters()) {
      const TensorView* const view = theirs->find("grad." + parameter.name);
      if (view == nullptr) continue;  // theirs holds all experts of a layer in one tensor
      ++num_compared;
      const at::Tensor want = at::from_blob(const_cast<std::byte*>(view->bytes.data()), view->shape,
                                            at::TensorOptions().dtype(at::kDouble));
      const at::Tensor got = parameter.tensor.grad();
      EXPECT_LE((got - want).norm().item<double>(), 1e-5 * want.norm().item<double>() + 1e-9) << parameter.name;
    }
    EXPECT_GT(num_compared, 10);
  }
}

}  // namespace
}  // namespace mortise
