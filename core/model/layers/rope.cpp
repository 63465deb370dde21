// See rope.h. The llama3, yarn and longrope formulas follow their published descriptions (Llama 3.1 model card; Peng et
// al. 2023, section 3.2; Ding et al. 2024), checked against transformers by tests/unit/model.
#include "model/layers/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/tensor/kernel.h"

namespace mortise {
namespace {

// Beyond the trained length the base grows with the current length ("NTK-aware", transformers' dynamic).
double dynamic_theta(const RopeConfig& rope, int64_t rotary_dim, int64_t length) {
  const double trained = rope.original_max_position_embeddings;
  const double longest = std::max(static_cast<double>(length), trained);
  const double size = static_cast<double>(rotary_dim);
  return rope.theta * std::pow(rope.factor * longest / trained - (rope.factor - 1.0), size / (size - 2.0));
}

double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double original = rope.original_max_position_embeddings;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The dimension whose wave makes `rotations` turns over the original length.
double yarn_dimension(const RopeConfig& rope, double rotary_dim, double rotations) {
  return rotary_dim * std::log(rope.original_max_position_embeddings / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

double yarn_frequency(const RopeConfig& rope, double frequency, int64_t index, int64_t rotary_dim) {
  const double size = static_cast<double>(rotary_dim);
  double low = yarn_dimension(rope, size, rope.beta_fast);
  double high = yarn_dimension(rope, size, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1.0);
  if (low == high) high += 0.001;
  const double interpolated = std::clamp((static_cast<double>(index) - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * interpolated + frequency * (1.0 - interpolated);
}

template <class T>
MORTISE_INLINE void rotate_rows(T* x, int64_t stride, const int64_t* positions, const T* cos, const T* sin,
                                int64_t heads, int64_t head_dim, int64_t half, T sign, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const T* __restrict c = cos + positions[n] * half;
    const T* __restrict s = sin + positions[n] * half;
    for (int64_t h = 0; h < heads; ++h) {
      T* __restrict first = x + n * stride + h * head_dim;
      T* __restrict second = first + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const T a = first[i];
        const T b = second[i];
        first[i] = a * c[i] - sign * b * s[i];
        second[i] = b * c[i] + sign * a * s[i];
      }
    }
  }
}

MORTISE_CPU_CLONES void rotate_kernel(float* x, int64_t stride, const int64_t* positions, const float* cos,
                                      const float* sin, int64_t heads, int64_t head_dim, int64_t half, float sign,
                                      int64_t b, int64_t e) {
  rotate_rows(x, stride, positions, cos, sin, heads, head_dim, half, sign, b, e);
}
MORTISE_CPU_CLONES void rotate_kernel(double* x, int64_t stride, const int64_t* positions, const double* cos,
                                      const double* sin, int64_t heads, int64_t head_dim, int64_t half, double sign,
                                      int64_t b, int64_t e) {
  rotate_rows(x, stride, positions, cos, sin, heads, head_dim, half, sign, b, e);
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t length) {
  const int64_t rotary_dim = rope.rotary_dim(head_dim);
  std::vector<double> frequencies(static_cast<size_t>(rotary_dim / 2));
  const double theta = rope.type == RopeType::kDynamic ? dynamic_theta(rope, rotary_dim, length) : rope.theta;
  const bool is_long = static_cast<double>(length) > rope.original_max_position_embeddings;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double base = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    double& frequency = frequencies[static_cast<size_t>(i)];
    switch (rope.type) {
      case RopeType::kDefault:
      case RopeType::kDynamic:
        frequency = base;
        break;
      case RopeType::kLinear:
        frequency = base / rope.factor;
        break;
      case RopeType::kLlama3:
        frequency = llama3_frequency(rope, base);
        break;
      case RopeType::kYarn:
        frequency = yarn_frequency(rope, base, i, rotary_dim);
        break;
      case RopeType::kLongrope:
        frequency = base / (is_long ? rope.long_factor : rope.short_factor)[static_cast<size_t>(i)];
        break;
    }
  }
  return frequencies;
}

RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t num_positions, at::ScalarType dtype,
                          int64_t length) {
  const std::vector<double> frequencies = rope_inverse_frequencies(rope, head_dim, length > 0 ? length : num_positions);
  const auto half = static_cast<int64_t>(frequencies.size());
  RopeTable table{at::empty({num_positions, half}, dtype), at::empty({num_positions, half}, dtype)};
  dispatch_float(table.cos_PR2, [&](auto zero) {
    using T = decltype(zero);
    T* cos = table.cos_PR2.mutable_data_ptr<T>();
    T* sin = table.sin_PR2.mutable_data_ptr<T>();
    compute_ranges(num_positions, 64, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(p) * frequencies[static_cast<size_t>(i)];
          cos[p * half + i] = static_cast<T>(std::cos(angle) * rope.attention_factor);
          sin[p * half + i] = static_cast<T>(std::sin(angle) * rope.attention_factor);
        }
      }
    });
  });
  return table;
}

void rope_rotate_(const at::Tensor& x_NQ, const at::Tensor& positions_N, const RopeTable& table,
                  int64_t num_rotated_heads, int64_t head_dim, bool inverse) {
  dispatch_float(x_NQ, [&](auto zero) {
    using T = decltype(zero);
    T* x = x_NQ.mutable_data_ptr<T>();
    const int64_t* positions = positions_N.const_data_ptr<int64_t>();
    const T* cos = table.cos_PR2.const_data_ptr<T>();
    const T* sin = table.sin_PR2.const_data_ptr<T>();
    const int64_t stride = x_NQ.stride(0);
    const int64_t half = table.cos_PR2.size(1);
    compute_ranges(x_NQ.size(0), std::max<int64_t>(1, 8192 / (num_rotated_heads * head_dim)),
                   [&](int64_t begin, int64_t end) {
                     rotate_kernel(x, stride, positions, cos, sin, num_rotated_heads, head_dim, half,
                                   inverse ? T(-1) : T(1), begin, end);
                   });
  });
}

at::Tensor rope_rotate_plain(const at::Tensor& x_NQ, const at::Tensor& positions_N, const RopeTable& table,
                             int64_t num_rotated_heads, int64_t head_dim) {
  const int64_t n = x_NQ.size(0);
  const int64_t half = table.cos_PR2.size(1);
  const int64_t width = num_rotated_heads * head_dim;
  const at::Tensor heads = x_NQ.narrow(1, 0, width).reshape({n, num_rotated_heads, head_dim});
  const at::Tensor cos = table.cos_PR2.index_select(0, positions_N).unsqueeze(1);
  const at::Tensor sin = table.sin_PR2.index_select(0, positions_N).unsqueeze(1);
  const at::Tensor a = heads.narrow(2, 0, half);
  const at::Tensor b = heads.narrow(2, half, half);
  const at::Tensor rest = heads.narrow(2, 2 * half, head_dim - 2 * half);
  const at::Tensor rotated = at::cat({a * cos - b * sin, b * cos + a * sin, rest}, 2).reshape({n, width});
  return at::cat({rotated, x_NQ.narrow(1, width, x_NQ.size(1) - width)}, 1);
}

}  // namespace mortise
