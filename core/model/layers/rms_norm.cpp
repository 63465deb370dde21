// See rms_norm.h. One kernel pair serves all three forms: rows of `width`, `heads` groups a row, at a row stride.
#include "model/layers/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>

#include "foundation/metrics/op_timer.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowsPerBlock = 64;  // rows per partial sum of the weight gradient

// `x` may be null-free; where `residual` is given, sum = x + residual is written and normed.
template <class T>
MORTISE_INLINE void forward_row(const T* x, const T* residual, const T* weight, T* sum, T* y, T* rstd, int64_t width,
                                double eps) {
  T squares = 0;
  if (residual != nullptr) {
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) {
      const T value = x[i] + residual[i];
      sum[i] = value;
      squares += value * value;
    }
    x = sum;
  } else {
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  }
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(squares) / static_cast<double>(width) + eps));
  *rstd = scale;
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

// dx = rstd (w dy - xhat mean(w dy xhat)) + extra; dw += dy xhat.
template <class T>
MORTISE_INLINE void backward_row(const T* x, const T* weight, T rstd, const T* dy, const T* extra, T* dx, T* dw,
                                 int64_t width) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; ++i) dot += dy[i] * weight[i] * x[i];
  const T shift = dot * rstd * rstd / static_cast<T>(width);
  if (extra != nullptr) {
    for (int64_t i = 0; i < width; ++i) {
      const T grad = dy[i];
      dw[i] += grad * x[i] * rstd;
      dx[i] = rstd * (grad * weight[i] - x[i] * shift) + extra[i];
    }
  } else {
    for (int64_t i = 0; i < width; ++i) {
      const T grad = dy[i];
      dw[i] += grad * x[i] * rstd;
      dx[i] = rstd * (grad * weight[i] - x[i] * shift);
    }
  }
}

// Rows [begin, end) of num groups per row: group g of row n starts at n * stride + g * width.
template <class T>
struct NormRows {
  const T* x;
  const T* residual;  // may be null
  const T* weight;
  T* sum;  // null without residual
  T* y;
  T* rstd;
  const T* dy;
  const T* extra;  // may be null
  T* dx;
  T* dw;
  int64_t stride;
  int64_t groups;
  int64_t width;
  double eps;
};

template <class T>
MORTISE_INLINE void forward_rows(const NormRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t at = n * a.stride + g * a.width;
      forward_row<T>(a.x + at, a.residual == nullptr ? nullptr : a.residual + at, a.weight,
                     a.sum == nullptr ? nullptr : a.sum + at, a.y + at, a.rstd + n * a.groups + g, a.width, a.eps);
    }
  }
}

template <class T>
MORTISE_INLINE void backward_rows(const NormRows<T>& a, int64_t begin, int64_t end, T* dw) {
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t at = n * a.stride + g * a.width;
      backward_row<T>(a.x + at, a.weight, a.rstd[n * a.groups + g], a.dy + at,
                      a.extra == nullptr ? nullptr : a.extra + at, a.dx + at, dw, a.width);
    }
  }
}

MORTISE_CPU_CLONES void forward_kernel(const NormRows<float>& a, int64_t b, int64_t e) { forward_rows(a, b, e); }
MORTISE_CPU_CLONES void forward_kernel(const NormRows<double>& a, int64_t b, int64_t e) { forward_rows(a, b, e); }
MORTISE_CPU_CLONES void backward_kernel(const NormRows<float>& a, int64_t b, int64_t e, float* dw) {
  backward_rows(a, b, e, dw);
}
MORTISE_CPU_CLONES void backward_kernel(const NormRows<double>& a, int64_t b, int64_t e, double* dw) {
  backward_rows(a, b, e, dw);
}

// The bytes of `arrays` arrays of the normed numbers.
template <class T>
double bytes_of(const NormRows<T>& rows, int64_t num_rows, int64_t arrays) {
  return static_cast<double>(num_rows * rows.groups * rows.width * arrays) * sizeof(T);
}

template <class T>
void run_forward(const NormRows<T>& rows, int64_t num_rows) {
  const OpTimer timer("norms, forward", 0, bytes_of(rows, num_rows, rows.residual == nullptr ? 2 : 4));
  const int64_t grain = std::max<int64_t>(1, 16384 / (rows.groups * rows.width));
  compute_ranges(num_rows, grain, [&](int64_t begin, int64_t end) { forward_kernel(rows, begin, end); });
}

template <class T>
void run_backward(const NormRows<T>& rows, int64_t num_rows) {
  const OpTimer timer("norms, backward", 0, bytes_of(rows, num_rows, rows.extra == nullptr ? 3 : 4));
  const int64_t num_blocks = (num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  std::vector<T> partial(static_cast<size_t>(num_blocks * rows.width), T(0));
  compute_ranges(num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      backward_kernel(rows, block * kRowsPerBlock, std::min(num_rows, (block + 1) * kRowsPerBlock),
                      partial.data() + block * rows.width);
    }
  });
  for (int64_t block = 0; block < num_blocks; ++block) {
    for (int64_t i = 0; i < rows.width; ++i) rows.dw[i] += partial[static_cast<size_t>(block * rows.width + i)];
  }
}

class AddRmsNormFunction : public torch::autograd::Function<AddRmsNormFunction> {
 public:
  // Outputs {sum, y}; without residual {y}.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_in, const std::optional<at::Tensor>& residual,
                               const at::Tensor& weight, double eps, const KnownResult& known_sum) {
    const bool is_known = known_sum.value.defined();
    const at::Tensor x = is_known ? known_sum.value : x_in.contiguous();
    const at::Tensor other = residual && !is_known ? residual->contiguous() : at::Tensor();
    at::Tensor sum = is_known ? x : other.defined() ? at::empty_like(x) : at::Tensor();
    at::Tensor y = at::empty_like(x);
    const int64_t width = x.size(1);
    at::Tensor rstd = at::empty({x.size(0)}, x.options());
    dispatch_float(x, [&](auto zero) {
      using T = decltype(zero);
      NormRows<T> rows{};
      rows.x = x.const_data_ptr<T>();
      rows.residual = other.defined() ? other.const_data_ptr<T>() : nullptr;
      rows.weight = weight.const_data_ptr<T>();
      rows.sum = other.defined() ? sum.mutable_data_ptr<T>() : nullptr;
      rows.y = y.mutable_data_ptr<T>();
      rows.rstd = rstd.mutable_data_ptr<T>();
      rows.stride = width;
      rows.groups = 1;
      rows.width = width;
      rows.eps = eps;
      run_forward(rows, x.size(0));
    });
    ctx->save_for_backward({sum.defined() ? sum : x, weight, rstd});
    ctx->set_materialize_grads(false);
    ctx->saved_data["has_residual"] = residual.has_value();
    if (residual) return {sum, y};
    return {y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const bool has_residual = ctx->saved_data["has_residual"].toBool();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = grads[has_residual ? 1 : 0].contiguous();
    const at::Tensor extra = has_residual && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    at::Tensor dx = at::empty_like(x);
    at::Tensor dw = at::zeros_like(weight);
    dispatch_float(x, [&](auto zero) {
      using T = decltype(zero);
      NormRows<T> rows{};
      rows.x = x.const_data_ptr<T>();
      rows.weight = weight.const_data_ptr<T>();
      rows.rstd = saved[2].mutable_data_ptr<T>();
      rows.dy = dy.const_data_ptr<T>();
      rows.extra = extra.defined() ? extra.const_data_ptr<T>() : nullptr;
      rows.dx = dx.mutable_data_ptr<T>();
      rows.dw = dw.mutable_data_ptr<T>();
      rows.stride = x.size(1);
      rows.groups = 1;
      rows.width = x.size(1);
      run_backward(rows, x.size(0));
    });
    return {dx, has_residual ? dx : at::Tensor(), dw, at::Tensor(), at::Tensor()};
  }
};

class QkNormFunction : public torch::autograd::Function<QkNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& q_weight,
                            const at::Tensor& k_weight, int64_t num_heads, int64_t num_kv_heads, double eps) {
    at::Tensor y = qkv.clone();  // v keeps its values
    at::Tensor q_rstd = at::empty({qkv.size(0), num_heads}, qkv.options());
    at::Tensor k_rstd = at::empty({qkv.size(0), num_kv_heads}, qkv.options());
    dispatch_float(qkv, [&](auto zero) {
      using T = decltype(zero);
      NormRows<T> rows{};
      rows.stride = qkv.size(1);
      rows.width = q_weight.size(0);
      rows.eps = eps;
      rows.x = qkv.const_data_ptr<T>();
      rows.y = y.mutable_data_ptr<T>();
      rows.weight = q_weight.const_data_ptr<T>();
      rows.rstd = q_rstd.mutable_data_ptr<T>();
      rows.groups = num_heads;
      run_forward(rows, qkv.size(0));
      rows.x += num_heads * rows.width;
      rows.y += num_heads * rows.width;
      rows.weight = k_weight.const_data_ptr<T>();
      rows.rstd = k_rstd.mutable_data_ptr<T>();
      rows.groups = num_kv_heads;
      run_forward(rows, qkv.size(0));
    });
    ctx->save_for_backward({qkv, q_weight, k_weight, q_rstd, k_rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx = dy.clone();  // v's part passes through
    at::Tensor dq_weight = at::zeros_like(saved[1]);
    at::Tensor dk_weight = at::zeros_like(saved[2]);
    dispatch_float(qkv, [&](auto zero) {
      using T = decltype(zero);
      NormRows<T> rows{};
      rows.stride = qkv.size(1);
      rows.width = saved[1].size(0);
      rows.x = qkv.const_data_ptr<T>();
      rows.dy = dy.const_data_ptr<T>();
      rows.dx = dx.mutable_data_ptr<T>();
      rows.weight = saved[1].const_data_ptr<T>();
      rows.rstd = saved[3].mutable_data_ptr<T>();
      rows.dw = dq_weight.mutable_data_ptr<T>();
      rows.groups = saved[3].size(1);
      run_backward(rows, qkv.size(0));
      const int64_t shift = rows.groups * rows.width;
      rows.x += shift;
      rows.dy += shift;
      rows.dx += shift;
      rows.weight = saved[2].const_data_ptr<T>();
      rows.rstd = saved[4].mutable_data_ptr<T>();
      rows.dw = dk_weight.mutable_data_ptr<T>();
      rows.groups = saved[4].size(1);
      run_backward(rows, qkv.size(0));
    });
    return {dx, dq_weight, dk_weight, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps) {
  return AddRmsNormFunction::apply(x_NH, std::optional<at::Tensor>(), weight_H, eps, KnownResult())[0];
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                               const at::Tensor& weight_H, double eps) {
  return known_add_rms_norm(x_NH, residual_NH, {}, weight_H, eps);
}

std::pair<at::Tensor, at::Tensor> known_add_rms_norm(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                                     const KnownResult& sum_NH, const at::Tensor& weight_H,
                                                     double eps) {
  const variable_list out =
      AddRmsNormFunction::apply(x_NH, std::optional<at::Tensor>(residual_NH), weight_H, eps, sum_NH);
  return {out[0], out[1]};
}

at::Tensor qk_norm(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                   int64_t num_heads, int64_t num_kv_heads, double eps) {
  return QkNormFunction::apply(qkv_NQ.contiguous(), q_weight_D, k_weight_D, num_heads, num_kv_heads, eps);
}

at::Tensor rms_norm_plain(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps) {
  const at::Tensor variance = (x_NH * x_NH).mean({-1}, /*keepdim=*/true);
  return x_NH * at::rsqrt(variance + eps) * weight_H;
}

at::Tensor qk_norm_plain(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                         int64_t num_heads, int64_t num_kv_heads, double eps) {
  const int64_t n = qkv_NQ.size(0);
  const int64_t d = q_weight_D.size(0);
  const at::Tensor q = qkv_NQ.narrow(1, 0, num_heads * d).reshape({n, num_heads, d});
  const at::Tensor k = qkv_NQ.narrow(1, num_heads * d, num_kv_heads * d).reshape({n, num_kv_heads, d});
  const at::Tensor v = qkv_NQ.narrow(1, (num_heads + num_kv_heads) * d, num_kv_heads * d);
  return at::cat(
      {rms_norm_plain(q, q_weight_D, eps).reshape({n, -1}), rms_norm_plain(k, k_weight_D, eps).reshape({n, -1}), v}, 1);
}

}  // namespace mortise
