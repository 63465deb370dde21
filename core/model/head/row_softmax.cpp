// See row_softmax.h.
#include "model/head/row_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

constexpr int64_t kColumns = 2048;  // summed in lanes of T before double
constexpr double kFloor = -1e4;     // lowest d: exp is 0 there, and 0 * d stays 0 even for -inf

template <class T, bool kWrite>
MORTISE_INLINE RowStats stats_body(const T* logits, T* out, int64_t size, double inverse_temperature) {
  T max = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < size; ++i) max = logits[i] > max ? logits[i] : max;
  const T scale = static_cast<T>(inverse_temperature);
  RowStats stats;
  stats.max = static_cast<double>(max);
  for (int64_t begin = 0; begin < size; begin += kColumns) {
    const int64_t end = std::min(size, begin + kColumns);
    T sum = 0;
    T weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
    for (int64_t i = begin; i < end; ++i) {
      T d = (logits[i] - max) * scale;
      d = d < static_cast<T>(kFloor) ? static_cast<T>(kFloor) : d;
      const T e = fast_exp(d);
      if constexpr (kWrite) out[i] = e;
      sum += e;
      weighted += e * d;
    }
    stats.sum += static_cast<double>(sum);
    stats.weighted += static_cast<double>(weighted);
  }
  return stats;
}

template <class T>
MORTISE_INLINE void exp_from_body(T* logits, int64_t size, double reference, double inverse_temperature) {
  const T from = static_cast<T>(reference);
  const T scale = static_cast<T>(inverse_temperature);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) logits[i] = fast_exp((logits[i] - from) * scale);
}

template <class T>
MORTISE_INLINE void cap_body(T* logits, int64_t size, double cap) {
  const T scale = static_cast<T>(cap);
  const T inverse = static_cast<T>(1.0 / cap);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) logits[i] = scale * fast_tanh(logits[i] * inverse);
}

template <class T, bool kCapped>
MORTISE_INLINE void grad_body(T* logits, int64_t size, double inverse_temperature, const RowStats& stats, double g,
                              double gh, double cap) {
  const T max = static_cast<T>(stats.max);
  const T scale = static_cast<T>(inverse_temperature);
  const T inverse_sum = static_cast<T>(1.0 / stats.sum);
  // log p + H = d - log sum + H
  const T base = static_cast<T>((g + gh * (stats.entropy() - std::log(stats.sum))) * inverse_temperature);
  const T slope = static_cast<T>(gh * inverse_temperature);
  const T inverse_cap = kCapped ? static_cast<T>(1.0 / cap) : T(0);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const T t = kCapped ? logits[i] * inverse_cap : T(0);
    T d = (logits[i] - max) * scale;
    d = d < static_cast<T>(kFloor) ? static_cast<T>(kFloor) : d;
    logits[i] = -fast_exp(d) * inverse_sum * (base + slope * d);
    if constexpr (kCapped) logits[i] *= T(1) - t * t;
  }
}

// The clones return nothing by value: a class through an indirect function costs more than a pointer.
MORTISE_CPU_CLONES void stats_clone(const float* x, int64_t n, double t, RowStats* out) {
  *out = stats_body<float, false>(x, nullptr, n, t);
}
MORTISE_CPU_CLONES void stats_clone(const double* x, int64_t n, double t, RowStats* out) {
  *out = stats_body<double, false>(x, nullptr, n, t);
}
MORTISE_CPU_CLONES void exp_clone(float* x, int64_t n, double t, RowStats* out) {
  *out = stats_body<float, true>(x, x, n, t);
}
MORTISE_CPU_CLONES void exp_clone(double* x, int64_t n, double t, RowStats* out) {
  *out = stats_body<double, true>(x, x, n, t);
}
MORTISE_CPU_CLONES void exp_from_clone(float* x, int64_t n, double from, double t) { exp_from_body(x, n, from, t); }
MORTISE_CPU_CLONES void exp_from_clone(double* x, int64_t n, double from, double t) { exp_from_body(x, n, from, t); }
MORTISE_CPU_CLONES void grad_clone(float* x, int64_t n, double t, const RowStats& stats, double g, double gh) {
  grad_body<float, false>(x, n, t, stats, g, gh, 0.0);
}
MORTISE_CPU_CLONES void capped_grad_clone(float* x, int64_t n, double t, const RowStats& stats, double g, double gh,
                                          double cap) {
  grad_body<float, true>(x, n, t, stats, g, gh, cap);
}
MORTISE_CPU_CLONES void cap_clone(float* x, int64_t n, double cap) { cap_body(x, n, cap); }
MORTISE_CPU_CLONES void grad_clone(double* x, int64_t n, double t, const RowStats& stats, double g, double gh) {
  grad_body<double, false>(x, n, t, stats, g, gh, 0.0);
}
MORTISE_CPU_CLONES void capped_grad_clone(double* x, int64_t n, double t, const RowStats& stats, double g, double gh,
                                          double cap) {
  grad_body<double, true>(x, n, t, stats, g, gh, cap);
}
MORTISE_CPU_CLONES void cap_clone(double* x, int64_t n, double cap) { cap_body(x, n, cap); }

}  // namespace

double RowStats::lse(double inverse_temperature) const { return max * inverse_temperature + std::log(sum); }

double RowStats::log_prob(double logit, double inverse_temperature) const {
  return (logit - max) * inverse_temperature - std::log(sum);
}

double RowStats::entropy() const { return std::log(sum) - weighted / sum; }

RowStats RowStats::merged(const RowStats& other, double inverse_temperature) const {
  const RowStats& high = max >= other.max ? *this : other;
  const RowStats& low = max >= other.max ? other : *this;
  // With all of `low` at -inf the shift is -inf (or NaN for two such blocks): then it adds nothing.
  const double shift = low.max == high.max ? 0.0 : std::max((low.max - high.max) * inverse_temperature, kFloor);
  const double scale = std::exp(shift);
  return {high.max, high.sum + scale * low.sum, high.weighted + scale * (low.weighted + shift * low.sum)};
}

RowStats row_softmax_stats(const float* logits, int64_t size, double inverse_temperature) {
  RowStats stats;
  stats_clone(logits, size, inverse_temperature, &stats);
  return stats;
}
RowStats row_softmax_stats(const double* logits, int64_t size, double inverse_temperature) {
  RowStats stats;
  stats_clone(logits, size, inverse_temperature, &stats);
  return stats;
}
RowStats row_softmax_exp_(float* logits, int64_t size, double inverse_temperature) {
  RowStats stats;
  exp_clone(logits, size, inverse_temperature, &stats);
  return stats;
}
RowStats row_softmax_exp_(double* logits, int64_t size, double inverse_temperature) {
  RowStats stats;
  exp_clone(logits, size, inverse_temperature, &stats);
  return stats;
}
void row_exp_(float* logits, int64_t size, double reference, double inverse_temperature) {
  exp_from_clone(logits, size, reference, inverse_temperature);
}
void row_exp_(double* logits, int64_t size, double reference, double inverse_temperature) {
  exp_from_clone(logits, size, reference, inverse_temperature);
}
void row_softcap_(float* logits, int64_t size, double cap) { cap_clone(logits, size, cap); }
void row_softmax_grad_(float* logits, int64_t size, double inverse_temperature, const RowStats& stats,
                       double grad_log_prob, double grad_entropy, double cap) {
  if (cap > 0.0) {
    capped_grad_clone(logits, size, inverse_temperature, stats, grad_log_prob, grad_entropy, cap);
  } else {
    grad_clone(logits, size, inverse_temperature, stats, grad_log_prob, grad_entropy);
  }
}
void row_softcap_(double* logits, int64_t size, double cap) { cap_clone(logits, size, cap); }
void row_softmax_grad_(double* logits, int64_t size, double inverse_temperature, const RowStats& stats,
                       double grad_log_prob, double grad_entropy, double cap) {
  if (cap > 0.0) {
    capped_grad_clone(logits, size, inverse_temperature, stats, grad_log_prob, grad_entropy, cap);
  } else {
    grad_clone(logits, size, inverse_temperature, stats, grad_log_prob, grad_entropy);
  }
}

}  // namespace mortise
