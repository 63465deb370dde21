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
static_assert(kBlock % kLanes == 0 && kLanes % kCompared == 0, "blocks are runs of whole vectors");

// Tokens [begin, end) of a block, in whole vectors around them: a mask for each, all ones or 0.
struct Piece {
  const std::int64_t* mask;
  int begin, end;  // multiples of kLanes
};

MORTISE_INLINE void add_masked(const double* values, const LaneBits& keep, Lanes& sums) {
  LaneBits bits;
  __builtin_memcpy(&bits, values, sizeof bits);
  bits &= keep;
  Lanes kept;
  __builtin_memcpy(&kept, &bits, sizeof kept);
  sums += kept;
}
MORTISE_INLINE double sum_of(const Lanes& sums) {
  double lane[kLanes];
  __builtin_memcpy(lane, &sums, sizeof lane);
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

// totals[k] = the sum of the values of line k whose mask is all ones. Up to four lines at once: one sum alone would
// wait for its own additions. Eight partial sums; the order is always the same.
template <int kLines>
MORTISE_INLINE void masked_sums(const double (*lines)[kBlock], const Piece& piece, double* totals) {
  static_assert(kLines >= 1 && kLines <= 4);
  Lanes first = {}, second = {}, third = {}, fourth = {};
  for (int i = piece.begin; i < piece.end; i += kLanes) {
    LaneBits keep;
    __builtin_memcpy(&keep, piece.mask + i, sizeof keep);
    add_masked(lines[0] + i, keep, first);
    if constexpr (kLines > 1) add_masked(lines[1] + i, keep, second);
    if constexpr (kLines > 2) add_masked(lines[2] + i, keep, third);
    if constexpr (kLines > 3) add_masked(lines[3] + i, keep, fourth);
  }
  totals[0] = sum_of(first);
  if constexpr (kLines > 1) totals[1] = sum_of(second);
  if constexpr (kLines > 2) totals[2] = sum_of(third);
  if constexpr (kLines > 3) totals[3] = sum_of(fourth);
}

MORTISE_INLINE std::int64_t count_set(const Piece& piece) {
  std::int64_t count = 0;
  for (int i = piece.begin; i < piece.end; ++i) count -= piece.mask[i];
  return count;
}

// The least and greatest so far, at kCompared places.
struct Extremes {
  Compared low, high;

  // NaN is neither, so that is what masked values become.
  MORTISE_INLINE void take(const double* from, const std::int64_t* mask) {
    ComparedBits bits, keep;
    __builtin_memcpy(&bits, from, sizeof bits);
    __builtin_memcpy(&keep, mask, sizeof keep);
    bits |= ~keep;
    Compared values;
    __builtin_memcpy(&values, &bits, sizeof values);
    low = values < low ? values : low;
    high = values > high ? values : high;
  }
  MORTISE_INLINE void give(double& least, double& greatest) const {
    double lows[kCompared], highs[kCompared];
    __builtin_memcpy(lows, &low, sizeof lows);
    __builtin_memcpy(highs, &high, sizeof highs);
    for (int k = 0; k < kCompared; ++k) {
      least = lows[k] < least ? lows[k] : least;
      greatest = highs[k] > greatest ? highs[k] : greatest;
    }
  }
};

// Takes the values whose mask is all ones into their least and greatest.
MORTISE_INLINE void masked_extremes(const double* v, const Piece& piece, double& low, double& high) {
  static_assert(kLanes == 2 * kCompared);
  Extremes even{Compared{} + low, Compared{} + high}, odd = even;
  for (int i = piece.begin; i < piece.end; i += kLanes) {
    even.take(v + i, piece.mask + i);
    odd.take(v + i + kCompared, piece.mask + i + kCompared);
  }
  even.give(low, high);
  odd.give(low, high);
}

// The totals of one chunk of rows.
template <class T>
class Totals {
 public:
  static constexpr int kSlots = MetricsOf<T>::slots;

  // Tokens of a block, all of the row at hand.
  MORTISE_INLINE void add(const BlockValues<kSlots>& block, const Piece& piece) {
    row_tokens_ += double(count_set(piece));
    if constexpr (kSlots > 0) {
      constexpr int kRest = kSlots % 4, kWhole = kSlots - kRest;
      double sums[kSlots];
      for (int s = 0; s < kWhole; s += 4) masked_sums<4>(block.value + s, piece, sums + s);
      if constexpr (kRest > 0) masked_sums<kRest>(block.value + kWhole, piece, sums + kWhole);
      for (int s = 0; s < kSlots; ++s) {
        slots_[s].row += sums[s];
        if (MetricsOf<T>::extremes(s)) masked_extremes(block.value[s], piece, slots_[s].low, slots_[s].high);
      }
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
