// GradientTree: the fixed order in which the gradients of an update's micro-batches are added.
//
// Each micro-batch is a leaf of a binary tree over the plan. A node of level j covers the leaves [k 2^j, (k+1) 2^j), as
// far as there are any, and is the sum of its two halves. Leaves without a gradient count as absent, not as 0.
// For this folder, and for estimates of what ranks send. Thread rule: functions of their arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "learn/update/leaf_report.h"

namespace mortise {

// A sum of neighbours: leaf `index` 2^level and those behind it.
struct GradientNode {
  int level = 0;
  size_t index = 0;
  std::vector<at::Tensor> gradients;  // by parameter, or in one tensor; empty: absent
};

// Adds a node behind those of a range. Two halves of a node become the node, as often as that goes.
void add_node(std::vector<GradientNode>& nodes, GradientNode node);

// The sum of all leaves, of nodes in which no two are halves of a node. Empty: absent.
[[nodiscard]] std::vector<at::Tensor> sum_of_nodes(std::vector<GradientNode> nodes);

// A node that a rank has when all of its leaves are added.
struct NodePlace {
  int owner = 0;
  size_t at_owner = 0;  // among the owner's nodes
  bool has_gradient = false;
  int level = 0;
  size_t index = 0;
};

// The nodes of all ranks in the order of the leaves. `owners` by leaf: each rank has a range of them.
[[nodiscard]] std::vector<NodePlace> node_places(std::span<const int> owners, const std::vector<LeafReport>& leaves);

}  // namespace mortise
