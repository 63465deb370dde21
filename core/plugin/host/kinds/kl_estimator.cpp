// Fills mortise_kl_estimator_in, calls the estimator, and makes the straight-through form.
#include "plugin/host/kinds/kl_estimator.h"

#include <algorithm>

#include "mortise/kinds/kl_estimator.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/fill_columns.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {
namespace {

using Vtable = mortise_kl_estimator_vtable;
constexpr std::string_view kSlot = "compute";

// d/dx of weight * (x - ref)^2 / 2
void write_k2_gradient(const StepView& input, std::span<float> grad) {
  const auto log_prob = input.get<column::LogProb>(), reference = input.get<column::RefLogProb>(),
             weight = input.get<column::Weight>();
  const auto mask = input.get<column::ResponseMask>();
  for (size_t t = 0; t < grad.size(); ++t) grad[t] = mask[t] == 0 ? 0.0F : weight[t] * (log_prob[t] - reference[t]);
}

}  // namespace

std::string kl_base_name(std::string_view name) {
  std::string base(name);
  const size_t end = std::min(base.find('@'), base.size());
  if (end > 0 && base[end - 1] == '+') base.erase(end - 1, 1);
  return base;
}

Result<KlEstimator> KlEstimator::create(PluginRegistry& registry, std::string_view name,
                                        const nlohmann::ordered_json& params, const RunKey& key) {
  const std::string base = kl_base_name(name);
  const bool straight_through = base.size() != name.size();
  KlEstimator kl(TRY(PluginInstance::create(registry, MORTISE_KIND_KL_ESTIMATOR, base, params, key)), straight_through);
  TRY(check_slots(kl.instance_, {{"compute", vtable_of<Vtable>(kl.instance_).compute != nullptr}}));
  return kl;
}

Result<void> KlEstimator::compute(const StepView& input, const KlEstimatorOutput& output, MetricSet* metrics,
                                  const CallOptions& options) {
  TRY(check_layout(instance_, kSlot, input.step, input.layout));
  const int64_t n = input.layout.num_tokens();
  std::vector<InputSize> sizes = column_sizes<mortise_kl_estimator_in>(input);
  sizes.insert(sizes.end(),
               {{"output kl", output.kl.size(), n}, {"output grad_log_prob", output.grad_log_prob.size(), n, false}});
  TRY(check_sizes(instance_, kSlot, input.step, sizes));
  TensorArgs args(instance_.checks_writes(), writes_all(info()));
  const mortise_layout layout = c_layout(input.layout);
  auto in = make_abi_struct<mortise_kl_estimator_in>();
  in.layout = &layout;
  fill_columns(input, info(), args, in);
  auto out = make_abi_struct<mortise_kl_estimator_out>();
  out.kl = args.output(output.kl, "kl");
  const bool wants_gradient = !output.grad_log_prob.empty() && !straight_through_;
  out.grad_log_prob = wants_gradient ? args.output(output.grad_log_prob, "grad_log_prob") : nullptr;

  const auto slot = catchable(vtable_of<Vtable>(instance_).compute);
  TRY(instance_.call(kSlot, input.step, metrics, options,
                     [&](mortise_call* call) { return slot(instance_.self(), call, &in, &out); }));
  TRY(args.check_guards(instance_, kSlot, input.step, input.layout));
  args.finish();
  if (straight_through_) write_k2_gradient(input, output.grad_log_prob);

  const auto mask = input.get<column::ResponseMask>();
  TRY(instance_.settle(kSlot, input.step, {{"kl", output.kl}}, input.layout, {mask}));
  if (output.grad_log_prob.empty()) return {};
  return instance_.settle(kSlot, input.step, {{"grad_log_prob", output.grad_log_prob}}, input.layout,
                          {mask, input.get<column::Weight>()});
}

}  // namespace mortise
