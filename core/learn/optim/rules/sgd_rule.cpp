// SGD with momentum. Judge: torch.optim.SGD, whose weight decay is part of the gradient.
//
//   g += weight_decay p;  v = momentum v + (1 - dampening) g, at the first update v = g
//   p -= lr (nesterov ? g + momentum v : v)
#include <ATen/TensorOperators.h>

#include "learn/optim/rules.h"
#include "learn/optim/rules/elementwise.h"

namespace mortise {

namespace {

template <class T>
void sgd_kernel(const StepPart& part, const at::Tensor& gradient, const SgdOptions& options, bool is_first,
                double grad_factor) {
  T* const p = numbers_of<T>(part.weights);
  const T* const grad = numbers_of<T>(gradient);
  T* const velocity = part.state.empty() ? nullptr : numbers_of<T>(part.state[0]);
  const T momentum = static_cast<T>(options.momentum), rest = static_cast<T>(1.0 - options.dampening);
  const T lr = static_cast<T>(part.lr), decay = static_cast<T>(part.weight_decay), factor = static_cast<T>(grad_factor);
  for_elements(gradient.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T g = grad[i] * factor + decay * p[i];
      if (velocity != nullptr) {
        const T v = is_first ? g : momentum * velocity[i] + rest * g;
        velocity[i] = v;
        g = options.nesterov ? g + momentum * v : v;
      }
      p[i] -= lr * g;
    }
  });
}

// The same by operators, for tensors of a device.
void sgd_by_operators(StepPart& part, const SgdOptions& options, bool is_first, double grad_factor) {
  at::Tensor gradient = part.gradient * grad_factor + part.weights * part.weight_decay;
  if (!part.state.empty()) {
    at::Tensor& velocity = part.state[0];
    if (is_first)
      velocity.copy_(gradient);
    else
      velocity.mul_(options.momentum).add_(gradient, 1.0 - options.dampening);
    gradient = options.nesterov ? gradient + velocity * options.momentum : velocity;
  }
  part.weights.sub_(gradient, part.lr);
}

class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(const SgdOptions& options) : options_(options) {}

  [[nodiscard]] std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const override {
    if (options_.momentum == 0.0) return {};
    return {{"momentum_buffer", parameter.tensor.scalar_type(), parameter.tensor.sizes().vec()}};
  }

  void step(std::span<StepPart> parts, int64_t update, double grad_factor) const override {
    for (StepPart& part : parts) {
      if (!part.weights.is_cpu()) {
        sgd_by_operators(part, options_, update == 1, grad_factor);
        continue;
      }
      const at::Tensor gradient = part.gradient.contiguous();
      with_real(gradient,
                [&](auto zero) { sgd_kernel<decltype(zero)>(part, gradient, options_, update == 1, grad_factor); });
    }
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::unique_ptr<const UpdateRule> make_sgd(const SgdOptions& options) { return std::make_unique<SgdRule>(options); }

}  // namespace mortise
