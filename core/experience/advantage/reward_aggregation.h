// normalize_then_sum: one number for a row of several reward functions, each brought to the same scale before they are
// added (TRL's multi_objective_aggregation; GDPO, arXiv:2601.05242), for every advantage estimator.
//
//   z_k = (R_k - mean_g(R_k)) / (std_g(R_k) + 1e-4),   r = sum_k w_k z_k
// std over the group's rows to which the function applies, with n - 1; a function that applies to a single row of its
// group gives it 0. TRL then whitens r over the batch: grpo with std = "batch" and epsilon = 1e-4 does that, as the
// mean of r is 0 in every group. The estimator `gdpo` is the same with its other whitenings. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/batch/scored_batch.h"

namespace mortise {

// [B]; 0 for rows with row_valid 0, which count in no mean.
std::vector<double> normalize_then_sum(const std::vector<RewardColumn>& columns, std::span<const int64_t> group_index,
                                       std::span<const uint8_t> row_valid);

}  // namespace mortise
