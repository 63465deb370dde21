// Groups of two completions with given rewards.
#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "experience/selection/experience.h"

namespace mortise {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Groups of two rows with these rewards; `first` numbers their data rows.
inline Experience groups_of(const std::vector<std::pair<double, double>>& rewards, int64_t first = 0) {
  Experience out;
  out.samples.num_samples_per_prompt = 2;
  RewardColumn column{"right", 1.0, {}, {}};
  std::vector<double> lengths;
  for (size_t g = 0; g < rewards.size(); ++g) {
    Prompt prompt;
    prompt.token_ids = {static_cast<int64_t>(g), 7};
    prompt.text = "p\xff" + std::to_string(first);  // any bytes
    prompt.columns = Json{{"answer", g}};
    prompt.dataset_row = first + static_cast<int64_t>(g);
    out.prompts.prompts.push_back(prompt);
    for (const double reward : {rewards[g].first, rewards[g].second}) {
      Sample sample;
      sample.prompt_index = static_cast<int64_t>(g);
      sample.sample_index = static_cast<int64_t>(out.samples.rows.size()) % 2;
      sample.token_ids = {1, 2, 3};
      sample.log_prob = {-0.1F, -INFINITY, -0.3F};
      sample.finish_reason = FinishReason::kLength;
      sample.text = "\xc3";
      out.samples.rows.push_back(sample);
      column.values.push_back(reward);
      lengths.push_back(static_cast<double>(out.samples.rows.size()));
      out.scored.rewards.push_back(reward);
      out.scored.row_valid.push_back(std::isnan(reward) ? 0 : 1);
    }
  }
  column.extra["length"] = lengths;
  out.scored.columns.push_back(column);
  return out;
}

inline std::vector<int64_t> rows_in(const Experience& experience) {
  std::vector<int64_t> rows;
  for (const Prompt& prompt : experience.prompts.prompts) rows.push_back(prompt.dataset_row);
  return rows;
}

}  // namespace mortise
