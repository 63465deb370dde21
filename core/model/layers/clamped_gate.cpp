// See clamped_gate.h.
#include "model/layers/clamped_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
MORTISE_INLINE T within(T x, T limit) {
  const T low = x < -limit ? -limit : x;
  return low > limit ? limit : low;
}

// `pairs` and `dpairs` hold `count` units, a gate before its up.
template <class T>
MORTISE_INLINE void clamped_forward(const T* __restrict pairs, T* __restrict out, int64_t count, T alpha, T limit) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T raw_gate = pairs[2 * i], raw_up = pairs[2 * i + 1];
    const T gate = raw_gate > limit ? limit : raw_gate;
    const T up = within(raw_up, limit);
    out[i] = (up + T(1)) * gate / (T(1) + fast_exp(-alpha * gate));
  }
}

// d g s(a g) = s (1 + a g (1 - s)) with s = sigmoid.
template <class T>
MORTISE_INLINE void clamped_backward(const T* __restrict pairs, const T* __restrict dout, T* __restrict dpairs,
                                     int64_t count, T alpha, T limit) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T raw_gate = pairs[2 * i], raw_up = pairs[2 * i + 1];
    const T gate = raw_gate > limit ? limit : raw_gate;
    const T up = within(raw_up, limit);
    const T s = T(1) / (T(1) + fast_exp(-alpha * gate));
    const T dgate = dout[i] * (up + T(1)) * s * (T(1) + alpha * gate * (T(1) - s));
    const T dup = dout[i] * gate * s;
    dpairs[2 * i] = raw_gate > limit ? T(0) : dgate;
    dpairs[2 * i + 1] = up != raw_up ? T(0) : dup;
  }
}

MORTISE_CPU_CLONES void clamped_forward_kernel(const float* x, float* y, int64_t n, float a, float l) {
  clamped_forward(x, y, n, a, l);
}
MORTISE_CPU_CLONES void clamped_forward_kernel(const double* x, double* y, int64_t n, double a, double l) {
  clamped_forward(x, y, n, a, l);
}
MORTISE_CPU_CLONES void clamped_backward_kernel(const float* x, const float* dy, float* dx, int64_t n, float a,
                                                float l) {
  clamped_backward(x, dy, dx, n, a, l);
}
MORTISE_CPU_CLONES void clamped_backward_kernel(const double* x, const double* dy, double* dx, int64_t n, double a,
                                                double l) {
  clamped_backward(x, dy, dx, n, a, l);
}

class ClampedGateFunction : public torch::autograd::Function<ClampedGateFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& pairs, double alpha, double limit) {
    const int64_t width = pairs.size(1) / 2;
    at::Tensor out = at::empty({pairs.size(0), width}, pairs.options());
    dispatch_float(pairs, [&](auto zero) {
      using T = decltype(zero);
      const T* const x = pairs.const_data_ptr<T>();
      T* const y = out.mutable_data_ptr<T>();
      compute_ranges(pairs.size(0), std::max<int64_t>(1, 8192 / width), [&](int64_t begin, int64_t end) {
        clamped_forward_kernel(x + begin * 2 * width, y + begin * width, (end - begin) * width, static_cast<T>(alpha),
                               static_cast<T>(limit));
      });
    });
    ctx->save_for_backward({pairs});
    ctx->saved_data["alpha"] = alpha;
    ctx->saved_data["limit"] = limit;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor pairs = ctx->get_saved_variables()[0];
    const double alpha = ctx->saved_data["alpha"].toDouble(), limit = ctx->saved_data["limit"].toDouble();
    const at::Tensor dout = grads[0].contiguous();
    const int64_t width = dout.size(1);
    at::Tensor dpairs = at::empty_like(pairs);
    dispatch_float(pairs, [&](auto zero) {
      using T = decltype(zero);
      const T* const x = pairs.const_data_ptr<T>();
      const T* const dy = dout.const_data_ptr<T>();
      T* const dx = dpairs.mutable_data_ptr<T>();
      compute_ranges(pairs.size(0), std::max<int64_t>(1, 8192 / width), [&](int64_t begin, int64_t end) {
        clamped_backward_kernel(x + begin * 2 * width, dy + begin * width, dx + begin * 2 * width,
                                (end - begin) * width, static_cast<T>(alpha), static_cast<T>(limit));
      });
    });
    return {dpairs, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor clamped_gate(const at::Tensor& pairs_N2I, double alpha, double limit) {
  return ClampedGateFunction::apply(pairs_N2I.contiguous(), alpha, limit);
}

at::Tensor clamped_gate_plain(const at::Tensor& pairs_N2I, double alpha, double limit) {
  const at::Tensor pairs = pairs_N2I.reshape({pairs_N2I.size(0), pairs_N2I.size(1) / 2, 2});
  const at::Tensor gate = at::clamp_max(pairs.select(2, 0), limit);
  const at::Tensor up = at::clamp(pairs.select(2, 1), -limit, limit);
  return (up + 1.0) * (gate * at::sigmoid(gate * alpha));
}

}  // namespace mortise
