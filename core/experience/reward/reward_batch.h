// The rows of a batch as rewards see them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {

struct ScoreContext {
  int64_t step = 0;
  int64_t max_response_length = 0;
  bool is_validation = false;
  std::string val_set{};            // a validation's name, "" for data.val_files
  std::vector<std::string> only{};  // labels of the rewards that score a validation; empty: all
};

// The rows of these prompts, in their order.
std::vector<int64_t> rows_of_prompts(std::span<const int64_t> prompts, int64_t num_samples_per_prompt);

// The typed columns of B rows: prompt and completion as text and ids, and the data columns that `types` names. `only`:
// these rows.
RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ColumnTypes& types,
                              const ScoreContext& context, std::optional<std::span<const int64_t>> only = std::nullopt);

}  // namespace mortise
