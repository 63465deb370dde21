#include "plugin/host/kinds/advantage_estimator.h"

#include <cmath>
#include <utility>
#include <vector>

#include "mortise/kinds/advantage_estimator.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {
namespace {

using Vtable = mortise_advantage_estimator_vtable;
constexpr std::string_view kSlot = "compute";

Result<> check_input(const PluginInstance& instance, const AdvantageInput& in, const AdvantageOutput& out) {
  TRY(check_layout(instance, kSlot, in.step, in.layout));
  const int64_t n = in.layout.num_tokens(), rows = in.layout.num_rows();
  const auto columns = static_cast<int64_t>(in.reward_weights.size());
  return check_sizes(instance, kSlot, in.step,
                     {{"token_level_rewards", in.token_level_rewards.size(), n},
                      {"response_mask", in.response_mask.size(), n},
                      {"rewards", in.rewards.size(), rows * columns, false},
                      {"reward_weights", in.reward_weights.size(), columns, false},
                      {"row_valid", in.row_valid.size(), rows, false},
                      {"values", in.values.size(), n, false},
                      {"reward_baselines", in.reward_baselines.size(), rows, false},
                      {"old_log_prob", in.old_log_prob.size(), n, false},
                      {"sum_pi_squared", in.sum_pi_squared.size(), n, false},
                      {"rollout_is_weights", in.rollout_is_weights.size(), n, false},
                      {"output advantages", out.advantages.size(), n},
                      {"output returns", out.returns.size(), n}});
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
  TensorArgs args(instance_.checks_writes());
  const mortise_layout layout = c_layout(input.layout);
  const auto optional = [&](std::span<const float> values, std::string_view name) {
    return values.empty() && !info().requires_input(name) ? nullptr : args.input(values);
  };
  auto in = make_abi_struct<mortise_advantage_estimator_in>();
  in.layout = &layout;
  in.token_level_rewards = args.input(input.token_level_rewards);
  in.response_mask = args.input(input.response_mask);
  const auto columns = static_cast<int64_t>(input.reward_weights.size());
  const int64_t reward_shape[] = {input.layout.num_rows(), columns};
  in.rewards = columns == 0 ? nullptr : args.input(input.rewards, reward_shape);
  in.reward_weights = columns == 0 ? nullptr : args.input(input.reward_weights);
  in.row_valid = input.row_valid.empty() ? nullptr : args.input(input.row_valid);
  in.values = optional(input.values, "values");
  in.reward_baselines = optional(input.reward_baselines, "reward_baselines");
  in.old_log_prob = optional(input.old_log_prob, "old_log_prob");
  in.sum_pi_squared = optional(input.sum_pi_squared, "sum_pi_squared");
  in.rollout_is_weights = optional(input.rollout_is_weights, "rollout_is_weights");
  in.step = input.step;
  auto out = make_abi_struct<mortise_advantage_estimator_out>();
  out.advantages = args.output(output.advantages, "advantages");
  out.returns = args.output(output.returns, "returns");

  const auto slot = catchable(vtable_of<Vtable>(instance_).compute);
  TRY(instance_.call(kSlot, input.step, metrics, options,
                     [&](mortise_call* call) { return slot(instance_.self(), call, &in, &out); }));
  TRY(args.check_guards(instance_, kSlot, input.step, input.layout));
  args.finish();

  // Masked cells are the estimator's affair (verl's gae fills them too), as long as they are numbers.
  std::vector<uint8_t> keep(input.response_mask.size());
  for (const auto& [name, values] :
       {std::pair("advantages", output.advantages), std::pair("returns", output.returns)}) {
    for (size_t t = 0; t < keep.size(); ++t) keep[t] = input.response_mask[t] != 0 || std::isfinite(values[t]) ? 1 : 0;
    TRY(instance_.settle(kSlot, input.step, {{name, values}}, input.layout, {keep}));
  }
  return {};
}

}  // namespace mortise
