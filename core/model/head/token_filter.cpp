// See token_filter.h. The kept tokens are pairs (logit, id). Of equal logits top_p drops the lower id first.
#include "model/head/token_filter.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace mortise {
namespace {

using LogitPair = std::pair<double, int32_t>;

double total_mass(const std::vector<LogitPair>& kept, double top) {
  double sum = 0;
  for (const LogitPair& token : kept) sum += std::exp(token.first - top);
  return sum;
}

// Tokens equal to the k-th remain.
void keep_top_k(std::vector<LogitPair>& kept, int64_t k) {
  if (k <= 0 || k >= static_cast<int64_t>(kept.size())) return;
  const auto kth = kept.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(kept.begin(), kth, kept.end(), std::greater<>());
  const double least = kth->first;
  std::erase_if(kept, [&](const LogitPair& token) { return token.first < least; });
}

// Keeps the fewest of the largest tokens whose rest has at most the mass 1 - p.
void keep_top_p(std::vector<LogitPair>& kept, double p, double top) {
  if (p >= 1.0 || kept.empty()) return;
  const double all = total_mass(kept, top), limit = (1.0 - p) * all;
  size_t sorted = 0, count = 0;
  double head = 0;
  do {  // few are kept as a rule, so they are sorted a part at a time
    const size_t next = std::min(kept.size(), std::max<size_t>(64, 4 * sorted));
    const auto begin = kept.begin() + static_cast<std::ptrdiff_t>(sorted);
    std::partial_sort(begin, kept.begin() + static_cast<std::ptrdiff_t>(next), kept.end(), std::greater<>());
    sorted = next;
    while (count < sorted && (count == 0 || all - head > limit)) head += std::exp(kept[count++].first - top);
  } while (count == sorted && sorted < kept.size() && all - head > limit);
  kept.resize(count);
}

void keep_typical(std::vector<LogitPair>& kept, double p, double top) {
  if (p >= 1.0 || kept.empty()) return;
  const double all = total_mass(kept, top);
  const auto mass = [&](const LogitPair& token) { return std::exp(token.first - top) / all; };
  const auto information = [&](const LogitPair& token) { return std::log(all) - (token.first - top); };
  double entropy = 0;
  for (const LogitPair& token : kept) entropy += mass(token) > 0 ? mass(token) * information(token) : 0.0;
  const auto distance = [&](const LogitPair& token) { return std::abs(information(token) - entropy); };
  std::ranges::stable_sort(kept, [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  double sum = 0;
  size_t last = 0;
  while (last + 1 < kept.size() && (sum += mass(kept[last])) < p) ++last;
  const double limit = distance(kept[last]);
  std::erase_if(kept, [&](const LogitPair& token) { return distance(token) > limit; });
}

}  // namespace

void filter_tokens(std::span<const double> logits, const Sampling& sampling, TokenFilterScratch& scratch,
                   std::vector<int32_t>& ids) {
  std::vector<LogitPair>& kept = scratch.kept;
  kept.clear();
  double top = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > -std::numeric_limits<double>::infinity())) continue;
    kept.emplace_back(logits[i], static_cast<int32_t>(i));
    top = std::max(top, logits[i]);
  }
  keep_top_k(kept, sampling.top_k);
  keep_top_p(kept, sampling.top_p, top);
  if (sampling.min_p > 0)
    std::erase_if(kept, [&](const LogitPair& token) { return std::exp(token.first - top) < sampling.min_p; });
  keep_typical(kept, sampling.typical_p, top);
  ids.clear();
  for (const LogitPair& token : kept) ids.push_back(token.second);
  std::ranges::sort(ids);
}

}  // namespace mortise
