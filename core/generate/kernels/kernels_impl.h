// The kernels, written once on GCC vectors of MORTISE_VECTOR floats. Included by kernels_<isa>.cpp only, each compiled
// with its own -m flags and its own namespace MORTISE_ISA.
//
// exp: Cody-Waite reduction and a degree-6 polynomial, relative error below 2e-7; below -87 it is exactly 0.
// No standard headers but <cstdint>, see kernels.h.
#include <cstdint>

#include "generate/kernels/kernels.h"

namespace mortise::MORTISE_ISA {
namespace {

constexpr int64_t W = MORTISE_VECTOR;
constexpr int kRowTile = MORTISE_ROW_TILE;  // rows of a register tile
constexpr int kTileVectors = 2;             // vectors of columns of a register tile
using Vec = float __attribute__((vector_size(4 * W)));
using VecI = int32_t __attribute__((vector_size(4 * W)));
using VecU = float __attribute__((vector_size(4 * W), aligned(4), may_alias));
static_assert(kPageTokens % W == 0 && kPanelColumns % (W * kTileVectors) == 0);

inline Vec load(const float* p) { return *reinterpret_cast<const VecU*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<VecU*>(p) = v; }
inline Vec splat(float x) { return Vec{} + x; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline float sum_lanes(Vec v) {
  float lanes[W];
  store(lanes, v);
  for (int64_t width = W / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
inline float max_lanes(Vec v) {
  float best = v[0];
  for (int64_t i = 1; i < W; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

inline Vec exp(Vec x) {
  const Vec low = splat(-87.0F);
  const Vec clamped = max(low, x < 88.0F ? x : splat(88.0F));
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec shifted = clamped * 1.44269504088896341F + kRound;
  const Vec n = shifted - kRound;
  const Vec r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  Vec p = splat(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const VecI bits = reinterpret_cast<VecI>(shifted) << 23;  // n in the exponent field
  const Vec value = reinterpret_cast<Vec>(reinterpret_cast<VecI>(p) + bits);
  return x < low ? Vec{} : value;
}

template <int kRows>
inline void gemm_tile(const float* x, int64_t x_stride, int64_t k, const float* panel, const float* bias, float* y,
                      int64_t y_stride, bool add) {
  Vec acc[kRows][kTileVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) acc[i][v] = bias == nullptr ? Vec{} : load(bias + v * W);
  }
  for (int64_t kk = 0; kk < k; ++kk) {
    Vec w[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) w[v] = load(panel + kk * kPanelColumns + v * W);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec xi = splat(x[i * x_stride + kk]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) acc[i][v] += xi * w[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      float* const at = y + i * y_stride + v * W;
      store(at, add ? load(at) + acc[i][v] : acc[i][v]);
    }
  }
}

// The last m < kRowTile rows, with the tile size known to the compiler.
template <int kRows>
inline void gemm_tail(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* panel, const float* bias,
                      float* y, int64_t y_stride, bool add) {
  if constexpr (kRows > 0) {
    if (m == kRows) {
      gemm_tile<kRows>(x, x_stride, k, panel, bias, y, y_stride, add);
    } else {
      gemm_tail<kRows - 1>(x, x_stride, m, k, panel, bias, y, y_stride, add);
    }
  }
}

void gemm_panel(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* panel, const float* bias, float* y,
                int64_t y_stride, bool add) {
  for (int64_t column = 0; column < kPanelColumns; column += W * kTileVectors) {
    const float* const columns = panel + column;
    const float* const bias_part = bias == nullptr ? nullptr : bias + column;
    int64_t i = 0;
    for (; i + kRowTile <= m; i += kRowTile) {
      gemm_tile<kRowTile>(x + i * x_stride, x_stride, k, columns, bias_part, y + i * y_stride + column, y_stride, add);
    }
    gemm_tail<kRowTile - 1>(x + i * x_stride, x_stride, m - i, k, columns, bias_part, y + i * y_stride + column,
                            y_stride, add);
  }
}

void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* y) {
  Vec squares[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= size; i += 2 * W) {
    squares[0] += load(x + i) * load(x + i);
    squares[1] += load(x + i + W) * load(x + i + W);
  }
  float sum = sum_lanes(squares[0] + squares[1]);
  for (; i < size; ++i) sum += x[i] * x[i];
  const float inverse = 1.0F / __builtin_sqrtf(sum / static_cast<float>(size) + eps);
  for (i = 0; i + W <= size; i += W) store(y + i, load(x + i) * inverse * load(weight + i));
  for (; i < size; ++i) y[i] = x[i] * inverse * weight[i];
}

void silu_mul(const float* gate_up, int64_t gate_up_stride, int64_t m, float* out, int64_t out_stride) {
  constexpr int64_t kHalf = kPanelColumns / 2;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < kHalf; j += W) {
      const Vec gate = load(gate_up + i * gate_up_stride + j);
      const Vec up = load(gate_up + i * gate_up_stride + kHalf + j);
      store(out + i * out_stride + j, gate / (exp(-gate) + 1.0F) * up);
    }
  }
}

void rope(float* x, int64_t num_heads, int64_t head_dim, const float* cos, const float* sin) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* const low = x + h * head_dim;
    float* const high = low + half;
    int64_t i = 0;
    for (; i + W <= half; i += W) {
      const Vec a = load(low + i);
      const Vec b = load(high + i);
      store(low + i, a * load(cos + i) - b * load(sin + i));
      store(high + i, b * load(cos + i) + a * load(sin + i));
    }
    for (; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = a * cos[i] - b * sin[i];
      high[i] = b * cos[i] + a * sin[i];
    }
  }
}

// scores[q][t] for all pages of both spans; tokens beyond a span's end get -inf. Returns the number of scores per row.
template <int kQueries>
inline int64_t score(const AttendArgs& a, const float* q) {
  constexpr int kParts = kPageTokens / W;
  int64_t place = 0;
  for (const KvSpan& span : a.spans) {
    for (int64_t begin = 0; begin < span.length; begin += kPageTokens, place += kPageTokens) {
      const float* const keys = span.pages[begin / kPageTokens] + a.offset;
      Vec acc[kQueries][kParts] = {};
      for (int64_t d = 0; d < a.head_dim; ++d) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          const Vec key = load(keys + d * kPageTokens + part * W);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i) acc[i][part] += q[i * a.head_dim + d] * key;
        }
      }
      for (int i = 0; i < kQueries; ++i) {
        float* const row = a.scores + i * a.score_stride + place;
        for (int part = 0; part < kParts; ++part) store(row + part * W, acc[i][part] * a.scale);
        for (int64_t t = span.length - begin; t < kPageTokens; ++t) row[t] = -__builtin_inff();
      }
    }
  }
  return place;
}

// scores become exp(score - max); returns 1 / sum.
inline float softmax_row(float* row, int64_t size) {
  Vec top = load(row);
  for (int64_t t = W; t < size; t += W) top = max(top, load(row + t));
  const float largest = max_lanes(top);
  Vec sum = {};
  for (int64_t t = 0; t < size; t += W) {
    const Vec e = exp(load(row + t) - largest);
    store(row + t, e);
    sum += e;
  }
  return 1.0F / sum_lanes(sum);
}

template <int kQueries, int kVectors>
inline void mix_values(const AttendArgs& a, int64_t first_value, const float* inverse_sum, float* out) {
  Vec acc[kQueries][kVectors] = {};
  int64_t place = 0;
  for (const KvSpan& span : a.spans) {
    for (int64_t begin = 0; begin < span.length; begin += kPageTokens, place += kPageTokens) {
      const float* const values = span.pages[begin / kPageTokens] + a.offset + a.head_dim * kPageTokens + first_value;
      const int64_t count = span.length - begin < kPageTokens ? span.length - begin : kPageTokens;
      for (int64_t t = 0; t < count; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const Vec value = load(values + t * a.value_stride + v * W);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i) acc[i][v] += a.scores[i * a.score_stride + place + t] * value;
        }
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = first_value + v * W;
      const Vec result = acc[i][v] * inverse_sum[i];
      float* const at = out + i * a.head_dim + column;
      if (column + W <= a.head_dim) {
        store(at, result);
      } else {
        for (int64_t j = 0; column + j < a.head_dim; ++j) at[j] = result[j];
      }
    }
  }
}

template <int kQueries>
inline void attend_block(const AttendArgs& a, const float* q, float* out) {
  const int64_t size = score<kQueries>(a, q);
  float inverse_sum[kQueries];
  for (int i = 0; i < kQueries; ++i) inverse_sum[i] = softmax_row(a.scores + i * a.score_stride, size);
  int64_t value = 0;
  for (; value + 2 * W <= a.value_stride; value += 2 * W) mix_values<kQueries, 2>(a, value, inverse_sum, out);
  for (; value < a.value_stride; value += W) mix_values<kQueries, 1>(a, value, inverse_sum, out);
}

void attend(const AttendArgs& a) {
  static_assert(kMaxQueryBlock == 4);
  for (int64_t first = 0; first < a.num_queries; first += kMaxQueryBlock) {
    const float* const q = a.q + first * a.head_dim;
    float* const out = a.out + first * a.head_dim;
    switch (a.num_queries - first) {
      case 1:
        attend_block<1>(a, q, out);
        break;
      case 2:
        attend_block<2>(a, q, out);
        break;
      case 3:
        attend_block<3>(a, q, out);
        break;
      default:
        attend_block<4>(a, q, out);
        break;
    }
  }
}

void exp_sum(const float* logits, int64_t n, float inverse_temperature, float* max_out, float* sum_out) {
  Vec top[2] = {load(logits), load(logits + W)};
  for (int64_t i = 2 * W; i < n; i += 2 * W) {
    top[0] = max(top[0], load(logits + i));
    top[1] = max(top[1], load(logits + i + W));
  }
  const float largest = max_lanes(max(top[0], top[1]));
  *max_out = largest;
  *sum_out = 0.0F;
  if (largest == -__builtin_inff()) return;
  Vec sum[2] = {};
  for (int64_t i = 0; i < n; i += 2 * W) {
    sum[0] += exp((load(logits + i) - largest) * inverse_temperature);
    sum[1] += exp((load(logits + i + W) - largest) * inverse_temperature);
  }
  *sum_out = sum_lanes(sum[0] + sum[1]);
}

void exp_scaled(const float* x, int64_t n, float largest, float inverse_temperature, float* out) {
  for (int64_t i = 0; i < n; i += W) store(out + i, exp((load(x + i) - largest) * inverse_temperature));
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {MORTISE_ISA_NAME, gemm_panel, rms_norm, silu_mul, rope, attend, exp_sum, exp_scaled};

}  // namespace mortise::MORTISE_ISA
