// UpdateSlice: the per-token inputs of some rows of an update, gathered from the batch, with room for what the head and
// the objective write: what one objective call sees. Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "foundation/batch/token_weight.h"
#include "learn/objective/actor_objective.h"
#include "learn/update/train_batch.h"

namespace mortise {

// Not zero; NaN counts: it must reach the norm that finds it.
[[nodiscard]] inline bool any_nonzero(std::span<const float> values) {
  return std::any_of(values.begin(), values.end(), [](float value) { return value != 0.0F; });
}

struct UpdateSlice {
  std::vector<int64_t> rows, row_id, group_index, row_offsets{0};
  std::vector<uint8_t> mask;
  std::vector<float> log_prob, entropy, old_log_prob, advantages, ref_log_prob, rollout_log_prob, rollout_is_weights,
      weight;
  std::vector<float> grad_log_prob, grad_entropy;
  int64_t step = 1, update_index = 1;
  bool on_policy = false;

  [[nodiscard]] size_t num_tokens() const { return mask.size(); }
  [[nodiscard]] Layout layout() const { return {row_offsets, row_id, group_index}; }
  [[nodiscard]] bool has_gradient() const { return any_nonzero(grad_log_prob) || any_nonzero(grad_entropy); }

  // Input of the tokens [begin, end), which lie in the rows whose offsets are given (relative to begin).
  [[nodiscard]] ObjectiveInput input(size_t begin, size_t end, const Layout& layout) const;
  ObjectiveGrad grad(size_t begin, size_t end) {
    return {std::span(grad_log_prob).subspan(begin, end - begin), std::span(grad_entropy).subspan(begin, end - begin)};
  }
};

// `rows` are indices into the batch, `row_id` their places in the update, `counts` those of the whole update.
Result<UpdateSlice> make_slice(const TrainBatch& batch, std::span<const int64_t> rows, std::span<const int64_t> row_id,
                               const TokenWeightOptions& aggregation, const UpdateCounts& counts);

}  // namespace mortise
