// OwnerTrees: adds the gradients of an update's micro-batches in the order of the fixed tree (gradient_tree.h), on the
// ranks that own parts of them.
//
// A rank adds the numbers that it owns, in pieces as they arrive. Next to a piece, it keeps the sums of at most
// log2(micro-batches) + 1 subtrees of it. Private to this folder. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "learn/update/gradient_tree.h"

namespace mortise {

// Are deterministic sums made in this way? `shares_gradients`: ZeRO 2 or 3. `group_size`: ranks that compute a micro-batch
// together.
[[nodiscard]] constexpr bool owners_add_leaves(bool deterministic, bool shares_gradients, int64_t group_size) {
  return deterministic && shares_gradients && group_size == 1;
}

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
