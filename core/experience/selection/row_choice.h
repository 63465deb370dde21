// Which rows of a step are learnt from: the best of each group, rows drawn by their scores (PF-PPO), or groups drawn by
// the spread of their rewards (the replay buffer).
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/run_config.h"

namespace mortise {

// [B] 1 for the `best` rows of each group of n with the highest rewards; of equal ones the earlier. A NaN is the lowest.
std::vector<uint8_t> best_rows(std::span<const double> rewards, int64_t n, int64_t best);

// [B] the weight of each row in the draw (arXiv 2409.06957; verl's compute_pf_ppo_reweight_data). A row without a score
// counts as 0.
std::vector<double> draw_weights(std::span<const double> scores, const PfPpoConfig& config);

// [B] the row that is drawn for each place, with replacement: a function of (seed, step, place).
std::vector<float> draw_rows(std::span<const double> scores, const PfPpoConfig& config, uint64_t seed, int64_t step);

// Whether two values that are not NaN differ: the standard deviation is above 0, without rounding.
bool values_differ(std::span<const double> values);

// The sum of the distances of the values from their mean. A NaN does not count.
double spread_of(std::span<const double> values);

// `count` different places of `weights`, or all if there are fewer: each draw takes a place that is left with a chance in
// proportion to its weight, which is above 0. A function of (seed, step).
std::vector<size_t> draw_groups(std::span<const double> weights, size_t count, uint64_t seed, int64_t step);

}  // namespace mortise
