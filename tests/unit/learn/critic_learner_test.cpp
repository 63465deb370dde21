// The critic: its loss against verl's numbers, its values learn the returns, its gradient does not depend on how the
// rows are cut, and a language model becomes one.
#include "learn/update/critic_learner.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "foundation/base/rng.h"
#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "learn/objective/value_objective.h"
#include "learn/update/packed_forward.h"

namespace mortise {
namespace {

constexpr int64_t kVocab = 23;

struct Rows {
  std::vector<std::vector<int64_t>> prompts, responses;
  StepTable batch;

  Rows() {
    RandomStream stream({11, RandomPurpose::kTest, 0, 0, 0});
    std::vector<uint8_t> mask;
    std::vector<float> values, returns;
    for (int64_t row = 0; row < 6; ++row) {
      const auto ids = [&](uint64_t n) {
        std::vector<int64_t> out(n);
        for (int64_t& id : out) id = static_cast<int64_t>(stream.next_below(kVocab));
        return out;
      };
      prompts.push_back(ids(3));
      responses.push_back(ids(row == 3 ? 0 : 2 + stream.next_below(5)));
      for (size_t t = 0; t < responses.back().size(); ++t) {
        mask.push_back(t == 1 ? 0 : 1);
        values.push_back(static_cast<float>(0.3 * stream.next_normal()));
        returns.push_back(static_cast<float>(stream.next_normal()));
      }
    }
    std::vector<TableRow> rows;
    for (size_t i = 0; i < prompts.size(); ++i) rows.push_back({prompts[i], responses[i], static_cast<int64_t>(i) / 2});
    batch = StepTable(std::move(rows));
    batch.put<column::ResponseMask>(std::move(mask));
    batch.put<column::Values>(std::move(values));
    batch.put<column::Returns>(std::move(returns));
  }
};

Model critic_model(const std::string& dtype = "float32") {
  at::set_num_threads(1);
  ModelConfig config = make_qwen2_config({.vocab_size = kVocab,
                                          .hidden_size = 16,
                                          .intermediate_size = 24,
                                          .num_layers = 2,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .initializer_range = 0.3})
                           .value();
  config.is_classifier = true;
  config.num_labels = 1;
  return Model::random(config, 5, dtype).value();
}

AdamW optimizer_of(Model& model) {
  std::vector<OptimizedParameter> parameters;
  for (const NamedParameter& p : model.parameters()) parameters.push_back({p.name, p.tensor, true});
  return {parameters, {}, "critic.optim"};
}

// One case of verl's compute_value_loss (tests/golden/tensors), its rows flat.
void expect_verls_value_loss(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(default_env(), path).value();
  const Json params = parse_json(file.metadata().at("params"), path.string()).value();
  const Json logged = parse_json(file.metadata().at("metrics"), path.string()).value();
  const auto floats = [&](const char* name) { return file.get(name).value().as<float>(); };
  const TensorView shape = file.get("in.vpreds").value();
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row <= shape.shape[0]; ++row) offsets.push_back(row * shape.shape[1]);
  std::vector<uint8_t> mask;
  for (const float m : floats("in.response_mask")) mask.push_back(m != 0.0F ? 1 : 0);
  std::vector<float> weight(mask.size()), grad(mask.size());
  TokenWeightOptions aggregation;
  aggregation.mode = parse_loss_agg_mode(params["loss_agg_mode"].get<std::string>()).value();
  ASSERT_TRUE(token_weights(aggregation, count_update(offsets, mask, {}), offsets, mask, {}, weight).ok());
  MetricSet metrics;
  StepView view;
  view.set<column::Values>(floats("in.values")).set<column::Returns>(floats("in.returns"));
  view.set<column::ResponseMask>(mask).set<column::Weight>(weight);
  const double loss =
      value_objective(floats("in.vpreds"), view, params["cliprange_value"].get<double>(), grad, metrics);
  const auto expected = static_cast<double>(floats("expected.loss")[0]);
  EXPECT_NEAR(loss, expected, 1e-6 * expected);
  for (size_t t = 0; t < grad.size(); ++t) EXPECT_NEAR(grad[t], floats("expected.grad_vpreds")[t], 1e-6) << t;
  for (const auto& [name, value] : logged.items())
    EXPECT_NEAR(metrics.value(name).value_or(-1.0), value.get<double>(), 1e-6) << name;
}

TEST(CriticLearner, TheLossIsVerls) {
  int num_cases = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(MORTISE_SOURCE_DIR) / "tests/golden/tensors")) {
    if (!entry.path().filename().string().starts_with("value_loss.")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    expect_verls_value_loss(entry.path());
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 6);
}

TEST(CriticLearner, ValuesAreReadBeforeEachToken) {
  const Rows rows;
  Model model = critic_model();
  AdamW optimizer = optimizer_of(model);
  const CriticLearner learner(model, optimizer, {});
  const std::vector<float> values = learner.values(rows.batch).value();
  // Row 0, with the model's own forward: token j of the response is predicted at prompt length - 1 + j.
  std::vector<int64_t> ids = rows.prompts[0];
  ids.insert(ids.end(), rows.responses[0].begin(), rows.responses[0].end());
  const PackedForward alone = forward_rows(model, rows.batch, std::vector<int64_t>{0}).value();
  const at::Tensor scores = at::matmul(alone.hidden_RH, model.head_weight().detach().t());
  for (int64_t t = 0; t < rows.batch.row_tokens(0); ++t) {
    const bool kept = rows.batch.get<column::ResponseMask>()[static_cast<size_t>(t)] != 0;
    EXPECT_NEAR(values[static_cast<size_t>(t)], kept ? scores[t].item<float>() : 0.0F, 1e-5) << t;
  }
}

TEST(CriticLearner, EveryCutGivesTheSameGradient) {
  const Rows rows;
  for (const std::string_view mode : loss_agg_mode_names()) {
    std::vector<at::Tensor> whole;
    double loss = 0.0;
    for (const MicroBatchOptions cut : {MicroBatchOptions{1000, 0}, {1, 0}, {2, 0}, {0, 10}}) {
      Model model = critic_model("float64");
      AdamW optimizer = optimizer_of(model);
      CriticOptions options;
      options.learner.micro_batch = cut;
      options.learner.grad_clip = 0.0;
      options.aggregation = {parse_loss_agg_mode(mode).value(), LossAggRows::kNonempty, 4.0, true};
      CriticLearner learner(model, optimizer, options);
      const CriticReport report = learner.update(rows.batch, all_rows(rows.batch), 0.0).value();
      std::vector<at::Tensor> grads;
      for (const NamedParameter& p : model.parameters()) grads.push_back(p.tensor.grad().clone());
      if (whole.empty()) {
        whole = grads;
        loss = report.loss;
        EXPECT_GT(report.grad_norm, 0.0);
      }
      EXPECT_NEAR(report.loss, loss, 1e-12 * (1 + loss));
      EXPECT_EQ(report.metrics.value("critic/vf_loss"), report.loss);
      for (size_t i = 0; i < grads.size(); ++i)
        EXPECT_LE((grads[i] - whole[i]).norm().item<double>(), 1e-12 * whole[i].norm().item<double>()) << mode;
    }
  }
}

TEST(CriticLearner, LearnsTheReturns) {
  const Rows rows;
  Model model = critic_model();
  AdamW optimizer = optimizer_of(model);
  CriticOptions options;
  options.cliprange_value = 1e6;
  CriticLearner learner(model, optimizer, options);
  const double first = learner.update(rows.batch, all_rows(rows.batch), 3e-3).value().loss;
  double last = first;
  for (int i = 0; i < 150; ++i) last = learner.update(rows.batch, all_rows(rows.batch), 3e-3).value().loss;
  EXPECT_LT(last, 0.05 * first);
}

// The gradient of the whole by finite differences of the loss.
TEST(CriticLearner, GradientIsTheSlopeOfTheLoss) {
  Rows rows;
  Model model = critic_model("float64");
  AdamW optimizer = optimizer_of(model);
  CriticOptions options;
  options.learner.grad_clip = 0.0;
  CriticLearner learner(model, optimizer, options);
  rows.batch.put<column::Values>(learner.values(rows.batch).value());
  const auto loss = [&] { return learner.update(rows.batch, all_rows(rows.batch), 0.0).value().loss; };
  loss();
  const NamedParameter* score = model.find_parameter("score.weight");
  ASSERT_NE(score, nullptr);
  const double slope = score->tensor.grad().view(-1)[3].item<double>();
  constexpr double kStep = 1e-3;
  const auto moved = [&](double by) {
    score->tensor.detach().view(-1)[3] += by;
    const double value = loss();
    score->tensor.detach().view(-1)[3] -= by;
    return value;
  };
  EXPECT_NEAR((moved(kStep) - moved(-kStep)) / (2 * kStep), slope, 2e-4 * (1 + std::abs(slope)));
}

}  // namespace
}  // namespace mortise
