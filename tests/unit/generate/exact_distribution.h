// The distribution that the options of sampling define, without sampling, and the chi-square test of counts against it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "generate/sample/sampling.h"

namespace mortise {

using Probabilities = std::map<int64_t, double>;

inline void normalise(Probabilities& p) {
  double all = 0;
  for (const auto& [id, x] : p) all += x;
  for (auto& [id, x] : p) x /= all;
}

// Ids from the likeliest to the least likely; among equals the higher id first, which top_p keeps longer.
inline std::vector<int64_t> by_probability(const Probabilities& p) {
  std::vector<int64_t> ids;
  for (const auto& [id, x] : p) ids.push_back(id);
  std::ranges::sort(ids, [&](int64_t a, int64_t b) { return p.at(a) != p.at(b) ? p.at(a) > p.at(b) : a > b; });
  return ids;
}

inline void keep_top_p(Probabilities& p, double top_p) {
  std::vector<int64_t> ids = by_probability(p);
  double tail = 0;
  while (ids.size() > 1 && tail + p.at(ids.back()) <= 1.0 - top_p) {
    tail += p.at(ids.back());
    p.erase(ids.back());
    ids.pop_back();
  }
  normalise(p);
}

inline void keep_typical_p(Probabilities& p, double typical_p) {
  double entropy = 0;
  for (const auto& [id, x] : p) entropy -= x * std::log(x);
  std::vector<int64_t> ids = by_probability(p);
  const auto distance = [&](int64_t id) { return std::abs(-std::log(p.at(id)) - entropy); };
  std::ranges::sort(ids, {}, distance);
  double mass = 0;
  size_t kept = 0;
  while (kept < ids.size() && mass < typical_p) mass += p.at(ids[kept++]);
  for (size_t i = kept; i < ids.size(); ++i) p.erase(ids[i]);
  normalise(p);
}

// Probabilities by the definitions of the options, one after the other, written once more without sampling.
inline Probabilities exact_distribution(std::span<const float> logits, const SamplingParams& params,
                                        const TokenEdits& edits) {
  Probabilities p;
  for (size_t i = 0; i < logits.size(); ++i) p[static_cast<int64_t>(i)] = static_cast<double>(logits[i]);
  for (const SeenToken& seen : edits.seen) {
    double& x = p[seen.id];
    x *= x > 0 ? 1.0 / params.repetition_penalty : params.repetition_penalty;
    x -= static_cast<double>(seen.count) * params.frequency_penalty;
    x -= seen.count > 0 ? params.presence_penalty : 0.0;
  }
  for (const int64_t id : edits.barred) p.erase(id);
  std::erase_if(p, [&](const auto& entry) { return !edits.allows(entry.first); });
  double top = -std::numeric_limits<double>::infinity();
  for (const auto& [id, x] : p) top = std::max(top, x);
  for (auto& [id, x] : p) x = std::exp((x - top) / params.temperature);
  normalise(p);
  if (params.top_k > 0) {
    const std::vector<int64_t> ids = by_probability(p);
    for (size_t i = static_cast<size_t>(params.top_k); i < ids.size(); ++i) p.erase(ids[i]);
    normalise(p);
  }
  if (params.top_p < 1.0) keep_top_p(p, params.top_p);
  const double best = p.at(by_probability(p).front());
  std::erase_if(p, [&](const auto& entry) { return entry.second < params.min_p * best; });
  normalise(p);
  if (params.typical_p < 1.0) keep_typical_p(p, params.typical_p);
  return p;
}

using Counts = std::map<int64_t, int>;

// Cells of fewer than 8 expected draws are joined.
inline void expect_fit(const Probabilities& exact, Counts counts, int num_draws) {
  double chi2 = 0;
  int cells = 0;
  double rest_want = 0;
  double rest_seen = 0;
  for (const auto& [id, p] : exact) {
    const double want = p * num_draws;
    const double seen = counts.contains(id) ? counts[id] : 0;
    counts.erase(id);
    if (want < 8) {
      rest_want += want;
      rest_seen += seen;
      continue;
    }
    chi2 += (seen - want) * (seen - want) / want;
    ++cells;
  }
  if (rest_want > 0) {
    chi2 += (rest_seen - rest_want) * (rest_seen - rest_want) / std::max(rest_want, 1.0);
    ++cells;
  }
  EXPECT_TRUE(counts.empty()) << "a token outside the kept set came: " << counts.begin()->first;
  const double freedom = std::max(1, cells - 1);
  EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom) + 10) << cells << " cells";  // beyond five sigma
}

}  // namespace mortise
