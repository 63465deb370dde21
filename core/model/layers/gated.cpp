// See gated.h.
#include "model/layers/gated.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>

#include "foundation/metrics/op_timer.h"
#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kGeluCubic = 0.044715;
constexpr double kGeluSlope = 2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 2 sqrt(2 / pi)

// The argument of the sigmoid, and its derivative.
template <Activation kActivation, class T>
MORTISE_INLINE T gate_argument(T g) {
  if constexpr (kActivation == Activation::kSilu) return g;
  return T(kGeluSlope) * g * (T(1) + T(kGeluCubic) * g * g);
}
template <Activation kActivation, class T>
MORTISE_INLINE T gate_slope(T g) {
  if constexpr (kActivation == Activation::kSilu) return T(1);
  return T(kGeluSlope) * (T(1) + T(3.0 * kGeluCubic) * g * g);
}

template <Activation kActivation, class T>
MORTISE_INLINE void forward_rows(const T* gate_up, T* out, int64_t begin, int64_t end, int64_t width) {
  for (int64_t n = begin; n < end; ++n) {
    const T* __restrict gate = gate_up + n * 2 * width;
    const T* __restrict up = gate + width;
    T* __restrict y = out + n * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      y[i] = gate[i] * up[i] / (T(1) + fast_exp(-gate_argument<kActivation>(gate[i])));
    }
  }
}

// d g s(z(g)) = s (1 + g (1 - s) z') with s = sigmoid. With kAgain, `out` gets the result of forward once more.
template <Activation kActivation, bool kAgain, class T>
MORTISE_INLINE void backward_rows(const T* gate_up, const T* dout, T* dgate_up, T* out, int64_t begin, int64_t end,
                                  int64_t width) {
  for (int64_t n = begin; n < end; ++n) {
    const T* __restrict gate = gate_up + n * 2 * width;
    const T* __restrict up = gate + width;
    const T* __restrict dy = dout + n * width;
    T* __restrict dgate = dgate_up + n * 2 * width;
    T* __restrict dup = dgate + width;
    T* __restrict y = kAgain ? out + n * width : nullptr;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T s = T(1) / (T(1) + fast_exp(-gate_argument<kActivation>(gate[i])));
      dgate[i] = dy[i] * up[i] * s * (T(1) + gate[i] * (T(1) - s) * gate_slope<kActivation>(gate[i]));
      dup[i] = dy[i] * gate[i] * s;
      if constexpr (kAgain) y[i] = gate[i] * up[i] * s;
    }
  }
}

MORTISE_CPU_CLONES void silu_forward(const float* x, float* y, int64_t b, int64_t e, int64_t w) {
  forward_rows<Activation::kSilu>(x, y, b, e, w);
}
MORTISE_CPU_CLONES void silu_forward(const double* x, double* y, int64_t b, int64_t e, int64_t w) {
  forward_rows<Activation::kSilu>(x, y, b, e, w);
}
MORTISE_CPU_CLONES void gelu_forward(const float* x, float* y, int64_t b, int64_t e, int64_t w) {
  forward_rows<Activation::kGeluTanh>(x, y, b, e, w);
}
MORTISE_CPU_CLONES void gelu_forward(const double* x, double* y, int64_t b, int64_t e, int64_t w) {
  forward_rows<Activation::kGeluTanh>(x, y, b, e, w);
}
MORTISE_CPU_CLONES void silu_backward(const float* x, const float* dy, float* dx, int64_t b, int64_t e, int64_t w) {
  backward_rows<Activation::kSilu, false, float>(x, dy, dx, nullptr, b, e, w);
}
MORTISE_CPU_CLONES void silu_backward(const double* x, const double* dy, double* dx, int64_t b, int64_t e, int64_t w) {
  backward_rows<Activation::kSilu, false, double>(x, dy, dx, nullptr, b, e, w);
}
MORTISE_CPU_CLONES void gelu_backward(const float* x, const float* dy, float* dx, int64_t b, int64_t e, int64_t w) {
  backward_rows<Activation::kGeluTanh, false, float>(x, dy, dx, nullptr, b, e, w);
}
MORTISE_CPU_CLONES void gelu_backward(const double* x, const double* dy, double* dx, int64_t b, int64_t e, int64_t w) {
  backward_rows<Activation::kGeluTanh, false, double>(x, dy, dx, nullptr, b, e, w);
}
MORTISE_CPU_CLONES void silu_backward_again(const float* x, const float* dy, float* dx, float* y, int64_t b, int64_t e,
                                            int64_t w) {
  backward_rows<Activation::kSilu, true>(x, dy, dx, y, b, e, w);
}
MORTISE_CPU_CLONES void gelu_backward_again(const float* x, const float* dy, float* dx, float* y, int64_t b, int64_t e,
                                            int64_t w) {
  backward_rows<Activation::kGeluTanh, true>(x, dy, dx, y, b, e, w);
}

template <class T>
void forward_kernel(Activation activation, const T* x, T* y, int64_t begin, int64_t end, int64_t width) {
  activation == Activation::kSilu ? silu_forward(x, y, begin, end, width) : gelu_forward(x, y, begin, end, width);
}
template <class T>
void backward_kernel(Activation activation, const T* x, const T* dy, T* dx, int64_t begin, int64_t end, int64_t width) {
  activation == Activation::kSilu ? silu_backward(x, dy, dx, begin, end, width)
                                  : gelu_backward(x, dy, dx, begin, end, width);
}

class GatedFunction : public torch::autograd::Function<GatedFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up, int64_t activation_code) {
    const auto activation = static_cast<Activation>(activation_code);
    const int64_t width = gate_up.size(1) / 2;
    const OpTimer timer("gate, forward", 0, 1.5 * static_cast<double>(gate_up.nbytes()));
    at::Tensor out = at::empty({gate_up.size(0), width}, gate_up.options());
    dispatch_float(gate_up, [&](auto zero) {
      using T = decltype(zero);
      const T* x = gate_up.const_data_ptr<T>();
      T* y = out.mutable_data_ptr<T>();
      compute_ranges(gate_up.size(0), std::max<int64_t>(1, 8192 / width),
                     [&](int64_t begin, int64_t end) { forward_kernel(activation, x, y, begin, end, width); });
    });
    ctx->save_for_backward({gate_up});
    ctx->saved_data["activation"] = activation_code;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const auto activation = static_cast<Activation>(ctx->saved_data["activation"].toInt());
    const at::Tensor dout = grads[0].contiguous();
    const int64_t width = gate_up.size(1) / 2;
    const OpTimer timer("gate, backward", 0, 2.5 * static_cast<double>(gate_up.nbytes()));
    at::Tensor dgate_up = at::empty_like(gate_up);
    dispatch_float(gate_up, [&](auto zero) {
      using T = decltype(zero);
      const T* x = gate_up.const_data_ptr<T>();
      const T* dy = dout.const_data_ptr<T>();
      T* dx = dgate_up.mutable_data_ptr<T>();
      compute_ranges(gate_up.size(0), std::max<int64_t>(1, 8192 / width),
                     [&](int64_t begin, int64_t end) { backward_kernel(activation, x, dy, dx, begin, end, width); });
    });
    return {dgate_up, at::Tensor()};
  }
};

}  // namespace

at::Tensor gated(const at::Tensor& gate_up_N2I, Activation activation) {
  return GatedFunction::apply(gate_up_N2I.contiguous(), static_cast<int64_t>(activation));
}

void gated_rows(Activation activation, const float* gate_up, float* out, int64_t begin, int64_t end, int64_t width) {
  forward_kernel(activation, gate_up, out, begin, end, width);
}

void gated_rows_backward(Activation activation, const float* gate_up, const float* dout, float* dgate_up, int64_t begin,
                         int64_t end, int64_t width) {
  backward_kernel(activation, gate_up, dout, dgate_up, begin, end, width);
}

void gated_rows_backward(Activation activation, const float* gate_up, const float* dout, float* dgate_up, float* out,
                         int64_t begin, int64_t end, int64_t width) {
  (activation == Activation::kSilu ? silu_backward_again : gelu_backward_again)(gate_up, dout, dgate_up, out, begin,
                                                                                end, width);
}

at::Tensor gated_plain(const at::Tensor& gate_up_N2I, Activation activation) {
  const int64_t width = gate_up_N2I.size(1) / 2;
  const at::Tensor gate = gate_up_N2I.narrow(1, 0, width);
  const at::Tensor up = gate_up_N2I.narrow(1, width, width);
  return (activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

}  // namespace mortise
