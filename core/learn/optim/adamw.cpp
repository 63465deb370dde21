// Calls libtorch's fused AdamW kernel, and saves and loads the moments.
#include "learn/optim/adamw.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "learn/optim/tensor_state.h"

namespace mortise {

AdamW::AdamW(std::vector<OptimizedParameter> parameters, const AdamWOptions& options, std::string state_name)
    : parameters_(std::move(parameters)), options_(options), state_name_(std::move(state_name)) {
  c10::NoGradGuard no_grad;
  for (const OptimizedParameter& parameter : parameters_) {
    exp_avg_.push_back(at::zeros_like(parameter.tensor));
    exp_avg_sq_.push_back(at::zeros_like(parameter.tensor));
  }
}

void AdamW::step(double lr, double grad_factor) {
  c10::NoGradGuard no_grad;
  ++num_updates_;
  step_group(true, lr, grad_factor);
  step_group(false, lr, grad_factor);
}

void AdamW::step_group(bool decay, double lr, double grad_factor) {
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const OptimizedParameter& parameter = parameters_[i];
    if (parameter.decay != decay || !parameter.tensor.grad().defined()) continue;
    params.push_back(parameter.tensor.detach());
    grads.push_back(parameter.tensor.grad());
    exp_avgs.push_back(exp_avg_[i]);
    exp_avg_sqs.push_back(exp_avg_sq_[i]);
    steps.push_back(at::scalar_tensor(static_cast<double>(num_updates_), at::kFloat));
  }
  if (params.empty()) return;
  std::optional<at::Tensor> grad_scale;  // the kernel divides by it, which saves a pass over the gradients
  if (grad_factor != 1.0) {
    if (params.front().scalar_type() == at::kFloat)
      grad_scale = at::scalar_tensor(1.0 / grad_factor, at::kFloat);
    else
      at::_foreach_mul_(grads, grad_factor);  // the scale is float32 only, too coarse for float64 training
  }
  at::_fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, {}, steps, lr, options_.beta1, options_.beta2,
                    decay ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                    grad_scale);
}

void AdamW::zero_grad() {
  for (OptimizedParameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().zero_();
  }
}

Result<> AdamW::save_state(StateWriter& writer) const {
  writer.put_int("num_updates", num_updates_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    put_tensor(writer, "exp_avg." + parameters_[i].name, exp_avg_[i]);
    put_tensor(writer, "exp_avg_sq." + parameters_[i].name, exp_avg_sq_[i]);
  }
  return {};
}

Result<> AdamW::load_state(StateReader& reader) {
  num_updates_ = TRY(reader.get_int("num_updates"));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    TRY(get_tensor(reader, "exp_avg." + parameters_[i].name, exp_avg_[i]));
    TRY(get_tensor(reader, "exp_avg_sq." + parameters_[i].name, exp_avg_sq_[i]));
  }
  return {};
}

void fill_absent_gradients(const std::vector<OptimizedParameter>& parameters) {
  for (const OptimizedParameter& parameter : parameters) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.tensor.detach());
  }
}

double global_grad_norm(const std::vector<OptimizedParameter>& parameters) {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const OptimizedParameter& parameter : parameters) {
    if (parameter.tensor.grad().defined()) grads.push_back(parameter.tensor.grad());
  }
  if (grads.empty()) return 0.0;
  double sum_of_squares = 0.0;
  for (const at::Tensor& norm : at::_foreach_norm(grads)) {
    const double value = norm.item<double>();
    sum_of_squares += value * value;
  }
  return std::sqrt(sum_of_squares);
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

}  // namespace mortise
