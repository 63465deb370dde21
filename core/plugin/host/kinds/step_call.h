// StepCall: one call of the slot `compute` in a form that policy losses, KL estimators and advantage estimators share,
// so that it can be made in this process or sent to a worker.
//
// Thread rule: plain values and constants.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <span>
#include <string_view>

#include "foundation/batch/step_view.h"
#include "plugin/host/instance.h"
#include "plugin/host/kinds/input_columns.h"
#include "plugin/host/kinds/layout.h"

namespace mortise {

inline constexpr std::string_view kStepSlot = "compute";

// Borrows everything.
struct StepCall {
  StepView columns{};
  std::span<const float> rewards{}, reward_weights{};  // [B,K] and [K], of advantage estimators
  std::array<NamedOutput, 3> outputs{};                // in the kind's order; without values: not wanted
};

// What a kind with that slot brings.
struct StepKind {
  std::string_view id;
  std::span<const InputColumn> columns;     // that its C struct has fields for
  std::array<std::string_view, 3> outputs;  // names of its outputs; "": none
  Result<> (*check_vtable)(const PluginInstance& instance);
  // Fills the C structs, calls the slot in this process, and checks the guard words of the outputs. The inputs have the
  // right sizes; nobody has looked at the outputs' values yet.
  Result<CallReport> (*call)(PluginInstance& instance, const StepCall& call, MetricSet* metrics,
                             const CallOptions& options);
};
extern const StepKind kPolicyLossSteps, kKlEstimatorSteps, kAdvantageSteps;  // each in the file of its kind

// Null: a kind without that slot (rewards and rollout backends).
[[nodiscard]] const StepKind* find_step_kind(std::string_view id);

// An instance of such a plugin whose vtable has the slot, here or in a worker (`remote`, which may be empty).
Result<PluginInstance> create_for_steps(PluginRegistry& registry, const StepKind& kind, std::string_view name,
                                        const nlohmann::ordered_json& params, const RunKey& key,
                                        const RemoteMaker& remote);

// The call, wherever the instance lives. Its metrics go to `metrics`.
Result<> compute_step(PluginInstance& instance, const StepKind& kind, const StepCall& call, MetricSet* metrics,
                      const CallOptions& options);

}  // namespace mortise
