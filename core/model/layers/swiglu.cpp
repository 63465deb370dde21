// See swiglu.h.
#include "model/layers/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
MORTISE_INLINE void forward_rows(const T* gate_up, T* out, int64_t begin, int64_t end, int64_t width) {
  for (int64_t n = begin; n < end; ++n) {
    const T* __restrict gate = gate_up + n * 2 * width;
    const T* __restrict up = gate + width;
    T* __restrict y = out + n * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) y[i] = gate[i] * up[i] / (T(1) + fast_exp(-gate[i]));
  }
}

// d silu(g) = s (1 + g (1 - s)) with s = sigmoid(g).
template <class T>
MORTISE_INLINE void backward_rows(const T* gate_up, const T* dout, T* dgate_up, int64_t begin, int64_t end,
                                  int64_t width) {
  for (int64_t n = begin; n < end; ++n) {
    const T* __restrict gate = gate_up + n * 2 * width;
    const T* __restrict up = gate + width;
    const T* __restrict dy = dout + n * width;
    T* __restrict dgate = dgate_up + n * 2 * width;
    T* __restrict dup = dgate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T s = T(1) / (T(1) + fast_exp(-gate[i]));
      dgate[i] = dy[i] * up[i] * s * (T(1) + gate[i] * (T(1) - s));
      dup[i] = dy[i] * gate[i] * s;
    }
  }
}

MORTISE_CPU_CLONES void forward_kernel(const float* x, float* y, int64_t b, int64_t e, int64_t w) {
  forward_rows(x, y, b, e, w);
}
MORTISE_CPU_CLONES void forward_kernel(const double* x, double* y, int64_t b, int64_t e, int64_t w) {
  forward_rows(x, y, b, e, w);
}
MORTISE_CPU_CLONES void backward_kernel(const float* x, const float* dy, float* dx, int64_t b, int64_t e, int64_t w) {
  backward_rows(x, dy, dx, b, e, w);
}
MORTISE_CPU_CLONES void backward_kernel(const double* x, const double* dy, double* dx, int64_t b, int64_t e,
                                        int64_t w) {
  backward_rows(x, dy, dx, b, e, w);
}

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    const int64_t width = gate_up.size(1) / 2;
    at::Tensor out = at::empty({gate_up.size(0), width}, gate_up.options());
    dispatch_float(gate_up, [&](auto zero) {
      using T = decltype(zero);
      const T* x = gate_up.const_data_ptr<T>();
      T* y = out.mutable_data_ptr<T>();
      at::parallel_for(0, gate_up.size(0), std::max<int64_t>(1, 8192 / width),
                       [&](int64_t begin, int64_t end) { forward_kernel(x, y, begin, end, width); });
    });
    ctx->save_for_backward({gate_up});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const at::Tensor dout = grads[0].contiguous();
    const int64_t width = gate_up.size(1) / 2;
    at::Tensor dgate_up = at::empty_like(gate_up);
    dispatch_float(gate_up, [&](auto zero) {
      using T = decltype(zero);
      const T* x = gate_up.const_data_ptr<T>();
      const T* dy = dout.const_data_ptr<T>();
      T* dx = dgate_up.mutable_data_ptr<T>();
      at::parallel_for(0, gate_up.size(0), std::max<int64_t>(1, 8192 / width),
                       [&](int64_t begin, int64_t end) { backward_kernel(x, dy, dx, begin, end, width); });
    });
    return {dgate_up};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_N2I) { return SwigluFunction::apply(gate_up_N2I.contiguous()); }

at::Tensor swiglu_plain(const at::Tensor& gate_up_N2I) {
  const int64_t width = gate_up_N2I.size(1) / 2;
  return at::silu(gate_up_N2I.narrow(1, 0, width)) * gate_up_N2I.narrow(1, width, width);
}

}  // namespace mortise
