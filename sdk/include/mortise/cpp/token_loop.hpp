/* The loops that run a loss over ragged rows: blocks of tokens through the author's function, on the host's threads.
 *
 * A chunk is a run of whole rows of about kChunkTokens tokens; its borders depend on the rows alone and chunks' metrics
 * are added up in order, so bits do not depend on threads. Inside a chunk, blocks of kBlock tokens are widened to
 * double, the author's function is inlined into one loop over them that the compiler turns into SIMD, and the results
 * narrowed. Masked tokens are replaced by zeros first: whatever stands there cannot disturb the others.
 */
#ifndef MORTISE_CPP_TOKEN_LOOP_HPP_
#define MORTISE_CPP_TOKEN_LOOP_HPP_

#include <exception>
#include <vector>

#include "dispatch.hpp"
#include "meter.hpp"

namespace mortise {
namespace detail {

inline constexpr std::int64_t kChunkTokens = 32768;

// x is differentiated; a, b and the third (`c`, or `context` as doubles) are constants (null: zeros). weight null means
// 1; grad null means value only.
struct TokenArrays {
  const float *x = nullptr, *a = nullptr, *b = nullptr, *c = nullptr, *weight = nullptr;
  const double* context = nullptr;
  const std::uint8_t* mask = nullptr;
  float *out = nullptr, *grad = nullptr;
};

struct Block {
  double x[kBlock], a[kBlock], b[kBlock], c[kBlock], weight[kBlock], value[kBlock], slope[kBlock];
  std::int64_t active[kBlock];  // all ones, or 0 where the token is masked
};

// The tokens of a loop do not depend on one another. clang warns of a loop that it could not turn into SIMD, as under
// sanitizers; that is no fault of the loss.
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#define MORTISE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MORTISE_INDEPENDENT _Pragma("GCC ivdep")
#endif

// Widens n tokens; masked ones become 0, a missing array `otherwise`.
MORTISE_INLINE void widen(const float* from, const std::int64_t* active, int n, double otherwise, double* to) {
  if (from == nullptr) {
    for (int i = 0; i < n; ++i) to[i] = otherwise;
    return;
  }
  for (int i = 0; i < n; ++i) to[i] = masked(double(from[i]), active[i]);
}
template <class Eval>
MORTISE_INLINE void load(const TokenArrays& in, std::int64_t at, int n, Block& block) {
  for (int i = 0; i < n; ++i) block.active[i] = -std::int64_t(in.mask[at + i] != 0);
  widen(in.x + at, block.active, n, 0.0, block.x);
  widen(in.a + at, block.active, n, 0.0, block.a);
  widen(in.b == nullptr ? nullptr : in.b + at, block.active, n, 0.0, block.b);
  widen(in.weight == nullptr ? nullptr : in.weight + at, block.active, n, 1.0, block.weight);
  if constexpr (Eval::third) {
    if (in.context == nullptr) {
      widen(in.c + at, block.active, n, 0.0, block.c);
    } else {
      for (int i = 0; i < n; ++i) block.c[i] = in.context[at + i];
    }
  }
}

// A masked token, or one whose weight is 0, has gradient 0 whatever its slope.
MORTISE_INLINE void store(const TokenArrays& in, std::int64_t at, int n, Block& block) {
  for (int i = 0; i < n; ++i) {
    const std::int64_t counts = block.active[i] & -std::int64_t(block.weight[i] != 0.0);
    block.slope[i] = masked(block.weight[i] * block.slope[i], counts);
  }
  for (int i = 0; i < n; ++i) in.out[at + i] = float(masked(block.value[i], block.active[i]));
  if (in.grad == nullptr) return;
  for (int i = 0; i < n; ++i) in.grad[at + i] = float(block.slope[i]);
}

template <class T, class Eval>
MORTISE_INLINE void evaluate(const T& plugin, Block& block, int n, BlockValues<MetricsOf<T>::slots>& metrics) {
  MORTISE_INDEPENDENT
  for (int i = 0; i < n; ++i) {
    Meter<MetricsOf<T>::slots> meter(metrics, i);
    const double third = Eval::third ? block.c[i] : 0.0;
    const Dual y = Eval::eval(plugin, Dual{block.x[i], 1.0}, block.a[i], block.b[i], third, meter);
    block.value[i] = y.value;
    block.slope[i] = y.slope;
  }
}

// Metrics of a block whose first token is `at`: cut at the rows' borders. `row` is the row at hand.
template <class T>
MORTISE_INLINE void measure(const mortise_layout& layout, std::int64_t at, int n, const Block& block,
                            const BlockValues<MetricsOf<T>::slots>& metrics, std::int64_t& row, Totals<T>& totals) {
  int begin = 0;
  while (begin < n) {
    const std::int64_t row_end = layout.row_offsets[row + 1] - at;
    const int end = row_end < n ? int(row_end) : n;
    totals.add(metrics, block.active, begin, end);
    if (row_end > n) return;
    totals.end_row();
    ++row;
    begin = end;
  }
}

// Tokens of rows [first_row, last_row): each by itself.
template <class T, class Eval>
MORTISE_INLINE void token_rows(const T& plugin, const mortise_layout& layout, const TokenArrays& in,
                               std::int64_t first_row, std::int64_t last_row, Totals<T>& totals) {
  Block block;
  BlockValues<MetricsOf<T>::slots> metrics;
  const std::int64_t end = layout.row_offsets[last_row];
  std::int64_t row = first_row;
  for (std::int64_t at = layout.row_offsets[first_row]; at < end; at += kBlock) {
    const int n = end - at < kBlock ? int(end - at) : kBlock;
    load<Eval>(in, at, n, block);
    evaluate<T, Eval>(plugin, block, n, metrics);
    store(in, at, n, block);
    measure(layout, at, n, block, metrics, row, totals);
  }
  for (; row < last_row; ++row) totals.end_row();  // empty rows at the end
}

struct RowMean {
  double log_ratio;
  double tokens;  // at least 1
};
MORTISE_INLINE RowMean row_mean(const TokenArrays& in, std::int64_t begin, std::int64_t end) {
  double total = 0;
  std::int64_t tokens = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    if (in.mask[t] == 0) continue;
    total += double(in.x[t]) - double(in.a[t]);
    ++tokens;
  }
  const double divisor = tokens > 0 ? double(tokens) : 1.0;
  return {total / divisor, divisor};
}

template <class T>
struct SequenceEval {
  static constexpr bool third = false;
  template <class Meter>
  static MORTISE_INLINE Dual eval(const T& plugin, Dual mean, double, double adv, double, Meter& meter) {
    if constexpr (MetricsOf<T>::slots > 0) {
      return plugin.sequence(mean, adv, meter);
    } else {
      return plugin.sequence(mean, adv);
    }
  }
};

// Two phases for each row: its mean log ratio, then the author's function of it, whose slope goes to the tokens.
template <class T>
MORTISE_INLINE void sequence_rows(const T& plugin, const mortise_layout& layout, const TokenArrays& in, bool own_token,
                                  std::int64_t first_row, std::int64_t last_row, Totals<T>& totals) {
  Block block;
  BlockValues<MetricsOf<T>::slots> metrics;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const std::int64_t begin = layout.row_offsets[row], end = layout.row_offsets[row + 1];
    const RowMean mean = row_mean(in, begin, end);
    double row_slope = 0;
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const int n = end - at < kBlock ? int(end - at) : kBlock;
      load<SequenceEval<T>>(in, at, n, block);
      for (int i = 0; i < n; ++i) block.x[i] = mean.log_ratio;
      evaluate<T, SequenceEval<T>>(plugin, block, n, metrics);
      store(in, at, n, block);
      for (int i = 0; i < n; ++i) row_slope += block.slope[i];
      totals.add(metrics, block.active, 0, n);
    }
    totals.end_row();
    if (in.grad == nullptr || own_token) continue;
    const auto share = float(row_slope / mean.tokens);
    for (std::int64_t t = begin; t < end; ++t) in.grad[t] = in.mask[t] != 0 ? share : 0.0F;
  }
}

// The same loop compiled for each CPU level; `flatten` inlines the author's function into it.
template <class Rows>
MORTISE_TARGET_BASELINE void rows_baseline(const Rows& rows) {
  rows();
}
#if MORTISE_HAS_LEVELS
template <class Rows>
MORTISE_TARGET_V3 void rows_v3(const Rows& rows) {
  rows();
}
template <class Rows>
MORTISE_TARGET_V4 void rows_v4(const Rows& rows) {
  rows();
}
#endif
template <class Rows>
void at_cpu_level(const Rows& rows) {
#if MORTISE_HAS_LEVELS
  if (cpu_level() == CpuLevel::kV4) return rows_v4(rows);
  if (cpu_level() == CpuLevel::kV3) return rows_v3(rows);
#endif
  rows_baseline(rows);
}

// First rows of the chunks, and the number of rows at the end.
inline std::vector<std::int64_t> chunk_borders(const mortise_layout& layout) {
  std::vector<std::int64_t> borders{0};
  for (std::int64_t i = 1; i <= layout.num_rows; ++i) {
    const bool full = layout.row_offsets[i] - layout.row_offsets[borders.back()] >= kChunkTokens;
    if (full || i == layout.num_rows) borders.push_back(i);
  }
  return borders;
}

// rows(first_row, last_row, totals) for every chunk.
template <class T, class Rows>
void over_chunks(const Call& call, const mortise_layout& layout, const Rows& rows) {
  const std::vector<std::int64_t> borders = chunk_borders(layout);
  const std::size_t num_chunks = borders.size() - 1;
  std::vector<Totals<T>> totals(num_chunks);
  std::vector<std::exception_ptr> errors(num_chunks);
  call.parallel_for(std::int64_t(num_chunks), 1, [&](std::int64_t first, std::int64_t last) {
    for (auto c = std::size_t(first); c < std::size_t(last); ++c) {
      try {
        rows(borders[c], borders[c + 1], totals[c]);
      } catch (...) {
        errors[c] = std::current_exception();
      }
    }
  });
  Totals<T> all;
  for (std::size_t c = 0; c < num_chunks; ++c) {
    if (errors[c]) std::rethrow_exception(errors[c]);
    all.merge(totals[c]);
  }
  all.report(call);
}

template <class T, class Eval>
void over_tokens(const T& plugin, const Call& call, const mortise_layout& layout, const TokenArrays& arrays) {
  over_chunks<T>(call, layout, [&](std::int64_t first, std::int64_t last, Totals<T>& totals) {
    at_cpu_level([&]() MORTISE_LAMBDA_INLINE { token_rows<T, Eval>(plugin, layout, arrays, first, last, totals); });
  });
}

template <class T>
void over_rows(const T& plugin, const Call& call, const mortise_layout& layout, const TokenArrays& arrays,
               bool own_token) {
  over_chunks<T>(call, layout, [&](std::int64_t first, std::int64_t last, Totals<T>& totals) {
    at_cpu_level([&]()
                     MORTISE_LAMBDA_INLINE { sequence_rows(plugin, layout, arrays, own_token, first, last, totals); });
  });
}

}  // namespace detail
}  // namespace mortise

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

#endif  // MORTISE_CPP_TOKEN_LOOP_HPP_
