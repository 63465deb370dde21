// See rotated_heads.h.
#include "model/layers/rotated_heads.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "model/device/kernel_table.h"
#include "model/layers/attention_choice.h"
#include "model/layers/linear.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a launch needs next to qkv and the heads. The tensors are contiguous.
struct HeadPass {
  at::Tensor q_weight, k_weight;  // undefined: no norms
  at::Tensor cosines, sines;
  KeyCopies copies;  // undefined: no key is read twice
  at::Tensor bias;   // undefined: none, or it is not asked for
  MortiseCudaHeads heads;
  double eps;
  bool rounds;

  [[nodiscard]] bool has_norms() const { return q_weight.defined(); }
  [[nodiscard]] MortiseCudaHeadNorms norms() const {
    if (!has_norms()) return {nullptr, nullptr, 0.0F};
    return {q_weight.const_data_ptr<float>(), k_weight.const_data_ptr<float>(), static_cast<float>(eps)};
  }
  [[nodiscard]] MortiseCudaRotation rotation() const {
    return {cosines.const_data_ptr<float>(), sines.const_data_ptr<float>(), static_cast<int32_t>(cosines.size(1))};
  }
  [[nodiscard]] at::Tensor empty(int64_t rows, int64_t num_heads, const at::Tensor& qkv) const {
    return at::empty({rows, num_heads, heads.head_dim}, qkv.options().dtype(rounds ? at::kBFloat16 : at::kFloat));
  }
};

MortiseCudaHeadRows rows_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool rounds) {
  return {q.mutable_data_ptr(), k.mutable_data_ptr(), v.mutable_data_ptr(), rounds ? 1 : 0};
}

variable_list heads_forward(const at::Tensor& qkv, const HeadPass& pass) {
  const c10::OptionalDeviceGuard own_device(qkv.device());
  const int64_t num_rows = qkv.size(0);
  const int64_t num_keys = pass.copies.defined() ? pass.copies.sources_M.size(0) : num_rows;
  const at::Tensor q = pass.empty(num_rows, pass.heads.num_heads, qkv),
                   k = pass.empty(num_keys, pass.heads.num_kv_heads, qkv),
                   v = pass.empty(num_keys, pass.heads.num_kv_heads, qkv);
  const int32_t* const sources = pass.copies.defined() ? pass.copies.sources_M.const_data_ptr<int32_t>() : nullptr;
  const float* const bias = pass.bias.defined() ? pass.bias.const_data_ptr<float>() : nullptr;
  check_started(
      device_kernels(qkv.device())
          ->rotate_heads(qkv.const_data_ptr<float>(), bias, num_rows, pass.heads, pass.norms(), pass.rotation(),
                         sources, num_keys, rows_of(q, k, v, pass.rounds), stream_of(qkv.device())),
      "rotate_heads");
  return {q, k, v};
}

struct HeadGradients {
  at::Tensor qkv, norms, bias;  // norms: [2, D]. Undefined if there are none
};
HeadGradients heads_backward(const at::Tensor& qkv, int64_t num_rows, const HeadPass& pass, bool wants_bias,
                             const variable_list& grads) {
  const c10::OptionalDeviceGuard own_device(grads[0].device());
  const at::Tensor dq = grads[0].contiguous(), dk = grads[1].contiguous(), dv = grads[2].contiguous();
  const MortiseCudaHeads& heads = pass.heads;
  const at::TensorOptions numbers = dq.options().dtype(at::kFloat);
  const int64_t width = (heads.num_heads + 2 * heads.num_kv_heads) * int64_t{heads.head_dim};
  const int64_t num_parts = ceil_div(num_rows, MORTISE_CUDA_NORM_ROWS);
  HeadGradients out{at::empty({num_rows, width}, numbers), {}, {}};
  at::Tensor parts;
  if (pass.has_norms()) {
    out.norms = at::empty({2, heads.head_dim}, numbers);
    parts = at::empty({num_parts, 2, heads.head_dim}, numbers);
  } else if (wants_bias) {
    out.bias = at::empty({width}, numbers);
    parts = at::empty({num_parts, width}, numbers);
  }
  const auto place = [](const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; };
  MortiseCudaCopies copies{nullptr, nullptr};
  if (pass.copies.defined())
    copies = {pass.copies.begins_N1.const_data_ptr<int32_t>(), pass.copies.places_M.const_data_ptr<int32_t>()};
  check_started(
      device_kernels(dq.device())
          ->rotate_heads_backward(qkv.defined() ? qkv.const_data_ptr<float>() : nullptr, num_rows, heads, pass.norms(),
                                  pass.rotation(), copies, rows_of(dq, dk, dv, pass.rounds), place(out.qkv),
                                  place(parts), place(out.norms), place(out.bias), stream_of(dq.device())),
      "rotate_heads_backward");
  return out;
}

class RotatedHeads : public torch::autograd::Function<RotatedHeads> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const std::optional<at::Tensor>& q_weight,
                               const std::optional<at::Tensor>& k_weight, at::TensorList bias_leaves,
                               const HeadPass& pass) {
    static_cast<void>(k_weight);  // in the pass, and here for its gradient, as the leaves of the bias
    std::vector<int64_t> rows;
    for (const at::Tensor& leaf : bias_leaves) rows.push_back(leaf.size(0));
    ctx->saved_data["bias_rows"] = rows;
    ctx->saved_data["trained"] = trained_leaves(bias_leaves);
    ctx->save_for_backward({q_weight ? qkv : at::Tensor(), pass.q_weight, pass.k_weight, pass.cosines, pass.sines,
                            pass.copies.sources_M, pass.copies.begins_N1, pass.copies.places_M});
    ctx->saved_data["sizes"] = std::vector<int64_t>{qkv.size(0), pass.heads.num_heads, pass.heads.num_kv_heads,
                                                    pass.heads.head_dim, pass.rounds ? 1 : 0};
    ctx->saved_data["eps"] = pass.eps;
    return heads_forward(qkv, pass);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const std::vector<int64_t> sizes = ctx->saved_data["sizes"].toIntVector();
    const auto number = [&](size_t i) { return static_cast<int32_t>(sizes[i]); };
    const HeadPass pass{s[1],
                        s[2],
                        s[3],
                        s[4],
                        {s[5], s[6], s[7]},
                        at::Tensor(),
                        {number(1), number(2), number(3)},
                        ctx->saved_data["eps"].toDouble(),
                        sizes[4] != 0};
    const std::vector<int64_t> rows = ctx->saved_data["bias_rows"].toIntVector(),
                               trained = ctx->saved_data["trained"].toIntVector();
    const bool wants_bias = std::ranges::find(trained, 1) != trained.end();
    const HeadGradients out = heads_backward(s[0], sizes[0], pass, wants_bias, grads);
    const auto of_norm = [&](int64_t i) { return out.norms.defined() ? out.norms.select(0, i) : at::Tensor(); };
    variable_list all{out.qkv, of_norm(0), of_norm(1)};
    int64_t row = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      all.push_back(leaf_gradient(out.bias, row, rows[i], trained, i));
      row += rows[i];
    }
    all.emplace_back();  // the pass
    return all;
  }
};

}  // namespace

bool takes_rotated_heads(const AttentionShape& shape, const RopeTable& table, bool has_norms) {
  if (!table.cos_PR2.defined() || shape.head_dim > MORTISE_CUDA_MOST_HEAD_DIM) return false;
  return !has_norms || shape.head_dim % 2 == 0;
}

at::Tensor rotated_attention(const at::Tensor& qkv_NQ, const PassSegments& segments, const RopeTable& table,
                             const AttentionShape& shape, const HeadNorms& norms, const HeadBias& bias) {
  const auto whole = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  HeadPass pass{whole(norms.q_weight_D),
                whole(norms.k_weight_D),
                table.cos_PR2.contiguous(),
                table.sin_PR2.contiguous(),
                segments.copies,
                whole(bias.row_Q),
                {static_cast<int32_t>(shape.num_heads), static_cast<int32_t>(shape.num_kv_heads),
                 static_cast<int32_t>(shape.head_dim)},
                norms.eps,
                shape.rounds};
  const at::Tensor qkv = qkv_NQ.contiguous();
  variable_list heads;
  if (at::GradMode::is_enabled()) {
    const auto given = [](const at::Tensor& x) { return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt; };
    const auto q_weight = given(pass.q_weight), k_weight = given(pass.k_weight);
    if (pass.has_norms()) {  // the function saves those of the pass: with their graph they would keep themselves alive
      pass.q_weight = pass.q_weight.detach();
      pass.k_weight = pass.k_weight.detach();
    }
    heads = RotatedHeads::apply(qkv, q_weight, k_weight, at::TensorList(bias.leaves), pass);
  } else {
    heads = heads_forward(qkv, pass);
  }
  return training_attention(heads[0], heads[1], heads[2], segments.lengths, shape)
      .reshape({qkv.size(0), shape.num_heads * shape.head_dim});
}

}  // namespace mortise
