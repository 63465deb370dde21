/* Meter: metrics of a token or sequence loss, as sums and weights, so that what people see does not depend on how the
 * batch was cut.
 *
 * A class declares what it measures and calls add() or count() in its function, for every slot, unconditionally:
 *     enum { kClipped };
 *     static constexpr mortise::Metric metrics[] = {{kClipped, "actor/pg_clipfrac", mortise::Average::kTokens}};
 *     ... meter.count(kClipped, clipped > plain);
 * One slot may feed several metrics. Masked tokens are left out. A row without tokens counts in the row averages with
 * the value 0, as in TRL. Sums are in a fixed order, and in double; those of float32 losses are begun in float32, 16
 * tokens to each number.
 */
#ifndef MORTISE_CPP_METER_HPP_
#define MORTISE_CPP_METER_HPP_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "autodiff.hpp"
#include "plugin.hpp"

namespace mortise {

enum class Average {
  kTokens,      // mean over unmasked tokens
  kRows,        // mean over rows of the row's token mean
  kLowestRow,   // least token mean of a row
  kHighestRow,  // greatest token mean of a row
  kLowest,      // least value of an unmasked token
  kHighest,     // greatest value of an unmasked token
};

struct Metric {
  int slot;
  const char* name;
  Average how;
  int plus = -1;  // a second slot, added to the first; kTokens and kRows
};

namespace detail {

// The number of tokens that the inner loop takes at once. A sum over a row has that many parts (token i of the row adds
// to part i % kGroup), which are added in a fixed order at the row's end: SIMD without a choice of order.
inline constexpr int kGroup = 16;

template <class T, class = void>
struct MetricsOf {
  static constexpr int slots = 0;
  static constexpr std::uint64_t extremes = 0;
};
template <class T>
struct MetricsOf<T, std::void_t<decltype(T::metrics)>> {
  static constexpr int slots = [] {
    int n = 0;
    for (const Metric& m : T::metrics) {
      n = m.slot >= n ? m.slot + 1 : n;
      n = m.plus >= n ? m.plus + 1 : n;
    }
    return n;
  }();
  static_assert(
      [] {
        for (const Metric& m : T::metrics) {
          if (m.plus >= 0 && m.how != Average::kTokens && m.how != Average::kRows) return false;
        }
        return true;
      }(),
      "a second slot goes with Average::kTokens and kRows alone");
  static_assert(slots <= 64, "a class has at most 64 slots");
  // The slots whose least or greatest value is wanted, one bit each.
  static constexpr std::uint64_t extremes = [] {
    std::uint64_t slots_asked = 0;
    for (const Metric& m : T::metrics) {
      if (m.how == Average::kLowest || m.how == Average::kHighest) slots_asked |= std::uint64_t(1) << m.slot;
    }
    return slots_asked;
  }();
};

// The measurements, in kGroup parts: sums of the current block and row, extremes of all rows so far.
template <class T, class N>
struct Parts {
  static constexpr int kSlots = MetricsOf<T>::slots, kLines = kSlots > 0 ? kSlots : 1;
  N sum[kLines][kGroup];
  N low[kLines][kGroup], high[kLines][kGroup];
  double row_sum[kLines][kGroup];

  Parts() {
    for (int s = 0; s < kLines; ++s) {
      std::fill_n(sum[s], kGroup, N(0.0));
      std::fill_n(low[s], kGroup, N(kInfinity));
      std::fill_n(high[s], kGroup, N(-kInfinity));
    }
  }

  MORTISE_INLINE void begin_row() {
    for (auto& line : row_sum) std::fill_n(line, kGroup, 0.0);
  }
  MORTISE_INLINE void end_block() {
    for (int s = 0; s < kSlots; ++s) {
      for (int i = 0; i < kGroup; ++i) {
        row_sum[s][i] += double_of(sum[s][i]);
        sum[s][i] = N(0.0);
      }
    }
  }
};

MORTISE_INLINE double sum_of(const double (&parts)[kGroup]) {
  double sums[kGroup];
  std::copy_n(parts, kGroup, sums);
  for (int half = kGroup / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace detail

// What the author's function sees: one token. Masked tokens (`active` 0; else all ones) never count.
template <class T, class N>
class Meter {
 public:
  MORTISE_INLINE Meter(detail::Parts<T, N>& parts, int part, detail::MaskOf<N> active)
      : parts_(parts), part_(part), active_(active) {}

  MORTISE_HD MORTISE_INLINE void add(int slot, N value) {
    N& sum = parts_.sum[slot][part_];
    sum = sum + detail::masked(value, active_);
    if (((detail::MetricsOf<T>::extremes >> slot) & 1) == 0) return;
    const N seen = detail::unless_masked(value, active_);  // masked: NaN, neither low nor high
    N &low = parts_.low[slot][part_], &high = parts_.high[slot][part_];
    low = mortise::select(seen < low, seen, low);
    high = mortise::select(seen > high, seen, high);
  }
  MORTISE_HD MORTISE_INLINE void add(int slot, BasicDual<N> value) { add(slot, value.value); }
  // 1 if the condition holds, else 0, for shares.
  MORTISE_HD MORTISE_INLINE void count(int slot, bool condition) {
    add(slot, mortise::select(condition, N(1.0), N(0.0)));
  }

 private:
  detail::Parts<T, N>& parts_;
  int part_;
  detail::MaskOf<N> active_;
};

namespace detail {

struct SlotTotals {
  double sum = 0, row_sum = 0;
  double row_low = kInfinity, row_high = -kInfinity, low = kInfinity, high = -kInfinity;
};

// The totals of one chunk of rows.
template <class T>
class Totals {
 public:
  static constexpr int kSlots = MetricsOf<T>::slots;

  // The row whose sums are in `parts`, with so many unmasked tokens.
  template <class N>
  MORTISE_INLINE void end_row(const Parts<T, N>& parts, std::int64_t num_tokens) {
    const double share = begin_row(double(num_tokens));
    for (int s = 0; s < kSlots; ++s) add_sum(slots_[s], sum_of(parts.row_sum[s]), share);
  }
  // A row that was measured elsewhere: sum, least and greatest value of each slot. Values of slots whose extremes
  // nobody asks for mean nothing.
  void add_row(double num_tokens, const double* sum, const double* low, const double* high) {
    const double share = begin_row(num_tokens);
    for (int s = 0; s < kSlots; ++s) {
      SlotTotals& t = slots_[s];
      add_sum(t, sum[s], share);
      t.low = low[s] < t.low ? low[s] : t.low;
      t.high = high[s] > t.high ? high[s] : t.high;
    }
  }

  template <class N>
  MORTISE_INLINE void end_rows(const Parts<T, N>& parts) {
    for (int s = 0; s < kSlots; ++s) {
      SlotTotals& t = slots_[s];
      for (int i = 0; i < kGroup; ++i) {
        const double low = double_of(parts.low[s][i]), high = double_of(parts.high[s][i]);
        t.low = low < t.low ? low : t.low;
        t.high = high > t.high ? high : t.high;
      }
    }
  }

  void merge(const Totals& other) {
    tokens_ += other.tokens_;
    rows_ += other.rows_;
    for (int s = 0; s < kSlots; ++s) {
      SlotTotals& t = slots_[s];
      const SlotTotals& o = other.slots_[s];
      t.sum += o.sum;
      t.row_sum += o.row_sum;
      t.row_low = o.row_low < t.row_low ? o.row_low : t.row_low;
      t.row_high = o.row_high > t.row_high ? o.row_high : t.row_high;
      t.low = o.low < t.low ? o.low : t.low;
      t.high = o.high > t.high ? o.high : t.high;
    }
  }

  // Reports nothing for a metric without a token or row.
  void report(const Call& call) const {
    if constexpr (kSlots > 0) {
      for (const Metric& m : T::metrics) {
        if (rows_ == 0 || (tokens_ == 0 && m.how != Average::kRows)) continue;
        SlotTotals totals = slots_[m.slot];
        if (m.plus >= 0) {
          totals.sum += slots_[m.plus].sum;
          totals.row_sum += slots_[m.plus].row_sum;
        }
        report(call, m, totals);
      }
    }
  }

 private:
  // The factor that makes a mean of a row's sum.
  MORTISE_INLINE double begin_row(double num_tokens) {
    rows_ += 1;
    tokens_ += num_tokens;
    return num_tokens > 0 ? 1.0 / num_tokens : 0.0;
  }
  MORTISE_INLINE static void add_sum(SlotTotals& t, double sum, double share) {
    const double mean = sum * share;
    t.sum += sum;
    t.row_sum += mean;
    t.row_low = mean < t.row_low ? mean : t.row_low;
    t.row_high = mean > t.row_high ? mean : t.row_high;
  }
  void report(const Call& call, const Metric& m, const SlotTotals& t) const {
    switch (m.how) {
      case Average::kTokens:
        return call.metric(m.name, t.sum, tokens_);
      case Average::kRows:
        return call.metric(m.name, t.row_sum, rows_);
      case Average::kLowestRow:
        return call.metric(m.name, t.row_low, 1, MORTISE_REDUCE_MIN);
      case Average::kHighestRow:
        return call.metric(m.name, t.row_high, 1, MORTISE_REDUCE_MAX);
      case Average::kLowest:
        return call.metric(m.name, t.low, 1, MORTISE_REDUCE_MIN);
      case Average::kHighest:
        return call.metric(m.name, t.high, 1, MORTISE_REDUCE_MAX);
    }
  }

  SlotTotals slots_[kSlots > 0 ? kSlots : 1];
  double tokens_ = 0, rows_ = 0;
};

}  // namespace detail
}  // namespace mortise

#endif  // MORTISE_CPP_METER_HPP_
