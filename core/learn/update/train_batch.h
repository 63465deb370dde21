// TrainBatch: the rows of a step as the learner sees them, and how they are cut into micro-batches.
//
// B rows in prompt-major order, N response tokens flat over all rows (row i is row_offsets[i] .. row_offsets[i+1]).
// How rows are cut never changes a gradient beyond rounding: token weights come from the whole update's counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/batch/advantage_batch.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"

namespace mortise {

struct TrainBatch {
  std::vector<std::span<const int64_t>> prompt_ids;    // [B] borrowed from the PromptBatch
  std::vector<std::span<const int64_t>> response_ids;  // [B] borrowed from the SampleBatch
  std::vector<int64_t> group_index;                    // [B] rows of one prompt share it
  std::vector<int64_t> row_offsets;                    // [B+1]
  std::vector<uint8_t> response_mask;                  // [N]
  std::vector<float> advantages;                       // [N]
  std::vector<float> old_log_prob;        // [N], or empty: the update's own log-probs without gradient (on-policy)
  std::vector<float> ref_log_prob;        // [N], or empty: no reference in play
  std::vector<float> rollout_log_prob;    // [N], or empty: the sampler gave none
  std::vector<float> rollout_is_weights;  // [N], or empty: nothing is corrected
  std::vector<float> old_entropy;         // [N] of the policy that gave old_log_prob, or empty: not measured
  bool old_is_current = false;            // no update was made since old_log_prob and old_entropy were measured

  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(prompt_ids.size()); }
  [[nodiscard]] int64_t num_tokens() const { return row_offsets.empty() ? 0 : row_offsets.back(); }
  [[nodiscard]] int64_t row_tokens(int64_t row) const {
    return row_offsets[static_cast<size_t>(row) + 1] - row_offsets[static_cast<size_t>(row)];
  }
};

// Borrows the ids of `prompts` and `samples`, which must outlive it; copies the rest.
TrainBatch make_train_batch(const PromptBatch& prompts, const SampleBatch& samples, const AdvantageBatch& advantages);

struct MicroBatchOptions {
  int64_t rows = 0;             // > 0: as few as hold at most so many rows each
  int64_t token_budget = 2048;  // else: as few as hold at most so many tokens each
};

// Cuts `rows` (indices into the batch) into micro-batches that are alike in tokens, so that the largest, which decides
// on memory, is as small as their number allows. A group stays together where it fits, so that its prompt is computed
// once, and apart from groups without advantage (but where all rows fit into one by their number); a row longer than
// the budget gets a micro-batch of its own. Deterministic.
std::vector<std::vector<int64_t>> plan_micro_batches(const TrainBatch& batch, std::span<const int64_t> rows,
                                                     const MicroBatchOptions& options);

}  // namespace mortise
