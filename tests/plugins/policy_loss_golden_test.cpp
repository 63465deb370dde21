// Policy losses against the numbers of verl and TRL, metrics included. The test plays the engine's part: aggregation,
// importance weights, masks and the KL term.
#include <gtest/gtest.h>

#include "golden_case.h"
#include "loss_call.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

constexpr double kTolerance = 1e-5;

bool consumes_weights(const mortise_descriptor* plugin) {
  for (const char* const* name = plugin->consumes; name != nullptr && *name != nullptr; ++name) {
    if (std::string_view(*name) == "rollout_is_weights") return true;
  }
  return false;
}

// What the engine does where the user names no aggregation.
std::string own_aggregation(const mortise_descriptor* plugin) {
  for (uint32_t i = 0; i < plugin->num_params; ++i) {
    if (std::string_view(plugin->params[i]->name) == "loss_agg_mode") return plugin->params[i]->default_text;
  }
  return plugin->coupling == MORTISE_COUPLING_ROW ? "seq-mean-token-mean" : "token-mean";
}

LossInput inputs(const GoldenCase& c) {
  LossInput in;
  for (int64_t i = 1; i <= c.num_rows; ++i) in.row_offsets.push_back(i * c.width);
  const auto floats = [&](const std::string& name) { return std::vector<float>(c.at(name).begin(), c.at(name).end()); };
  in.log_prob = floats("in.log_prob");
  in.old_log_prob = floats("in.old_log_prob");
  in.mask.assign(c.at("in.response_mask").begin(), c.at("in.response_mask").end());
  in.advantages = floats("in.advantages");
  if (int64_t(in.advantages.size()) == c.num_rows) {
    in.advantages.clear();
    for (const double a : c.at("in.advantages")) in.advantages.insert(in.advantages.end(), size_t(c.width), float(a));
  }
  return in;
}

void expect_metrics(const PolicyLoss& plugin, const GoldenCase& c) {
  for (const auto& [name, value] : c.metrics) {
    if (name == "entropy" || name == "kl") continue;  // the engine's
    const auto found = plugin.call.metrics.find(name);
    ASSERT_NE(found, plugin.call.metrics.end()) << name;
    const bool mean = found->second.reduction == MORTISE_REDUCE_MEAN;
    EXPECT_NEAR(mean ? found->second.mean() : found->second.sum, value, 1e-6) << name;
  }
}

class VerlGolden : public testing::TestWithParam<std::string> {};

TEST_P(VerlGolden, LossGradientAndMetrics) {
  const auto cases = golden_cases("policy_loss", GetParam());
  ASSERT_GE(cases.size(), 8U);
  const mortise_descriptor* descriptor = policy_loss(GetParam());
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.file);
    auto params = c.params;
    params.erase("loss_agg_mode");
    params.erase("loss_scale_factor");
    PolicyLoss plugin(descriptor, params);
    ASSERT_EQ(plugin.status, 0) << plugin.call.error;
    LossInput in = inputs(c);
    const std::string mode = c.param("loss_agg_mode", own_aggregation(descriptor));
    in.weight = aggregation(mode, in, std::stod(c.param("loss_scale_factor", std::to_string(c.width))));
    if (c.has("in.rollout_is_weights")) {
      const auto& weights = c.at("in.rollout_is_weights");
      if (consumes_weights(descriptor)) in.rollout_is_weights.assign(weights.begin(), weights.end());
      for (size_t i = 0; i < in.weight.size() && in.rollout_is_weights.empty(); ++i) in.weight[i] *= float(weights[i]);
    }
    const LossOutput got = compute(plugin, in);
    const double expected = c.at("expected.loss")[0];
    EXPECT_NEAR(got.total, expected, kTolerance * std::abs(expected) + 1e-7);
    EXPECT_TRUE(all_close(got.grad, c.at("expected.grad_log_prob"), kTolerance));
    expect_metrics(plugin, c);
  }
}
INSTANTIATE_TEST_SUITE_P(PolicyLoss, VerlGolden,
                         testing::Values("vanilla", "gspo", "sapo", "gpg", "kl_cov", "geo_mean", "cispo"),
                         [](const auto& name) { return name.param; });

// --- TRL
// --------------------------------------------------------------------------------------------------------------

// TRL's names as the plugin's.
struct TrlLoss {
  std::string plugin, aggregation;
  std::map<std::string, std::string> params;
};
TrlLoss translate(const GoldenCase& c) {
  const std::string type = c.param("trl_loss_type", "");
  const std::string low = c.param("epsilon_low", "0.2"), high = c.param("epsilon_high", "0.2");
  if (type == "sapo") return {"sapo", "seq-mean-token-mean", {}};
  if (type == "vespo") return {"vespo", "token-mean", {}};
  if (type == "cispo") return {"cispo", "token-mean", {{"cap", high}}};
  TrlLoss out;
  const bool sequence = c.param("importance_sampling_level", "token") == "sequence";
  out.plugin = type == "luspo" ? "luspo" : sequence ? "gspo" : "vanilla";
  out.params = {{"clip_ratio_low", low}, {"clip_ratio_high", high},
                {"clip_ratio_c", "0"},   {"delta", c.param("delta", "none")},
                {"gradient", "row"},     {"max_log_ratio", "none"}};
  out.aggregation = type == "grpo"      ? "seq-mean-token-mean"
                    : type == "luspo"   ? "seq-mean-token-sum"
                    : type == "dr_grpo" ? "seq-mean-token-sum-norm"
                                        : "token-mean";
  return out;
}

// Linear interpolation between the order statistics, as in torch.quantile.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double place = q * double(values.size() - 1);
  const auto below = size_t(place);
  const double above = values[std::min(below + 1, values.size() - 1)];
  return values[below] + (place - double(below)) * (above - values[below]);
}

// The share of each token in the policy term: TRL's importance weights, entropy mask and off-policy sequence mask.
std::vector<float> policy_share(const GoldenCase& c, const LossInput& in) {
  std::vector<float> share(in.mask.size(), 1.0F);
  if (c.has("in.rollout_is_weights") && in.rollout_is_weights.empty())
    share.assign(c.at("in.rollout_is_weights").begin(), c.at("in.rollout_is_weights").end());
  if (const std::string top = c.param("top_entropy_quantile", ""); !top.empty()) {
    std::vector<double> entropies;
    const auto& entropy = c.at("in.entropy");
    for (size_t i = 0; i < entropy.size(); ++i) {
      if (in.mask[i] != 0) entropies.push_back(entropy[i]);
    }
    const double threshold = quantile(entropies, 1 - std::stod(top));
    for (size_t i = 0; i < share.size(); ++i) share[i] *= entropy[i] >= threshold ? 1.0F : 0.0F;
  }
  if (const std::string bound = c.param("off_policy_mask_threshold", ""); !bound.empty()) {
    for (int64_t row = 0; row < c.num_rows; ++row) {
      double sum = 0, tokens = 0;
      for (size_t t = size_t(row * c.width); t < size_t((row + 1) * c.width); ++t) {
        if (in.mask[t] == 0) continue;
        sum += double(in.old_log_prob[t]) - double(in.log_prob[t]);
        tokens += 1;
      }
      const bool keep = in.advantages[size_t(row * c.width)] >= 0 || sum / std::max(tokens, 1.0) <= std::stod(bound);
      for (int64_t t = row * c.width; t < (row + 1) * c.width && !keep; ++t) share[size_t(t)] = 0;
    }
  }
  return share;
}

class TrlGolden : public testing::TestWithParam<std::string> {};

TEST_P(TrlGolden, LossGradientAndMetrics) {
  const auto cases = golden_cases("policy_loss", "trl_" + GetParam(), "trl");
  ASSERT_GE(cases.size(), 3U);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.file);
    const TrlLoss loss = translate(c);
    PolicyLoss plugin(policy_loss(loss.plugin), loss.params);
    ASSERT_EQ(plugin.status, 0) << plugin.call.error;
    LossInput in = inputs(c);
    if (loss.plugin == "vespo" && c.has("in.rollout_is_weights"))
      in.rollout_is_weights.assign(c.at("in.rollout_is_weights").begin(), c.at("in.rollout_is_weights").end());
    // TRL's dr_grpo divides by the rows too, all of them.
    const double factor = std::stod(c.param("max_completion_length", "256")) * double(c.num_rows);
    const std::vector<float> weight = aggregation(loss.aggregation, in, factor), share = policy_share(c, in);
    in.weight = weight;
    for (size_t i = 0; i < weight.size(); ++i) in.weight[i] *= share[i];
    LossOutput got = compute(plugin, in);
    if (const double beta = std::stod(c.param("beta", "0")); beta != 0) {
      for (size_t i = 0; i < weight.size(); ++i) {
        if (in.mask[i] == 0) continue;
        const double d = c.at("in.ref_log_prob")[i] - c.at("in.log_prob")[i];
        got.total += beta * double(weight[i]) * (std::exp(d) - d - 1);
        got.grad[i] += float(beta * double(weight[i]) * (1 - std::exp(d)));
      }
    }
    const double expected = c.at("expected.loss")[0];
    EXPECT_NEAR(got.total, expected, kTolerance * std::abs(expected) + 1e-7);
    EXPECT_TRUE(all_close(got.grad, c.at("expected.grad_log_prob"), kTolerance));
    expect_metrics(plugin, c);
  }
}
INSTANTIATE_TEST_SUITE_P(PolicyLoss, TrlGolden,
                         testing::Values("grpo", "bnpo", "dr_grpo", "dapo", "sapo", "vespo", "luspo", "cispo"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace mortise::test
