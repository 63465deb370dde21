/* Meter: metrics of a token or sequence loss, as sums and weights, so that what people see does not depend on how the
 * batch was cut.
 *
 * A class declares what it measures and calls add() or count() in its function, for every slot, unconditionally:
 *     enum { kClipped };
 *     static constexpr mortise::Metric metrics[] = {{kClipped, "actor/pg_clipfrac", mortise::Average::kTokens}};
 *     ... meter.count(kClipped, clipped > plain);
 * One slot may feed several metrics. Masked tokens are left out. A row without tokens counts in the row averages with
 * the value 0, as in TRL. Sums are in double and in a fixed order.
 */
#ifndef MORTISE_CPP_METER_HPP_
#define MORTISE_CPP_METER_HPP_

#include <iterator>
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
};

namespace detail {

// Tokens per pass of the inner loop: all its arrays together stay within the first-level cache.
inline constexpr int kBlock = 128;

template <class T, class = void>
struct MetricsOf {
  static constexpr int slots = 0;
  static constexpr bool extremes(int) { return false; }
};
template <class T>
struct MetricsOf<T, std::void_t<decltype(T::metrics)>> {
  static constexpr int slots = [] {
    int n = 0;
    for (const Metric& m : T::metrics) n = m.slot >= n ? m.slot + 1 : n;
    return n;
  }();
  static constexpr bool extremes(int slot) {
    for (const Metric& m : T::metrics) {
      if (m.slot == slot && (m.how == Average::kLowest || m.how == Average::kHighest)) return true;
    }
    return false;
  }
};

// The values of one block, a line per slot.
template <int kSlots>
struct BlockValues {
  double value[kSlots > 0 ? kSlots : 1][kBlock];
};

}  // namespace detail

// What the author's function sees: the place of one token.
template <int kSlots>
class Meter {
 public:
  MORTISE_INLINE Meter(detail::BlockValues<kSlots>& block, int token) : block_(block), token_(token) {}
  MORTISE_INLINE void add(int slot, double value) { block_.value[slot][token_] = value; }
  // 1 where the condition holds, else 0: what shares are made of.
  MORTISE_INLINE void count(int slot, bool condition) {
    block_.value[slot][token_] = detail::select_of(condition, 1.0, 0.0);
  }
  MORTISE_INLINE void add(int slot, Dual value) { block_.value[slot][token_] = value.value; }

 private:
  detail::BlockValues<kSlots>& block_;
  int token_;
};

namespace detail {

struct SlotTotals {
  double row = 0;  // of the row at hand
  double sum = 0, row_sum = 0;
  double row_low = kInfinity, row_high = -kInfinity, low = kInfinity, high = -kInfinity;
};

// Several numbers at a time, said outright, since gcc leaves such runs over a part of a block scalar. Eight for sums,
// whatever the CPU's own width; four where they are compared, which must be a width that the CPU has. Never passed by
// value: how that is done depends on the instruction set.
inline constexpr int kLanes = 8, kCompared = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
using LaneBits = std::int64_t __attribute__((vector_size(kLanes * sizeof(std::int64_t))));
using Compared = double __attribute__((vector_size(kCompared * sizeof(double))));
using ComparedBits = std::int64_t __attribute__((vector_size(kCompared * sizeof(std::int64_t))));

// The sum of the values [begin, end) whose mask is all ones. Eight partial sums; the order is always the same.
MORTISE_INLINE double masked_sum(const double* v, const std::int64_t* mask, int begin, int end) {
  Lanes sums = {};
  int i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    LaneBits bits, keep;
    __builtin_memcpy(&bits, v + i, sizeof bits);
    __builtin_memcpy(&keep, mask + i, sizeof keep);
    bits &= keep;
    Lanes values;
    __builtin_memcpy(&values, &bits, sizeof values);
    sums += values;
  }
  double lane[kLanes];
  __builtin_memcpy(lane, &sums, sizeof lane);
  for (int k = 0; i < end; ++i, ++k) lane[k] += masked(v[i], mask[i]);
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

MORTISE_INLINE std::int64_t count_set(const std::int64_t* mask, int begin, int end) {
  std::int64_t count = 0;
  for (int i = begin; i < end; ++i) count -= mask[i];
  return count;
}

// Takes the values [begin, end) whose mask is all ones into their least and greatest; NaN is neither.
MORTISE_INLINE void masked_extremes(const double* v, const std::int64_t* mask, int begin, int end, double& low,
                                    double& high) {
  double least[kCompared], greatest[kCompared];
  for (int k = 0; k < kCompared; ++k) least[k] = low, greatest[k] = high;
  Compared lowest, highest;
  __builtin_memcpy(&lowest, least, sizeof lowest);
  __builtin_memcpy(&highest, greatest, sizeof highest);
  int i = begin;
  for (; i + kCompared <= end; i += kCompared) {
    ComparedBits keep;
    Compared values;
    __builtin_memcpy(&keep, mask + i, sizeof keep);
    __builtin_memcpy(&values, v + i, sizeof values);
    const ComparedBits less = (values < lowest) & keep, more = (values > highest) & keep;
    lowest = less ? values : lowest;
    highest = more ? values : highest;
  }
  __builtin_memcpy(least, &lowest, sizeof least);
  __builtin_memcpy(greatest, &highest, sizeof greatest);
  for (int k = 0; k < kCompared; ++k) {
    low = least[k] < low ? least[k] : low;
    high = greatest[k] > high ? greatest[k] : high;
  }
  for (; i < end; ++i) {
    low = mask[i] != 0 && v[i] < low ? v[i] : low;
    high = mask[i] != 0 && v[i] > high ? v[i] : high;
  }
}

// The totals of one chunk of rows.
template <class T>
class Totals {
 public:
  static constexpr int kSlots = MetricsOf<T>::slots;

  // Tokens [begin, end) of a block, all of the row at hand; `active` is all ones or 0.
  MORTISE_INLINE void add(const BlockValues<kSlots>& block, const std::int64_t* active, int begin, int end) {
    row_tokens_ += double(count_set(active, begin, end));
    for (int s = 0; s < kSlots; ++s) {
      const double* v = block.value[s];
      slots_[s].row += masked_sum(v, active, begin, end);
      if (MetricsOf<T>::extremes(s)) masked_extremes(v, active, begin, end, slots_[s].low, slots_[s].high);
    }
  }

  MORTISE_INLINE void end_row() {
    rows_ += 1;
    tokens_ += row_tokens_;
    const double share = row_tokens_ > 0 ? 1.0 / row_tokens_ : 0.0;
    for (SlotTotals& t : slots_) {
      const double mean = t.row * share;
      t.sum += t.row;
      t.row_sum += mean;
      t.row_low = mean < t.row_low ? mean : t.row_low;
      t.row_high = mean > t.row_high ? mean : t.row_high;
      t.row = 0;
    }
    row_tokens_ = 0;
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

  // Nothing is reported for what was never seen (no token, no row).
  void report(const Call& call) const {
    if constexpr (kSlots > 0) {
      for (const Metric& m : T::metrics) {
        if (rows_ == 0 || (tokens_ == 0 && m.how != Average::kRows)) continue;
        report(call, m, slots_[m.slot]);
      }
    }
  }

 private:
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
  double tokens_ = 0, rows_ = 0, row_tokens_ = 0;
};

}  // namespace detail
}  // namespace mortise

#endif  // MORTISE_CPP_METER_HPP_
