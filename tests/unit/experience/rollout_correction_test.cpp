// Rollout correction against verl's own numbers (tests/golden/rollout_correction), and what verl has not.
#include "experience/correction/rollout_correction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "config/load.h"
#include "config/presets.h"
#include "foundation/base/env.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

struct Rows {
  std::vector<int64_t> offsets{0};
  std::vector<float> log_prob, rollout_log_prob;
  std::vector<uint8_t> mask;

  void add(const std::vector<float>& policy, const std::vector<float>& sampler, const std::vector<uint8_t>& row_mask) {
    log_prob.insert(log_prob.end(), policy.begin(), policy.end());
    rollout_log_prob.insert(rollout_log_prob.end(), sampler.begin(), sampler.end());
    mask.insert(mask.end(), row_mask.begin(), row_mask.end());
    offsets.push_back(static_cast<int64_t>(mask.size()));
  }
  [[nodiscard]] LogRatios ratios() const { return {offsets, mask, log_prob, rollout_log_prob}; }
};

Rows rows_of(const Json& item) {
  Rows rows;
  for (size_t i = 0; i < item["old_log_prob"].size(); ++i) {
    rows.add(item["old_log_prob"][i].get<std::vector<float>>(), item["rollout_log_prob"][i].get<std::vector<float>>(),
             item["response_mask"][i].get<std::vector<uint8_t>>());
  }
  return rows;
}

template <class T>
std::vector<T> flat(const Json& rows) {
  std::vector<T> out;
  for (const Json& row : rows) {
    for (const Json& value : row) out.push_back(value.get<T>());
  }
  return out;
}

Result<RolloutCorrection> correction_of(const std::vector<std::string>& settings) {
  std::vector<std::string> overrides;
  for (const std::string& setting : settings) overrides.push_back("algorithm.rollout_correction." + setting);
  const LoadedConfig loaded = TRY(load_config(default_env(), "", overrides));
  return RolloutCorrection::create(loaded.config.algorithm.rollout_correction);
}

Result<RolloutCorrection> correction_of_json(const Json& config) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : config.items())
    settings.push_back(key + "=" + (value.is_string() ? "\"" + value.get<std::string>() + "\"" : value.dump()));
  return correction_of(settings);
}

TEST(RolloutCorrection, EqualsVerl) {
  const Json cases = Json::parse(std::ifstream("golden/rollout_correction/cases.json"));
  ASSERT_GE(cases.size(), 25U);
  size_t num_metrics = 0;
  for (const Json& item : cases) {
    SCOPED_TRACE(item["config"].dump());
    const Rows rows = rows_of(item);
    MetricSet metrics;
    const auto correction = correction_of_json(item["config"]);
    ASSERT_TRUE(correction.ok()) << correction.error().to_string();
    const CorrectedBatch out = correction->apply(rows.ratios(), &metrics);
    EXPECT_EQ(out.mask, flat<uint8_t>(item["kept"]));
    EXPECT_EQ(out.weights.empty(), item["weights"].is_null());
    const std::vector<float> weights = flat<float>(item["weights"]);
    for (size_t t = 0; t < out.weights.size(); ++t)
      EXPECT_NEAR(out.weights[t], weights[t], 2e-5 * (1 + weights[t])) << t;
    for (const auto& [name, value] : item["metrics"].items()) {
      const double expected = value.get<double>();
      EXPECT_NEAR(metrics.value(name).value_or(NAN), expected, 1e-4 * (1 + std::abs(expected))) << name;
      ++num_metrics;
    }
    const std::vector<MetricValue> all = metrics.values();
    EXPECT_EQ(static_cast<size_t>(std::ranges::count_if(
                  all, [](const MetricValue& metric) { return metric.name.starts_with("rollout_corr/"); })),
              item["metrics"].size());
  }
  EXPECT_GT(num_metrics, 500U);
}

Rows two_rows() {
  Rows rows;
  rows.add({-1.0F, -1.0F}, {-1.5F, -0.5F - 1.0F}, {1, 1});  // d = 0.5, 0.5
  rows.add({-3.0F, -1.0F}, {-1.0F, -1.0F}, {1, 1});         // d = -2, 0
  return rows;
}

// By tokens as the loss is weighed, by rows where a row has one weight.
TEST(RolloutCorrection, TellsTheWeightsByTrlsNamesToo) {
  for (const auto& [level, mean] : {std::pair<std::string, double>{"token", (1.2 + 1.2 + std::exp(-2.0) + 1.0) / 4},
                                    {"sequence", (1.2 + std::exp(-2.0)) / 2}}) {
    MetricSet metrics;
    const CorrectedBatch corrected =
        correction_of({"rollout_is=" + level, "rollout_is_threshold=1.2"})->apply(two_rows().ratios(), &metrics);
    EXPECT_EQ(corrected.weights.size(), 4U);
    const std::string prefix = "sampling/importance_sampling_ratio/";
    EXPECT_NEAR(metrics.value(prefix + "mean").value_or(NAN), mean, 1e-6) << level;
    EXPECT_NEAR(metrics.value(prefix + "min").value_or(NAN), std::exp(-2.0), 1e-6) << level;
    EXPECT_NEAR(metrics.value(prefix + "max").value_or(NAN), 1.2, 1e-6) << level;
  }
}

TEST(RolloutCorrection, GeometricWeightsAreOfTheRowsMean) {
  const auto out =
      correction_of({"rollout_is=geometric", "rollout_is_threshold=10"})->apply(two_rows().ratios(), nullptr);
  EXPECT_NEAR(out.weights[0], std::exp(0.5), 1e-6);
  EXPECT_NEAR(out.weights[2], std::exp(-1.0), 1e-6);
  EXPECT_EQ(out.weights[2], out.weights[3]);
}

TEST(RolloutCorrection, WhatLiesOutsideIsCutOrMasked) {
  const auto weights = [](const std::vector<std::string>& settings) {
    return correction_of(settings)->apply(two_rows().ratios(), nullptr).weights;
  };
  const auto cut = weights({"rollout_is=token", "rollout_is_threshold=0.5_1.2", "rollout_is_outside=truncate"});
  EXPECT_EQ(cut, (std::vector<float>{1.2F, 1.2F, 0.5F, 1.0F}));
  const auto masked = weights({"rollout_is=token", "rollout_is_threshold=1.2", "rollout_is_outside=mask"});
  EXPECT_EQ(masked[0], 0.0F);
  EXPECT_NEAR(masked[2], std::exp(-2.0), 1e-6);  // no lower bound was given
}

TEST(RolloutCorrection, RowsWithoutTokensCountNowhere) {
  Rows rows = two_rows();
  MetricSet plain, padded;
  const auto correction = correction_of({"rollout_is=sequence", "rollout_rs=seq_mean_k3", "rollout_rs_threshold=0.5"});
  const auto first = correction->apply(rows.ratios(), &plain);
  rows.add({}, {}, {});
  rows.add({-50.0F}, {-1.0F}, {0});
  const auto second = correction->apply(rows.ratios(), &padded);
  EXPECT_EQ(second.weights.back(), 0.0F);
  EXPECT_EQ(std::vector<float>(second.weights.begin(), second.weights.begin() + 4), first.weights);
  for (const MetricValue& metric : plain.values()) EXPECT_EQ(padded.value(metric.name), metric.value) << metric.name;

  Rows none;
  none.add({-1.0F}, {-2.0F}, {0});
  MetricSet empty;
  EXPECT_EQ(correction->apply(none.ratios(), &empty).mask, (std::vector<uint8_t>{0}));
  EXPECT_TRUE(empty.empty());
}

TEST(RolloutCorrection, RefusesWhatCannotBeMeant) {
  const auto message = [](const std::vector<std::string>& settings) {
    const auto made = correction_of(settings);
    return made.ok() ? std::string() : made.error().to_string();
  };
  EXPECT_NE(message({"rollout_is=token", "rollout_is_threshold=-1"}).find("rollout_is_threshold"), std::string::npos);
  EXPECT_NE(message({"rollout_is=token", "rollout_is_threshold=2_1"}).find("lower bound is above the upper one"),
            std::string::npos);
  EXPECT_NE(message({"rollout_is=token", "rollout_is_threshold=abc"}).find("'abc'"), std::string::npos);
  EXPECT_NE(message({"rollout_is=tokens"}).find("one of"), std::string::npos);
  EXPECT_NE(message({"rollout_rs=seq_max_k1", "rollout_rs_threshold=1"}).find("seq_max_k2"), std::string::npos);
  EXPECT_NE(message({"rollout_rs=seq_max_k2"}).find("rollout_rs_threshold"), std::string::npos);
  EXPECT_NE(message({"rollout_rs=seq_max_k2", "rollout_rs_threshold=0.1_0.2"}).find("never negative"),
            std::string::npos);
  EXPECT_NE(message({"rollout_rs=token_k1", "rollout_rs_threshold=0.5"}).find("would reject everything"),
            std::string::npos);
  EXPECT_NE(
      message({"rollout_rs=\"token_k1,token_k2\"", "rollout_rs_threshold=\"1.2,1.3,1.4\""}).find("3 bounds for 2"),
      std::string::npos);
  EXPECT_NE(message({"preset=decoupled_token"}).find("decoupled_token_is"), std::string::npos);
}

TEST(RolloutCorrection, EveryPresetOfVerlIsThere) {
  EXPECT_EQ(rollout_correction_presets().size(), 19U);
  for (const Preset& preset : rollout_correction_presets()) {
    SCOPED_TRACE(preset.name);
    const auto correction = correction_of({"preset=" + preset.name});
    ASSERT_TRUE(correction.ok()) << correction.error().to_string();
    EXPECT_EQ(correction->is_bypass(), preset.name.starts_with("bypass"));
    EXPECT_EQ(correction->is_active(), preset.name != "disabled" && preset.name != "bypass_ppo_clip");
    const std::string loss = preset.name.starts_with("bypass_pg") ? "reinforce" : "vanilla";
    const LoadedConfig loaded =
        load_config(default_env(), "", std::vector<std::string>{"algorithm.rollout_correction.preset=" + preset.name})
            .value();
    EXPECT_EQ(loaded.config.actor.policy_loss.loss_mode, loss);
  }
  const auto own = correction_of({"preset=decoupled_seq_is", "rollout_is=null"});
  EXPECT_FALSE(own->is_active());  // an explicit key wins over the preset
}

}  // namespace
}  // namespace mortise
