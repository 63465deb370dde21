// See lora_linear.h.
#include "model/layers/lora_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "model/layers/linear.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LoraLinearFunction : public torch::autograd::Function<LoraLinearFunction> {
 public:
  // `factors` holds A, B of each adapted part; `first_rows` where it begins in the weight.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::TensorList factors,
                            const std::vector<int64_t>& first_rows, const std::vector<double>& scales) {
    variable_list saved = {x, weight};
    saved.insert(saved.end(), factors.begin(), factors.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["first_rows"] = first_rows;
    ctx->saved_data["scales"] = scales;
    return linear_product(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    const std::vector<int64_t> first_rows = ctx->saved_data["first_rows"].toIntVector();
    const std::vector<double> scales = ctx->saved_data["scales"].toDoubleVector();
    variable_list out(3);  // x, weight, bias
    if (ctx->needs_input_grad(0)) out[0] = at::mm(dy, saved[1]);
    for (size_t i = 0; i < scales.size(); ++i) {
      const at::Tensor& a = saved[2 + 2 * i];
      const at::Tensor& b = saved[3 + 2 * i];
      const at::Tensor dy_part = dy.narrow(1, first_rows[i], b.size(0));
      const at::Tensor scaled = at::mm(dy_part, b) * scales[i];
      const at::Tensor reduced = at::mm(x, a.t()) * scales[i];
      out.push_back(at::mm(scaled.t(), x));
      out.push_back(at::mm(dy_part.t(), reduced));
    }
    out.resize(out.size() + 2);  // first_rows, scales
    return out;
  }
};

}  // namespace

at::Tensor lora_linear(const at::Tensor& x_NI, const at::Tensor& merged_OI, const at::Tensor& bias_O,
                       std::span<const at::Tensor> leaves, std::span<const LoraMatrix> parts) {
  const std::optional<at::Tensor> bias = optional_bias(bias_O);
  if (!at::GradMode::is_enabled()) return linear_product(x_NI, merged_OI, bias);
  std::vector<at::Tensor> factors;
  std::vector<int64_t> first_rows;
  std::vector<double> scales;
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined()) {
      factors.insert(factors.end(), {parts[i].a_RI, parts[i].b_OR});
      first_rows.push_back(row);
      scales.push_back(parts[i].scale);
    }
    row += leaves[i].size(0);
  }
  return LoraLinearFunction::apply(x_NI, merged_OI, bias, at::TensorList(factors), first_rows, scales);
}

at::Tensor lora_linear_plain(const at::Tensor& x_NI, const LoraMatrix& part, const at::Tensor& bias_O) {
  const at::Tensor adapted = at::linear(at::linear(x_NI, part.a_RI), part.b_OR) * part.scale;
  return at::linear(x_NI, part.base_OI, optional_bias(bias_O)) + adapted;
}

}  // namespace mortise
