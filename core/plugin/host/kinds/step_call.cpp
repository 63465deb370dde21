// Finds the kinds with the slot `compute`, and makes their calls here or in a worker.
#include "plugin/host/kinds/step_call.h"

#include "plugin/host/remote_instance.h"

namespace mortise {

const StepKind* find_step_kind(std::string_view id) {
  for (const StepKind* kind : {&kPolicyLossSteps, &kKlEstimatorSteps, &kAdvantageSteps}) {
    if (kind->id == id) return kind;
  }
  return nullptr;
}

Result<PluginInstance> create_for_steps(PluginRegistry& registry, const StepKind& kind, std::string_view name,
                                        const nlohmann::ordered_json& params, const RunKey& key,
                                        const RemoteMaker& remote) {
  PluginInstance instance = TRY(PluginInstance::create(registry, kind.id, name, params, key, remote));
  if (instance.remote() == nullptr) TRY(kind.check_vtable(instance));  // a worker has checked its own
  return instance;
}

Result<> compute_step(PluginInstance& instance, const StepKind& kind, const StepCall& call, MetricSet* metrics,
                      const CallOptions& options) {
  if (instance.remote() == nullptr) {
    TRY(kind.call(instance, call, metrics, options));
    return {};
  }
  const CallReport report = TRY(instance.remote()->compute(call, options));
  return add_plugin_metrics(instance.label(), kStepSlot, call.columns.step, report.metrics, metrics);
}

}  // namespace mortise
