// Which rows of a step are learnt from: the best of each group, or rows drawn by their scores (PF-PPO).
// Pure functions.
#pragma once

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

}  // namespace mortise
