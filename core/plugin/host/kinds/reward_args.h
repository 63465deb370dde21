// The mortise_reward_in of a RewardBatch, and the C structs that it points to.
//
// Threading: plain values. The batch must outlive the arguments made from it.
#pragma once

#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "mortise/kinds/reward.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {

// Columns of different lengths are a bug of the engine: an error that names `where`.
[[nodiscard]] Result<> check_reward_batch(const RewardBatch& batch, std::string_view where);

class RewardArgs {
 public:
  // Precondition: check_reward_batch(batch). Empty columns get the defaults that reward.h promises.
  explicit RewardArgs(const RewardBatch& batch);
  RewardArgs(const RewardArgs&) = delete;
  RewardArgs& operator=(const RewardArgs&) = delete;

  [[nodiscard]] const mortise_reward_in& in() const { return in_; }

 private:
  void add_columns(const RewardBatch& batch);

  std::vector<uint64_t> no_offsets_;  // for empty text and id columns
  std::vector<int32_t> finish_reason_;
  std::vector<int64_t> numbers_;  // 0, 1, 2 ...
  std::vector<int64_t> zeros_;
  std::vector<mortise_column> columns_;
  std::vector<const mortise_column*> column_pointers_;
  mortise_reward_in in_;
};

}  // namespace mortise
