// Ranks the rows of groups, and draws rows by their weights.
#include "experience/selection/row_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "foundation/base/rng.h"

namespace mortise {

namespace {
// The tokens of the keys; permutations of rows have 0.
constexpr uint32_t kDraw = 1, kDrawGroup = 2;
}  // namespace

std::vector<uint8_t> best_rows(std::span<const double> rewards, int64_t n, int64_t best) {
  std::vector<uint8_t> chosen(rewards.size(), 0);
  const auto value = [&](size_t row) {
    return std::isnan(rewards[row]) ? -std::numeric_limits<double>::infinity() : rewards[row];
  };
  const auto size = static_cast<size_t>(n);
  std::vector<size_t> order(size);
  for (size_t first = 0; first + size <= rewards.size(); first += size) {
    std::iota(order.begin(), order.end(), first);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return value(a) > value(b); });
    for (size_t i = 0; i < std::min(size, static_cast<size_t>(best)); ++i) chosen[order[i]] = 1;
  }
  return chosen;
}

std::vector<double> draw_weights(std::span<const double> scores, const PfPpoConfig& config) {
  std::vector<double> weights(scores.begin(), scores.end());
  for (double& score : weights) score = std::isnan(score) ? 0.0 : score;
  const auto [low, high] = std::ranges::minmax(weights);
  for (double& weight : weights) {
    switch (config.reweight_method) {
      case Reweight::kPow:
        weight = std::pow(std::abs(weight), config.weight_pow);
        break;
      case Reweight::kMaxMin:
        weight = weight == high || weight == low ? 1.0 : 0.0;
        break;
      case Reweight::kMaxRandom:
        weight = weight == high ? 0.4 : 0.1;
        break;
    }
    weight = std::max(weight + 1e-8, 1e-8);
  }
  return weights;
}

std::vector<float> draw_rows(std::span<const double> scores, const PfPpoConfig& config, uint64_t seed, int64_t step) {
  std::vector<float> drawn;
  if (scores.empty()) return drawn;
  std::vector<double> up_to = draw_weights(scores, config);
  std::partial_sum(up_to.begin(), up_to.end(), up_to.begin());
  for (size_t place = 0; place < scores.size(); ++place) {
    const uint64_t bits =
        random_u64({seed, RandomPurpose::kMinibatchShuffle, static_cast<uint64_t>(step), place, kDraw});
    const double target = unit_double(bits) * up_to.back();
    const auto row = std::ranges::upper_bound(up_to, target) - up_to.begin();
    drawn.push_back(static_cast<float>(std::min(row, std::ssize(up_to) - 1)));
  }
  return drawn;
}

bool values_differ(std::span<const double> values) {
  const double* first = nullptr;
  for (const double& value : values) {
    if (std::isnan(value)) continue;
    if (first != nullptr && value != *first) return true;
    first = &value;
  }
  return false;
}

double spread_of(std::span<const double> values) {
  double sum = 0, count = 0, spread = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    count += 1;
  }
  for (const double value : values) spread += std::isnan(value) ? 0.0 : std::abs(value - sum / count);
  return spread;
}

std::vector<size_t> draw_groups(std::span<const double> weights, size_t count, uint64_t seed, int64_t step) {
  std::vector<double> left(weights.begin(), weights.end());
  std::vector<size_t> drawn;
  for (size_t draw = 0; draw < std::min(count, weights.size()); ++draw) {
    const uint64_t bits =
        random_u64({seed, RandomPurpose::kMinibatchShuffle, static_cast<uint64_t>(step), draw, kDrawGroup});
    double target = unit_double(bits) * std::accumulate(left.begin(), left.end(), 0.0);
    size_t last = 0;  // with a weight: what rounding leaves of the target falls on it
    for (size_t place = 0; place < left.size(); ++place) {
      if (left[place] == 0.0) continue;
      last = place;
      if (target < left[place]) break;
      target -= left[place];
    }
    drawn.push_back(last);
    left[last] = 0.0;
  }
  return drawn;
}

}  // namespace mortise
