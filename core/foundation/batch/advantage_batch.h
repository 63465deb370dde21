// AdvantageBatch: what the learner trains on: per-token advantages of every row (legend: prompt_batch.h).
//
// Flat per-token tensors [N]; row i is row_offsets[i] .. row_offsets[i+1]. Masked tokens (response_mask 0) carry no
// loss.
#pragma once

#include <cstdint>
#include <vector>

namespace mortise {

struct AdvantageBatch {
  std::vector<int64_t> row_offsets;        // [B+1]
  std::vector<int64_t> group_index;        // [B]
  std::vector<uint8_t> response_mask;      // [N]
  std::vector<float> token_level_scores;   // [N] the row's reward, at its last response token but for rewards of tokens
  std::vector<float> token_level_rewards;  // [N] scores less the KL penalty where algorithm.use_kl_in_reward
  std::vector<float> advantages;           // [N]
  std::vector<float> returns;              // [N]

  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(group_index.size()); }
  [[nodiscard]] int64_t num_tokens() const { return row_offsets.empty() ? 0 : row_offsets.back(); }
};

}  // namespace mortise
