// OwnerSums: gradients go to the ranks that own them, bucket by bucket, while a backward pass runs (ZeRO 1 and 2).
//
// The buckets are the units of the optimizer. The gradients of a bucket are freed as they leave: at once, or in several
// rounds if they are large. An owner adds what arrives in the order of the ranks, or as leaves of trees. At most two
// rounds are on their way, of at most 16 MiB each that are sent and as many that arrive. Behind them a bucket may wait
// without holding up the pass. So a pass has at most two buckets whose gradients are complete.
// For this folder, and for estimates. Thread rule: as BucketSums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "learn/optim/buckets.h"
#include "learn/optim/optimizer.h"
#include "learn/update/bucket_sums.h"
#include "learn/update/owner_trees.h"

namespace mortise {

class OwnerSums : public BucketSums {
 public:
  static constexpr size_t kMostRounds = 2;
  static constexpr size_t kMostBuckets = 2;  // that are not on their way as a whole

  // Borrows all. `round_bytes` are the most that a rank sends at a time. `trees`: they add what arrives.
  OwnerSums(std::span<const OptimizedParameter> parameters, std::vector<ShardUnit>& units,
            int64_t round_bytes = kOwnerRoundBytes, OwnerTrees* trees = nullptr);

  // Sums begin to which these ranks have terms. They are added to what the units have. With trees, rank r has the leaf
  // `first_leaf` + r.
  void begin(std::vector<bool> senders, size_t first_leaf = 0);
  Result<> finish() override;

 private:
  struct Bucket {
    ShardUnit* unit;
    ShardRounds rounds;
    int64_t next_round = 0;
    std::vector<at::Tensor> gradients;  // by parameter of the unit; empty: this rank has none
  };
  struct Round {
    at::Tensor sent, terms;      // terms: of all senders, in the order of ranks
    at::Tensor sums;             // this rank's numbers to which they are added
    std::vector<size_t> leaves;  // those that have terms here
    std::unique_ptr<PendingCollective> pending;
  };
  Result<> start(size_t bucket, Communicator& ranks) override;
  Result<> start_rounds(size_t most_buckets, Communicator& ranks);
  Result<> start_round(Communicator& ranks);
  Result<> finish_oldest();

  std::vector<ShardUnit>* units_;
  int64_t round_bytes_;
  OwnerTrees* trees_;
  std::vector<bool> senders_;
  size_t first_leaf_ = 0;
  std::deque<Bucket> waiting_;      // the first may have rounds that are on their way
  std::deque<Round> on_their_way_;  // the oldest first
};

// A rank's range of a unit, zeros at first.
[[nodiscard]] at::Tensor& own_gradient_of(ShardUnit& unit, std::span<const OptimizedParameter> parameters, int rank);

}  // namespace mortise
