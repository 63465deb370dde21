// Adafactor (Shazeer and Stern, arXiv:1804.04235): the second moment of a matrix is kept as one number per row and one
// per column. Judge: transformers.Adafactor.
//
//   b = 1 - t^decay_rate;  u = g^2 + eps_square
//   matrix: r = b r + (1-b) mean_columns(u), c = b c + (1-b) mean_rows(u), s = g / sqrt(r / mean(r)) / sqrt(c)
//   vector: v = b v + (1-b) u, s = g / sqrt(v)
//   s /= max(1, rms(s) / clip_threshold);  s *= lr, which relative_step and scale_parameter change
//   with beta1: m = beta1 m + (1-beta1) s, s = m;  p -= lr weight_decay p;  p -= s
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>
#include <cmath>

#include "learn/optim/rules.h"

namespace mortise {

namespace {

double root_mean_square(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor).item<double>() / std::sqrt(static_cast<double>(tensor.numel()));
}

class AdafactorRule : public UpdateRule {
 public:
  explicit AdafactorRule(const AdafactorOptions& options) : options_(options) {}

  [[nodiscard]] bool needs_whole_parameters() const override { return true; }

  [[nodiscard]] std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const override {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    const std::vector<int64_t> shape = parameter.tensor.sizes().vec();
    std::vector<StateTensor> state;
    if (shape.size() >= 2) {
      std::vector<int64_t> rows(shape.begin(), shape.end() - 1), columns(shape.begin(), shape.end() - 2);
      columns.push_back(shape.back());
      state = {{"exp_avg_sq_row", dtype, rows}, {"exp_avg_sq_col", dtype, columns}};
    } else {
      state = {{"exp_avg_sq", dtype, shape}};
    }
    if (options_.beta1) state.push_back({"exp_avg", dtype, shape});
    return state;
  }

  void step(std::span<StepPart> parts, int64_t update, double grad_factor) const override {
    for (StepPart& part : parts) {
      if (part.weights.numel() == 0) continue;
      if (grad_factor != 1.0) part.gradient.mul_(grad_factor);
      step_part(part, static_cast<double>(update));
    }
  }

 private:
  [[nodiscard]] double rate(const StepPart& part, double update) const {
    double lr = part.lr;
    if (options_.relative_step) {
      const double largest = options_.warmup_init ? 1e-6 * update : 1e-2;
      lr = std::min(largest, 1.0 / std::sqrt(update)) * part.parameter->lr_scale;
    }
    return options_.scale_parameter ? lr * std::max(options_.eps_scale, root_mean_square(part.weights)) : lr;
  }

  void step_part(StepPart& part, double update) const {
    const double lr = rate(part, update), rest = std::pow(update, options_.decay_rate);
    const at::Tensor square = at::mul(part.gradient, part.gradient).add_(options_.eps_square);
    at::Tensor step;
    if (part.weights.dim() >= 2) {
      at::Tensor& row = part.state[0];
      at::Tensor& column = part.state[1];
      row.mul_(1.0 - rest).add_(square.mean(-1), rest);
      column.mul_(1.0 - rest).add_(square.mean(-2), rest);
      step = at::mul(row.div(row.mean(-1, /*keepdim=*/true)).rsqrt_().unsqueeze(-1), column.unsqueeze(-2).rsqrt());
    } else {
      step = part.state[0].mul_(1.0 - rest).add_(square, rest).rsqrt();
    }
    step.mul_(part.gradient);
    step.div_(std::max(1.0, root_mean_square(step) / options_.clip_threshold)).mul_(lr);
    if (options_.beta1) {
      step = part.state.back().mul_(*options_.beta1).add_(step, 1.0 - *options_.beta1);
    }
    if (part.weight_decay != 0.0) part.weights.mul_(1.0 - part.weight_decay * lr);
    part.weights.sub_(step);
  }

  AdafactorOptions options_;
};

}  // namespace

std::unique_ptr<const UpdateRule> make_adafactor(const AdafactorOptions& options) {
  return std::make_unique<AdafactorRule>(options);
}

}  // namespace mortise
