#include "plugin/host/kinds/policy_loss.h"

#include "mortise/kinds/policy_loss.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {
namespace {

using Vtable = mortise_policy_loss_vtable;
constexpr std::string_view kSlot = "compute";

Result<> check_input(const PluginInstance& instance, const PolicyLossInput& in, const PolicyLossOutput& out) {
  TRY(check_layout(instance, kSlot, in.step, in.layout));
  const int64_t n = in.layout.num_tokens();
  return check_sizes(instance, kSlot, in.step,
                     {{"log_prob", in.log_prob.size(), n},
                      {"old_log_prob", in.old_log_prob.size(), n},
                      {"advantages", in.advantages.size(), n},
                      {"response_mask", in.response_mask.size(), n},
                      {"weight", in.weight.size(), n},
                      {"ref_log_prob", in.ref_log_prob.size(), n, false},
                      {"rollout_log_prob", in.rollout_log_prob.size(), n, false},
                      {"rollout_is_weights", in.rollout_is_weights.size(), n, false},
                      {"entropy", in.entropy.size(), n, false},
                      {"output loss", out.loss.size(), n},
                      {"output grad_log_prob", out.grad_log_prob.size(), n, false},
                      {"output grad_entropy", out.grad_entropy.size(), n, false}});
}

}  // namespace

Result<PolicyLoss> PolicyLoss::create(PluginRegistry& registry, std::string_view name,
                                      const nlohmann::ordered_json& params, const RunKey& key) {
  PolicyLoss loss(TRY(PluginInstance::create(registry, MORTISE_KIND_POLICY_LOSS, name, params, key)));
  TRY(check_slots(loss.instance_, {{"compute", vtable_of<Vtable>(loss.instance_).compute != nullptr}}));
  return loss;
}

Result<void> PolicyLoss::compute(const PolicyLossInput& input, const PolicyLossOutput& output, MetricSet* metrics,
                                 const CallOptions& options) {
  TRY(check_input(instance_, input, output));
  TensorArgs args(instance_.checks_writes(), writes_all(info()));
  const mortise_layout layout = c_layout(input.layout);
  const auto optional = [&](std::span<const float> values, std::string_view name) {
    return values.empty() && !info().requires_input(name) ? nullptr : args.input(values);
  };
  auto in = make_abi_struct<mortise_policy_loss_in>();
  in.layout = &layout;
  in.log_prob = args.input(input.log_prob);
  in.old_log_prob = args.input(input.old_log_prob);
  in.advantages = args.input(input.advantages);
  in.response_mask = args.input(input.response_mask);
  in.weight = args.input(input.weight);
  in.ref_log_prob = optional(input.ref_log_prob, "ref_log_prob");
  in.rollout_log_prob = optional(input.rollout_log_prob, "rollout_log_prob");
  in.rollout_is_weights = optional(input.rollout_is_weights, "rollout_is_weights");
  in.entropy = optional(input.entropy, "entropy");
  in.step = input.step;
  in.update_index = input.update_index;
  auto out = make_abi_struct<mortise_policy_loss_out>();
  out.loss = args.output(output.loss, "loss");
  out.grad_log_prob = output.grad_log_prob.empty() ? nullptr : args.output(output.grad_log_prob, "grad_log_prob");
  out.grad_entropy = output.grad_entropy.empty() ? nullptr : args.zeroed_output(output.grad_entropy, "grad_entropy");

  const auto slot = catchable(vtable_of<Vtable>(instance_).compute);
  TRY(instance_.call(kSlot, input.step, metrics, options,
                     [&](mortise_call* call) { return slot(instance_.self(), call, &in, &out); }));
  TRY(args.check_guards(instance_, kSlot, input.step, input.layout));
  args.finish();

  return instance_.settle(
      kSlot, input.step,
      {{"loss", output.loss}, {"grad_log_prob", output.grad_log_prob}, {"grad_entropy", output.grad_entropy}},
      input.layout, {input.response_mask, input.weight});
}

std::string default_loss_agg_mode(const PluginInfo& info) {
  if (const ParamInfo* param = info.find_param("loss_agg_mode"); param != nullptr && param->default_text)
    return *param->default_text;
  return info.coupling == Coupling::kRow ? "seq-mean-token-mean" : "token-mean";
}

}  // namespace mortise
