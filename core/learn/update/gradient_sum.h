// GradientSum: adds up the gradients of an update's micro-batches over all ranks.
//
// By default a rank adds its micro-batches as backward does, in the gradients themselves, and the ranks' sums are then
// added. Both orders depend on the number of ranks, and so do the last bits. Deterministic: all micro-batches are added
// in the order of a fixed binary tree (gradient_tree.h). Ranks have ranges of leaves. Each keeps the sums of the largest
// nodes inside its range, at most 2 log2(leaves) of them. The bits depend on the plan alone.
//
// The sum goes to every rank, or, if the optimizer is sharded, each part of it only to the rank that owns it. With
// ZeRO 2, that happens after every micro-batch, and a rank then frees its own gradient (not if deterministic).
//
// Cost of a sum for every rank: bytes as for all_reduce; if deterministic, each node travels on its own. Of a sharded
// one: each rank sends what others own of its gradient, or of each of its nodes. Private to this folder.
// Thread rule: one thread. Collectives: all ranks make the same calls, but end_leaf only for their own micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "learn/optim/optimizer.h"
#include "learn/update/gradient_tree.h"
#include "learn/update/leaf_report.h"
#include "learn/update/rank_share.h"

namespace mortise {

class GradientSum {
 public:
  // Borrows all. The parameters have no gradients yet.
  GradientSum(Optimizer& optimizer, const RankShare& share, const RankOptions& ranks);

  // After the backward pass of a micro-batch of this rank. They come in ascending order.
  Result<> end_leaf(size_t leaf, bool has_gradient);
  // This rank runs no more micro-batches, as they are all done or one was not finite.
  Result<> end_leaves();
  // The gradient of every parameter is now that of the whole update: on every rank, or in the optimizer's
  // own_gradient(). `leaves` are those of all ranks.
  Result<> finish(const std::vector<LeafReport>& leaves);

 private:
  Result<> reduce_all();
  Result<> reduce_tree(const std::vector<LeafReport>& leaves);
  Result<> reduce_tree_to_owners(const std::vector<LeafReport>& leaves);
  Result<> reduce_to_owners(bool has_gradient);
  at::Tensor& owned();
  void forget_gradients();

  Optimizer* optimizer_;
  const std::vector<OptimizedParameter>* parameters_;
  const RankShare* share_;
  RankOptions ranks_;
  std::vector<GradientNode> nodes_;  // deterministic: of this rank's range so far, in order
  int64_t num_rounds_left_ = 0;      // ZeRO 2: micro-batches of the rank that has the most
};

}  // namespace mortise
