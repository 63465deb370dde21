// See gated_mlp.h.
#include "model/layers/gated_mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <span>

#include "foundation/metrics/op_timer.h"
#include "model/layers/gated.h"
#include "model/layers/linear.h"
#include "model/tensor/f32_gemm.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMlpBlockRows = 192;  // with I = 256, what a block computes fills half of a cache of 2 MiB
constexpr int64_t kMlpTaskRows = 64;    // a task's rows, at least

// The numbers of all rows that the steps of the MLP read and write.
struct MlpRows {
  Activation activation;
  int64_t hidden, units;
  const float *x, *dy;
  float *gate_up, *gated, *y;
  float *dgate_up, *dx;

  void forward(const F32Packed& by_gate_up, const F32Packed& by_down, int64_t begin, int64_t end) const {
    float* const both = gate_up + begin * 2 * units;
    float* const product = gated + begin * units;
    by_gate_up.multiply(x + begin * hidden, end - begin, both);
    gated_rows(activation, both, product, 0, end - begin, units);
    by_down.multiply(product, end - begin, y + begin * hidden);
  }

  // `dgated` has the block's rows. dx may be null, and gated too if it is known.
  void backward(const F32Packed& by_gate_up, const F32Packed& by_down, int64_t begin, int64_t end,
                float* dgated) const {
    float* const dboth = dgate_up + begin * 2 * units;
    if (gated != nullptr) gated_rows(activation, gate_up, gated, begin, end, units);
    by_down.multiply(dy + begin * hidden, end - begin, dgated);
    gated_rows_backward(activation, gate_up + begin * 2 * units, dgated, dboth, 0, end - begin, units);
    if (dx != nullptr) by_gate_up.multiply(dboth, end - begin, dx + begin * hidden);
  }
};

// y = x weight^T of blocks of rows.
F32Packed forward_product(const at::Tensor& weight) {
  return {*find_f32_kernels(), {weight.const_data_ptr<float>(), weight.size(1), true}, weight.size(0), weight.size(1)};
}
// dx = dy weight.
F32Packed backward_product(const at::Tensor& weight) {
  return {*find_f32_kernels(), {weight.const_data_ptr<float>(), weight.size(1), false}, weight.size(1), weight.size(0)};
}

// body(begin, end) on blocks of all rows.
template <class Body>
void over_blocks(int64_t num_rows, const Body& body) {
  compute_ranges(num_rows, kMlpTaskRows, [&](int64_t begin, int64_t end) {
    const int64_t blocks = ceil_div(end - begin, kMlpBlockRows);
    for (int64_t i = 0; i < blocks; ++i)
      body(begin + (end - begin) * i / blocks, begin + (end - begin) * (i + 1) / blocks);
  });
}

double product_flops(int64_t rows, const at::Tensor& gate_up, const at::Tensor& down) {
  return 2.0 * static_cast<double>(rows * (gate_up.numel() + down.numel()));
}

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  // `leaves`: those of gate and up, and last that of down.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& gate_up_weight,
                            const at::Tensor& down_weight, at::TensorList leaves, int64_t activation_code,
                            const KnownResult& known) {
    const at::Tensor x = x_in.contiguous();
    const int64_t rows = x.size(0), units = down_weight.size(1);
    const bool is_known = known.value.defined();
    const at::Tensor gate_up = is_known ? known.value : at::empty({rows, 2 * units}, x.options());
    const at::Tensor gated = is_known ? at::Tensor() : at::empty({rows, units}, x.options());
    at::Tensor y = is_known ? unread_rows(rows, x) : at::empty_like(x);
    if (!is_known) {
      MlpRows pass = rows_of(activation_code, down_weight);
      pass.x = x.const_data_ptr<float>();
      pass.gate_up = gate_up.mutable_data_ptr<float>();
      pass.gated = gated.mutable_data_ptr<float>();
      const OpTimer timer("MLP, forward", product_flops(rows, gate_up_weight, down_weight),
                          4.0 * static_cast<double>(rows * (2 * x.size(1) + 3 * units)));
      pass.y = y.mutable_data_ptr<float>();
      const F32Packed by_gate_up = forward_product(gate_up_weight), by_down = forward_product(down_weight);
      over_blocks(rows, [&](int64_t begin, int64_t end) { pass.forward(by_gate_up, by_down, begin, end); });
    }
    const std::vector<int64_t> trained = trained_leaves(leaves);
    // Only the gradient of a weight reads its input.
    // If gate and up are known, backward makes their product itself.
    const bool any_gate_up = std::find(trained.begin(), trained.end() - 1, 1) != trained.end() - 1;
    ctx->save_for_backward({gate_up_weight, down_weight, gate_up, any_gate_up ? x : at::Tensor(),
                            trained.back() != 0 ? gated : at::Tensor()});
    ctx->saved_data["makes_gated"] = is_known && trained.back() != 0;
    std::vector<int64_t> leaf_rows;
    for (const at::Tensor& leaf : leaves) leaf_rows.push_back(leaf.size(0));
    ctx->saved_data["rows"] = leaf_rows;
    ctx->saved_data["trained"] = trained;
    ctx->saved_data["activation"] = activation_code;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &gate_up_weight = saved[0], &down_weight = saved[1], &gate_up = saved[2];
    const at::Tensor dy = grads[0].contiguous();
    const int64_t rows = dy.size(0), units = down_weight.size(1);
    const bool wants_dx = ctx->needs_input_grad(0);
    const OpTimer timer("MLP, backward", 2.0 * product_flops(rows, gate_up_weight, down_weight),
                        4.0 * static_cast<double>(rows * (4 * dy.size(1) + 5 * units)));
    const at::Tensor dgate_up = at::empty_like(gate_up);
    const bool makes_gated = ctx->saved_data["makes_gated"].toBool();
    const at::Tensor gated = makes_gated ? at::empty({rows, units}, dy.options()) : saved[4];
    const at::Tensor dx = wants_dx ? at::empty_like(dy) : at::Tensor();
    MlpRows pass = rows_of(ctx->saved_data["activation"].toInt(), down_weight);
    pass.dy = dy.const_data_ptr<float>();
    pass.gate_up = gate_up.mutable_data_ptr<float>();
    pass.gated = makes_gated ? gated.mutable_data_ptr<float>() : nullptr;
    pass.dgate_up = dgate_up.mutable_data_ptr<float>();
    pass.dx = wants_dx ? dx.mutable_data_ptr<float>() : nullptr;
    const F32Packed by_gate_up = backward_product(gate_up_weight), by_down = backward_product(down_weight);
    over_blocks(rows, [&](int64_t begin, int64_t end) {
      const AlignedArray<float> dgated = make_aligned<float>((end - begin) * units);
      pass.backward(by_gate_up, by_down, begin, end, dgated.get());
    });
    const std::vector<int64_t> trained = ctx->saved_data["trained"].toIntVector();
    const std::vector<int64_t> leaf_rows = ctx->saved_data["rows"].toIntVector();
    const at::Tensor d_gate_up_weight = saved[3].defined() ? weight_gradient(dgate_up, saved[3]) : at::Tensor();
    // Inputs in order: x, the two matrices, leaves..., activation, known gate and up.
    variable_list out = {dx, at::Tensor(), at::Tensor()};
    const std::span<const int64_t> of_gate_up(trained.data(), trained.size() - 1);
    int64_t at = 0;
    for (size_t i = 0; i < of_gate_up.size(); at += leaf_rows[i++])
      out.push_back(leaf_gradient(d_gate_up_weight, at, leaf_rows[i], of_gate_up, i));
    out.push_back(gated.defined() ? weight_gradient(dy, gated) : at::Tensor());
    out.resize(out.size() + 2);
    return out;
  }

 private:
  static MlpRows rows_of(int64_t activation_code, const at::Tensor& down_weight) {
    MlpRows rows{};
    rows.activation = static_cast<Activation>(activation_code);
    rows.hidden = down_weight.size(0);
    rows.units = down_weight.size(1);
    return rows;
  }
};

}  // namespace

bool fits_gated_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI) {
  const auto fits = [](const at::Tensor& t) { return t.is_cpu() && t.scalar_type() == at::kFloat && t.dim() == 2; };
  return fits(x_NH) && fits(gate_up_2IH) && fits(down_HI) && gate_up_2IH.is_contiguous() && down_HI.is_contiguous() &&
         down_HI.size(0) <= kFewForF32 && find_f32_kernels() != nullptr;
}

at::Tensor gated_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI,
                     const std::vector<at::Tensor>& gate_up_leaves, const at::Tensor& down_leaf,
                     Activation activation) {
  return known_gated_mlp(x_NH, gate_up_2IH, down_HI, gate_up_leaves, down_leaf, activation, {});
}

at::Tensor known_gated_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI,
                           const std::vector<at::Tensor>& gate_up_leaves, const at::Tensor& down_leaf,
                           Activation activation, const KnownResult& gate_up_N2I) {
  std::vector<at::Tensor> leaves = gate_up_leaves;
  leaves.push_back(down_leaf);
  return GatedMlpFunction::apply(x_NH, gate_up_2IH, down_HI, at::TensorList(leaves), static_cast<int64_t>(activation),
                                 gate_up_N2I);
}

}  // namespace mortise
