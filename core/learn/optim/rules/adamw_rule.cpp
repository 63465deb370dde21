// AdamW (Loshchilov and Hutter, arXiv:1711.05101) by libtorch's fused kernel: one pass over parameter, gradient and both
// moments. Bias-corrected; eps is added to the root. Moments have the dtype of their parameter. Judge:
// torch.optim.AdamW.
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>

#include <map>
#include <utility>

#include "learn/optim/rules.h"

namespace mortise {

namespace {

// What one call of the kernel steps.
struct FusedGroup {
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps;
};

// The kernel reads its numbers on the device of the weights.
at::Tensor number_on(const at::Tensor& weights, double value) {
  return at::scalar_tensor(value, weights.options().dtype(at::kFloat).requires_grad(false));
}

class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(const AdamWOptions& options) : options_(options) {}

  [[nodiscard]] std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const override {
    const at::Tensor& tensor = parameter.tensor;
    return {{"exp_avg", tensor.scalar_type(), tensor.sizes().vec()},
            {"exp_avg_sq", tensor.scalar_type(), tensor.sizes().vec()}};
  }

  [[nodiscard]] const AdamWOptions* as_adamw() const override { return &options_; }

  void step(std::span<StepPart> parts, int64_t update, double grad_factor) const override {
    std::map<std::pair<double, double>, FusedGroup> groups;
    for (const StepPart& part : parts) {
      FusedGroup& group = groups[{part.lr, part.weight_decay}];
      group.params.push_back(part.weights);
      group.grads.push_back(part.gradient);
      group.exp_avgs.push_back(part.state[0]);
      group.exp_avg_sqs.push_back(part.state[1]);
      group.steps.push_back(number_on(part.weights, static_cast<double>(update)));
    }
    for (auto& [settings, group] : groups) step_group(group, settings.first, settings.second, grad_factor);
  }

 private:
  void step_group(FusedGroup& group, double lr, double weight_decay, double grad_factor) const {
    std::optional<at::Tensor> grad_scale;  // the kernel divides by it, which saves a pass over the gradients
    if (grad_factor != 1.0) {
      if (group.params.front().scalar_type() == at::kFloat)
        grad_scale = number_on(group.params.front(), 1.0 / grad_factor);
      else
        at::_foreach_mul_(group.grads, grad_factor);  // the scale is float32 only, too coarse for float64 training
    }
    at::_fused_adamw_(group.params, group.grads, group.exp_avgs, group.exp_avg_sqs, {}, group.steps, lr, options_.beta1,
                      options_.beta2, weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, grad_scale);
  }

  AdamWOptions options_;
};

}  // namespace

std::unique_ptr<const UpdateRule> make_adamw(const AdamWOptions& options) {
  return std::make_unique<AdamWRule>(options);
}

}  // namespace mortise
