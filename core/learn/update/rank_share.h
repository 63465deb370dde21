// RankShare: which micro-batches of a plan this rank computes, and how all ranks get the results of all of them.
//
// Every rank makes the same plan over the whole table, so that no number depends on how many ranks there are. Only the
// work is shared. A run of one process has one rank, which computes all.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/result.h"
#include "learn/update/micro_batches.h"

namespace mortise {

// The communicator of a process that is alone.
[[nodiscard]] Communicator& alone();

// The processes that share the work of passes and updates.
struct RankOptions {
  Communicator* communicator = &alone();  // borrowed
  // Sums of gradients have the same bits for any number of ranks (gradient_sum.h).
  bool deterministic = false;
};

using MicroPlan = std::vector<std::vector<int64_t>>;

// Tokens that a pass over each micro-batch computes: its responses, and each prompt once.
[[nodiscard]] std::vector<int64_t> micro_tokens(const StepTable& table, const MicroPlan& plan);

// The rank of each load: the largest first to the rank that has the least so far (Graham 1969).
[[nodiscard]] std::vector<int> deal_by_load(std::span<const int64_t> loads, int num_ranks);
// The same in ranges: rank 0 gets the first ones, and so on, with about the same sum each.
[[nodiscard]] std::vector<int> deal_in_ranges(std::span<const int64_t> loads, int num_ranks);

class RankShare {
 public:
  // `loads` of the micro-batches, in any unit.
  RankShare(std::span<const int64_t> loads, const RankOptions& ranks)
      : communicator_(ranks.communicator),
        owners_(ranks.deterministic ? deal_in_ranges(loads, ranks.communicator->size())
                                    : deal_by_load(loads, ranks.communicator->size())) {}

  [[nodiscard]] bool is_mine(size_t micro) const { return owners_[micro] == communicator_->rank(); }
  [[nodiscard]] std::span<const int> owners() const { return owners_; }
  // This rank's micro-batches in ascending order, one a round. All ranks have as many rounds as the rank with most
  // micro-batches: nothing in those where this one has none left.
  [[nodiscard]] std::vector<std::optional<size_t>> rounds() const;

  // `parts` are bytes by micro-batch: those of this rank's before the call, all of them after it. `stage` is a literal.
  Result<> exchange(std::vector<std::string>& parts, std::string_view stage) const;

 private:
  Communicator* communicator_;
  std::vector<int> owners_;
};

}  // namespace mortise
