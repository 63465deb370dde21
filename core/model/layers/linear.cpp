// See linear.h.
#include "model/layers/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class FusedLinearFunction : public torch::autograd::Function<FusedLinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::TensorList leaves, int64_t num_weight_leaves) {
    at::Tensor y = linear_product(x, weight, bias);
    ctx->save_for_backward({x, weight});
    std::vector<int64_t> rows;
    bool any_weight = false;
    bool any_bias = false;
    for (size_t i = 0; i < leaves.size(); ++i) {
      rows.push_back(leaves[i].size(0));
      (static_cast<int64_t>(i) < num_weight_leaves ? any_weight : any_bias) |= leaves[i].requires_grad();
    }
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["num_weight_leaves"] = num_weight_leaves;
    ctx->saved_data["any_weight"] = any_weight;
    ctx->saved_data["any_bias"] = any_bias;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& dy = grads[0];
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const auto num_weights = static_cast<size_t>(ctx->saved_data["num_weight_leaves"].toInt());
    // Inputs in order: x, weight, bias, leaves..., count.
    variable_list out(3);
    if (ctx->needs_input_grad(0)) out[0] = at::mm(dy, saved[1]);
    at::Tensor d_weight;
    at::Tensor d_bias;
    if (ctx->saved_data["any_weight"].toBool()) d_weight = at::mm(dy.t(), saved[0]);
    if (ctx->saved_data["any_bias"].toBool()) d_bias = at::sum(dy, {0});
    int64_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i == num_weights) at = 0;
      const at::Tensor& fused = i < num_weights ? d_weight : d_bias;
      out.push_back(fused.defined() ? fused.narrow(0, at, rows[i]) : at::Tensor());
      at += rows[i];
    }
    out.emplace_back();
    return out;
  }
};

}  // namespace

at::Tensor linear_product(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                          const std::optional<at::Tensor>& bias_O) {
  return bias_O ? at::addmm(*bias_O, x_NI, weight_OI.t()) : at::mm(x_NI, weight_OI.t());
}

std::optional<at::Tensor> optional_bias(const at::Tensor& bias_O) {
  return bias_O.defined() ? std::optional<at::Tensor>(bias_O) : std::nullopt;
}

at::Tensor fused_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                        const std::vector<at::Tensor>& weight_leaves, const std::vector<at::Tensor>& bias_leaves) {
  const std::optional<at::Tensor> bias = optional_bias(bias_O);
  if (!at::GradMode::is_enabled()) return linear_product(x_NI, weight_OI, bias);
  std::vector<at::Tensor> leaves = weight_leaves;
  leaves.insert(leaves.end(), bias_leaves.begin(), bias_leaves.end());
  return FusedLinearFunction::apply(x_NI, weight_OI, bias, at::TensorList(leaves),
                                    static_cast<int64_t>(weight_leaves.size()));
}

}  // namespace mortise
