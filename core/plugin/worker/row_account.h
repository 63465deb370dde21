// The outcome of each row of a batch: open, scored or failed, and the other outputs of the rewards. Threading: plain
// value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/host/kinds/reward.h"

namespace mortise {

class RowAccount {
 public:
  RowAccount() = default;
  // `with_tokens`: the reward gives rewards of single tokens.
  RowAccount(int64_t num_rows, bool with_tokens);

  [[nodiscard]] int64_t num_open() const { return num_open_; }
  [[nodiscard]] bool is_open(int64_t row) const { return state_[static_cast<size_t>(row)] == State::kOpen; }
  [[nodiscard]] int64_t num_failed() const { return static_cast<int64_t>(failed_.size()); }
  // Each affects only an open row: the first outcome is final.
  void score(int64_t row, double reward, std::vector<float> token_rewards = {});
  void fail(int64_t row, int32_t code, std::string text);
  void add_value(int64_t row, RowValue value);

  // The output; the account is empty afterwards.
  RewardOutput take();

 private:
  enum class State : uint8_t { kOpen, kScored, kFailed };
  std::vector<State> state_;
  std::vector<double> rewards_;
  std::vector<std::vector<float>> token_rewards_;
  std::vector<FailedRow> failed_;
  std::vector<RowValue> values_;
  int64_t num_open_ = 0;
};

}  // namespace mortise
