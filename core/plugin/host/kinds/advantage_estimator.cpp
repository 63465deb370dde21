// Fills mortise_advantage_estimator_in, calls the estimator, and checks the result.
#include "plugin/host/kinds/advantage_estimator.h"

#include <cmath>
#include <utility>
#include <vector>

#include "mortise/kinds/advantage_estimator.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/fill_columns.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {
namespace {

using Vtable = mortise_advantage_estimator_vtable;
constexpr std::string_view kSlot = "compute";

Result<> check_input(const PluginInstance& instance, const AdvantageInput& in, const AdvantageOutput& out) {
  const StepView& columns = in.columns;
  TRY(check_layout(instance, kSlot, columns.step, columns.layout));
  const int64_t n = columns.layout.num_tokens();
  const auto functions = static_cast<int64_t>(in.reward_weights.size());
  std::vector<InputSize> sizes = column_sizes<mortise_advantage_estimator_in>(columns);
  sizes.insert(sizes.end(), {{"rewards", in.rewards.size(), columns.layout.num_rows() * functions, false},
                             {"reward_weights", in.reward_weights.size(), functions, false},
                             {"output advantages", out.advantages.size(), n},
                             {"output returns", out.returns.size(), n}});
  return check_sizes(instance, kSlot, columns.step, sizes);
}

}  // namespace

Result<AdvantageEstimator> AdvantageEstimator::create(PluginRegistry& registry, std::string_view name,
                                                      const nlohmann::ordered_json& params, const RunKey& key) {
  AdvantageEstimator made(TRY(PluginInstance::create(registry, MORTISE_KIND_ADVANTAGE_ESTIMATOR, name, params, key)));
  TRY(check_slots(made.instance_, {{"compute", vtable_of<Vtable>(made.instance_).compute != nullptr}}));
  return made;
}

Result<void> AdvantageEstimator::compute(const AdvantageInput& input, const AdvantageOutput& output, MetricSet* metrics,
                                         const CallOptions& options) {
  TRY(check_input(instance_, input, output));
  const StepView& columns = input.columns;
  TensorArgs args(instance_.checks_writes());
  const mortise_layout layout = c_layout(columns.layout);
  auto in = make_abi_struct<mortise_advantage_estimator_in>();
  in.layout = &layout;
  fill_columns(columns, info(), args, in);
  const auto functions = static_cast<int64_t>(input.reward_weights.size());
  const int64_t reward_shape[] = {columns.layout.num_rows(), functions};
  in.rewards = functions == 0 ? nullptr : args.input(input.rewards, reward_shape);
  in.reward_weights = functions == 0 ? nullptr : args.input(input.reward_weights);
  in.step = columns.step;
  auto out = make_abi_struct<mortise_advantage_estimator_out>();
  out.advantages = args.output(output.advantages, "advantages");
  out.returns = args.output(output.returns, "returns");

  const auto slot = catchable(vtable_of<Vtable>(instance_).compute);
  TRY(instance_.call(kSlot, columns.step, metrics, options,
                     [&](mortise_call* call) { return slot(instance_.self(), call, &in, &out); }));
  TRY(args.check_guards(instance_, kSlot, columns.step, columns.layout));
  args.finish();

  // Masked cells are the estimator's affair (verl's gae fills them too), as long as they are numbers.
  const auto mask = columns.get<column::ResponseMask>();
  std::vector<uint8_t> keep(mask.size());
  for (const auto& [name, values] :
       {std::pair("advantages", output.advantages), std::pair("returns", output.returns)}) {
    for (size_t t = 0; t < keep.size(); ++t) keep[t] = mask[t] != 0 || std::isfinite(values[t]) ? 1 : 0;
    TRY(instance_.settle(kSlot, columns.step, {{name, values}}, columns.layout, {keep}));
  }
  return {};
}

}  // namespace mortise
