// See val_statistics.h.
#include "train/loop/val_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

namespace mortise {

namespace {

constexpr uint32_t kSeed = 42;  // verl's

// numpy's RandomState(42).randint(0, n): masked 32-bit words of MT19937; those above n - 1 are drawn again.
std::vector<uint32_t> numpy_choices(size_t n, size_t count) {
  std::vector<uint32_t> out(count, 0);
  if (n == 1) return out;     // numpy draws no word for it
  std::mt19937 words(kSeed);  // NOLINT(cert-msc51-cpp): verl's numbers, whatever the run's seed
  const auto last = static_cast<uint32_t>(n - 1);
  const uint32_t mask = std::bit_ceil(last + 1) - 1;
  for (uint32_t& place : out) {
    do place = static_cast<uint32_t>(words()) & mask;
    while (place > last);
  }
  return out;
}

// The statistic of a number that `reduce` makes of each list.
DrawnStatistic over_lists(std::span<const uint32_t> draws,
                          const std::function<double(std::span<const uint32_t>)>& reduce) {
  const size_t k = draws.size() / BootstrapDraws::kNum;
  std::vector<double> results;
  for (size_t list = 0; list < BootstrapDraws::kNum; ++list) results.push_back(reduce(draws.subspan(list * k, k)));
  constexpr auto kCount = static_cast<double>(BootstrapDraws::kNum);
  DrawnStatistic out;
  out.mean = std::accumulate(results.begin(), results.end(), 0.0) / kCount;
  double square = 0.0;
  for (const double one : results) square += (one - out.mean) * (one - out.mean);
  out.std = std::sqrt(square / kCount);
  return out;
}

// Counts the answers of lists, one list after another.
class Ballot {
 public:
  Ballot(std::span<const double> values, std::span<const size_t> votes)
      : values_(values),
        votes_(votes),
        counts_(votes.empty() ? 0 : *std::ranges::max_element(votes) + 1),
        first_(counts_.size()) {}

  double majority(std::span<const uint32_t> places) {
    for (size_t i = 0; i < places.size(); ++i) {
      const size_t vote = votes_[places[i]];
      if (counts_[vote]++ == 0) first_[vote] = i;
    }
    size_t best = votes_[places[0]];
    for (const uint32_t place : places) {
      const size_t vote = votes_[place];
      const bool wins =
          counts_[vote] > counts_[best] || (counts_[vote] == counts_[best] && first_[vote] < first_[best]);
      if (wins) best = vote;
    }
    const double value = values_[places[first_[best]]];
    for (const uint32_t place : places) counts_[votes_[place]] = 0;
    return value;
  }

 private:
  std::span<const double> values_;
  std::span<const size_t> votes_;
  std::vector<int64_t> counts_;
  std::vector<size_t> first_;  // place in the list, where counted
};

}  // namespace

double expected_best_of(std::vector<double> values, int64_t k) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<int64_t>(values.size());
  // P(the i-th smallest is the best) = C(i, k-1) / C(n, k). From the largest down, where it is k / n, the ratio of
  // successive terms is (i - k + 1) / i: no term overflows, and those that vanish hardly count.
  double share = static_cast<double>(k) / static_cast<double>(n);
  double sum = 0.0;
  for (int64_t i = n - 1; i >= k - 1; --i) {
    sum += share * values[static_cast<size_t>(i)];
    if (i > 0) share *= static_cast<double>(i - k + 1) / static_cast<double>(i);
  }
  return sum;
}

std::vector<int64_t> bootstrap_sizes(int64_t n) {
  std::vector<int64_t> sizes;
  if (n <= 1) return sizes;
  for (int64_t k = 2; k < n; k *= 2) sizes.push_back(k);
  sizes.push_back(n);
  return sizes;
}

std::vector<int64_t> pass_sizes(int64_t n) {
  std::vector<int64_t> sizes = bootstrap_sizes(n);
  sizes.insert(sizes.begin(), 1);
  return sizes;
}

std::span<const uint32_t> BootstrapDraws::of(size_t n, size_t k) {
  auto [entry, is_new] = made_.try_emplace({n, k});
  if (is_new) entry->second = numpy_choices(n, kNum * k);
  return entry->second;
}

DrawnStatistic drawn_best(std::span<const double> values, std::span<const uint32_t> draws) {
  return over_lists(draws, [&](std::span<const uint32_t> places) {
    double best = values[places[0]];
    for (const uint32_t place : places) best = std::max(best, values[place]);
    return best;
  });
}

DrawnStatistic drawn_worst(std::span<const double> values, std::span<const uint32_t> draws) {
  return over_lists(draws, [&](std::span<const uint32_t> places) {
    double worst = values[places[0]];
    for (const uint32_t place : places) worst = std::min(worst, values[place]);
    return worst;
  });
}

DrawnStatistic drawn_majority(std::span<const double> values, std::span<const size_t> votes,
                              std::span<const uint32_t> draws) {
  Ballot ballot(values, votes);
  return over_lists(draws, [&](std::span<const uint32_t> places) { return ballot.majority(places); });
}

double majority_value(std::span<const double> values, std::span<const size_t> votes) {
  std::vector<uint32_t> all(values.size());
  std::iota(all.begin(), all.end(), 0U);
  return Ballot(values, votes).majority(all);
}

}  // namespace mortise
