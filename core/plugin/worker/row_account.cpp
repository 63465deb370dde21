// Records scores, values and failures of rows, and puts them in the batch's order.
#include "plugin/worker/row_account.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace mortise {

RowAccount::RowAccount(int64_t num_rows, bool with_tokens)
    : state_(static_cast<size_t>(num_rows), State::kOpen),
      rewards_(static_cast<size_t>(num_rows), std::numeric_limits<double>::quiet_NaN()),
      token_rewards_(with_tokens ? static_cast<size_t>(num_rows) : 0),
      num_open_(num_rows) {}

void RowAccount::score(int64_t row, double reward, std::vector<float> token_rewards) {
  if (!is_open(row)) return;
  state_[static_cast<size_t>(row)] = State::kScored;
  rewards_[static_cast<size_t>(row)] = reward;
  if (!token_rewards_.empty()) token_rewards_[static_cast<size_t>(row)] = std::move(token_rewards);
  --num_open_;
}

void RowAccount::fail(int64_t row, int32_t code, std::string text) {
  if (!is_open(row)) return;
  state_[static_cast<size_t>(row)] = State::kFailed;
  failed_.push_back({row, code, std::move(text)});
  --num_open_;
}

void RowAccount::add_value(int64_t row, RowValue value) {
  value.row = row;
  values_.push_back(std::move(value));
}

RewardOutput RowAccount::take() {
  RewardOutput out;
  out.rewards = std::move(rewards_);
  out.token_rewards = std::move(token_rewards_);
  out.failed_rows = std::move(failed_);
  out.row_values = std::move(values_);
  std::sort(out.failed_rows.begin(), out.failed_rows.end(),
            [](const FailedRow& a, const FailedRow& b) { return a.row < b.row; });
  std::stable_sort(out.row_values.begin(), out.row_values.end(),
                   [](const RowValue& a, const RowValue& b) { return a.row < b.row; });
  *this = RowAccount();
  return out;
}

}  // namespace mortise
