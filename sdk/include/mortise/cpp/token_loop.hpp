/* The loops that run a loss over ragged rows: blocks of tokens through the author's function, on the host's threads.
 *
 * A chunk is a run of whole rows of about kChunkTokens tokens; its borders depend on the rows alone and chunks' metrics
 * are added up in order, so bits do not depend on threads. A row is run in blocks of whole groups of kGroup tokens: the
 * loop over a group reads floats, runs the author's function in its numbers and writes floats, and has a constant
 * length, so that the compiler turns it into SIMD without a remainder; what a row has beyond whole groups goes through
 * a copy filled up with masked tokens. Masked tokens are zeros to the function: their values cannot disturb
 * others.
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
inline constexpr int kBlock = 256;  // most tokens of a block: whole groups

// x is differentiated; a, b and the third (`c`, or `context` as doubles) are constants (null: zeros). weight null means
// 1; grad null means value only. The last two are for passes (passes.hpp).
struct TokenArrays {
  const float *x = nullptr, *a = nullptr, *b = nullptr, *c = nullptr, *weight = nullptr;
  const double* context = nullptr;
  const std::uint8_t* mask = nullptr;
  float *out = nullptr, *grad = nullptr;
  const float* d = nullptr;
  std::int64_t update_index = 0;
};

// The tokens of a loop are independent. clang warns about a loop that it could not vectorise, as under sanitizers; that
// is not a fault of the loss.
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#define MORTISE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MORTISE_INDEPENDENT _Pragma("GCC ivdep")
#endif

// `size` tokens of one row, in whole groups, in the call's tensors or in a copy. No pointer is null.
struct Block {
  const float *x, *a, *b, *c, *weight;
  const double* context;
  const std::uint8_t* mask;
  float *out, *grad;
  int size;
};

// Replaces arrays that the call does not have, and pads the last group.
struct Padding {
  float x[kGroup] = {}, a[kGroup] = {}, b[kGroup] = {}, c[kGroup] = {}, weight[kGroup] = {};
  double context[kGroup] = {};
  std::uint8_t mask[kGroup];
  float zeros[kBlock] = {}, ones[kBlock], out[kGroup], grad[kBlock];
  double no_context[kBlock] = {};

  Padding() { std::fill_n(ones, kBlock, 1.0F); }

  template <class Number>
  static const Number* tokens(const Number* array, std::int64_t at, int n, Number* copy) {
    if (n >= kGroup) return array + at;
    std::copy_n(array + at, n, copy);
    return copy;
  }
  // The n tokens from `at` on: whole groups, or less than one group.
  Block block(const TokenArrays& in, std::int64_t at, int n) {
    const auto given = [&](const float* array, float* copy, const float* otherwise) {
      return array == nullptr ? otherwise : tokens(array, at, n, copy);
    };
    const bool whole = n >= kGroup;
    if (!whole) std::fill(mask + n, mask + kGroup, std::uint8_t(0));
    return {given(in.x, x, zeros),
            given(in.a, a, zeros),
            given(in.b, b, zeros),
            given(in.c, c, zeros),
            given(in.weight, weight, ones),
            in.context == nullptr ? no_context : tokens(in.context, at, n, context),
            tokens(in.mask, at, n, mask),
            whole ? in.out + at : out,
            whole && in.grad != nullptr ? in.grad + at : grad,
            whole ? n : kGroup};
  }
  // Copies out the outputs of an incomplete group.
  void finish(const TokenArrays& in, std::int64_t at, int n) const {
    if (n >= kGroup) return;
    std::copy_n(out, n, in.out + at);
    if (in.grad != nullptr) std::copy_n(grad, n, in.grad + at);
  }
};

// work(block) for the tokens [begin, end) of one row, in order; kWrites: it fills the outputs.
template <bool kWrites, class Work>
MORTISE_INLINE void over_blocks(const TokenArrays& in, std::int64_t begin, std::int64_t end, Padding& padding,
                                const Work& work) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t rest = end - at, groups = std::min<std::int64_t>(rest, kBlock) / kGroup;
    const int n = int(groups > 0 ? groups * kGroup : rest);
    work(padding.block(in, at, n));
    if constexpr (kWrites) padding.finish(in, at, n);
    at += n;
  }
}

// All ones, or 0 if the token is masked. Returns the number of unmasked tokens.
template <class Mask>
MORTISE_INLINE std::int64_t activate(const Block& block, Mask (&active)[kBlock]) {
  Mask count = 0;
  for (int i = 0; i < block.size; ++i) {
    active[i] = -Mask(block.mask[i] != 0);
    count -= active[i];
  }
  return count;
}

// The third number of an author's function, and the variable of the derivative.
enum class Third { kNone, kFloats, kContext };
struct OfToken {
  static constexpr Third third = Third::kNone;
  static constexpr bool of_row = false;  // x is one number for the row, and the row's slope is wanted
};
template <class Eval, class N>
MORTISE_INLINE N third_of(const Block& block, int i, MaskOf<N> active) {
  if constexpr (Eval::third == Third::kFloats) return masked(number_of<N>(block.c[i]), active);
  if constexpr (Eval::third == Third::kContext) return masked(block.context[i], active);
  return 0.0;
}

// A row's tokens so far: the number of unmasked ones, and the sum of their slopes.
struct RowSoFar {
  std::int64_t num_tokens = 0;
  double slope[kGroup] = {};
};

// A token that is masked or has weight 0 has gradient 0, whatever its slope.
template <class T, class Eval, class N>
MORTISE_INLINE void evaluate(const T& plugin, const Block& block, double row_x, Parts<T, N>& parts, RowSoFar& row) {
  MaskOf<N> active[kBlock];
  row.num_tokens += activate(block, active);
  for (int group = 0; group < block.size; group += kGroup) {
    MORTISE_INDEPENDENT
    for (int part = 0; part < kGroup; ++part) {
      const int i = group + part;
      const MaskOf<N> on = active[i];
      const auto number = [&](const float* array) MORTISE_LAMBDA_INLINE { return masked(number_of<N>(array[i]), on); };
      Meter<T, N> meter(parts, part, on);
      const N x = Eval::of_row ? N(row_x) : number(block.x);
      const BasicDual<N> y = Eval::eval(plugin, BasicDual<N>{x, 1.0}, number(block.a), number(block.b),
                                        third_of<Eval, N>(block, i, on), meter);
      const N weight = number(block.weight);
      const N slope = mortise::select(weight != 0.0, weight * y.slope, N(0.0));
      if constexpr (Eval::of_row) row.slope[part] += slope;
      block.out[i] = float_of(masked(y.value, on));
      block.grad[i] = float_of(slope);
    }
  }
  parts.end_block();
}

// Tokens of rows [first_row, last_row), each alone.
template <class T, class Eval>
MORTISE_INLINE void token_rows(const T& plugin, const mortise_layout& layout, const TokenArrays& in,
                               std::int64_t first_row, std::int64_t last_row, Totals<T>& totals) {
  Padding padding;
  Parts<T, typename Eval::Number> parts;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    RowSoFar so_far;
    parts.begin_row();
    over_blocks<true>(in, layout.row_offsets[row], layout.row_offsets[row + 1], padding,
                      [&](const Block& block)
                          MORTISE_LAMBDA_INLINE { evaluate<T, Eval>(plugin, block, 0.0, parts, so_far); });
    totals.end_row(parts, so_far.num_tokens);
  }
  totals.end_rows(parts);
}

struct RowMean {
  double log_ratio;
  double tokens;  // at least 1
};
MORTISE_INLINE RowMean row_mean(const TokenArrays& in, std::int64_t begin, std::int64_t end, Padding& padding) {
  std::int64_t tokens = 0;
  double apart[kGroup] = {};
  over_blocks<false>(in, begin, end, padding, [&](const Block& block) MORTISE_LAMBDA_INLINE {
    std::int64_t active[kBlock];
    tokens += activate(block, active);
    for (int group = 0; group < block.size; group += kGroup) {
      for (int part = 0; part < kGroup; ++part) {
        const int i = group + part;
        apart[part] += masked(double(block.x[i]) - double(block.a[i]), active[i]);
      }
    }
  });
  const double divisor = tokens > 0 ? double(tokens) : 1.0;
  return {sum_of(apart) / divisor, divisor};
}

template <class T>
struct SequenceEval : OfToken {
  using Number = double;
  static constexpr bool of_row = true;
  template <class Meter>
  static MORTISE_HD MORTISE_INLINE Dual eval(const T& plugin, Dual mean, double, double adv, double, Meter& meter) {
    if constexpr (MetricsOf<T>::slots > 0) {
      return plugin.sequence(mean, adv, meter);
    } else {
      return plugin.sequence(mean, adv);
    }
  }
};

// Two phases per row: its mean log ratio, then the author's function of it, whose slope goes to the tokens.
template <class T>
MORTISE_INLINE void sequence_rows(const T& plugin, const mortise_layout& layout, const TokenArrays& in, bool own_token,
                                  std::int64_t first_row, std::int64_t last_row, Totals<T>& totals) {
  Padding padding;
  Parts<T, double> parts;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const std::int64_t begin = layout.row_offsets[row], end = layout.row_offsets[row + 1];
    const RowMean mean = row_mean(in, begin, end, padding);
    RowSoFar so_far;
    parts.begin_row();
    over_blocks<true>(in, begin, end, padding, [&](const Block& block) MORTISE_LAMBDA_INLINE {
      evaluate<T, SequenceEval<T>>(plugin, block, mean.log_ratio, parts, so_far);
    });
    totals.end_row(parts, so_far.num_tokens);
    if (in.grad == nullptr || own_token) continue;
    const auto share = float(sum_of(so_far.slope) / mean.tokens);
    for (std::int64_t t = begin; t < end; ++t) in.grad[t] = in.mask[t] != 0 ? share : 0.0F;
  }
  totals.end_rows(parts);
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

// Calls work(row) for every row, on the host's threads. `work` must not throw.
template <class Work>
void for_rows(const Call& call, const mortise_layout& layout, const Work& work) {
  const std::vector<std::int64_t> borders = chunk_borders(layout);
  call.parallel_for(std::int64_t(borders.size()) - 1, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = borders[std::size_t(first)]; row < borders[std::size_t(last)]; ++row) work(row);
  });
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
