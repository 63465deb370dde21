// The whole objective as configured against TRL's whole loss (tests/golden/trl): aggregation, KL term, entropy mask,
// off-policy sequence mask, importance weights. The engine's own code runs here where tests/plugins plays its part.
#include <cmath>
#include <map>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "learner_fixture.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

// One case file, its rows flat.
struct TrlCase {
  explicit TrlCase(const fs::path& path)
      : file(SafetensorsFile::open(default_env(), path).value()),
        params(parse_json(file.metadata().at("params"), path.string()).value()),
        metrics(parse_json(file.metadata().at("metrics"), path.string()).value()) {
    const TensorView log_prob = file.get("in.log_prob").value();
    num_rows = log_prob.shape[0];
    width = log_prob.shape[1];
    for (int64_t row = 0; row <= num_rows; ++row) offsets.push_back(row * width);
    for (int64_t row = 0; row < num_rows; ++row) ids.push_back(row);
    for (const float m : floats("in.response_mask")) mask.push_back(m != 0.0F ? 1 : 0);
  }

  // Empty if there is none; (B,) is repeated over the row.
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const auto tensor = file.get(name);
    if (!tensor.ok()) return {};
    const auto values = tensor->as<float>();
    std::vector<float> out(values.begin(), values.end());
    if (static_cast<int64_t>(out.size()) == num_rows && width > 1) {
      std::vector<float> wide;
      for (const float value : out) wide.insert(wide.end(), static_cast<size_t>(width), value);
      return wide;
    }
    return out;
  }
  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const {
    if (!params.contains(key)) return otherwise;
    return params[key].is_string() ? params[key].get<std::string>() : params[key].dump();
  }

  SafetensorsFile file;
  Json params, metrics;
  int64_t num_rows = 0, width = 0;
  std::vector<int64_t> offsets, ids;
  std::vector<uint8_t> mask;
};

// TRL's settings under our names.
std::vector<std::string> settings_of(const TrlCase& c) {
  static const std::map<std::string, std::string> aggregation = {
      {"grpo", "seq-mean-token-mean"}, {"sapo", "seq-mean-token-mean"},
      {"dapo", "token-mean"},          {"bnpo", "token-mean"},
      {"cispo", "token-mean"},         {"vespo", "token-mean"},
      {"luspo", "seq-mean-token-sum"}, {"dr_grpo", "seq-mean-token-sum-norm"}};
  const std::string type = c.text("trl_loss_type", "");
  const bool sequence = c.text("importance_sampling_level", "token") == "sequence";
  const bool has_own_row_form = type == "sapo" || type == "cispo";
  const std::string loss = has_own_row_form                     ? type + (sequence ? "_sequence" : "")
                           : type == "vespo" || type == "luspo" ? type
                           : sequence                           ? "gspo"
                                                                : "vanilla";
  const std::string table = "actor.policy_loss.";
  std::vector<std::string> out = {table + "loss_mode=" + loss, "actor.loss_agg_mode=" + aggregation.at(type),
                                  "actor.loss_agg_rows=all", "actor.clip_ratio_c=0",
                                  "data.max_response_length=" + c.text("max_completion_length", "256")};
  if (type == "cispo") {
    out.push_back(table + "cap=" + c.text("epsilon_high", "0.2"));
  } else if (type != "sapo" && type != "vespo") {
    out.push_back(table + "clip_ratio_low=" + c.text("epsilon_low", "0.2"));
    out.push_back(table + "clip_ratio_high=" + c.text("epsilon_high", c.text("epsilon_low", "0.2")));
    if (c.params.contains("delta")) out.push_back(table + "delta=" + c.text("delta", ""));
    if (loss == "gspo") out.push_back(table + "gradient=row");
  }
  if (c.params.contains("beta")) {
    out.emplace_back("actor.use_kl_loss=true");
    out.push_back("actor.kl_loss_coef=" + c.text("beta", ""));
    if (c.text("use_bias_correction_kl", "false") == "true")
      out.emplace_back(sequence ? "actor.kl_loss_type=k3_row_ratio" : "actor.kl_loss_type=k3_ratio");
  }
  for (const char* key : {"top_entropy_quantile", "off_policy_mask_threshold"}) {
    if (c.params.contains(key)) out.push_back(std::string("actor.") + key + "=" + c.text(key, ""));
  }
  return out;
}

void expect_trl_numbers(const TrlCase& c) {
  TestObjective run(settings_of(c));
  const std::vector<float> log_prob = c.floats("in.log_prob"), old = c.floats("in.old_log_prob"),
                           advantages = c.floats("in.advantages"), ref = c.floats("in.ref_log_prob"),
                           entropy = c.floats("in.entropy"), is_weights = c.floats("in.rollout_is_weights");
  const UpdateCounts counts = count_update(c.offsets, c.mask, c.ids);
  std::vector<float> weight(log_prob.size()), grad(log_prob.size()), grad_entropy(entropy.size());
  std::vector<float> entropy_weight(entropy.size());
  ASSERT_TRUE(token_weights(run.objective.aggregation(), counts, c.offsets, c.mask, c.ids, weight).ok());
  if (const auto& own = run.objective.entropy_aggregation(); own && !entropy.empty())
    ASSERT_TRUE(token_weights(*own, counts, c.offsets, c.mask, c.ids, entropy_weight).ok());
  StepView in;
  in.layout = {c.offsets, c.ids, c.ids};
  in.set<column::LogProb>(log_prob);
  in.set<column::OldLogProb>(old);
  in.set<column::Advantages>(advantages);
  in.set<column::ResponseMask>(c.mask);
  in.set<column::Weight>(weight);
  in.set<column::RefLogProb>(ref);
  in.set<column::Entropy>(entropy);
  in.set<column::RolloutIsWeights>(is_weights);
  MetricSet metrics;
  const auto sums = run.objective.evaluate(in, {grad, grad_entropy}, &metrics);
  ASSERT_TRUE(sums.ok()) << sums.error().to_string();
  const double loss = static_cast<double>(c.floats("expected.loss")[0]);
  EXPECT_NEAR(sums->loss, loss, 1e-5 * std::abs(loss) + 1e-7);
  const std::vector<float> expected = c.floats("expected.grad_log_prob");
  float largest = 0.0F;
  for (const float g : expected) largest = std::max(largest, std::abs(g));
  for (size_t t = 0; t < grad.size(); ++t) EXPECT_NEAR(grad[t], expected[t], 1e-5F * largest) << "token " << t;
  if (c.metrics.contains("kl")) {
    EXPECT_NEAR(sums->kl / static_cast<double>(sums->num_tokens), c.metrics["kl"].get<double>(), 1e-6);
  }
  if (!entropy.empty()) {
    EXPECT_NEAR(sums->entropy / static_cast<double>(sums->num_tokens), c.metrics["entropy"].get<double>(), 1e-6);
  }
}

TEST(Objective, IsTrlsWholeLoss) {
  int num_cases = 0;
  std::map<std::string, int> seen;
  for (const auto& entry : fs::directory_iterator(fs::path(MORTISE_SOURCE_DIR) / "tests/golden/trl")) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const TrlCase c(entry.path());
    for (const auto& [key, value] : c.params.items()) ++seen[key];
    expect_trl_numbers(c);
    ++num_cases;
  }
  EXPECT_GE(num_cases, 39);
  for (const char* stage : {"beta", "delta", "top_entropy_quantile", "off_policy_mask_threshold"})
    EXPECT_GE(seen[stage], 3) << stage;
}

// tests/golden/trl_kl: the KL term of TRL 1.16, which its importance ratio multiplies: the row's at sequence level.
TEST(Objective, IsTrlsLossWithItsKlAtBothLevels) {
  int num_corrected_rows = 0, num_cases = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(MORTISE_SOURCE_DIR) / "tests/golden/trl_kl")) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const TrlCase c(entry.path());
    ASSERT_TRUE(c.metrics.contains("kl"));
    expect_trl_numbers(c);
    ++num_cases;
    num_corrected_rows +=
        c.params["use_bias_correction_kl"] == true && c.params["importance_sampling_level"] == "sequence";
  }
  EXPECT_EQ(num_cases, 22);
  EXPECT_EQ(num_corrected_rows, 7);
}

// Two rows worked through by TRL's own _compute_loss (July 2026, float64), to eight places.
struct TwoRows {
  std::vector<float> log_prob{-1, -2, -.5F, -1.5F, -.7F, -3, -1.2F, -.9F},
      old{-1.2F, -1.6F, -.5F, -9, -.4F, -3.6F, -1.3F, -.8F}, ref{-1.1F, -1.9F, -.8F, -7, -.9F, -2.5F, -1.2F, -1},
      advantages{1, 1, 1, 1, -.5F, -.5F, -.5F, -.5F}, entropy{.5F, 2, .1F, 9.9F, 1.5F, .3F, .9F, .2F},
      is_weights{1.5F, 1.5F, 1.5F, 1.5F, 0, 0, 0, 0};
  std::vector<uint8_t> mask{1, 1, 1, 0, 1, 1, 1, 1};
  std::vector<int64_t> offsets{0, 4, 8}, ids{0, 1};
};

struct Worked {
  const char* settings;  // with a space between; "IS": the importance weights of the row are given
  double loss;
};

double loss_of(const TwoRows& rows, const std::string& settings, std::vector<float>& grad) {
  std::vector<std::string> overrides{"actor.clip_ratio_c=0", "data.max_response_length=8",
                                     "actor.kl_params.max_kl=1e300", "actor.kl_params.max_log_ratio=1e300"};
  bool weighted = false;
  for (size_t at = 0; at < settings.size();) {
    const size_t end = std::min(settings.find(' ', at), settings.size());
    const std::string word = settings.substr(at, end - at);
    if (word == "IS") weighted = true;
    if (word != "IS") overrides.push_back("actor." + word);
    at = end + 1;
  }
  TestObjective run(overrides);
  std::vector<float> weight(8), grad_entropy(8);
  const UpdateCounts counts = count_update(rows.offsets, rows.mask, rows.ids);
  EXPECT_TRUE(token_weights(run.objective.aggregation(), counts, rows.offsets, rows.mask, rows.ids, weight).ok());
  StepView in;
  in.layout = {rows.offsets, rows.ids, rows.ids};
  in.set<column::LogProb>(rows.log_prob);
  in.set<column::OldLogProb>(rows.old);
  in.set<column::Advantages>(rows.advantages);
  in.set<column::ResponseMask>(rows.mask);
  in.set<column::Weight>(weight);
  in.set<column::RefLogProb>(rows.ref);
  in.set<column::Entropy>(rows.entropy);
  if (weighted) in.set<column::RolloutIsWeights>(rows.is_weights);
  grad.assign(8, 0.0F);
  const auto sums = run.objective.evaluate(in, {grad, grad_entropy}, nullptr);
  EXPECT_TRUE(sums.ok()) << sums.error().to_string();
  return sums.ok() ? sums->loss : 0.0;
}

TEST(Objective, IsTrlsOnTwoRowsWorkedThrough) {
  const TwoRows rows;
  std::vector<float> grad;
  const Worked cases[] = {
      {"loss_agg_mode=seq-mean-token-mean", -0.18887873},
      {"loss_agg_mode=token-mean", -0.07917950},
      {"loss_agg_mode=seq-mean-token-sum-norm", -0.03464103},
      {"policy_loss.loss_mode=gspo policy_loss.gradient=row loss_agg_mode=seq-mean-token-mean", -0.19828245},
      {"policy_loss.loss_mode=gspo policy_loss.gradient=row loss_agg_mode=token-mean", -0.09296466},
      {"policy_loss.loss_mode=luspo", -0.32537633},
      {"policy_loss.loss_mode=cispo policy_loss.cap=5 loss_agg_mode=token-mean", -0.14295730},
      {"policy_loss.loss_mode=cispo policy_loss.cap=0.2 loss_agg_mode=token-mean", 0.01714286},
      {"policy_loss.loss_mode=sapo", -0.47316861},
      {"policy_loss.loss_mode=vespo", 0.07117842},
      {"loss_agg_mode=token-mean policy_loss.delta=1.5", -0.10218798},
      {"loss_agg_mode=token-mean clip_ratio_high=0.28", -0.08223703},
      {"loss_agg_mode=token-mean use_kl_loss=true kl_loss_coef=0.1", -0.07599213},
      {"loss_agg_mode=token-mean use_kl_loss=true kl_loss_coef=0.1 kl_loss_type=k3_ratio", -0.07433044},
      {"loss_agg_mode=token-mean top_entropy_quantile=0.2", -0.03861715},
      {"loss_agg_mode=token-mean IS", -0.61506858},
      {"loss_agg_mode=token-mean entropy_coeff=0.1", -0.15775093},
  };
  for (const Worked& c : cases) {
    SCOPED_TRACE(c.settings);
    EXPECT_NEAR(loss_of(rows, c.settings, grad), c.loss, 2e-7);
  }
  loss_of(rows, "loss_agg_mode=token-mean", grad);
  const double slopes[] = {0, -.09576, -.142857, 0, 0, .130151, .078941, .064631};
  for (size_t t = 0; t < 8; ++t) EXPECT_NEAR(grad[t], slopes[t], 1e-6) << t;
}

}  // namespace
}  // namespace mortise
