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

#include "plugin/host/instance.h"
#include "plugin/host/kinds/layout.h"

namespace mortise {

// Borrowed for the call. An empty optional span means absent.
struct PolicyLossInput {
  Layout layout{};
  std::span<const float> log_prob{};            // [N]
  std::span<const float> old_log_prob{};        // [N]
  std::span<const float> advantages{};          // [N]
  std::span<const uint8_t> response_mask{};     // [N]
  std::span<const float> weight{};              // [N] >= 0
  std::span<const float> ref_log_prob{};        // [N], optional
  std::span<const float> rollout_log_prob{};    // [N], optional
  std::span<const float> rollout_is_weights{};  // [N], optional; only for losses that consume them
  std::span<const float> entropy{};             // [N], optional
  int64_t step = 1;
  int64_t update_index = 1;
};

// Written whole: the caller need not clear.
struct PolicyLossOutput {
  std::span<float> loss{};           // [N]
  std::span<float> grad_log_prob{};  // [N], or empty: value only
  std::span<float> grad_entropy{};   // [N], or empty
};

class PolicyLoss {
 public:
  static Result<PolicyLoss> create(PluginRegistry& registry, std::string_view name,
                                   const nlohmann::ordered_json& params, const RunKey& key);
  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] Coupling coupling() const { return info().coupling; }
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  Result<void> compute(const PolicyLossInput& input, const PolicyLossOutput& output, MetricSet* metrics,
                       const CallOptions& options = {});

 private:
  explicit PolicyLoss(PluginInstance instance) : instance_(std::move(instance)) {}
  PluginInstance instance_;
};

// The loss_agg_mode that a loss asks for when the user names none: the default of its declared parameter
// `loss_agg_mode` if it has one; else seq-mean-token-mean for losses whose ratio is a row's, token-mean for the others.
[[nodiscard]] std::string default_loss_agg_mode(const PluginInfo& info);

}  // namespace mortise
