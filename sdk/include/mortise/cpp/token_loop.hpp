/* The loops that run a loss over ragged rows: blocks of tokens through the author's function, on the host's threads.
 *
 * A chunk is a run of whole rows of about kChunkTokens tokens; its borders depend on the rows alone and chunks' metrics
 * are added up in order, so bits do not depend on threads. A chunk is run in blocks of kBlock tokens: one loop of that
 * constant length reads floats, runs the author's function in double and writes floats, so that the compiler turns it
 * into SIMD without a remainder; the chunk's last block goes through a copy filled up with masked tokens. Masked tokens
 * are zeros to the function: whatever stands there cannot disturb the others.
 */
#ifndef MORTISE_CPP_TOKEN_LOOP_HPP_
#define MORTISE_CPP_TOKEN_LOOP_HPP_

#include <algorithm>
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

// The tokens of a loop do not depend on one another. clang warns of a loop that it could not turn into SIMD, as under
// sanitizers; that is no fault of the loss.
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#define MORTISE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MORTISE_INDEPENDENT _Pragma("GCC ivdep")
#endif

// kBlock tokens, in the call's tensors or in a copy. None is null.
struct Block {
  const float *x, *a, *b, *c, *weight;
  const double* context;
  const std::uint8_t* mask;
  float *out, *grad;
};

// What a block is filled up from where the call has fewer tokens or no such array.
struct Padding {
  float x[kBlock] = {}, a[kBlock] = {}, b[kBlock] = {}, c[kBlock] = {}, weight[kBlock] = {}, zeros[kBlock] = {};
  float ones[kBlock], out[kBlock], grad[kBlock];
  double context[kBlock] = {};
  std::uint8_t mask[kBlock];

  Padding() { std::fill_n(ones, kBlock, 1.0F); }

  template <class Number>
  static const Number* tokens(const Number* array, std::int64_t at, int n, Number* copy) {
    if (n == kBlock) return array + at;
    std::copy_n(array + at, n, copy);
    return copy;
  }
  // The n tokens from `at` on.
  Block block(const TokenArrays& in, std::int64_t at, int n) {
    const auto given = [&](const float* array, float* copy, const float* otherwise) {
      return array == nullptr ? otherwise : tokens(array, at, n, copy);
    };
    if (n < kBlock) std::fill(mask + n, mask + kBlock, std::uint8_t(0));
    const bool whole = n == kBlock;
    return {given(in.x, x, zeros),
            given(in.a, a, zeros),
            given(in.b, b, zeros),
            given(in.c, c, zeros),
            given(in.weight, weight, ones),
            in.context == nullptr ? context : tokens(in.context, at, n, context),
            tokens(in.mask, at, n, mask),
            whole ? in.out + at : out,
            whole && in.grad != nullptr ? in.grad + at : grad};
  }
  // Hands over the outputs of a block that is not whole.
  void finish(const TokenArrays& in, std::int64_t at, int n) const {
    if (n == kBlock) return;
    std::copy_n(out, n, in.out + at);
    if (in.grad != nullptr) std::copy_n(grad, n, in.grad + at);
  }
};

// All ones, or 0 where the token is masked.
MORTISE_INLINE void activate(const Block& block, std::int64_t* active) {
  for (int i = 0; i < kBlock; ++i) active[i] = -std::int64_t(block.mask[i] != 0);
}
MORTISE_INLINE double wide(const float* from, int i, const std::int64_t* active) {
  return masked(double(from[i]), active[i]);
}

// What an author's function takes as its third number, and what is differentiated.
enum class Third { kNone, kFloats, kContext };
struct OfToken {
  static constexpr Third third = Third::kNone;
  static constexpr bool of_row = false;  // x is one number for the row, and slopes are wanted in double
};
template <class Eval>
MORTISE_INLINE double third_of(const Block& block, int i, const std::int64_t* active) {
  if constexpr (Eval::third == Third::kFloats) return wide(block.c, i, active);
  if constexpr (Eval::third == Third::kContext) return masked(block.context[i], active[i]);
  return 0.0;
}

// A masked token, or one whose weight is 0, has gradient 0 whatever its slope.
template <class T, class Eval>
MORTISE_INLINE void evaluate(const T& plugin, const Block& block, const std::int64_t* active, double row_x,
                             double* slopes, BlockValues<MetricsOf<T>::slots>& metrics) {
  MORTISE_INDEPENDENT
  for (int i = 0; i < kBlock; ++i) {
    Meter<MetricsOf<T>::slots> meter(metrics, i);
    const double x = Eval::of_row ? row_x : wide(block.x, i, active);
    const Dual y = Eval::eval(plugin, Dual{x, 1.0}, wide(block.a, i, active), wide(block.b, i, active),
                              third_of<Eval>(block, i, active), meter);
    const double weight = wide(block.weight, i, active);
    const double slope = select_of(weight != 0.0, weight * y.slope, 0.0);
    if constexpr (Eval::of_row) slopes[i] = slope;
    block.out[i] = float(masked(y.value, active[i]));
    block.grad[i] = float(slope);
  }
}

MORTISE_INLINE int whole_lanes(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Metrics of a block whose first token is `at`: cut at the rows' borders. `row` is the row at hand.
template <class T>
MORTISE_INLINE void measure(const mortise_layout& layout, std::int64_t at, int n, const std::int64_t* active,
                            const BlockValues<MetricsOf<T>::slots>& metrics, std::int64_t& row, Totals<T>& totals) {
  std::int64_t cut[kBlock];
  int begin = 0;
  while (begin < n) {
    const std::int64_t row_end = layout.row_offsets[row + 1] - at;
    const int end = row_end < n ? int(row_end) : n;
    Piece piece{active, begin / kLanes * kLanes, whole_lanes(end)};
    if (begin > 0 || end < n) {
      for (int i = piece.begin; i < piece.end; ++i) cut[i] = active[i] & -std::int64_t((i >= begin) & (i < end));
      piece.mask = cut;
    }
    totals.add(metrics, piece);
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
  Padding padding;
  std::int64_t active[kBlock];
  BlockValues<MetricsOf<T>::slots> metrics;
  const std::int64_t end = layout.row_offsets[last_row];
  std::int64_t row = first_row;
  for (std::int64_t at = layout.row_offsets[first_row]; at < end; at += kBlock) {
    const int n = end - at < kBlock ? int(end - at) : kBlock;
    const Block block = padding.block(in, at, n);
    activate(block, active);
    evaluate<T, Eval>(plugin, block, active, 0.0, nullptr, metrics);
    padding.finish(in, at, n);
    measure(layout, at, n, active, metrics, row, totals);
  }
  for (; row < last_row; ++row) totals.end_row();  // empty rows at the end
}

struct RowMean {
  double log_ratio;
  double tokens;  // at least 1
};
MORTISE_INLINE RowMean row_mean(const TokenArrays& in, std::int64_t begin, std::int64_t end, Padding& padding) {
  std::int64_t active[kBlock], tokens = 0;
  double apart[1][kBlock], total = 0, part = 0;
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const int n = end - at < kBlock ? int(end - at) : kBlock;
    const Block block = padding.block(in, at, n);
    activate(block, active);
    for (int i = 0; i < kBlock; ++i) apart[0][i] = double(block.x[i]) - double(block.a[i]);
    masked_sums<1>(apart, {active, 0, kBlock}, &part);
    total += part;
    tokens += count_set({active, 0, kBlock});
  }
  const double divisor = tokens > 0 ? double(tokens) : 1.0;
  return {total / divisor, divisor};
}

template <class T>
struct SequenceEval : OfToken {
  static constexpr bool of_row = true;
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
  Padding padding;
  std::int64_t active[kBlock];
  double slopes[1][kBlock], part = 0;
  BlockValues<MetricsOf<T>::slots> metrics;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const std::int64_t begin = layout.row_offsets[row], end = layout.row_offsets[row + 1];
    const RowMean mean = row_mean(in, begin, end, padding);
    double row_slope = 0;
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const int n = end - at < kBlock ? int(end - at) : kBlock;
      const Block block = padding.block(in, at, n);
      activate(block, active);
      evaluate<T, SequenceEval<T>>(plugin, block, active, mean.log_ratio, slopes[0], metrics);
      padding.finish(in, at, n);
      const Piece whole{active, 0, whole_lanes(n)};
      masked_sums<1>(slopes, whole, &part);
      row_slope += part;
      totals.add(metrics, whole);
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
