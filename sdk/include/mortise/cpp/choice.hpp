/* A choice of tokens over a whole call, for losses in passes (passes.hpp): tokens in rising order of a key, of equal keys
 * by the rows' names, as long as what they cost together is within a budget. Keys and costs are integers, so that a
 * choice is the same in every order of the call, on the host and on a device (cuda_choice.hpp).
 *
 *     struct Key {
 *       MORTISE_HD std::uint64_t operator()(const mortise::TokenColumns& in, std::int64_t t, const mortise::RowToken&)
 *           const { return mortise::falling_key(in.advantages[t]); }
 *     };
 *     mortise::Choice choice;
 *     choice.budget = 10;
 *     passes.set_chosen(Key{}, mortise::CostsOne{}, choice);  // 1 at the ten largest advantages, else 0
 */
#ifndef MORTISE_CPP_CHOICE_HPP_
#define MORTISE_CPP_CHOICE_HPP_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "loss_batch.hpp"

namespace mortise {

// A token in its row, and the number of the row in the call.
struct RowToken {
  std::int64_t index;    // how many unmasked tokens of the row stand before it
  std::uint64_t number;  // what set_chosen() got for the row, else 0
};

// The key of a token that is not chosen and costs nothing.
inline constexpr std::uint64_t kNeverChosen = ~std::uint64_t(0);

struct Choice {
  std::int64_t budget = 0;  // for all chosen tokens together. Tokens of negative cost are chosen in any case
  bool keeps_one = false;   // one token is chosen, even if it costs more
  // The tokens' numbers. The last is that of keys kNeverChosen, and of masked tokens.
  double chosen = 1.0, others = 0.0, never = 0.0;
};

// A number as a key, in rising order, and in falling order. NaN comes last in both.
MORTISE_HD inline std::uint64_t rising_key(double number) {
  if (number != number) return kNeverChosen - 1;
  if (number == 0) number = 0;  // -0 is no other number
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &number, sizeof bits);
  const std::uint64_t sign = std::uint64_t(1) << 63;
  return (bits & sign) != 0 ? ~bits : bits | sign;
}
MORTISE_HD inline std::uint64_t falling_key(double number) { return rising_key(-number); }
// The number of a rising key.
MORTISE_HD inline double number_of_key(std::uint64_t key) {
  const std::uint64_t sign = std::uint64_t(1) << 63, bits = (key & sign) != 0 ? key & ~sign : ~key;
  double number = 0;
  __builtin_memcpy(&number, &bits, sizeof number);
  return number;
}
// A random key, of a seed and a counter (the finalizer of SplitMix64).
MORTISE_HD inline std::uint64_t random_key(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t x = seed + (counter + 1) * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return (x ^ (x >> 31)) >> 1;  // never kNeverChosen
}

// Costs by key; they may not fall where keys rise.
struct CostsOne {
  MORTISE_HD std::int64_t operator()(std::uint64_t) const { return 1; }
};

namespace detail {

// A sum of costs that cannot overflow with fewer than 2^31 tokens.
struct CostSum {
  std::int64_t high = 0, low = 0;  // high * 2^32 + low
  MORTISE_HD void add(std::int64_t cost) {
    high += cost >> 32;
    low += cost & 0xffffffff;
  }
  MORTISE_HD bool is_within(std::int64_t budget) const {
    const std::int64_t own = high + (low >> 32), limit = budget >> 32;
    return own < limit || (own == limit && (low & 0xffffffff) <= (budget & 0xffffffff));
  }
  // How many tokens of this cost, which is not negative, the budget has room for.
  MORTISE_HD std::int64_t room(std::int64_t budget, std::int64_t cost) const {
    const std::int64_t most = std::int64_t(1) << 62, ahead = (budget >> 32) - (high + (low >> 32));
    if (!is_within(budget)) return 0;
    if (cost == 0) return most;
    const std::int64_t left = ahead * (std::int64_t(1) << 32) + (budget & 0xffffffff) - (low & 0xffffffff);
    return (ahead < (std::int64_t(1) << 29) ? left : most) / cost;
  }
};

struct ChoiceToken {
  std::uint64_t key;
  std::int64_t order;  // by the rows' names
  std::size_t token;
  bool operator<(const ChoiceToken& other) const { return key != other.key ? key < other.key : order < other.order; }
};

// How many of the least tokens are chosen; they stand first afterwards. `sum`: of tokens that are chosen already.
// Cost: some comparisons for each token, on average.
template <class Cost>
std::size_t choose_least(std::vector<ChoiceToken>& tokens, const Cost& cost, const Choice& choice, CostSum sum,
                         bool has_one) {
  std::size_t chosen = 0, end = tokens.size();
  while (chosen < end) {
    const std::size_t middle = chosen + (end - chosen) / 2;
    const auto at = [&](std::size_t place) { return tokens.begin() + std::ptrdiff_t(place); };
    std::nth_element(at(chosen), at(middle), at(end));
    CostSum half = sum;
    for (std::size_t i = chosen; i <= middle; ++i) half.add(cost(tokens[i].key));
    const bool is_first = middle == 0 && !has_one && choice.keeps_one;
    if (is_first || half.is_within(choice.budget)) {
      chosen = middle + 1;
      sum = half;
    } else {
      end = middle;
    }
  }
  return chosen;
}

}  // namespace detail
}  // namespace mortise

#endif  // MORTISE_CPP_CHOICE_HPP_
