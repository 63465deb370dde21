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

// The gate of gpt-oss (core/model/layers/clamped_gate.h): (up + 1) gate sigmoid(alpha gate) of rows in which a unit's gate lies
// before its up, with gate at most `limit` and up within +-limit. A number beyond a limit gets no gradient. NaN stays.
struct ClampedUnit {
  float gate, up, share;
};
__device__ inline ClampedUnit clamped_unit(const float* pair, MortiseCudaClamp clamp) {
  ClampedUnit out = {pair[0], pair[1], 0.0F};
  if (out.gate > clamp.limit) out.gate = clamp.limit;
  if (out.up > clamp.limit) out.up = clamp.limit;
  if (out.up < -clamp.limit) out.up = -clamp.limit;
  out.share = 1.0F / (1.0F + expf(-clamp.alpha * out.gate));
  return out;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    clamped_gate_kernel(const float* __restrict__ pairs, int64_t count, MortiseCudaClamp clamp, T* out) {
  const int64_t begin = int64_t{blockIdx.x} * kGateColumns;
  for (int64_t i = begin + threadIdx.x; i < begin + kGateColumns && i < count; i += kThreads) {
    const ClampedUnit unit = clamped_unit(pairs + 2 * i, clamp);
    store((unit.up + 1.0F) * (unit.gate * unit.share), out + i);
  }
}

// d (g s(a g)) = s (1 + a g (1 - s)).
template <class T>
__global__ void __launch_bounds__(kThreads)
    clamped_gate_backward_kernel(const float* __restrict__ pairs, int64_t count, MortiseCudaClamp clamp,
                                 const T* __restrict__ d_out, T* d_pairs) {
  const int64_t begin = int64_t{blockIdx.x} * kGateColumns;
  for (int64_t i = begin + threadIdx.x; i < begin + kGateColumns && i < count; i += kThreads) {
    const ClampedUnit unit = clamped_unit(pairs + 2 * i, clamp);
    const float d = number_of(d_out[i]), raw_gate = pairs[2 * i], raw_up = pairs[2 * i + 1];
    // Below -100 / alpha the sigmoid is 0, so that the slope does not count. It must not be infinite.
    const float slope = clamp.alpha * unit.gate, near = slope < -100.0F ? -100.0F : slope;
    const float d_gate = d * (unit.up + 1.0F) * unit.share * (1.0F + near * (1.0F - unit.share));
    const bool is_within = !(raw_up > clamp.limit || raw_up < -clamp.limit);
    store(raw_gate > clamp.limit ? 0.0F : d_gate, d_pairs + 2 * i);
    store(is_within ? d * unit.gate * unit.share : 0.0F, d_pairs + 2 * i + 1);
  }
}

}  // namespace mortise::cuda
