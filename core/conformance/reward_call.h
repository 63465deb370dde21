// Batches for reward functions, and calls with every column in guarded memory.
//
// Text ends at an unreadable page, without a zero. Threading: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "conformance/subject.h"
#include "plugin/host/kinds/reward.h"

namespace mortise::check {

struct RewardShape {
  size_t tail_bytes = 0;      // bytes that a newer host adds to structs
  bool row_value = true;      // false: an older host, which takes no named numbers
  bool token_rewards = true;  // false: one that does not ask a plugin for the token rewards that it declares
};

struct RewardResult {
  SlotCall call;
  std::vector<double> rewards;
  std::vector<std::vector<float>> token_rewards;  // by row; empty if none was requested
  std::vector<RowValue> row_values;
  std::string damage;
};

[[nodiscard]] RewardResult call_reward(const Instance& instance, const RewardBatch& batch, const RewardShape& how = {});
[[nodiscard]] Result<RewardResult> reward_ok(const Instance& instance, const RewardBatch& batch,
                                             const RewardShape& how = {});

// Names of columns that a reward might look for: the values of its text parameters (their first part, where they are a
// dotted path) and the usual ones.
[[nodiscard]] std::vector<std::string> likely_columns(const Subject& subject);
// Twelve rows in three groups: short answers, longer reasoning, numbers, code; the likely columns hold each row's
// answer as text. `seed` changes texts and answers.
[[nodiscard]] RewardBatch usual_rows(const Subject& subject, uint64_t seed = 1);
// One row per text, its own group, with the likely columns.
[[nodiscard]] RewardBatch rows_of(const Subject& subject, std::span<const std::string> completions);
[[nodiscard]] RewardBatch pick(const RewardBatch& batch, std::span<const int64_t> order);

// Equal, where NaN equals NaN.
[[nodiscard]] bool same_reward(double a, double b);

}  // namespace mortise::check
