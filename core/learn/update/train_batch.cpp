#include "learn/update/train_batch.h"

#include <algorithm>
#include <numeric>

namespace mortise {

TrainBatch make_train_batch(const PromptBatch& prompts, const SampleBatch& samples, const AdvantageBatch& advantages) {
  TrainBatch batch;
  for (const Sample& sample : samples.rows) {
    batch.prompt_ids.emplace_back(prompts.prompts[static_cast<size_t>(sample.prompt_index)].token_ids);
    batch.response_ids.emplace_back(sample.token_ids);
  }
  batch.group_index = advantages.group_index;
  batch.row_offsets = advantages.row_offsets;
  batch.response_mask = advantages.response_mask;
  batch.advantages = advantages.advantages;
  const bool have_log_probs = std::all_of(samples.rows.begin(), samples.rows.end(),
                                          [](const Sample& s) { return s.log_prob.size() == s.token_ids.size(); });
  if (have_log_probs) {
    for (const Sample& sample : samples.rows) {
      batch.rollout_log_prob.insert(batch.rollout_log_prob.end(), sample.log_prob.begin(), sample.log_prob.end());
    }
  }
  return batch;
}

namespace {

// Rows that are placed together: those of one group that stand next to each other, cut where the budget is exceeded.
struct Unit {
  std::vector<int64_t> rows;
  int64_t tokens = 0;
};

std::vector<Unit> make_units(const TrainBatch& batch, std::span<const int64_t> rows, int64_t budget) {
  std::vector<Unit> units;
  int64_t group = -1;
  for (const int64_t row : rows) {
    const auto r = static_cast<size_t>(row);
    const auto prompt_tokens = static_cast<int64_t>(batch.prompt_ids[r].size());
    const bool joins =
        !units.empty() && batch.group_index[r] == group && units.back().tokens + batch.row_tokens(row) <= budget;
    if (!joins) units.push_back({{}, prompt_tokens});
    units.back().rows.push_back(row);
    units.back().tokens += batch.row_tokens(row);
    group = batch.group_index[r];
  }
  return units;
}

bool has_advantage(const TrainBatch& batch, int64_t row) {
  if (batch.advantages.empty()) return true;
  const auto begin = batch.advantages.begin() + batch.row_offsets[static_cast<size_t>(row)];
  return std::any_of(begin, begin + batch.row_tokens(row), [](float advantage) { return advantage != 0.0F; });
}

// Longest unit first into the emptiest micro-batch (Graham 1969); one more micro-batch until all keep the budget.
void place_units(const std::vector<Unit>& units, int64_t budget, std::vector<std::vector<int64_t>>& micro_batches) {
  int64_t total = 0;
  for (const Unit& unit : units) total += unit.tokens;
  auto count = static_cast<size_t>(std::max<int64_t>(1, (total + budget - 1) / budget));
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return units[a].tokens > units[b].tokens; });
  for (;; ++count) {
    std::vector<int64_t> load(count, 0);
    std::vector<std::vector<size_t>> bins(count);
    bool fits = true;
    for (const size_t u : order) {
      const auto bin = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      fits = fits && (load[bin] == 0 || load[bin] + units[u].tokens <= budget);
      load[bin] += units[u].tokens;
      bins[bin].push_back(u);
    }
    if (!fits) continue;
    for (auto& bin : bins) {
      if (bin.empty()) continue;
      std::sort(bin.begin(), bin.end());  // rows of a micro-batch keep their order
      std::vector<int64_t>& micro = micro_batches.emplace_back();
      for (const size_t u : bin) micro.insert(micro.end(), units[u].rows.begin(), units[u].rows.end());
    }
    return;
  }
}

}  // namespace

std::vector<std::vector<int64_t>> plan_micro_batches(const TrainBatch& batch, std::span<const int64_t> rows,
                                                     const MicroBatchOptions& options) {
  std::vector<std::vector<int64_t>> micro_batches;
  if (options.rows > 0) {
    for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(options.rows)) {
      const size_t end = std::min(rows.size(), begin + static_cast<size_t>(options.rows));
      micro_batches.emplace_back(rows.begin() + static_cast<int64_t>(begin), rows.begin() + static_cast<int64_t>(end));
    }
    return micro_batches;
  }
  // Rows without advantage mostly get no gradient; in micro-batches of their own they need no backward pass.
  std::vector<int64_t> learned, idle;
  for (const int64_t row : rows) (has_advantage(batch, row) ? learned : idle).push_back(row);
  place_units(make_units(batch, learned, options.token_budget), options.token_budget, micro_batches);
  place_units(make_units(batch, idle, options.token_budget), options.token_budget, micro_batches);
  return micro_batches;
}

}  // namespace mortise
