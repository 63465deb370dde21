// See sampled_share.h.
#include "learn/update/sampled_share.h"

#include <algorithm>

#include "foundation/batch/rank_block.h"
#include "model/layers/sampled_forward.h"

namespace mortise {
namespace {

class Homes {
 public:
  Homes(const StepTable& table, int num_ranks) : table_(table), num_ranks_(num_ranks) {
    const auto groups = table.group_index();
    if (!groups.empty()) num_groups_ = *std::ranges::max_element(groups) + 1;
  }
  [[nodiscard]] int of(int64_t row) const {
    int rank = 0;
    while (rank + 1 < num_ranks_ && table_.row(row).group >= rank_block(num_groups_, rank, num_ranks_).end) ++rank;
    return rank;
  }

 private:
  const StepTable& table_;
  int num_ranks_;
  int64_t num_groups_ = 0;
};

}  // namespace

MicroPlan plan_update(const StepTable& table, std::span<const int64_t> rows, const LearnerOptions& options,
                      bool reads_sampled) {
  if (!reads_sampled) return plan_micro_batches(table, rows, options.micro_batch);
  MicroBatchOptions cut = options.micro_batch;
  cut.keeps_order = true;
  const int num_ranks = options.ranks.communicator->size();
  const Homes homes(table, num_ranks);
  std::vector<std::vector<int64_t>> parts(static_cast<size_t>(num_ranks));
  for (const int64_t row : rows) parts[static_cast<size_t>(homes.of(row))].push_back(row);
  MicroPlan plan;
  for (const std::vector<int64_t>& part : parts) {
    if (part.empty()) continue;
    for (std::vector<int64_t>& micro : plan_micro_batches(table, part, cut)) plan.push_back(std::move(micro));
  }
  return plan;
}

std::vector<int64_t> update_loads(const StepTable& table, const MicroPlan& plan) {
  std::vector<int64_t> loads = micro_tokens(table, plan);
  for (size_t i = 0; i < loads.size(); ++i) {
    if (std::ranges::any_of(plan[i], [&](int64_t row) { return has_advantage(table, row); })) loads[i] *= 3;
  }
  return loads;
}

RankShare share_by_home(const StepTable& table, const MicroPlan& plan, std::span<const int64_t> loads,
                        const RankOptions& ranks) {
  const int num_ranks = ranks.communicator->size();
  const Homes homes(table, num_ranks);
  const std::vector<int64_t> tokens = micro_tokens(table, plan);
  std::vector<HomeLoad> costs;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (i >= plan.size()) {
      costs.push_back({-1, loads[i], loads[i]});
      continue;
    }
    std::vector<int64_t> by_home(static_cast<size_t>(num_ranks), 0);
    for (const int64_t row : plan[i]) by_home[static_cast<size_t>(homes.of(row))] += table.row_tokens(row);
    const auto home = static_cast<int>(std::ranges::max_element(by_home) - by_home.begin());
    costs.push_back({home, loads[i] - tokens[i] + 1, loads[i] + 1});
  }
  return {deal_near_home(costs, num_ranks), ranks};
}

Result<> sample_missing(const StepTable& table, const MicroPlan& plan, const RankShare& share,
                        const LearnerOptions& options) {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (!share.is_mine(i)) continue;
    for (const int64_t row : plan[i]) {
      if (!options.sampled->has_row(table.layout().row_id[static_cast<size_t>(row)])) missing.push_back(row);
    }
  }
  if (missing.empty()) return {};
  std::ranges::sort(missing);
  return options.sample_again(table, missing);
}

}  // namespace mortise
