// A policy loss by name: per-token loss and gradient through the C ABI.
//
// The caller aggregates: the update's loss is sum(weight * loss) and grad_log_prob is its gradient. Masked and
// zero-weight tokens get 0 whatever the plugin wrote; every other output must be finite.
// Shapes: N tokens, B rows. Threading: one call at a time per object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "foundation/batch/step_view.h"
#include "plugin/host/instance.h"

namespace mortise {

// Written whole: the caller need not clear.
struct PolicyLossOutput {
  std::span<float> loss{};           // [N]
  std::span<float> grad_log_prob{};  // [N], or empty: value only
  std::span<float> grad_entropy{};   // [N], or empty
};

class PolicyLoss {
 public:
  static Result<PolicyLoss> create(PluginRegistry& registry, std::string_view name,
                                   const nlohmann::ordered_json& params, const RunKey& key,
                                   const RemoteMaker& remote = {});
  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] Coupling coupling() const { return info().coupling; }
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  // The columns that mortise_policy_loss_in has fields for; the optional ones may be absent.
  Result<void> compute(const StepView& input, const PolicyLossOutput& output, MetricSet* metrics,
                       const CallOptions& options = {});

 private:
  explicit PolicyLoss(PluginInstance instance) : instance_(std::move(instance)) {}
  PluginInstance instance_;
};

// The loss_agg_mode of a loss if the user sets none: the default of its declared parameter `loss_agg_mode` if it has
// one; else seq-mean-token-mean for losses with a row ratio, token-mean for the others.
[[nodiscard]] std::string default_loss_agg_mode(const PluginInfo& info);

}  // namespace mortise
