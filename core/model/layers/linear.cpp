// See linear.h.
#include "model/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "foundation/metrics/op_timer.h"
#include "model/tensor/bf16_product.h"
#include "model/tensor/kernel.h"
#include "model/tensor/product.h"

namespace mortise {
namespace {

using blas::Trans;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_rounded(const at::Tensor& weight) { return weight.scalar_type() == at::kBFloat16; }

template <class T>
MORTISE_INLINE void add_rows(const T* rows, int64_t count, int64_t stride, int64_t width, T* out) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < width; ++i) out[i] += rows[r * stride + i];
  }
}
MORTISE_CPU_CLONES void add_rows_(const float* rows, int64_t count, int64_t stride, int64_t width, float* out) {
  add_rows(rows, count, stride, width, out);
}
MORTISE_CPU_CLONES void add_rows_(const double* rows, int64_t count, int64_t stride, int64_t width, double* out) {
  add_rows(rows, count, stride, width, out);
}

// The sums of the columns, blocks of rows at a time, so that errors of rounding do not add up over all rows.
at::Tensor column_sums(const at::Tensor& rows_NO) {
  constexpr int64_t kBlockRows = 64, kTaskColumns = 64;
  const int64_t num_rows = rows_NO.size(0), width = rows_NO.size(1);
  if (!rows_NO.is_cpu() || !rows_NO.is_contiguous()) return at::sum(rows_NO, {0});
  at::Tensor out = at::zeros({width}, rows_NO.options());
  dispatch_float(rows_NO, [&](auto zero) {
    using T = decltype(zero);
    const T* const rows = rows_NO.const_data_ptr<T>();
    T* const sums = out.mutable_data_ptr<T>();
    compute_ranges(width, kTaskColumns, [&](int64_t begin, int64_t end) {
      std::vector<T> of_block(static_cast<size_t>(end - begin));
      for (int64_t first = 0; first < num_rows; first += kBlockRows) {
        std::ranges::fill(of_block, T(0));
        add_rows_(rows + first * width + begin, std::min(kBlockRows, num_rows - first), width, end - begin,
                  of_block.data());
        add_rows_(of_block.data(), 1, 0, end - begin, sums + begin);
      }
    });
  });
  return out;
}

double size_of(const at::Tensor& x) { return static_cast<double>(x.nbytes()); }

class FusedLinearFunction : public torch::autograd::Function<FusedLinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::TensorList leaves, int64_t num_weight_leaves,
                            const KnownResult& known) {
    const at::Tensor input = is_rounded(weight) ? x.to(at::kBFloat16) : x;
    at::Tensor y = known.value.defined() ? known.value : timed_product(input, weight, bias);
    std::vector<int64_t> rows;
    bool any_weight = false, any_bias = false;
    for (size_t i = 0; i < leaves.size(); ++i) {
      rows.push_back(leaves[i].size(0));
      (static_cast<int64_t>(i) < num_weight_leaves ? any_weight : any_bias) |= leaves[i].requires_grad();
    }
    // Only the gradient of a weight reads the input. A frozen weight keeps none.
    ctx->save_for_backward({any_weight ? input : at::Tensor(), weight});
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    ctx->saved_data["num_weight_leaves"] = num_weight_leaves;
    ctx->saved_data["any_bias"] = any_bias;
    ctx->saved_data["trained"] = trained_leaves(leaves);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& dy = grads[0];
    const bool any_weight = saved[0].defined();
    const double products = (ctx->needs_input_grad(0) ? 1.0 : 0.0) + (any_weight ? 1.0 : 0.0);
    const double input_bytes = static_cast<double>(dy.size(0) * saved[1].size(1) * saved[1].element_size());
    const OpTimer timer("linear, backward", products * 2.0 * static_cast<double>(dy.size(0) * saved[1].numel()),
                        products * (input_bytes + size_of(saved[1]) + size_of(dy)));
    const at::Tensor rounded_dy = is_rounded(saved[1]) ? dy.to(at::kBFloat16) : dy;
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const auto num_weights = static_cast<size_t>(ctx->saved_data["num_weight_leaves"].toInt());
    // Inputs in order: x, weight, bias, leaves..., count, known result.
    variable_list out(3);
    if (ctx->needs_input_grad(0))
      out[0] = input_gradient(rounded_dy, saved[1], static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt()));
    at::Tensor d_weight;
    at::Tensor d_bias;
    if (any_weight) d_weight = weight_gradient(rounded_dy, saved[0]);
    if (ctx->saved_data["any_bias"].toBool()) d_bias = column_sums(dy);
    int64_t at = 0;
    const std::vector<int64_t> trained = ctx->saved_data["trained"].toIntVector();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i == num_weights) at = 0;
      out.push_back(leaf_gradient(i < num_weights ? d_weight : d_bias, at, rows[i], trained, i));
      at += rows[i];
    }
    out.resize(out.size() + 2);
    return out;
  }

 private:
  static at::Tensor timed_product(const at::Tensor& x, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias) {
    const OpTimer timer(
        "linear, forward", 2.0 * static_cast<double>(x.size(0) * weight.numel()),
        size_of(x) + size_of(weight) + static_cast<double>(x.size(0) * weight.size(0) * x.element_size()));
    return linear_product(x, weight, bias);
  }
};

// y as it is; its gradient is rounded to bfloat16.
class RoundedGradient : public torch::autograd::Function<RoundedGradient> {
 public:
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& y) { return y.view_as(y); }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return {grads[0].to(at::kBFloat16).to(at::kFloat)};
  }
};

// The numbers of `rounded`, with the gradient of `x`, which is not read: a master may be without memory.
class StraightThrough : public torch::autograd::Function<StraightThrough> {
 public:
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x, const at::Tensor& rounded) {
    static_cast<void>(x);
    return rounded.to(at::kFloat);
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return {grads[0], at::Tensor()};
  }
};

}  // namespace

std::vector<int64_t> trained_leaves(at::TensorList leaves) {
  std::vector<int64_t> out;
  for (const at::Tensor& leaf : leaves) out.push_back(leaf.requires_grad() ? 1 : 0);
  return out;
}

at::Tensor leaf_gradient(const at::Tensor& fused, int64_t first_row, int64_t num_rows, std::span<const int64_t> trained,
                         size_t leaf) {
  if (!fused.defined() || trained[leaf] == 0) return {};
  const at::AutoDispatchBelowADInplaceOrView no_graph;  // libtorch need not remember what is a view of what
  const at::Tensor slice = fused.narrow(0, first_row, num_rows);
  return std::ranges::find(trained, 0) == trained.end() ? slice : slice.clone();
}

at::Tensor linear_product(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                          const std::optional<at::Tensor>& bias_O) {
  if (is_rounded(weight_OI))
    return bf16_product(x_NI, Trans::kNo, weight_OI, Trans::kYes, bias_O.value_or(at::Tensor()));
  return matrix_product(x_NI, Trans::kNo, weight_OI, Trans::kYes, bias_O.value_or(at::Tensor()));
}

at::Tensor input_gradient(const at::Tensor& dy_NO, const at::Tensor& weight_OI, at::ScalarType of_x) {
  if (is_rounded(weight_OI) && of_x == at::kBFloat16)
    return rounded_bf16_product(dy_NO, Trans::kNo, weight_OI, Trans::kNo);
  if (is_rounded(weight_OI)) return bf16_product(dy_NO, Trans::kNo, weight_OI, Trans::kNo);
  return matrix_product(dy_NO, Trans::kNo, weight_OI, Trans::kNo);
}

at::Tensor weight_gradient(const at::Tensor& dy_NO, const at::Tensor& x_NI) {
  if (is_rounded(x_NI)) return bf16_product(dy_NO, Trans::kYes, x_NI, Trans::kNo);
  return matrix_product(dy_NO, Trans::kYes, x_NI, Trans::kNo);
}

at::Tensor unread_rows(int64_t rows, const at::Tensor& like_NH) {
  const auto one = std::make_shared<at::Tensor>(at::zeros({1}, like_NH.options().requires_grad(false)));
  return at::from_blob(
      one->mutable_data_ptr(), {rows, like_NH.size(1)}, {0, 0}, [one](void*) {},
      like_NH.options().requires_grad(false));
}

std::optional<at::Tensor> optional_bias(const at::Tensor& bias_O) {
  return bias_O.defined() ? std::optional<at::Tensor>(bias_O) : std::nullopt;
}

at::Tensor fused_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                        const std::vector<at::Tensor>& weight_leaves, const std::vector<at::Tensor>& bias_leaves,
                        const KnownResult& known_NO) {
  const std::optional<at::Tensor> bias = optional_bias(bias_O);
  if (!at::GradMode::is_enabled()) return linear_product(x_NI, weight_OI, bias);
  std::vector<at::Tensor> leaves = weight_leaves;
  leaves.insert(leaves.end(), bias_leaves.begin(), bias_leaves.end());
  return FusedLinearFunction::apply(x_NI, weight_OI, bias, at::TensorList(leaves),
                                    static_cast<int64_t>(weight_leaves.size()), known_NO);
}

at::Tensor linear_plain(const at::Tensor& x_NI, const at::Tensor& leaf_OI, const at::Tensor& weight_OI,
                        const at::Tensor& bias_O) {
  if (!is_rounded(weight_OI)) return at::linear(x_NI, leaf_OI, optional_bias(bias_O));
  const at::Tensor x = StraightThrough::apply(x_NI, x_NI.detach().to(at::kBFloat16));
  const at::Tensor weight = StraightThrough::apply(leaf_OI, weight_OI);
  const at::Tensor y = RoundedGradient::apply(at::linear(x, weight));
  return bias_O.defined() ? y + bias_O : y;
}

}  // namespace mortise
