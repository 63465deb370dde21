// See expert_lora.h.
#include "model/layers/expert_lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/layers/experts.h"
#include "model/tensor/compute_team.h"
#include "model/tensor/product.h"

namespace mortise {
namespace {

using blas::Trans;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor merged_product(const at::Tensor& x, const at::Tensor& merged, const std::vector<int64_t>& offsets,
                          bool is_stacked) {
  at::Tensor y = at::empty({x.size(0), merged.size(is_stacked ? 2 : 1)}, x.options());
  grouped_product(x.to(merged.scalar_type()), merged, is_stacked ? Trans::kNo : Trans::kYes, offsets, y);
  return y;
}

class GroupedLora : public torch::autograd::Function<GroupedLora> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& merged, const at::Tensor& a_RI,
                            const at::Tensor& b_OR, double scale, const std::vector<int64_t>& offsets,
                            bool is_stacked) {
    ctx->save_for_backward({x, merged, a_RI, b_OR});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["offsets"] = offsets;
    ctx->saved_data["is_stacked"] = is_stacked;
    return merged_product(x, merged, offsets, is_stacked);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor x = saved[0].contiguous();
    const at::Tensor& merged = saved[1];
    const double scale = ctx->saved_data["scale"].toDouble();
    const std::vector<int64_t> offsets = ctx->saved_data["offsets"].toIntVector();
    const auto num_experts = static_cast<int64_t>(offsets.size()) - 1;
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor a_ErI = factors_a(saved[2], num_experts).contiguous();
    const at::Tensor b_EOr = factors_b(saved[3], num_experts).contiguous();
    const int64_t rank = a_ErI.size(1);
    variable_list out(7);  // x, merged, A, B, scale, offsets, is_stacked
    if (ctx->needs_input_grad(0)) {
      out[0] = at::empty(x.sizes(), x.options());
      grouped_product(dy.to(merged.scalar_type()), merged,
                      ctx->saved_data["is_stacked"].toBool() ? Trans::kYes : Trans::kNo, offsets, out[0]);
    }
    const at::Tensor reduced = at::empty({x.size(0), rank}, x.options());  // x A^T
    grouped_product(x, a_ErI, Trans::kYes, offsets, reduced);
    const at::Tensor scaled = at::empty({x.size(0), rank}, x.options());  // dy B
    grouped_product(dy, b_EOr, Trans::kNo, offsets, scaled);
    const at::Tensor d_a = at::empty(a_ErI.sizes(), x.options());
    grouped_weight_gradient(scaled.mul_(scale), x, offsets, d_a);
    const at::Tensor d_b = at::empty(b_EOr.sizes(), x.options());
    grouped_weight_gradient(dy, reduced.mul_(scale), offsets, d_b);
    out[2] = d_a.view(saved[2].sizes());
    out[3] = d_b.permute({1, 2, 0}).reshape(saved[3].sizes()).contiguous();
    return out;
  }
};

}  // namespace

at::Tensor factors_a(const at::Tensor& a_RI, int64_t num_experts) {
  return a_RI.view({num_experts, a_RI.size(0) / num_experts, a_RI.size(1)});
}

at::Tensor factors_b(const at::Tensor& b_OR, int64_t num_experts) {
  return b_OR.view({b_OR.size(0), b_OR.size(1) / num_experts, num_experts}).permute({2, 0, 1});
}

void merge_experts(const at::Tensor& base, const LoraMatrix& lora, bool is_stacked, at::Tensor out) {
  const int64_t num_experts = base.size(0);
  const at::Tensor a_ErI = factors_a(lora.a_RI.detach(), num_experts);
  const at::Tensor b_EOr = factors_b(lora.b_OR.detach(), num_experts).contiguous();
  const at::Tensor left = is_stacked ? a_ErI.transpose(1, 2) : b_EOr,
                   right = is_stacked ? b_EOr.transpose(1, 2) : a_ErI;
  if (!base.is_cpu()) {
    at::baddbmm_out(out, base, left, right, /*beta=*/1.0, /*alpha=*/lora.scale);
    return;
  }
  // Whether a graph is recorded, each thread decides for itself: the tasks get tensors without one.
  const at::Tensor to = out.detach(), from = base.detach();
  compute_tasks(num_experts, [&](int, int64_t e) {
    add_product(to.select(0, e), from.select(0, e), left.select(0, e), Trans::kNo, right.select(0, e), Trans::kNo,
                lora.scale);
  });
}

at::Tensor grouped_lora(const at::Tensor& x_MI, const at::Tensor& merged, const LoraMatrix& lora,
                        const std::vector<int64_t>& offsets, bool is_stacked) {
  if (!at::GradMode::is_enabled()) return merged_product(x_MI, merged, offsets, is_stacked);
  return GroupedLora::apply(x_MI, merged.detach(), lora.a_RI, lora.b_OR, lora.scale, offsets, is_stacked);
}

namespace {

at::Tensor adapted_plain(const LoraMatrix& lora, bool is_stacked) {
  const int64_t num_experts = lora.base_OI.size(0);
  const at::Tensor product = factors_b(lora.b_OR, num_experts).matmul(factors_a(lora.a_RI, num_experts)) * lora.scale;
  return lora.base_OI + (is_stacked ? product.transpose(1, 2) : product);
}

}  // namespace

ExpertLeaves adapted_experts_plain(const ExpertLeaves& leaves, bool is_stacked) {
  ExpertLeaves out = leaves;
  if (leaves.gate_up_lora.defined()) {
    const at::Tensor all = adapted_plain(leaves.gate_up_lora, is_stacked);
    out.gate_up = is_stacked ? std::vector<at::Tensor>{all} : all.flatten(0, 1).chunk(2 * all.size(0), 0);
  }
  if (leaves.down_lora.defined()) {
    const at::Tensor all = adapted_plain(leaves.down_lora, is_stacked);
    out.down = is_stacked ? std::vector<at::Tensor>{all} : all.unbind(0);
  }
  return out;
}

}  // namespace mortise
