// Fills mortise_advantage_estimator_in, calls the estimator, and checks the result.
#include "plugin/host/kinds/advantage_estimator.h"

#include <cmath>
#include <vector>

#include "mortise/kinds/advantage_estimator.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/fill_columns.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/step_call.h"
#include "plugin/host/kinds/tensor_args.h"

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

Result<> check_vtable(const PluginInstance& instance) {
  return check_slots(instance, {{kStepSlot.data(), vtable_of<Vtable>(instance).compute != nullptr}});
}

Result<CallReport> call_slot(PluginInstance& instance, const StepCall& call, MetricSet* metrics,
                             const CallOptions& options) {
  const StepView& columns = call.columns;
  TensorArgs args(instance);
  const mortise_layout layout = c_layout(columns.layout);
  auto in = make_abi_struct<mortise_advantage_estimator_in>();
  in.layout = &layout;
  fill_columns(columns, instance.info(), args, in);
  const auto functions = static_cast<int64_t>(call.reward_weights.size());
  const int64_t reward_shape[] = {columns.layout.num_rows(), functions};
  in.rewards = functions == 0 ? nullptr : args.input(call.rewards, reward_shape);
  in.reward_weights = functions == 0 ? nullptr : args.input(call.reward_weights);
  in.step = columns.step;
  auto out = make_abi_struct<mortise_advantage_estimator_out>();
  out.advantages = args.output(call.outputs[0].values, call.outputs[0].name);
  out.returns = args.output(call.outputs[1].values, call.outputs[1].name);

  const auto slot = catchable(vtable_of<Vtable>(instance).compute);
  CallReport report = TRY(instance.call(kStepSlot, columns.step, metrics, options, [&](mortise_call* context) {
    return slot(instance.self(), context, &in, &out);
  }));
  TRY(args.check_guards(instance, kStepSlot, columns.step, columns.layout));
  args.finish();
  return report;
}

constexpr auto kColumns = input_columns<mortise_advantage_estimator_in>();

}  // namespace

const StepKind kAdvantageSteps = {
    MORTISE_KIND_ADVANTAGE_ESTIMATOR, kColumns, {"advantages", "returns", ""}, check_vtable, call_slot};

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
