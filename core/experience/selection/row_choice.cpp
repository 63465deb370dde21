// Ranks the rows of groups, and draws rows by their weights.
#include "experience/selection/row_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "foundation/base/rng.h"

namespace mortise {

namespace {
constexpr uint32_t kDraw = 1;  // the token of the keys; permutations of rows have 0
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

}  // namespace mortise
