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
constexpr int64_t kMlpStepRows = 64;    // that backward takes through its steps at a time
constexpr int64_t kSummedRows = 32;     // a task adds up so many rows of the weights' gradients, at least

// The numbers of all rows that forward reads and writes.
struct MlpForward {
  Activation activation;
  int64_t hidden, units;
  const F32Packed &by_gate_up, &by_down;
  const float* x;
  float *gate_up, *gated, *y;

  void rows(int64_t begin, int64_t end) const {
    float* const both = gate_up + begin * 2 * units;
    float* const product = gated + begin * units;
    by_gate_up.multiply(x + begin * hidden, end - begin, both);
    gated_rows(activation, both, product, 0, end - begin, units);
    by_down.multiply(product, end - begin, y + begin * hidden);
  }
};

MORTISE_CPU_CLONES void add_numbers(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// Backward takes the rows block by block, each of which is one term of the sums that the weights' gradients are
// (f32_gemm.h). A block's part of them has a row for each gate, for each up, and for each column of down.
struct MlpBackward {
  Activation activation;
  int64_t num_rows, hidden, units;
  const F32Packed &by_gate_up, &by_down;
  const float *x, *dy, *gate_up;
  const float* gated;  // null: made again
  float* dx;           // may be null
  bool wants_gate_up, wants_down;

  [[nodiscard]] int64_t num_blocks() const { return num_f32_blocks(num_rows); }
  [[nodiscard]] int64_t part_size() const { return 3 * units * hidden; }
  // What a thread computes on: the gradients of the gated product in a step; of gate and up, and the product, in a block;
  // and panels.
  [[nodiscard]] int64_t scratch_size() const {
    return kMlpStepRows * units + kF32BlockK * (3 * units + ceil_div(hidden, kF32Columns) * kF32Columns);
  }

  void block(int64_t i, float* scratch, float* part) const {
    const BlockRange rows = f32_block(num_rows, i);
    float* const dgated = scratch;
    float* const dgate_up = dgated + kMlpStepRows * units;
    float* const product = dgate_up + kF32BlockK * 2 * units;
    float* const panels = product + kF32BlockK * units;
    const int64_t steps = ceil_div(rows.size(), kMlpStepRows);
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t begin = rows.size() * s / steps, end = rows.size() * (s + 1) / steps;
      step(rows.begin + begin, rows.begin + end, dgated, dgate_up + begin * 2 * units, product + begin * units);
    }
    const F32Kernels& kernels = *find_f32_kernels();
    const auto product_of = [&](int64_t columns, const float* left, const float* right, float* out) {
      f32_transposed_product(kernels, columns, hidden, rows.size(), left, columns, right + rows.begin * hidden, hidden,
                             1.0F, panels, out, /*add=*/false);
    };
    if (wants_gate_up) product_of(2 * units, dgate_up, x, part);
    if (wants_down)
      product_of(units, gated == nullptr ? product : gated + rows.begin * units, dy, part + 2 * units * hidden);
  }

  // The sums of the parts' rows [begin, end).
  void sum(const float* parts, int64_t begin, int64_t end, float* d_gate_up, float* d_down) const {
    const int64_t middle = std::clamp(2 * units, begin, end);
    if (begin < middle) add_parts(parts, begin, middle, d_gate_up + begin * hidden);
    if (middle == end) return;
    const AlignedArray<float> columns = make_aligned<float>((end - middle) * hidden);
    add_parts(parts, middle, end, columns.get());
    for (int64_t h = 0; h < hidden; ++h) {
      float* const to = d_down + h * units + middle - 2 * units;
      for (int64_t i = 0; i < end - middle; ++i) to[i] = columns[static_cast<size_t>(i * hidden + h)];
    }
  }

 private:
  void step(int64_t begin, int64_t end, float* dgated, float* dgate_up, float* product) const {
    const float* const both = gate_up + begin * 2 * units;
    const int64_t count = end - begin;
    by_down.multiply(dy + begin * hidden, count, dgated);
    if (wants_down && gated == nullptr) {
      gated_rows_backward(activation, both, dgated, dgate_up, product, 0, count, units);
    } else {
      gated_rows_backward(activation, both, dgated, dgate_up, 0, count, units);
    }
    if (dx != nullptr) by_gate_up.multiply(dgate_up, count, dx + begin * hidden);
  }

  void add_parts(const float* parts, int64_t begin, int64_t end, float* to) const {
    const int64_t count = (end - begin) * hidden;
    std::copy_n(parts + begin * hidden, count, to);
    for (int64_t i = 1; i < num_blocks(); ++i) add_numbers(parts + i * part_size() + begin * hidden, count, to);
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
      const OpTimer timer("MLP, forward", product_flops(rows, gate_up_weight, down_weight),
                          4.0 * static_cast<double>(rows * (2 * x.size(1) + 3 * units)));
      const F32Packed by_gate_up = forward_product(gate_up_weight), by_down = forward_product(down_weight);
      const MlpForward pass{static_cast<Activation>(activation_code),
                            x.size(1),
                            units,
                            by_gate_up,
                            by_down,
                            x.const_data_ptr<float>(),
                            gate_up.mutable_data_ptr<float>(),
                            gated.mutable_data_ptr<float>(),
                            y.mutable_data_ptr<float>()};
      over_blocks(rows, [&](int64_t begin, int64_t end) { pass.rows(begin, end); });
    }
    const std::vector<int64_t> trained = trained_leaves(leaves);
    // Only the gradient of a weight reads its input.
    // If gate and up are known, backward makes their product itself.
    const bool any_gate_up = std::find(trained.begin(), trained.end() - 1, 1) != trained.end() - 1;
    ctx->save_for_backward({gate_up_weight, down_weight, gate_up, any_gate_up ? x : at::Tensor(),
                            trained.back() != 0 ? gated : at::Tensor()});
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
    const std::vector<int64_t> trained = ctx->saved_data["trained"].toIntVector();
    const std::vector<int64_t> leaf_rows = ctx->saved_data["rows"].toIntVector();
    const bool wants_gate_up = saved[3].defined(), wants_down = trained.back() != 0;
    const at::Tensor dx = wants_dx ? at::empty_like(dy) : at::Tensor();
    const at::Tensor d_gate_up_weight = wants_gate_up ? at::empty_like(gate_up_weight) : at::Tensor();
    const at::Tensor d_down_weight = wants_down ? at::empty_like(down_weight) : at::Tensor();
    const F32Packed by_gate_up = backward_product(gate_up_weight), by_down = backward_product(down_weight);
    run_backward({static_cast<Activation>(ctx->saved_data["activation"].toInt()), rows, dy.size(1), units, by_gate_up,
                  by_down, wants_gate_up ? saved[3].const_data_ptr<float>() : nullptr, dy.const_data_ptr<float>(),
                  gate_up.const_data_ptr<float>(), saved[4].defined() ? saved[4].const_data_ptr<float>() : nullptr,
                  wants_dx ? dx.mutable_data_ptr<float>() : nullptr, wants_gate_up, wants_down},
                 d_gate_up_weight, d_down_weight);
    // Inputs in order: x, the two matrices, leaves..., activation, known gate and up.
    variable_list out = {dx, at::Tensor(), at::Tensor()};
    const std::span<const int64_t> of_gate_up(trained.data(), trained.size() - 1);
    int64_t at = 0;
    for (size_t i = 0; i < of_gate_up.size(); at += leaf_rows[i++])
      out.push_back(leaf_gradient(d_gate_up_weight, at, leaf_rows[i], of_gate_up, i));
    out.push_back(d_down_weight);
    out.resize(out.size() + 2);
    return out;
  }

 private:
  static void run_backward(const MlpBackward& pass, const at::Tensor& d_gate_up_weight,
                           const at::Tensor& d_down_weight) {
    const int64_t blocks = pass.num_blocks();
    const int64_t first = pass.wants_gate_up ? 0 : 2 * pass.units, last = (pass.wants_down ? 3 : 2) * pass.units;
    const int64_t part_size = first < last ? pass.part_size() : 0;
    const AlignedArray<float> parts = make_aligned<float>(blocks * part_size);
    compute_tasks(blocks, [&](int, int64_t i) {
      const AlignedArray<float> scratch = make_aligned<float>(pass.scratch_size());
      pass.block(i, scratch.get(), parts.get() + i * part_size);
    });
    float* const d_gate_up = data_or_null(d_gate_up_weight);
    float* const d_down = data_or_null(d_down_weight);
    compute_ranges(last - first, kSummedRows, [&](int64_t begin, int64_t end) {
      pass.sum(parts.get(), first + begin, first + end, d_gate_up, d_down);
    });
  }

  static float* data_or_null(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }
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
