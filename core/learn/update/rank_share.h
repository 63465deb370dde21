// RankShare: which micro-batches of a plan this rank computes, and how all ranks get the results of all of them.
//
// Every rank makes the same plan over the whole table, so that no number depends on how many ranks there are. Only the
// work is shared. A run of one process has one rank, which computes all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/result.h"
#include "learn/optim/buckets.h"
#include "learn/update/micro_batches.h"
#include "learn/update/sequence_group.h"

namespace mortise {

// The communicator of a process that is alone.
[[nodiscard]] Communicator& alone();

// The processes that share the work of passes and updates.
struct RankOptions {
  Communicator* communicator = &alone();  // borrowed
  // Sums of gradients have the same bits for any number of ranks (gradient_sum.h).
  bool deterministic = false;
  // The ranks that share the tokens of each micro-batch. Null: a rank has whole micro-batches.
  std::shared_ptr<SequenceGroup> sequence = {};
  // Neighbours that share the layers of the model, and so its micro-batches.
  int tensor_size = 1;
  int64_t bucket_bytes = kBucketBytes;     // if the optimizer is not sharded
  int64_t round_bytes = kOwnerRoundBytes;  // if it is: of a message that brings gradients to their owners

  [[nodiscard]] int sequence_size() const { return sequence != nullptr ? sequence->size() : 1; }
  // Ranks that compute a micro-batch together.
  [[nodiscard]] int group_size() const { return sequence_size() * tensor_size; }
};

using MicroPlan = std::vector<std::vector<int64_t>>;

// Tokens that a pass over each micro-batch computes: its responses, and each prompt once.
[[nodiscard]] std::vector<int64_t> micro_tokens(const StepTable& table, const MicroPlan& plan);

// The rank of each load: the largest first to the rank that has the least so far (Graham 1969).
[[nodiscard]] std::vector<int> deal_by_load(std::span<const int64_t> loads, int num_ranks);
// The same in ranges: rank 0 gets the first ones, and so on, with about the same sum each.
[[nodiscard]] std::vector<int> deal_in_ranges(std::span<const int64_t> loads, int num_ranks);

// A micro-batch that costs less on one rank, which has some of its numbers already.
struct HomeLoad {
  int home;  // -1: it costs the same everywhere
  int64_t here, away;
};
// Each to its home, and from the rank with the most to the rank with the least as long as that makes the most smaller.
[[nodiscard]] std::vector<int> deal_near_home(std::span<const HomeLoad> loads, int num_ranks);

class RankShare {
 public:
  // `loads` of the micro-batches, in any unit.
  RankShare(std::span<const int64_t> loads, const RankOptions& ranks);
  // The rank of each is known. Precondition: each rank computes whole micro-batches.
  RankShare(std::vector<int> owners, const RankOptions& ranks);

  // Does this rank, or the group of ranks that share tokens or layers with it, compute it?
  [[nodiscard]] bool is_mine(size_t micro) const { return owners_[micro] == first_of_group_; }
  // Does this rank tell the others what it gave?
  [[nodiscard]] bool is_told(size_t micro) const { return owners_[micro] == communicator_->rank(); }
  // The rank of each, or the first one of its group.
  [[nodiscard]] std::span<const int> owners() const { return owners_; }
  // This rank's micro-batches in ascending order, one a round. All ranks have as many rounds as the rank with most
  // micro-batches: nothing in those where this one has none left.
  [[nodiscard]] std::vector<std::optional<size_t>> rounds() const;

  // `parts` are bytes by micro-batch: those of this rank's before the call, all of them after it. In a group that shares
  // tokens or layers, those of the first rank count. `stage` is a literal.
  Result<> exchange(std::vector<std::string>& parts, std::string_view stage) const;

 private:
  Communicator* communicator_;
  int first_of_group_;
  std::vector<int> owners_;
};

// The rank that has a leaf of a deterministic update, if they have them in turn.
[[nodiscard]] int rank_in_turn(size_t leaf, const RankOptions& ranks);
// Who computes the micro-batches of an update, `loads`, so that their gradients can be added (gradient_sum.h).
// `shares_gradients`: ZeRO 2 or 3.
[[nodiscard]] RankShare share_update(std::span<const int64_t> loads, const RankOptions& ranks, bool shares_gradients);

}  // namespace mortise
