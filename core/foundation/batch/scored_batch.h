// ScoredBatch: what the rewards hand to the advantage estimator (legend: prompt_batch.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

struct RewardColumn {
  std::string name;  // label of the reward in the config
  double weight = 1.0;
  std::vector<double> values;  // [B] with its token rewards; NaN = the function does not apply, or failed on the row
  std::map<std::string, std::vector<double>> extra;  // named numbers of a row, [B], NaN where not given
  // Rows that failed (a crash, a deadline, an error), as against "does not apply"; those of groups that were dropped
  // since are counted too.
  int64_t num_failed = 0;
  std::map<std::string, std::vector<std::string>> texts{};  // named texts of a row, [B], "" where not given
  std::vector<std::string> errors{};  // [B] why a row failed, in short; "" if it did not. Empty if no row failed

  [[nodiscard]] std::string_view error(size_t row) const {
    return row < errors.size() ? std::string_view(errors[row]) : std::string_view();
  }
};

struct ScoredBatch {
  std::vector<RewardColumn> columns;  // [K]
  std::vector<double> rewards;        // [B] sum of weight * value over the functions that apply; NaN if none does
  std::vector<uint8_t> row_valid;     // [B] 0 = no function applies
  // [B] the reward of a row by response token, if some of it is not at the last token; else empty. The whole is empty
  // if no function gives token rewards.
  std::vector<std::vector<double>> token_scores{};
};

}  // namespace mortise
