// Fills mortise_kl_estimator_in, calls the estimator, and makes the straight-through form.
#include "plugin/host/kinds/kl_estimator.h"

#include <algorithm>

#include "mortise/kinds/kl_estimator.h"
#include "plugin/host/kinds/compute_slot.h"

namespace mortise {
namespace {

using Vtable = mortise_kl_estimator_vtable;

// d/dx of weight * (x - ref)^2 / 2
void write_k2_gradient(const StepView& input, std::span<float> grad) {
  const auto log_prob = input.get<column::LogProb>(), reference = input.get<column::RefLogProb>(),
             weight = input.get<column::Weight>();
  const auto mask = input.get<column::ResponseMask>();
  for (size_t t = 0; t < grad.size(); ++t) grad[t] = mask[t] == 0 ? 0.0F : weight[t] * (log_prob[t] - reference[t]);
}

Result<> check_input(const PluginInstance& instance, const StepView& in, const KlEstimatorOutput& out) {
  TRY(check_layout(instance, kStepSlot, in.step, in.layout));
  const int64_t n = in.layout.num_tokens();
  std::vector<InputSize> sizes = column_sizes<mortise_kl_estimator_in>(in);
  sizes.insert(sizes.end(),
               {{"output kl", out.kl.size(), n}, {"output grad_log_prob", out.grad_log_prob.size(), n, false}});
  return check_sizes(instance, kStepSlot, in.step, sizes);
}

Result<CallReport> call_slot(PluginInstance& instance, const StepCall& call, MetricSet* metrics,
                             const CallOptions& options) {
  const NamedOutput &kl = call.outputs[0], &grad_log_prob = call.outputs[1];
  TensorArgs args(instance, writes_all(instance.info()));
  return call_compute<Vtable, mortise_kl_estimator_in, mortise_kl_estimator_out>(
      instance, args, call, metrics, options, [&](mortise_kl_estimator_in&, mortise_kl_estimator_out& out) {
        out.kl = args.output(kl.values, kl.name);
        out.grad_log_prob =
            grad_log_prob.values.empty() ? nullptr : args.output(grad_log_prob.values, grad_log_prob.name);
      });
}

constexpr auto kColumns = input_columns<mortise_kl_estimator_in>();

}  // namespace

const StepKind kKlEstimatorSteps = {
    MORTISE_KIND_KL_ESTIMATOR, kColumns, {"kl", "grad_log_prob", ""}, check_compute<Vtable>, call_slot};

std::string kl_base_name(std::string_view name) {
  std::string base(name);
  const size_t end = std::min(base.find('@'), base.size());
  if (end > 0 && base[end - 1] == '+') base.erase(end - 1, 1);
  return base;
}

Result<KlEstimator> KlEstimator::create(PluginRegistry& registry, std::string_view name,
                                        const nlohmann::ordered_json& params, const RunKey& key,
                                        const RemoteMaker& remote) {
  const std::string base = kl_base_name(name);
  const bool straight_through = base.size() != name.size();
  return KlEstimator(TRY(create_for_steps(registry, kKlEstimatorSteps, base, params, key, remote)), straight_through);
}

Result<void> KlEstimator::compute(const StepView& input, const KlEstimatorOutput& output, MetricSet* metrics,
                                  const CallOptions& options) {
  TRY(check_input(instance_, input, output));
  const NamedOutput kl{"kl", output.kl}, grad_log_prob{"grad_log_prob", output.grad_log_prob};
  const StepCall call{input, {}, {}, {kl, straight_through_ ? NamedOutput{} : grad_log_prob}};
  TRY(compute_step(instance_, kKlEstimatorSteps, call, metrics, options));
  if (straight_through_) write_k2_gradient(input, output.grad_log_prob);

  const auto mask = input.get<column::ResponseMask>();
  TRY(instance_.settle(kStepSlot, input.step, {kl}, input.layout, {mask}));
  if (output.grad_log_prob.empty()) return {};
  return instance_.settle(kStepSlot, input.step, {grad_log_prob}, input.layout, {mask, input.get<column::Weight>()});
}

}  // namespace mortise
