// Batches out of what rapidcheck draws and shrinks, for the properties of losses and estimators.
//
// Rows holds for each row its prompt and a number for each of its tokens; everything else follows from them, so that
// the smallest failing case is a few small numbers. Equal numbers, common in small cases, make equal tokens: ties.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <utility>

#include "advantage_call.h"

namespace mortise::test {

using Rows = std::vector<std::pair<uint16_t, std::vector<uint32_t>>>;
constexpr uint16_t kPrompts = 4;

// A stream of numbers that belongs to one drawn number (splitmix64).
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) { return low + (high - low) * double(next() >> 11) * 0x1p-53; }
  bool chance(double share) { return uniform(0, 1) < share; }
  std::vector<size_t> order(size_t n) {
    std::vector<size_t> places(n);
    std::iota(places.begin(), places.end(), size_t(0));
    for (size_t i = n; i > 1; --i) std::swap(places[i - 1], places[size_t(next() % i)]);
    return places;
  }

 private:
  uint64_t state_;
};

// One in ten advantages is 0, one weight in twenty; one ratio in twenty is far away.
inline LossInput loss_batch(const Rows& rows) {
  LossInput in;
  for (const auto& [prompt, tokens] : rows) {
    for (const uint32_t token : tokens) {
      Numbers x(token);
      in.mask.push_back(x.chance(0.85) ? 1 : 0);
      in.old_log_prob.push_back(float(x.uniform(-4, -0.05)));
      const double far = x.chance(0.05) ? 40 : 0.6;
      in.log_prob.push_back(std::min(-0.01F, in.old_log_prob.back() + float(x.uniform(-far, far))));
      in.rollout_log_prob.push_back(in.old_log_prob.back() + float(x.uniform(-0.2, 0.2)));
      in.rollout_is_weights.push_back(float(x.uniform(0.5, 1.5)));
      in.advantages.push_back(x.chance(0.1) ? 0.0F : float(x.uniform(-1, 1)));
      in.weight.push_back(x.chance(0.05) ? 0.0F : float(x.uniform(0.1, 1)));
    }
    in.row_id.push_back(in.num_rows());
    in.group_index.push_back(prompt % kPrompts);
    in.row_offsets.push_back(int64_t(in.mask.size()));
  }
  return in;
}

// All inputs are set. A row ends with an unmasked token, which has its outcome. Half of the outcomes are 0 or 1
// (`binary`: all), and the others any number between.
inline AdvantageCase advantage_batch(const Rows& rows, bool binary = false) {
  AdvantageCase b;
  b.weights = {1.0F, 0.5F};
  for (const auto& [prompt, tokens] : rows) {
    uint64_t name = prompt;
    for (const uint32_t token : tokens) name = name * 31 + token;
    Numbers row(name);
    const float outcome = binary || row.chance(0.5) ? float(row.next() % 2) : float(row.uniform(0, 1));
    for (size_t t = 0; t <= tokens.size(); ++t) {
      const bool last = t == tokens.size();
      Numbers x(last ? row.next() : tokens[t]);
      b.mask.push_back(last || x.chance(0.8) ? 1 : 0);
      b.rewards.push_back(last ? outcome : 0);
      b.values.push_back(float(x.uniform(-1, 1)));
      b.old_log_prob.push_back(float(x.uniform(-3, -0.1)));
      b.sum_pi_squared.push_back(float(x.uniform(0.1, 0.9)));
      b.is_weights.push_back(float(x.uniform(0.5, 1.5)));
    }
    b.group_index.push_back(prompt % kPrompts);
    b.row_offsets.push_back(int64_t(b.mask.size()));
    b.columns.insert(b.columns.end(), {outcome, float(row.uniform(0, 1))});
    b.baselines.push_back(float(row.uniform(0, 1)));
  }
  return b;
}

// The names of a kind's plugins.
inline std::vector<std::string> names_of(const std::string& kind) {
  const mortise_pack* pack = load_pack(pack_path(kind));
  std::vector<std::string> names;
  for (uint32_t i = 0; i < pack->num_plugins; ++i) names.emplace_back(pack->plugins[i]->name);
  return names;
}

// Says where two numbers differ by more than a share of the larger.
inline void expect_near(double a, double b, double share, const std::string& what, size_t at) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  if (std::abs(a - b) <= share * std::max(std::abs(a), std::abs(b))) return;
  RC_FAIL(what + ": " + std::to_string(a) + " is not " + std::to_string(b) + " at token " + std::to_string(at));
}

}  // namespace mortise::test
