// Fills mortise_policy_loss_in, calls the loss, and checks the result.
#include "plugin/host/kinds/policy_loss.h"

#include "mortise/kinds/policy_loss.h"
#include "plugin/host/kinds/compute_slot.h"

namespace mortise {
namespace {

using Vtable = mortise_policy_loss_vtable;

Result<> check_input(const PluginInstance& instance, const StepView& in, const PolicyLossOutput& out) {
  TRY(check_layout(instance, kStepSlot, in.step, in.layout));
  const int64_t n = in.layout.num_tokens();
  std::vector<InputSize> sizes = column_sizes<mortise_policy_loss_in>(in);
  sizes.insert(sizes.end(), {{"output loss", out.loss.size(), n},
                             {"output grad_log_prob", out.grad_log_prob.size(), n, false},
                             {"output grad_entropy", out.grad_entropy.size(), n, false}});
  return check_sizes(instance, kStepSlot, in.step, sizes);
}

Result<CallReport> call_slot(PluginInstance& instance, const StepCall& call, MetricSet* metrics,
                             const CallOptions& options) {
  const auto &loss = call.outputs[0], &grad_log_prob = call.outputs[1], &grad_entropy = call.outputs[2];
  TensorArgs args(instance, writes_all(instance.info()));
  return call_compute<Vtable, mortise_policy_loss_in, mortise_policy_loss_out>(
      instance, args, call, metrics, options, [&](mortise_policy_loss_in& in, mortise_policy_loss_out& out) {
        in.step = call.columns.step;
        in.update_index = call.columns.update_index;
        out.loss = args.output(loss.values, loss.name);
        out.grad_log_prob =
            grad_log_prob.values.empty() ? nullptr : args.output(grad_log_prob.values, grad_log_prob.name);
        out.grad_entropy =
            grad_entropy.values.empty() ? nullptr : args.zeroed_output(grad_entropy.values, grad_entropy.name);
      });
}

constexpr auto kColumns = input_columns<mortise_policy_loss_in>();

}  // namespace

const StepKind kPolicyLossSteps = {
    MORTISE_KIND_POLICY_LOSS, kColumns, {"loss", "grad_log_prob", "grad_entropy"}, check_compute<Vtable>, call_slot};

Result<PolicyLoss> PolicyLoss::create(PluginRegistry& registry, std::string_view name,
                                      const nlohmann::ordered_json& params, const RunKey& key,
                                      const RemoteMaker& remote) {
  return PolicyLoss(TRY(create_for_steps(registry, kPolicyLossSteps, name, params, key, remote)));
}

Result<void> PolicyLoss::compute(const StepView& input, const PolicyLossOutput& output, MetricSet* metrics,
                                 const CallOptions& options) {
  TRY(check_input(instance_, input, output));
  const NamedOutput loss{"loss", output.loss}, grad_log_prob{"grad_log_prob", output.grad_log_prob},
      grad_entropy{"grad_entropy", output.grad_entropy};
  const StepCall call{input, {}, {}, {loss, grad_log_prob, grad_entropy}};
  TRY(compute_step(instance_, kPolicyLossSteps, call, metrics, options));
  return instance_.settle(kStepSlot, input.step, {loss, grad_log_prob, grad_entropy}, input.layout,
                          {input.get<column::ResponseMask>(), input.get<column::Weight>()});
}

std::string default_loss_agg_mode(const PluginInfo& info) {
  if (const ParamInfo* param = info.find_param("loss_agg_mode"); param != nullptr && param->default_text)
    return *param->default_text;
  return info.coupling == Coupling::kRow ? "seq-mean-token-mean" : "token-mean";
}

}  // namespace mortise
