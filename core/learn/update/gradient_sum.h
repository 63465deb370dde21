// GradientSum: runs the backward passes of an update's micro-batches, and adds up their gradients over all ranks.
//
// By default a rank adds its micro-batches as backward does, in the gradients themselves. The ranks' sums are added in
// buckets while the last backward pass of a rank runs (bucket_sums.h). Both orders depend on the number of ranks, and so
// do the last bits. Deterministic: all micro-batches are added in the order of a fixed binary tree (gradient_tree.h).
// The bits depend on the plan alone. Ranks have ranges of leaves. Each keeps the sums of the largest nodes inside its
// range, at most 2 log2(leaves) of them. With ZeRO 2 and 3, rank r of N has the leaves r, N + r, ... Each of them goes
// to its owners, who add them (owner_trees.h). Ranks that share tokens or layers have ranges.
//
// With sequence parallel, a rank's gradient of a micro-batch is that of its own tokens. The sums over ranks are as above.
// Deterministic: the ranks of a group first add the gradient of each micro-batch, and its first rank has the nodes. The
// bits then depend on the size of the group too.
//
// With tensor parallel, the ranks of a group have the same micro-batches and gradients of their own parts of the layers. Sums
// are over the ranks that have the same part. Where every rank of a group has a parameter but only a term of its gradient,
// these terms are added in the end.
//
// The sum goes to every rank, or, if the optimizer is sharded, each part of it only to the rank that owns it. A rank
// frees what it has sent. With ZeRO 1, buckets leave in the last pass of a rank; with ZeRO 2, in each pass, and owners
// add up the micro-batches. With ZeRO 3, layers leave in each pass. Deterministic sums over ranges keep whole gradients.
//
// Cost of a sum for every rank: bytes as for all_reduce; if deterministic, each node travels on its own. Of a sharded
// one: each rank sends what others own of its gradient, or of each of its nodes. Private to this folder.
// Thread rule: one thread. Collectives: all ranks make the same calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "learn/optim/optimizer.h"
#include "learn/optim/weight_shards.h"
#include "learn/update/gradient_tree.h"
#include "learn/update/leaf_report.h"
#include "learn/update/owned_gradient.h"
#include "learn/update/owner_sums.h"
#include "learn/update/owner_trees.h"
#include "learn/update/rank_share.h"
#include "model/model.h"

namespace mortise {

// The backward pass of a micro-batch, to be run when all ranks are ready for theirs. Null: there is no gradient.
using BackwardPass = std::function<void()>;

class GradientSum {
 public:
  // Borrows all. The parameters have no gradients yet. `model` has them. `share` is that of share_update(), or has the
  // ranks that it names if the sums are not deterministic.
  GradientSum(const Model& model, Optimizer& optimizer, const RankShare& share, const RankOptions& ranks);
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;
  // Frees what the ranks have added if there was no finish(), as in an update that is skipped.
  ~GradientSum();

  // Every rank, at the end of each of its rounds (RankShare::rounds): runs `backward` of the micro-batch `leaf`, or only
  // helps the others. finish_forward() of all models of the round comes before it.
  Result<> end_round(std::optional<size_t> leaf, const BackwardPass& backward);
  // The gradient of every parameter is now that of the whole update: on every rank, or in the units of the optimizer.
  // `leaves` are those of all ranks.
  Result<> finish(const std::vector<LeafReport>& leaves);

 private:
  [[nodiscard]] std::unique_ptr<BucketSums> make_sums(const Communicator& same);
  [[nodiscard]] bool may_send_in_pass() const;
  [[nodiscard]] std::vector<bool> ranks_with_leaf(size_t round, const Communicator& same) const;
  Result<> start_sums(std::optional<size_t> leaf, const BackwardPass& backward);
  Result<> reduce_all();
  Result<> add_terms();
  // The ranks with the same part of the model.
  [[nodiscard]] Result<Communicator*> same_part() const {
    if (ranks_.tensor_size == 1) return ranks_.communicator;
    return ranks_.communicator->strided(ranks_.tensor_size);
  }
  [[nodiscard]] bool keeps_nodes(size_t leaf) const;
  Result<> sum_over_tokens();
  Result<> sum_in_buckets(const std::function<Result<>(const at::Tensor&)>& sum);
  Result<> reduce_tree(const std::vector<LeafReport>& leaves);
  Result<> reduce_tree_to_owners(ShardUnit& unit, const std::vector<LeafReport>& leaves);
  Result<> reduce_to_owners(ShardUnit& unit);
  [[nodiscard]] MatrixWindows* windows_of(const ShardUnit& unit) const;
  Result<> share_round(const BackwardPass& backward);
  Result<> find_senders(bool has_gradient);
  at::Tensor& owned(ShardUnit& unit, const Communicator& ranks) {
    return own_gradient_of(unit, *parameters_, ranks.rank());
  }
  void forget_gradients();
  void take_kept_gradients();
  // Does a rank keep the gradients of its range of leaves?
  [[nodiscard]] bool keeps_leaves() const { return ranks_.deterministic && trees_ == nullptr; }
  // The leaf of the first rank in this round, if ranks have them in turn.
  [[nodiscard]] size_t first_leaf(const Communicator& same) const {
    return (num_rounds_ - 1 - num_rounds_left_) * static_cast<size_t>(same.size());
  }

  const Model* model_;
  Optimizer* optimizer_;
  const std::vector<OptimizedParameter>* parameters_;
  const RankShare* share_;
  RankOptions ranks_;
  std::vector<GradientNode> nodes_;    // deterministic: of this rank's range so far, in order
  std::unique_ptr<OwnerTrees> trees_;  // deterministic: owners add the leaves
  std::vector<int> senders_;           // ranks with the same part, whose gradients are added next
  std::vector<bool> is_reduced_;       // by unit: in this round
  std::vector<ParameterRange> buckets_;
  Result<> opened_;                   // an error: the ranks with the same part cannot reach each other
  std::unique_ptr<BucketSums> sums_;  // null: gradients do not leave in buckets
  OwnerSums* to_owners_ = nullptr;    // these, if the optimizer is sharded
  std::optional<size_t> last_leaf_;   // the last one that this rank has
  size_t num_rounds_, num_rounds_left_;
  bool is_finished_ = false;
};

}  // namespace mortise
