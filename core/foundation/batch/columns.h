// The columns of a step: the one place that says their names, types and levels.
//
// A column is a type. Stages put its values into the step's table with table.put<column::NAME>(values), and whoever
// needs them asks with get<column::NAME>() (step_table.h, step_view.h). Slices, micro-batches and checkpoints carry
// every column without knowing its name. A plugin sees a column if its C struct has a field for it, which
// plugin/host/kinds/input_columns.h connects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

namespace mortise {

// What one value of a column belongs to: a response token (the column has N values) or a row (B values).
enum class Level { kToken, kRow };

// A text as a template argument.
template <size_t kSize>
struct ColumnName {
  consteval ColumnName(const char (&from)[kSize]) {  // not explicit: Column<"name", ...>
    for (size_t i = 0; i < kSize; ++i) text[i] = from[i];
  }
  char text[kSize] = {};
};

template <ColumnName kName, class T, Level kLevel>
struct Column {
  using Value = T;
  static constexpr std::string_view name{kName.text, sizeof(kName.text) - 1};
  static constexpr Level level = kLevel;
};

namespace column {

// From the samples. Masks hold 1 for tokens that count.
using SampleMask = Column<"sample_mask", uint8_t,
                          Level::kToken>;  // 0: an observation; or the row was aborted, or cut and is to be masked
using ResponseMask = Column<"response_mask", uint8_t, Level::kToken>;     // what is learnt from: less what was rejected
using RolloutLogProb = Column<"rollout_log_prob", float, Level::kToken>;  // as the sampler gave it, if it did

// Before anything is learnt from the step.
using OldLogProb =
    Column<"old_log_prob", float, Level::kToken>;  // by the policy that sampled; absent: see ActorLearner
using RefLogProb = Column<"ref_log_prob", float, Level::kToken>;          // by the reference
using TeacherLogProb = Column<"teacher_log_prob", float, Level::kToken>;  // by the teacher
using OldEntropy = Column<"old_entropy", float, Level::kToken>;           // by the policy that gave old_log_prob, nats
using RolloutIsWeights = Column<"rollout_is_weights", float, Level::kToken>;  // from the rollout correction
using Values = Column<"values", float, Level::kToken>;                        // what the critic predicts
using SumPiSquared = Column<"sum_pi_squared", float, Level::kToken>;     // squared probabilities over the vocabulary
using RewardBaselines = Column<"reward_baselines", float, Level::kRow>;  // reward of the prompt's greedy completion

// Scores and advantages.
using RowValid = Column<"row_valid", uint8_t, Level::kRow>;                     // 0: the row has no reward
using TokenLevelScores = Column<"token_level_scores", float, Level::kToken>;    // the row's reward, at its last token
                                                                                // unless rewards are given by token
using TokenLevelRewards = Column<"token_level_rewards", float, Level::kToken>;  // scores minus the KL penalty
using Advantages = Column<"advantages", float, Level::kToken>;
using Returns = Column<"returns", float, Level::kToken>;
using DrawnRow = Column<"drawn_row", float, Level::kRow>;  // the row that PF-PPO drew for this place of the updates

// Written by updates.
using FirstLogProb = Column<"first_log_prob", float, Level::kToken>;  // by the policy before the step's first update
// What the last update of the step that looked at a token saw of it, where trainer.rollout_data_tokens asks for it.
using LastLogProb = Column<"last_log_prob", float, Level::kToken>;
using LastEntropy = Column<"last_entropy", float, Level::kToken>;
using LastClipped = Column<"last_clipped", float, Level::kToken>;  // 1: the policy term had no gradient (clipped)
using LogProb = Column<"log_prob", float, Level::kToken>;          // by the policy that is being trained
using Entropy = Column<"entropy", float, Level::kToken>;           // by that policy, nats, full vocabulary
using Weight = Column<"weight", float, Level::kToken>;             // the token's share of the aggregated loss
// Its shares of the KL term and of the entropy bonus, where these have aggregations of their own.
using KlWeight = Column<"kl_weight", float, Level::kToken>;
using EntropyWeight = Column<"entropy_weight", float, Level::kToken>;

// All of them: what a checkpoint may hold.
using All = std::tuple<SampleMask, ResponseMask, RolloutLogProb, OldLogProb, RefLogProb, TeacherLogProb, OldEntropy,
                       RolloutIsWeights, Values, SumPiSquared, RewardBaselines, RowValid, TokenLevelScores,
                       TokenLevelRewards, Advantages, Returns, DrawnRow, FirstLogProb, LastLogProb, LastEntropy,
                       LastClipped, LogProb, Entropy, Weight, KlWeight, EntropyWeight>;

}  // namespace column

}  // namespace mortise
