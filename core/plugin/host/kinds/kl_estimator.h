// A KL estimator by name: per-token estimate of KL(policy || reference), with its gradient when it is a loss term.
//
// "NAME+" is the straight-through form: value of NAME, gradient of k2 (weight * (log_prob - ref_log_prob)); it is
// composed here, so that every estimator has it. Threading: one call at a time per object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plugin/host/instance.h"
#include "plugin/host/kinds/layout.h"

namespace mortise {

struct KlEstimatorInput {
  Layout layout{};
  std::span<const float> log_prob{};         // [N]
  std::span<const float> ref_log_prob{};     // [N]
  std::span<const uint8_t> response_mask{};  // [N]
  std::span<const float> weight{};           // [N]
  std::span<const float> old_log_prob{};     // [N], optional
  int64_t step = 1;
};

struct KlEstimatorOutput {
  std::span<float> kl{};             // [N] nats; 0 where masked
  std::span<float> grad_log_prob{};  // [N] = d(sum weight*kl)/d log_prob, or empty: value only
};

class KlEstimator {
 public:
  static Result<KlEstimator> create(PluginRegistry& registry, std::string_view name,
                                    const nlohmann::ordered_json& params, const RunKey& key);
  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] Coupling coupling() const { return info().coupling; }
  [[nodiscard]] bool straight_through() const { return straight_through_; }
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  Result<void> compute(const KlEstimatorInput& input, const KlEstimatorOutput& output, MetricSet* metrics,
                       const CallOptions& options = {});

 private:
  KlEstimator(PluginInstance instance, bool straight_through)
      : instance_(std::move(instance)), straight_through_(straight_through) {}
  PluginInstance instance_;
  bool straight_through_ = false;
};

// The plugin behind a name with or without the mark: "k3+" -> "k3", "acme.kl/k9+@^1" -> "acme.kl/k9@^1".
[[nodiscard]] std::string kl_base_name(std::string_view name);

}  // namespace mortise
