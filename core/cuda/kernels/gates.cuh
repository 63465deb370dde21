// The gate of an MLP, act(gate) * up of rows [gate | up], and its gradient. SiLU and tanh-GELU are both
// gate * sigmoid(z(gate)): z = g, and z = 2 sqrt(2 / pi) (g + 0.044715 g^3), as on the CPU (core/model/layers/gated.h).
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

constexpr int kGateColumns = 4 * kThreads;  // columns of a row that one block takes

constexpr float kGeluCubic = 0.044715F, kGeluSlope = 1.5957691216057308F;  // 2 sqrt(2 / pi)

// The sigmoid of z(gate).
template <bool kGelu>
__device__ inline float gate_share(float gate) {
  const float z = kGelu ? kGeluSlope * gate * (1.0F + kGeluCubic * gate * gate) : gate;
  return 1.0F / (1.0F + expf(-z));
}

// Calls visit(place of the gate among all numbers, place of the result) for each column of a block.
template <class Visit>
__device__ inline void visit_gates(int64_t width, const Visit& visit) {
  const int64_t blocks_of_row = (width + kGateColumns - 1) / kGateColumns;
  const int64_t row = blockIdx.x / blocks_of_row, first = blockIdx.x % blocks_of_row * kGateColumns;
  const int64_t end = first + kGateColumns < width ? first + kGateColumns : width;
  for (int64_t column = first + threadIdx.x; column < end; column += kThreads)
    visit(row * 2 * width + column, row * width + column);
}

template <class T, bool kGelu>
__global__ void __launch_bounds__(kThreads) gated_kernel(const float* __restrict__ gate_up, int64_t width, T* out) {
  visit_gates(width, [&](int64_t at, int64_t place) {
    const float gate = gate_up[at];
    store(gate * gate_share<kGelu>(gate) * gate_up[at + width], out + place);
  });
}

// d (g s(z(g))) = s (1 + g (1 - s) z'). The gradients of gate and up lie as these do.
template <class T, bool kGelu>
__global__ void __launch_bounds__(kThreads)
    gated_backward_kernel(const float* __restrict__ gate_up, int64_t width, const T* __restrict__ d_out, T* d_gate_up) {
  visit_gates(width, [&](int64_t at, int64_t place) {
    const float gate = gate_up[at], d = number_of(d_out[place]), share = gate_share<kGelu>(gate);
    // Beyond +-100 the sigmoid is 0 or 1, so that the slope does not count. It must not be infinite. NaN stays.
    const float near = gate > 100.0F ? 100.0F : gate < -100.0F ? -100.0F : gate;
    const float slope = kGelu ? kGeluSlope * (1.0F + 3.0F * kGeluCubic * near * near) : 1.0F;
    store(d * gate_up[at + width] * share * (1.0F + near * (1.0F - share) * slope), d_gate_up + at);
    store(d * gate * share, d_gate_up + at + width);
  });
}

}  // namespace mortise::cuda
