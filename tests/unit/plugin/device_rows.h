// A call of a loss or a KL estimator from the packs whose CUDA builds the emulator runs (tests/plugins), on the host or
// on the device of a RunKey.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/registry.h"

namespace mortise::test {

inline PluginRegistry& emulated_packs() {
  static PluginRegistry registry = [] {
    RegistryOptions options;
    options.use_environment = options.use_user_packs = false;
    options.builtin_dir = std::filesystem::path(MORTISE_BINARY_DIR) / "tests/emulated_packs";
    return PluginRegistry::open(options).value();
  }();
  return registry;
}

// Rows of 300, 0, 5 and 40 tokens with holes, and NaN in them.
struct Rows {
  std::vector<int64_t> offsets{0, 300, 300, 305, 345}, ids{0, 1, 2, 3}, groups{0, 0, 1, 1};
  std::vector<float> log_prob, old, advantages, weight, rollout, reference;
  std::vector<uint8_t> mask;

  Rows() {
    for (int t = 0; t < 345; ++t) {
      const auto wave = [t](double step) { return static_cast<float>(std::sin(step * (t + 1))); };
      const bool counts = t % 7 != 3;
      mask.push_back(counts ? 1 : 0);
      old.push_back(counts ? -1.5F + wave(0.7) : NAN);
      log_prob.push_back(old.back() + 0.4F * wave(1.3));
      advantages.push_back(2 * wave(2.1));
      weight.push_back(t % 11 == 0 ? 0.0F : 1.0F / 345);
      rollout.push_back(old.back() + 0.1F * wave(3.7));
      reference.push_back(old.back() + 0.3F * wave(0.3));
    }
  }
  [[nodiscard]] StepView view() const {
    StepView out;
    out.layout = {offsets, ids, groups};
    out.set<column::LogProb>(log_prob).set<column::OldLogProb>(old).set<column::Advantages>(advantages);
    out.set<column::Weight>(weight).set<column::RolloutLogProb>(rollout).set<column::RefLogProb>(reference);
    return out.set<column::ResponseMask>(mask);
  }
};

struct Computed {
  std::vector<float> value, grad;
  MetricSet metrics;
};

inline Result<Computed> loss_of(const std::string& name, const RunKey& key,
                                const nlohmann::ordered_json& params = nlohmann::ordered_json::object()) {
  const Rows rows;
  PolicyLoss loss = TRY(PolicyLoss::create(emulated_packs(), name, params, key));
  Computed out{std::vector<float>(345, 7), std::vector<float>(345, 7), {}};
  TRY(loss.compute(rows.view(), {out.value, out.grad, {}}, &out.metrics));
  return out;
}

inline Result<Computed> kl_of(const std::string& name, const RunKey& key) {
  const Rows rows;
  KlEstimator kl = TRY(KlEstimator::create(emulated_packs(), name, nlohmann::ordered_json::object(), key));
  Computed out{std::vector<float>(345, 7), std::vector<float>(345, 7), {}};
  TRY(kl.compute(rows.view(), {out.value, out.grad}, &out.metrics));
  return out;
}

inline void expect_same(const Computed& host, const Computed& device) {
  for (size_t t = 0; t < host.value.size(); ++t) {
    ASSERT_NEAR(host.value[t], device.value[t], 2e-6 * (1 + std::abs(host.value[t]))) << t;
    ASSERT_NEAR(host.grad[t], device.grad[t], 2e-6 * std::abs(host.grad[t]) + 1e-9) << t;
  }
  const auto expected = host.metrics.values(), found = device.metrics.values();
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].name, found[i].name);
    EXPECT_NEAR(expected[i].value, found[i].value, 1e-5 * (1 + std::abs(expected[i].value))) << expected[i].name;
  }
}

}  // namespace mortise::test
