// An advantage estimator by name: advantages and returns of a step's whole gathered batch.
//
// Threading: one call at a time per object. State, where the plugin keeps some, goes through instance().save_state().
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "foundation/batch/step_view.h"
#include "plugin/host/instance.h"

namespace mortise {

// Shapes: N tokens, B rows, K reward functions.
struct AdvantageInput {
  StepView columns{};  // those that mortise_advantage_estimator_in has fields for; the optional ones may be absent
  std::span<const float> rewards{};         // [B,K] row-major, NaN = does not apply; optional
  std::span<const float> reward_weights{};  // [K], optional
};

struct AdvantageOutput {
  std::span<float> advantages{};  // [N]; masked cells carry no meaning (0 where the plugin wrote a non-finite number)
  std::span<float> returns{};     // [N]; the same
};

class AdvantageEstimator {
 public:
  static Result<AdvantageEstimator> create(PluginRegistry& registry, std::string_view name,
                                           const nlohmann::ordered_json& params, const RunKey& key,
                                           const RemoteMaker& remote = {});
  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  Result<void> compute(const AdvantageInput& input, const AdvantageOutput& output, MetricSet* metrics,
                       const CallOptions& options = {});

 private:
  explicit AdvantageEstimator(PluginInstance instance) : instance_(std::move(instance)) {}
  PluginInstance instance_;
};

}  // namespace mortise
