// See lora_linear.h.
#include "model/layers/lora_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "model/layers/linear.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One adapted part of a stacked matrix.
struct Part {
  at::Tensor a_RI, b_OR;
  int64_t first_row = 0;
  double scale = 0.0;
  int64_t module = 0;
};

// On its way through the graph: a context keeps IValues only.
struct Adapters : torch::CustomClassHolder {
  std::vector<Part> parts;
  std::optional<LoraDropout> dropout;
};

at::Tensor adapted_product(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const Adapters& adapters) {
  at::Tensor y = linear_product(x, weight, bias);
  if (!adapters.dropout) return y;
  for (const Part& part : adapters.parts) {
    const at::Tensor change = at::mm(lora_dropout_change(x, *adapters.dropout, part.module), part.a_RI.t());
    y.narrow(1, part.first_row, part.b_OR.size(0)).addmm_(change, part.b_OR.t(), /*beta=*/1.0, /*alpha=*/part.scale);
  }
  return y;
}

class LoraLinearFunction : public torch::autograd::Function<LoraLinearFunction> {
 public:
  // `factors`: A and B of each part, for their gradients.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::TensorList factors,
                            const c10::intrusive_ptr<Adapters>& adapters) {
    variable_list saved = {x, weight};
    saved.insert(saved.end(), factors.begin(), factors.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["adapters"] = c10::IValue::make_capsule(adapters);
    return adapted_product(x, weight, bias, *adapters);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["adapters"].toCapsule();
    const auto& adapters = *static_cast<const Adapters*>(capsule.get());
    const LoraDropout* dropout = adapters.dropout ? &*adapters.dropout : nullptr;
    variable_list out(3);  // x, weight, bias
    const bool wants_x = ctx->needs_input_grad(0);
    if (wants_x) out[0] = at::mm(dy, saved[1]);
    for (size_t i = 0; i < adapters.parts.size(); ++i) {
      const Part& part = adapters.parts[i];
      const at::Tensor& a = saved[2 + 2 * i];
      const at::Tensor& b = saved[3 + 2 * i];
      const at::Tensor input = dropout != nullptr ? lora_dropped(x, *dropout, part.module) : x;
      const at::Tensor dy_part = dy.narrow(1, part.first_row, b.size(0));
      const at::Tensor scaled = at::mm(dy_part, b) * part.scale;
      const at::Tensor reduced = at::mm(input, a.t()) * part.scale;
      out.push_back(at::mm(scaled.t(), input));
      out.push_back(at::mm(dy_part.t(), reduced));
      if (wants_x && dropout != nullptr) out[0].add_(lora_dropout_change(at::mm(scaled, a), *dropout, part.module));
    }
    out.resize(out.size() + 1);  // adapters
    return out;
  }
};

}  // namespace

at::Tensor lora_linear(const at::Tensor& x_NI, const at::Tensor& merged_OI, const at::Tensor& bias_O,
                       std::span<const at::Tensor> leaves, std::span<const LoraMatrix> parts,
                       const LoraDropout* dropout) {
  const std::optional<at::Tensor> bias = optional_bias(bias_O);
  auto adapters = c10::make_intrusive<Adapters>();
  if (dropout != nullptr) adapters->dropout = *dropout;
  std::vector<at::Tensor> factors;
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LoraMatrix& part = parts[i];
    if (part.defined()) {
      factors.insert(factors.end(), {part.a_RI, part.b_OR});
      adapters->parts.push_back({part.a_RI.detach(), part.b_OR.detach(), row, part.scale, part.module});
    }
    row += leaves[i].size(0);
  }
  if (!at::GradMode::is_enabled()) return adapted_product(x_NI, merged_OI, bias, *adapters);
  return LoraLinearFunction::apply(x_NI, merged_OI, bias, at::TensorList(factors), adapters);
}

at::Tensor lora_linear_plain(const at::Tensor& x_NI, const LoraMatrix& part, const at::Tensor& bias_O,
                             const LoraDropout* dropout) {
  at::Tensor input = x_NI;
  if (dropout != nullptr) input = x_NI * lora_dropped(at::ones_like(x_NI.detach()), *dropout, part.module);
  const at::Tensor adapted = at::linear(at::linear(input, part.a_RI), part.b_OR) * part.scale;
  return at::linear(x_NI, part.base_OI, optional_bias(bias_O)) + adapted;
}

}  // namespace mortise
