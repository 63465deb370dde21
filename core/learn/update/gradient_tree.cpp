// Adds gradients in the order of a binary tree.
#include "learn/update/gradient_tree.h"

#include <algorithm>
#include <utility>

namespace mortise {

namespace {

// left += right, which is used up.
void add_gradients(GradientNode& left, GradientNode&& right) {
  if (left.gradients.empty()) {
    left.gradients = std::move(right.gradients);
    return;
  }
  for (size_t i = 0; i < right.gradients.size(); ++i) left.gradients[i].add_(right.gradients[i]);
}

}  // namespace

void add_node(std::vector<GradientNode>& nodes, GradientNode node) {
  nodes.push_back(std::move(node));
  while (nodes.size() > 1) {
    GradientNode &left = nodes[nodes.size() - 2], &right = nodes.back();
    if (left.level != right.level || left.index % 2 != 0 || right.index != left.index + 1) return;
    add_gradients(left, std::move(right));
    ++left.level;
    left.index /= 2;
    nodes.pop_back();
  }
}

// What is left are nodes whose right halves have no leaves, the largest first: from the end, each is the right half of
// the one before it.
std::vector<at::Tensor> sum_of_nodes(std::vector<GradientNode> nodes) {
  while (nodes.size() > 1) {
    GradientNode right = std::move(nodes.back());
    nodes.pop_back();
    add_gradients(nodes.back(), std::move(right));
  }
  return nodes.empty() ? std::vector<at::Tensor>() : std::move(nodes.front().gradients);
}

std::vector<NodePlace> node_places(std::span<const int> owners, const std::vector<LeafReport>& leaves) {
  std::vector<NodePlace> places;
  for (size_t leaf = 0; leaf < leaves.size();) {
    const int owner = owners[leaf];
    std::vector<GradientNode> nodes;
    for (; leaf < leaves.size() && owners[leaf] == owner; ++leaf) add_node(nodes, GradientNode{0, leaf, {}});
    for (size_t i = 0; i < nodes.size(); ++i) {
      const size_t first = nodes[i].index << nodes[i].level, last = first + (size_t{1} << nodes[i].level);
      const bool any =
          std::any_of(leaves.begin() + static_cast<int64_t>(first), leaves.begin() + static_cast<int64_t>(last),
                      [](const LeafReport& one) { return one.has_gradient; });
      places.push_back({owner, i, any, nodes[i].level, nodes[i].index});
    }
  }
  return places;
}

}  // namespace mortise
