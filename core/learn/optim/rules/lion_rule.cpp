// Lion (Chen et al., arXiv:2302.06675): the sign of a mix of momentum and gradient. Judge: the paper's algorithm 2, and
// bitsandbytes.optim.Lion.
//
//   p -= lr weight_decay p;  p -= lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
#include <ATen/TensorOperators.h>
#include <ATen/ops/sign.h>

#include "learn/optim/rules.h"
#include "learn/optim/rules/elementwise.h"

namespace mortise {

namespace {

template <class T>
void lion_kernel(const StepPart& part, const at::Tensor& gradient, const LionOptions& options, double grad_factor) {
  T* const p = numbers_of<T>(part.weights);
  const T* const grad = numbers_of<T>(gradient);
  T* const momentum = numbers_of<T>(part.state[0]);
  const T b1 = static_cast<T>(options.beta1), c1 = static_cast<T>(1.0 - options.beta1);
  const T b2 = static_cast<T>(options.beta2), c2 = static_cast<T>(1.0 - options.beta2);
  const T lr = static_cast<T>(part.lr), keep = static_cast<T>(1.0 - part.lr * part.weight_decay);
  const T factor = static_cast<T>(grad_factor);
  for_elements(gradient.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T g = grad[i] * factor;
      const T mix = b1 * momentum[i] + c1 * g;
      const T sign = static_cast<T>(mix > T{0}) - static_cast<T>(mix < T{0});
      p[i] = p[i] * keep - lr * sign;
      momentum[i] = b2 * momentum[i] + c2 * g;
    }
  });
}

// The same by operators, for tensors of a device.
void lion_by_operators(StepPart& part, const LionOptions& options, double grad_factor) {
  const at::Tensor gradient = part.gradient * grad_factor;
  const at::Tensor mix = part.state[0] * options.beta1 + gradient * (1.0 - options.beta1);
  part.weights.mul_(1.0 - part.lr * part.weight_decay).sub_(at::sign(mix), part.lr);
  part.state[0].mul_(options.beta2).add_(gradient, 1.0 - options.beta2);
}

class LionRule : public UpdateRule {
 public:
  explicit LionRule(const LionOptions& options) : options_(options) {}

  [[nodiscard]] std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const override {
    return {{"exp_avg", parameter.tensor.scalar_type(), parameter.tensor.sizes().vec()}};
  }

  void step(std::span<StepPart> parts, int64_t /*update*/, double grad_factor) const override {
    for (StepPart& part : parts) {
      if (!part.weights.is_cpu()) {
        lion_by_operators(part, options_, grad_factor);
        continue;
      }
      const at::Tensor gradient = part.gradient.contiguous();
      with_real(gradient, [&](auto zero) { lion_kernel<decltype(zero)>(part, gradient, options_, grad_factor); });
    }
  }

 private:
  LionOptions options_;
};

}  // namespace

std::unique_ptr<const UpdateRule> make_lion(const LionOptions& options) { return std::make_unique<LionRule>(options); }

}  // namespace mortise
