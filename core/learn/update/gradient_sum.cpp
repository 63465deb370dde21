// Collects the gradients of this rank's micro-batches, and adds those of the other ranks.
#include "learn/update/gradient_sum.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace mortise {

namespace {

constexpr std::string_view kStage = "gradients";

// Numbers that travel together: small tensors cost a message each otherwise.
constexpr int64_t kBucketBytes = int64_t{32} << 20;

// Neighbours among the parameters whose gradients fill a bucket, of one type; a larger one is a bucket by itself.
std::vector<std::pair<size_t, size_t>> buckets_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<std::pair<size_t, size_t>> buckets;
  int64_t bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    const auto size = static_cast<int64_t>(tensor.nbytes());
    const bool joins = !buckets.empty() && bytes + size <= kBucketBytes &&
                       parameters[buckets.back().first].tensor.scalar_type() == tensor.scalar_type();
    if (!joins) {
      buckets.emplace_back(i, i);
      bytes = 0;
    }
    buckets.back().second = i + 1;
    bytes += size;
  }
  return buckets;
}

// A copy of them, end to end.
at::Tensor flatten(std::span<const at::Tensor> tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

void unflatten(const at::Tensor& flat, std::span<const at::Tensor> tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

int64_t total_numel(std::span<const at::Tensor> tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

std::vector<at::Tensor> grads_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<at::Tensor> grads;
  for (const OptimizedParameter& parameter : parameters) grads.push_back(parameter.tensor.grad());
  return grads;
}

}  // namespace

// Two halves of a node become the node, as often as that goes.
void GradientSum::add(std::vector<Node>& nodes, Node node) {
  nodes.push_back(std::move(node));
  while (nodes.size() > 1) {
    Node &left = nodes[nodes.size() - 2], &right = nodes.back();
    if (left.level != right.level || left.index % 2 != 0 || right.index != left.index + 1) return;
    if (left.gradients.empty())
      left.gradients = std::move(right.gradients);
    else
      for (size_t i = 0; i < right.gradients.size(); ++i) left.gradients[i].add_(right.gradients[i]);
    ++left.level;
    left.index /= 2;
    nodes.pop_back();
  }
}

void GradientSum::end_leaf(size_t leaf, bool has_gradient) {
  if (!ranks_.deterministic) return;
  const c10::NoGradGuard no_grad;
  Node node{0, leaf, {}};
  if (has_gradient) {
    fill_absent_gradients(*parameters_);
    node.gradients = grads_of(*parameters_);
  }
  for (const OptimizedParameter& parameter : *parameters_) parameter.tensor.mutable_grad() = at::Tensor();
  add(nodes_, std::move(node));
}

Result<> GradientSum::finish(const std::vector<LeafReport>& leaves) {
  const c10::NoGradGuard no_grad;
  return ranks_.deterministic ? reduce_tree(leaves) : reduce_all();
}

Result<> GradientSum::reduce_all() {
  fill_absent_gradients(*parameters_);
  if (ranks_.communicator->size() == 1) return {};  // saves the copies into buckets
  const std::vector<at::Tensor> grads = grads_of(*parameters_);
  for (const auto& [begin, end] : buckets_of(*parameters_)) {
    const auto bucket = std::span(grads).subspan(begin, end - begin);
    if (bucket.size() == 1 && bucket[0].is_contiguous()) {
      TRY(ranks_.communicator->all_reduce_sum(bucket[0], kStage));
      continue;
    }
    const at::Tensor flat = flatten(bucket);
    TRY(ranks_.communicator->all_reduce_sum(flat, kStage));
    unflatten(flat, bucket);
  }
  return {};
}

// The nodes of every rank in the order of the leaves. Those of other ranks are known but for their numbers, which come
// bucket by bucket.
Result<> GradientSum::reduce_tree(const std::vector<LeafReport>& leaves) {
  Communicator& communicator = *ranks_.communicator;
  struct Place {
    int owner;
    size_t level_index;  // among the owner's
    bool has_gradient;
    Node shape;
  };
  std::vector<Place> places;
  for (size_t leaf = 0; leaf < leaves.size();) {
    const int owner = share_->owners()[leaf];
    std::vector<Node> nodes;
    std::vector<bool> has_gradient;
    for (; leaf < leaves.size() && share_->owners()[leaf] == owner; ++leaf) add(nodes, Node{0, leaf, {}});
    for (size_t i = 0; i < nodes.size(); ++i) {
      const size_t first = nodes[i].index << nodes[i].level, last = first + (size_t{1} << nodes[i].level);
      const bool any =
          std::any_of(leaves.begin() + static_cast<int64_t>(first), leaves.begin() + static_cast<int64_t>(last),
                      [](const LeafReport& one) { return one.has_gradient; });
      places.push_back({owner, i, any, std::move(nodes[i])});
    }
  }
  for (const OptimizedParameter& parameter : *parameters_)
    parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor.detach());
  const std::vector<at::Tensor> grads = grads_of(*parameters_);
  for (const auto& [begin, end] : buckets_of(*parameters_)) {
    const auto bucket = std::span(grads).subspan(begin, end - begin);
    std::vector<Node> sums;
    for (const Place& place : places) {
      Node node{place.shape.level, place.shape.index, {}};
      if (place.has_gradient) {
        const bool is_mine = place.owner == communicator.rank();
        const at::Tensor flat =
            is_mine ? flatten(std::span(nodes_[place.level_index].gradients).subspan(begin, end - begin))
                    : at::empty({total_numel(bucket)}, bucket[0].options());
        TRY(communicator.broadcast(flat, place.owner, kStage));
        node.gradients.push_back(flat);
      }
      add(sums, std::move(node));
    }
    // What is left are nodes whose right halves have no leaves, the largest first: from the end, each is the right half
    // of the one before it.
    while (sums.size() > 1) {
      Node right = std::move(sums.back());
      sums.pop_back();
      Node& left = sums.back();
      if (left.gradients.empty())
        left.gradients = std::move(right.gradients);
      else if (!right.gradients.empty())
        left.gradients[0].add_(right.gradients[0]);
    }
    if (!sums.empty() && !sums[0].gradients.empty()) unflatten(sums[0].gradients[0], bucket);
  }
  return {};
}

}  // namespace mortise
