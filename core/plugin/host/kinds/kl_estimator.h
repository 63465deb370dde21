// A KL estimator by name: per-token estimate of KL(policy || reference), with its gradient as a loss term.
//
// "NAME+" is the straight-through form: value of NAME, gradient of k2 (weight * (log_prob - ref_log_prob)). It is made
// here, so that every estimator has it. Threading: one call at a time per object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "foundation/batch/step_view.h"
#include "plugin/host/instance.h"

namespace mortise {

struct KlEstimatorOutput {
  std::span<float> kl{};             // [N] nats; 0 where masked
  std::span<float> grad_log_prob{};  // [N] = d(sum weight*kl)/d log_prob, or empty: value only
};

class KlEstimator {
 public:
  static Result<KlEstimator> create(PluginRegistry& registry, std::string_view name,
                                    const nlohmann::ordered_json& params, const RunKey& key,
                                    const RemoteMaker& remote = {});
  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] Coupling coupling() const { return info().coupling; }
  [[nodiscard]] bool straight_through() const { return straight_through_; }
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  // The columns that mortise_kl_estimator_in has fields for; the optional ones may be absent.
  Result<void> compute(const StepView& input, const KlEstimatorOutput& output, MetricSet* metrics,
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
