// GradientSum: adds up the gradients of an update's micro-batches over all ranks.
//
// By default a rank adds its micro-batches as backward does, in the gradients themselves, and the ranks' sums are then
// added. Both orders depend on the number of ranks, and so do the last bits.
//
// Deterministic: each micro-batch is a leaf of a fixed binary tree over the plan. A node of level j covers the leaves
// [k 2^j, (k+1) 2^j), as far as there are any, and is the sum of its two halves. Ranks have ranges of leaves. Each keeps
// the sums of the largest nodes inside its range, at most 2 log2(leaves) of them, and the ranks exchange these. Every
// rank then adds them in the order of the tree. The bits depend on the plan alone. Leaves without a gradient count as
// absent, not as 0.
//
// Cost: bytes as for all_reduce, but each node travels on its own; memory for the nodes. Private to this folder.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/optim/adamw.h"
#include "learn/update/leaf_report.h"
#include "learn/update/rank_share.h"

namespace mortise {

class GradientSum {
 public:
  // Borrows all. The parameters have no gradients yet.
  GradientSum(const std::vector<OptimizedParameter>& parameters, const RankShare& share, const RankOptions& ranks)
      : parameters_(&parameters), share_(&share), ranks_(ranks) {}

  // After the backward pass of a micro-batch of this rank. They come in ascending order.
  void end_leaf(size_t leaf, bool has_gradient);
  // The gradient of every parameter is now that of the whole update, on every rank. `leaves` are those of all ranks.
  Result<> finish(const std::vector<LeafReport>& leaves);

 private:
  // A sum of neighbours: leaf `index` 2^level and those behind it.
  struct Node {
    int level = 0;
    size_t index = 0;
    std::vector<at::Tensor> gradients;  // by parameter; empty: absent
  };
  static void add(std::vector<Node>& nodes, Node node);
  Result<> reduce_all();
  Result<> reduce_tree(const std::vector<LeafReport>& leaves);

  const std::vector<OptimizedParameter>* parameters_;
  const RankShare* share_;
  RankOptions ranks_;
  std::vector<Node> nodes_;  // of this rank's range so far, in order
};

}  // namespace mortise
