// See owner_trees.h.
#include "learn/update/owner_trees.h"

#include <utility>

namespace mortise {

void OwnerTrees::add(const at::Tensor& piece, size_t leaf, const at::Tensor& term) {
  Piece& own = pieces_[piece.const_data_ptr()];
  own.numbers = piece;
  skip_to(own, leaf);
  add_node(own.nodes, {0, leaf, {term.clone()}});  // the term is a part of a message
  ++own.num_leaves;
}

void OwnerTrees::skip_to(Piece& piece, size_t leaf) {
  for (; piece.num_leaves < leaf; ++piece.num_leaves) add_node(piece.nodes, {0, piece.num_leaves, {}});
}

void OwnerTrees::finish(size_t num_leaves) {
  for (auto& [memory, piece] : pieces_) {
    skip_to(piece, num_leaves);
    const std::vector<at::Tensor> sum = sum_of_nodes(std::move(piece.nodes));
    if (!sum.empty()) piece.numbers.copy_(sum.front());
  }
  pieces_.clear();
}

}  // namespace mortise
