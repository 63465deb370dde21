// Collects the gradients of this rank's micro-batches, and adds those of the other ranks.
#include "learn/update/gradient_sum.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "learn/update/owned_gradient.h"

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

// Gradients of transposed products may lie the other way.
std::vector<at::Tensor> contiguous(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.contiguous();
  return tensors;
}

std::vector<at::Tensor> grads_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<at::Tensor> grads;
  for (const OptimizedParameter& parameter : parameters) grads.push_back(parameter.tensor.grad());
  return grads;
}

}  // namespace

GradientSum::GradientSum(Optimizer& optimizer, const RankShare& share, const RankOptions& ranks)
    : optimizer_(&optimizer), parameters_(&optimizer.parameters()), share_(&share), ranks_(ranks) {
  optimizer.own_gradient() = at::Tensor();
  if (!optimizer.shares_gradients() || ranks.deterministic) return;
  std::vector<int64_t> counts(static_cast<size_t>(ranks.communicator->size()), 0);
  for (const int owner : share.owners()) ++counts[static_cast<size_t>(owner)];
  num_rounds_left_ = *std::max_element(counts.begin(), counts.end());
}

void GradientSum::forget_gradients() {
  for (const OptimizedParameter& parameter : *parameters_) parameter.tensor.mutable_grad() = at::Tensor();
}

Result<> GradientSum::end_leaf(size_t leaf, bool has_gradient) {
  const c10::NoGradGuard no_grad;
  if (!ranks_.deterministic) {
    if (!optimizer_->shares_gradients()) return {};
    --num_rounds_left_;
    return reduce_to_owners(has_gradient);
  }
  GradientNode node{0, leaf, {}};
  if (has_gradient) {
    fill_absent_gradients(*parameters_);
    node.gradients = grads_of(*parameters_);
  }
  forget_gradients();
  add_node(nodes_, std::move(node));
  return {};
}

// The others may still have micro-batches, whose gradients this rank owns in part.
Result<> GradientSum::end_leaves() {
  const c10::NoGradGuard no_grad;
  for (; num_rounds_left_ > 0; --num_rounds_left_) TRY(reduce_to_owners(false));
  return {};
}

Result<> GradientSum::finish(const std::vector<LeafReport>& leaves) {
  const c10::NoGradGuard no_grad;
  const Shards* const shards = optimizer_->shards();
  if (shards == nullptr) return ranks_.deterministic ? reduce_tree(leaves) : reduce_all();
  if (ranks_.deterministic) return reduce_tree_to_owners(leaves);
  if (optimizer_->shares_gradients()) {
    owned();
    return {};
  }
  const auto has_one = [](const OptimizedParameter& parameter) { return parameter.tensor.grad().defined(); };
  return reduce_to_owners(std::any_of(parameters_->begin(), parameters_->end(), has_one));
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

// The nodes of other ranks are known but for their numbers, which come bucket by bucket.
Result<> GradientSum::reduce_tree(const std::vector<LeafReport>& leaves) {
  Communicator& communicator = *ranks_.communicator;
  const std::vector<NodePlace> places = node_places(share_->owners(), leaves);
  for (const OptimizedParameter& parameter : *parameters_)
    parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor.detach());
  const std::vector<at::Tensor> grads = grads_of(*parameters_);
  for (const auto& [begin, end] : buckets_of(*parameters_)) {
    const auto bucket = std::span(grads).subspan(begin, end - begin);
    std::vector<GradientNode> sums;
    for (const NodePlace& place : places) {
      GradientNode node{place.level, place.index, {}};
      if (place.has_gradient) {
        const bool is_mine = place.owner == communicator.rank();
        const at::Tensor flat = is_mine
                                    ? flatten(std::span(nodes_[place.at_owner].gradients).subspan(begin, end - begin))
                                    : at::empty({total_numel(bucket)}, bucket[0].options());
        TRY(communicator.broadcast(flat, place.owner, kStage));
        node.gradients.push_back(flat);
      }
      add_node(sums, std::move(node));
    }
    const std::vector<at::Tensor> sum = sum_of_nodes(std::move(sums));
    if (!sum.empty()) unflatten(sum[0], bucket);
  }
  return {};
}

// This rank's range of the flat order, zeros at first.
at::Tensor& GradientSum::owned() {
  at::Tensor& own = optimizer_->own_gradient();
  if (!own.defined()) {
    const FlatRange range = optimizer_->shards()->of(ranks_.communicator->rank());
    own = at::zeros({range.size()}, parameters_->front().tensor.options());
  }
  return own;
}

// Each node goes to the owners of its parts alone, who add them in the order of the tree.
Result<> GradientSum::reduce_tree_to_owners(const std::vector<LeafReport>& leaves) {
  std::vector<NodePlace> places = node_places(share_->owners(), leaves);
  std::vector<RankGradient> gradients;
  for (const NodePlace& place : places) {
    if (!place.has_gradient) continue;
    const bool is_mine = place.owner == ranks_.communicator->rank();
    gradients.push_back(
        {place.owner, is_mine ? contiguous(nodes_[place.at_owner].gradients) : std::vector<at::Tensor>()});
  }
  const auto add = [&](const std::vector<at::Tensor>& terms, const at::Tensor& own) {
    std::vector<GradientNode> nodes;
    size_t next = 0;
    for (const NodePlace& place : places) {
      GradientNode node{place.level, place.index, {}};
      if (place.has_gradient) node.gradients.push_back(terms[next++]);
      add_node(nodes, std::move(node));
    }
    own.copy_(sum_of_nodes(std::move(nodes)).front());
  };
  TRY(reduce_to_owned(*ranks_.communicator, *optimizer_->shards(), gradients, add, owned()));
  nodes_.clear();
  return {};
}

// The sums of all ranks, or what one micro-batch of each gave. They are added in the order of the ranks.
Result<> GradientSum::reduce_to_owners(bool has_gradient) {
  Communicator& communicator = *ranks_.communicator;
  std::vector<RankGradient> gradients;
  const std::vector<std::string> all = TRY(communicator.exchange(has_gradient ? "1" : "", kStage));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (!all[static_cast<size_t>(rank)].empty()) gradients.push_back({rank, {}});
    if (rank != communicator.rank() || !has_gradient) continue;
    fill_absent_gradients(*parameters_);
    gradients.back().tensors = contiguous(grads_of(*parameters_));
  }
  const auto add = [](const std::vector<at::Tensor>& terms, const at::Tensor& own) {
    for (const at::Tensor& term : terms) own.add_(term);
  };
  TRY(reduce_to_owned(communicator, *optimizer_->shards(), gradients, add, owned()));
  forget_gradients();
  return {};
}

}  // namespace mortise
