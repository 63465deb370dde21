// Fills mortise_policy_loss_in, calls the loss, and checks the result.
#include "plugin/host/kinds/policy_loss.h"

#include "mortise/kinds/policy_loss.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/fill_columns.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {
namespace {

using Vtable = mortise_policy_loss_vtable;
constexpr std::string_view kSlot = "compute";

Result<> check_input(const PluginInstance& instance, const StepView& in, const PolicyLossOutput& out) {
  TRY(check_layout(instance, kSlot, in.step, in.layout));
  const int64_t n = in.layout.num_tokens();
  std::vector<InputSize> sizes = column_sizes<mortise_policy_loss_in>(in);
  sizes.insert(sizes.end(), {{"output loss", out.loss.size(), n},
                             {"output grad_log_prob", out.grad_log_prob.size(), n, false},
                             {"output grad_entropy", out.grad_entropy.size(), n, false}});
  return check_sizes(instance, kSlot, in.step, sizes);
}

}  // namespace

Result<PolicyLoss> PolicyLoss::create(PluginRegistry& registry, std::string_view name,
                                      const nlohmann::ordered_json& params, const RunKey& key) {
  PolicyLoss loss(TRY(PluginInstance::create(registry, MORTISE_KIND_POLICY_LOSS, name, params, key)));
  TRY(check_slots(loss.instance_, {{"compute", vtable_of<Vtable>(loss.instance_).compute != nullptr}}));
  return loss;
}

Result<void> PolicyLoss::compute(const StepView& input, const PolicyLossOutput& output, MetricSet* metrics,
                                 const CallOptions& options) {
  TRY(check_input(instance_, input, output));
  TensorArgs args(instance_.checks_writes(), writes_all(info()));
  const mortise_layout layout = c_layout(input.layout);
  auto in = make_abi_struct<mortise_policy_loss_in>();
  in.layout = &layout;
  fill_columns(input, info(), args, in);
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
      input.layout, {input.get<column::ResponseMask>(), input.get<column::Weight>()});
}

std::string default_loss_agg_mode(const PluginInfo& info) {
  if (const ParamInfo* param = info.find_param("loss_agg_mode"); param != nullptr && param->default_text)
    return *param->default_text;
  return info.coupling == Coupling::kRow ? "seq-mean-token-mean" : "token-mean";
}

}  // namespace mortise
