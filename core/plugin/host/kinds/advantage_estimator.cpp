// Fills mortise_advantage_estimator_in, calls the estimator, and checks the result.
#include "plugin/host/kinds/advantage_estimator.h"

#include <cmath>
#include <vector>

#include "mortise/kinds/advantage_estimator.h"
#include "plugin/host/kinds/compute_slot.h"

namespace mortise {
namespace {

using Vtable = mortise_advantage_estimator_vtable;

Result<> check_input(const PluginInstance& instance, const AdvantageInput& in, const AdvantageOutput& out) {
  const StepView& columns = in.columns;
  TRY(check_layout(instance, kStepSlot, columns.step, columns.layout));
  const int64_t n = columns.layout.num_tokens();
  const auto functions = static_cast<int64_t>(in.reward_weights.size());
  std::vector<InputSize> sizes = column_sizes<mortise_advantage_estimator_in>(columns);
  sizes.insert(sizes.end(), {{"rewards", in.rewards.size(), columns.layout.num_rows() * functions, false},
                             {"reward_weights", in.reward_weights.size(), functions, false},
                             {"output advantages", out.advantages.size(), n},
                             {"output returns", out.returns.size(), n}});
  return check_sizes(instance, kStepSlot, columns.step, sizes);
}

Result<CallReport> call_slot(PluginInstance& instance, const StepCall& call, MetricSet* metrics,
                             const CallOptions& options) {
  TensorArgs args(instance);
  return call_compute<Vtable, mortise_advantage_estimator_in, mortise_advantage_estimator_out>(
      instance, args, call, metrics, options,
      [&](mortise_advantage_estimator_in& in, mortise_advantage_estimator_out& out) {
        const auto functions = static_cast<int64_t>(call.reward_weights.size());
        const int64_t reward_shape[] = {call.columns.layout.num_rows(), functions};
        in.rewards = functions == 0 ? nullptr : args.input(call.rewards, reward_shape);
        in.reward_weights = functions == 0 ? nullptr : args.input(call.reward_weights);
        in.step = call.columns.step;
        out.advantages = args.output(call.outputs[0].values, call.outputs[0].name);
        out.returns = args.output(call.outputs[1].values, call.outputs[1].name);
      });
}

constexpr auto kColumns = input_columns<mortise_advantage_estimator_in>();

}  // namespace

const StepKind kAdvantageSteps = {
    MORTISE_KIND_ADVANTAGE_ESTIMATOR, kColumns, {"advantages", "returns", ""}, check_compute<Vtable>, call_slot};

Result<AdvantageEstimator> AdvantageEstimator::create(PluginRegistry& registry, std::string_view name,
                                                      const nlohmann::ordered_json& params, const RunKey& key,
                                                      const RemoteMaker& remote) {
  return AdvantageEstimator(TRY(create_for_steps(registry, kAdvantageSteps, name, params, key, remote)));
}

Result<void> AdvantageEstimator::compute(const AdvantageInput& input, const AdvantageOutput& output, MetricSet* metrics,
                                         const CallOptions& options) {
  TRY(check_input(instance_, input, output));
  const StepView& columns = input.columns;
  const NamedOutput advantages{"advantages", output.advantages}, returns{"returns", output.returns};
  const StepCall call{columns, input.rewards, input.reward_weights, {advantages, returns}};
  TRY(compute_step(instance_, kAdvantageSteps, call, metrics, options));

  // Masked cells are the estimator's affair (verl's gae fills them too), as long as they are numbers.
  const auto mask = columns.get<column::ResponseMask>();
  std::vector<uint8_t> keep(mask.size());
  for (const NamedOutput& one : {advantages, returns}) {
    for (size_t t = 0; t < keep.size(); ++t) keep[t] = mask[t] != 0 || std::isfinite(one.values[t]) ? 1 : 0;
    TRY(instance_.settle(kStepSlot, columns.step, {one}, columns.layout, {keep}));
  }
  return {};
}

}  // namespace mortise
