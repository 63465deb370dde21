// What one reward gave a batch, and what becomes of it: checked, counted, placed on tokens and summed. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "experience/reward/reward_runner.h"
#include "foundation/base/result.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"

namespace mortise {

// The results of one function.
struct Scores {
  RewardColumn column;
  std::string failures;                           // why rows failed, for the log; "" if none did
  std::vector<double> row_rewards;                // [B] without those of tokens
  std::vector<std::vector<float>> token_rewards;  // as RewardOutput's; part of the column's values

  [[nodiscard]] std::span<const float> tokens(size_t row) const {
    return row < token_rewards.size() ? std::span<const float>(token_rewards[row]) : std::span<const float>();
  }
};

// Fills a column from one call's output; a call that failed as a whole is a failure of every row.
Scores take_scores(const RewardSpec& spec, Result<RewardOutput> output, size_t num_rows);

// The environment's own rewards: that of the last turn is the row's, earlier ones are at their tokens.
Scores environment_scores(const SampleBatch& samples, double weight);

// A row whose environment failed has no reward, whatever a function says of the part that is there.
void void_failed_episodes(const SampleBatch& samples, std::vector<Scores>& all);

// The rows in which some function gave rewards to single tokens: those in their places, all others at the last token.
std::vector<std::vector<double>> place_on_tokens(const SampleBatch& samples, const std::vector<Scores>& all);

// The weighted sum of the columns of each row, and which rows have one.
void sum_columns(ScoredBatch& scored, size_t num_rows);

}  // namespace mortise
