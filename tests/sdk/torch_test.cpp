// The torch-locked tier: a loss built with libtorch equals the portable one, its errors name the plugin, and a program
// with another libtorch, or without libtorch, refuses the pack.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "foundation/metrics/registry.h"
#include "model/tensor/torch_version.h"
#include "plugin/host/kinds/policy_loss.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

PluginRegistry open_packs(std::string_view host_torch) {
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  options.builtin_dir = Path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
  options.paths = {Path(MORTISE_BINARY_DIR) / "tests/sdk_torch_packs"};
  options.host_torch = std::string(host_torch);
  auto registry = PluginRegistry::open(options);
  if (!registry.ok()) throw std::runtime_error(registry.error().to_string());
  return std::move(registry).value();
}

// Rows of 0 to 7 tokens with holes in the mask; ratios on both sides of every edge.
struct Batch {
  explicit Batch(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < 40; ++row) {
      const auto length = static_cast<int64_t>(random() % 8);
      offsets.push_back(offsets.back() + length);
      index.push_back(row);
      for (int64_t t = 0; t < length; ++t) {
        mask.push_back(random() % 5 != 0);
        log_prob.push_back(-1.0F - std::abs(normal(random)));
        old.push_back(mask.back() != 0 ? log_prob.back() + 0.6F * normal(random) : 1e30F);
        advantages.push_back(normal(random) * 2);
        weight.push_back(random() % 7 == 0 ? 0.0F : 0.01F);
      }
    }
  }
  [[nodiscard]] StepView input() const {
    StepView in;
    in.layout = {offsets, index, index};
    in.set<column::LogProb>(log_prob);
    in.set<column::OldLogProb>(old);
    in.set<column::Advantages>(advantages);
    in.set<column::ResponseMask>(mask);
    in.set<column::Weight>(weight);
    return in;
  }
  std::vector<int64_t> offsets = {0}, index;
  std::vector<float> log_prob, old, advantages, weight;
  std::vector<uint8_t> mask;
};

struct Outcome {
  std::vector<float> loss, grad;
  MetricSet metrics;
};

Outcome run(PluginRegistry& registry, const std::string& name, const nlohmann::ordered_json& params,
            const Batch& batch) {
  Outcome out;
  out.loss.resize(batch.log_prob.size());
  out.grad.resize(batch.log_prob.size());
  auto loss = PolicyLoss::create(registry, name, params, RunKey{});
  if (!loss.ok()) throw std::runtime_error(loss.error().to_string());
  const at::NoGradGuard as_in_the_engine;
  auto done = loss->compute(batch.input(), {out.loss, out.grad, {}}, &out.metrics);
  if (!done.ok()) throw std::runtime_error(done.error().to_string());
  return out;
}

TEST(TorchTierTest, TheTwinOfVanillaIsEqual) {
  PluginRegistry registry = open_packs(kTorchVersion);
  const nlohmann::ordered_json settings[] = {nlohmann::ordered_json::object(),
                                             {{"clip_ratio", 0.05}},
                                             {{"clip_ratio_low", 0.1}, {"clip_ratio_high", 0.4}, {"clip_ratio_c", 1.5}},
                                             {{"clip_ratio_c", 0.0}}};
  for (const auto& params : settings) {
    const Batch batch(7);
    const Outcome portable = run(registry, "vanilla", params, batch);
    const Outcome torch = run(registry, "torch_vanilla", params, batch);
    for (size_t t = 0; t < batch.log_prob.size(); ++t) {
      EXPECT_NEAR(portable.loss[t], torch.loss[t], 1e-5) << params.dump() << " token " << t;
      EXPECT_NEAR(portable.grad[t], torch.grad[t], 1e-7) << params.dump() << " token " << t;
    }
    for (const char* name : {"actor/pg_clipfrac", "actor/ppo_kl"}) {
      const auto a = portable.metrics.value(name), b = torch.metrics.value(name);
      ASSERT_TRUE(a && b) << name;
      EXPECT_NEAR(*a, *b, 1e-6) << name;
    }
  }
}

TEST(TorchTierTest, ALossOfTheRowSpreadsItsGradient) {
  PluginRegistry registry = open_packs(kTorchVersion);
  Batch batch(11);
  const Outcome out = run(registry, "torch_row_ratio", nlohmann::ordered_json::object(), batch);
  for (size_t row = 0; row + 1 < batch.offsets.size(); ++row) {
    double mean = 0, count = 0, outer = 0;
    for (auto t = static_cast<size_t>(batch.offsets[row]); t < static_cast<size_t>(batch.offsets[row + 1]); ++t) {
      if (batch.mask[t] == 0) continue;
      mean += batch.log_prob[t] - batch.old[t];
      outer -= batch.weight[t] * batch.advantages[t];
      count += 1;
    }
    const double ratio = std::exp(count > 0 ? mean / count : 0.0);
    for (auto t = static_cast<size_t>(batch.offsets[row]); t < static_cast<size_t>(batch.offsets[row + 1]); ++t) {
      const bool counts = batch.mask[t] != 0 && batch.weight[t] != 0;  // the host clears the rest
      EXPECT_NEAR(out.loss[t], counts ? -batch.advantages[t] * ratio : 0.0, 1e-4);
      EXPECT_NEAR(out.grad[t], counts ? outer * ratio / count : 0.0, 1e-5);
    }
  }
}

TEST(TorchTierTest, FaultsAreThePlugins) {
  PluginRegistry registry = open_packs(kTorchVersion);
  const Batch batch(3);
  std::vector<float> loss(batch.log_prob.size()), grad(batch.log_prob.size());
  const auto error = [&](const std::string& name) {
    auto made = PolicyLoss::create(registry, name, nlohmann::ordered_json::object(), RunKey{});
    return made.ok() ? error_of(made->compute(batch.input(), {loss, grad, {}}, nullptr)) : made.error().to_string();
  };
  EXPECT_THAT(error("wrong_shape"), AllOf(HasSubstr("wrong_shape"), HasSubstr("one number per token")));
  EXPECT_THAT(error("throws"), AllOf(HasSubstr("size of tensor"), testing::Not(HasSubstr("frame #"))));
}

TEST(TorchTierTest, AnotherLibtorchRefusesThePack) {
  for (const char* other : {"2.10.0", ""}) {
    const PluginRegistry registry = open_packs(other);
    const std::string error = error_of(registry.find("policy_loss", "torch_vanilla"));
    EXPECT_THAT(error,
                AllOf(HasSubstr("test.torch.so"), HasSubstr("built for libtorch " + std::string(kTorchVersion))));
  }
  const PluginRegistry registry = open_packs(kTorchVersion);
  EXPECT_EQ(registry.find("policy_loss", "torch_vanilla")->pack->tier, "torch-locked");
}

}  // namespace
}  // namespace mortise
