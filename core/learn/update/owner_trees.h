// OwnerTrees: adds the gradients of an update's micro-batches in the order of the fixed tree (gradient_tree.h), on the
// ranks that own parts of them.
//
// A rank adds the numbers that it owns, in pieces as they arrive. Next to a piece, it keeps the sums of at most
// log2(micro-batches) + 1 subtrees of it. Private to this folder. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <vector>

#include "learn/update/gradient_tree.h"

namespace mortise {

class OwnerTrees {
 public:
  // `term`: what the micro-batch `leaf` adds to `piece`, numbers of a rank's own gradient that are always cut alike and
  // stay in their memory. Leaves come in rising order. Those that do not come have no gradient.
  void add(const at::Tensor& piece, size_t leaf, const at::Tensor& term);
  // Every piece becomes the sum of an update of so many leaves.
  void finish(size_t num_leaves);

 private:
  struct Piece {
    at::Tensor numbers;
    std::vector<GradientNode> nodes;
    size_t num_leaves = 0;
  };
  static void skip_to(Piece& piece, size_t leaf);

  std::map<const void*, Piece> pieces_;  // by the memory of their numbers
};

}  // namespace mortise
