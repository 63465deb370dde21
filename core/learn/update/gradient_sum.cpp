// Collects the gradients of this rank's micro-batches, and adds those of the other ranks.
#include "learn/update/gradient_sum.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace mortise {

namespace {

constexpr std::string_view kStage = "gradients";

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

bool are_added_by_owners(const RankOptions& ranks, const Optimizer& optimizer) {
  return owners_add_leaves(ranks.deterministic, optimizer.shares_gradients(), ranks.group_size());
}

Result<> check_turns(std::span<const int> owners, const RankOptions& ranks) {
  for (size_t leaf = 0; leaf < owners.size(); ++leaf) {
    if (owners[leaf] != rank_in_turn(leaf, ranks))
      return Error{ErrorKind::kInternal,
                   "the ranks do not have the micro-batches of a deterministic update in turn",
                   {},
                   "report this"};
  }
  return {};
}

}  // namespace

GradientSum::GradientSum(const Model& model, Optimizer& optimizer, const RankShare& share, const RankOptions& ranks)
    : model_(&model),
      optimizer_(&optimizer),
      parameters_(&optimizer.parameters()),
      share_(&share),
      ranks_(ranks),
      is_reduced_(optimizer.units().size()),
      buckets_(backward_groups(optimizer.parameters(), ranks.bucket_bytes)) {
  const std::vector<std::optional<size_t>> rounds = share.rounds();
  num_rounds_ = num_rounds_left_ = rounds.size();
  for (const std::optional<size_t>& leaf : rounds) last_leaf_ = leaf ? leaf : last_leaf_;
  for (ShardUnit& unit : optimizer.units()) unit.own_gradient = at::Tensor();
  if (are_added_by_owners(ranks, optimizer)) trees_ = std::make_unique<OwnerTrees>();
  const Result<Communicator*> same = same_part();
  if (same.ok())
    sums_ = make_sums(**same);
  else
    opened_ = same.error();
  if (trees_ != nullptr && opened_.ok()) opened_ = check_turns(share.owners(), ranks);
  for (ShardUnit& unit : optimizer.units()) {
    MatrixWindows* const windows = windows_of(unit);
    if (windows == nullptr) continue;
    if (ranks_.deterministic)
      windows->keep_gradient();
    else if (same.ok())
      windows->collect_gradient(owned(unit, **same));
  }
}

GradientSum::~GradientSum() {
  if (is_finished_) return;
  for (ShardUnit& unit : optimizer_->units()) {
    unit.own_gradient = at::Tensor();
    if (MatrixWindows* const windows = windows_of(unit); windows != nullptr) windows->collect_gradient({});
  }
}

// Null: its gradients are whole tensors.
MatrixWindows* GradientSum::windows_of(const ShardUnit& unit) const {
  const WeightShards* const shards = shards_of(*model_);
  return shards == nullptr || unit.part < 0 ? nullptr : shards->windows_of(unit.part);
}

void GradientSum::forget_gradients() {
  for (const OptimizedParameter& parameter : *parameters_) parameter.tensor.mutable_grad() = at::Tensor();
}

// Tells who has a gradient in this round.
Result<> GradientSum::find_senders(bool has_gradient) {
  senders_.clear();
  Communicator* const ranks = TRY(same_part());
  const std::vector<std::string> all = TRY(ranks->exchange(has_gradient ? "1" : "", kStage));
  for (int rank = 0; rank < ranks->size(); ++rank) {
    if (!all[static_cast<size_t>(rank)].empty()) senders_.push_back(rank);
  }
  return {};
}

// Null: the sums are deterministic, nobody else has this part, or gradients leave layer by layer (share_round).
std::unique_ptr<BucketSums> GradientSum::make_sums(const Communicator& same) {
  if (keeps_leaves() || same.size() == 1) return nullptr;
  if (!optimizer_->is_sharded()) return std::make_unique<AllSums>(*parameters_, buckets_);
  if (model_->gate() != nullptr) return nullptr;
  auto sums = std::make_unique<OwnerSums>(*parameters_, optimizer_->units(), ranks_.round_bytes, trees_.get());
  to_owners_ = sums.get();
  return sums;
}

Result<> GradientSum::end_round(std::optional<size_t> leaf, const BackwardPass& backward) {
  TRY(opened_);
  --num_rounds_left_;
  if (model_->gate() != nullptr)
    TRY(share_round(backward));
  else if (sums_ != nullptr)
    TRY(start_sums(leaf, backward));
  else if (backward)
    backward();
  if (ranks_.sequence != nullptr) TRY(ranks_.sequence->status());
  if (model_->model_part() != nullptr) TRY(model_->model_part()->ranks()->status());
  if (!keeps_leaves() || !leaf) return {};
  const c10::NoGradGuard no_grad;
  take_kept_gradients();
  GradientNode node{0, *leaf, {}};
  if (backward) {
    fill_absent_gradients(*parameters_);
    if (ranks_.sequence != nullptr) TRY(sum_over_tokens());
    node.gradients = grads_of(*parameters_);
  }
  forget_gradients();
  if (keeps_nodes(*leaf)) add_node(nodes_, std::move(node));
  return {};
}

// Ranks start the same sums in the same order, with ZeRO 2 in each round. Else each of them starts them in its last
// pass, and those without a micro-batch when the rounds end: no other message comes between.
Result<> GradientSum::start_sums(std::optional<size_t> leaf, const BackwardPass& backward) {
  Communicator* const same = TRY(same_part());
  const bool in_each_round = optimizer_->shares_gradients();
  const size_t round = num_rounds_ - 1 - num_rounds_left_;
  if (trees_ != nullptr) {
    TRY(find_senders(static_cast<bool>(backward)));
    std::vector<bool> senders(static_cast<size_t>(same->size()), false);
    for (const int rank : senders_) senders[static_cast<size_t>(rank)] = true;
    to_owners_->begin(std::move(senders), first_leaf(*same));
  } else if (to_owners_ != nullptr && (in_each_round || round == 0)) {
    to_owners_->begin(ranks_with_leaf(round, *same));
  }
  if (backward && (in_each_round || leaf == last_leaf_) && may_send_in_pass())
    TRY(sums_->start_in(backward, *same));
  else if (backward)
    backward();
  if (in_each_round || num_rounds_left_ == 0) TRY(sums_->start_others(*same));
  return {};
}

// Those of the ranks with the same part that have a micro-batch in this round. The others send no gradients in it.
std::vector<bool> GradientSum::ranks_with_leaf(size_t round, const Communicator& same) const {
  std::vector<size_t> counts(static_cast<size_t>(ranks_.communicator->size()), 0);
  for (const int owner : share_->owners()) ++counts[static_cast<size_t>(owner)];
  std::vector<bool> out;
  for (int rank = 0; rank < same.size(); ++rank) {
    const int in_run = rank * ranks_.tensor_size + ranks_.communicator->rank() % ranks_.tensor_size;
    out.push_back(counts[static_cast<size_t>(in_run / ranks_.group_size() * ranks_.group_size())] > round);
  }
  return out;
}

// What passes by windows have added of the leaf.
void GradientSum::take_kept_gradients() {
  for (const ShardUnit& unit : optimizer_->units()) {
    if (MatrixWindows* const windows = windows_of(unit); windows != nullptr)
      (*parameters_)[unit.parameters.front()].tensor.mutable_grad() = windows->take_gradient();
  }
}

// One rank of those that have the same gradient of it.
bool GradientSum::keeps_nodes(size_t leaf) const {
  const int in_group = ranks_.communicator->rank() - share_->owners()[leaf];
  return in_group >= 0 && in_group < ranks_.tensor_size;
}

// The gradient of a micro-batch whose tokens several ranks share, on each of them: a leaf of the tree.
Result<> GradientSum::sum_over_tokens() {
  return sum_in_buckets([this](const at::Tensor& numbers) -> Result<> {
    ranks_.sequence->sum(numbers);
    return ranks_.sequence->status();
  });
}

// With spread weights, all ranks run backward together and send what others own, unless they keep their leaves.
Result<> GradientSum::share_round(const BackwardPass& backward) {
  TRY(find_senders(static_cast<bool>(backward)));
  if (senders_.empty()) return {};
  std::fill(is_reduced_.begin(), is_reduced_.end(), false);
  std::vector<ShardUnit>& units = optimizer_->units();
  Result<> reduced;
  const auto reduce = [&](size_t unit) {
    if (is_reduced_[unit] || !reduced.ok()) return;
    is_reduced_[unit] = true;
    reduced = reduce_to_owners(units[unit]);
  };
  model_->gate()->run_backward(backward, [&](int64_t part) {
    for (size_t unit = 0; unit < units.size() && !keeps_leaves(); ++unit) {
      const bool is_kept = trees_ != nullptr && windows_of(units[unit]) != nullptr;
      if (units[unit].part == part && !is_kept) reduce(unit);
    }
  });
  TRY(model_->gate()->status());
  if (keeps_leaves()) return {};
  if (trees_ != nullptr && backward) take_kept_gradients();
  for (size_t unit = 0; unit < units.size(); ++unit) reduce(unit);
  return reduced;
}

Result<> GradientSum::finish(const std::vector<LeafReport>& leaves) {
  const c10::NoGradGuard no_grad;
  is_finished_ = true;
  for (const ShardUnit& unit : optimizer_->units()) {
    if (MatrixWindows* const windows = windows_of(unit); windows != nullptr) windows->collect_gradient({});
  }
  TRY(opened_);
  if (!optimizer_->is_sharded()) {
    TRY(ranks_.deterministic ? reduce_tree(leaves) : reduce_all());
    return add_terms();
  }
  if (sums_ != nullptr) TRY(sums_->finish());
  for (ShardUnit& unit : optimizer_->units()) {
    if (keeps_leaves())
      TRY(reduce_tree_to_owners(unit, leaves));
    else
      owned(unit, *TRY(same_part()));
  }
  nodes_.clear();
  if (trees_ != nullptr) trees_->finish(share_->owners().size());
  return add_terms();
}

// Not where ranks that share tokens may store different gradients: an adapter of experts has none on a rank without
// tokens.
bool GradientSum::may_send_in_pass() const { return ranks_.sequence == nullptr || !model_->trains_lora(); }

Result<> GradientSum::reduce_all() {
  if (sums_ == nullptr) {  // nobody else has this part
    fill_absent_gradients(*parameters_);
    return {};
  }
  Communicator* const same = TRY(same_part());
  TRY(sums_->start_others(*same));
  return sums_->finish();
}

// Neighbours in the group that have the same numbers get the sum of their terms.
Result<> GradientSum::add_terms() {
  const ModelPart* const part = model_->model_part();
  if (part == nullptr) return {};
  std::map<int, std::vector<at::Tensor>> by_size;
  const auto add = [&](const std::string& name, const at::Tensor& gradient) {
    const int all = part->ranks()->size();
    // Next to an adapter, what is split is whole too.
    const std::string model_name = model_->trains_lora() ? model_->trained_lora()->whole_parameter(name) : name;
    if (model_name.empty()) {  // A, B or a magnitude; those of routers are whole, as what the routers read
      if (!model_->trained_lora()->is_of_gate(name)) by_size[all].push_back(gradient);
      return;
    }
    const TensorSplit& split = part->split(part->find(model_name));
    if (split.has_terms || (model_->trains_lora() && split.is_split())) return by_size[all].push_back(gradient);
    if (model_->trains_lora()) return;
    for (size_t i = 0; i < split.ranges.size(); ++i) {
      if (const auto size = static_cast<int>(split.ranges[i].repeats); size > 1)
        by_size[size].push_back(split.range_of(gradient, i));
    }
  };
  if (optimizer_->is_sharded()) {  // the others of the group own the same parameters
    for (const auto& [index, gradient] : optimizer_->own_gradients()) add((*parameters_)[index].name, gradient);
  } else {
    for (const OptimizedParameter& parameter : *parameters_) add(parameter.name, parameter.tensor.grad());
  }
  for (const auto& [size, grads] : by_size) {
    const at::Tensor flat = flatten(grads);
    part->ranks()->sum_of_neighbours(flat, size);
    unflatten(flat, grads);
  }
  return part->ranks()->status();
}

// Every gradient becomes what `sum` makes of it.
Result<> GradientSum::sum_in_buckets(const std::function<Result<>(const at::Tensor&)>& sum) {
  const std::vector<at::Tensor> grads = grads_of(*parameters_);
  for (const auto& [begin, end] : buckets_) {
    const auto bucket = std::span(grads).subspan(begin, end - begin);
    if (bucket.size() == 1 && bucket[0].is_contiguous()) {
      TRY(sum(bucket[0]));
      continue;
    }
    const at::Tensor flat = flatten(bucket);
    TRY(sum(flat));
    unflatten(flat, bucket);
  }
  return {};
}

// The nodes of other ranks are known but for their numbers, which come bucket by bucket.
Result<> GradientSum::reduce_tree(const std::vector<LeafReport>& leaves) {
  Communicator& communicator = *TRY(same_part());
  const std::vector<NodePlace> places = node_places(share_->owners(), leaves);
  for (const OptimizedParameter& parameter : *parameters_)
    parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor.detach());
  const std::vector<at::Tensor> grads = grads_of(*parameters_);
  for (const auto& [begin, end] : buckets_) {
    const auto bucket = std::span(grads).subspan(begin, end - begin);
    std::vector<GradientNode> sums;
    for (const NodePlace& place : places) {
      GradientNode node{place.level, place.index, {}};
      if (place.has_gradient) {
        const int owner = place.owner / ranks_.tensor_size;  // in the group of those with the same part
        const bool is_mine = owner == communicator.rank();
        const at::Tensor flat = is_mine
                                    ? flatten(std::span(nodes_[place.at_owner].gradients).subspan(begin, end - begin))
                                    : at::empty({total_numel(bucket)}, bucket[0].options());
        TRY(communicator.broadcast(flat, owner, kStage));
        node.gradients.push_back(flat);
      }
      add_node(sums, std::move(node));
    }
    const std::vector<at::Tensor> sum = sum_of_nodes(std::move(sums));
    if (!sum.empty()) unflatten(sum[0], bucket);
  }
  return {};
}

// Each node goes to the owners of its parts alone, who add them in the order of the tree.
Result<> GradientSum::reduce_tree_to_owners(ShardUnit& unit, const std::vector<LeafReport>& leaves) {
  Communicator& communicator = *TRY(same_part());
  const std::vector<NodePlace> places = node_places(share_->owners(), leaves);
  std::vector<RankGradient> gradients;
  for (const NodePlace& place : places) {
    if (!place.has_gradient) continue;
    gradients.push_back({place.owner / ranks_.tensor_size, {}});
    if (gradients.back().rank != communicator.rank()) continue;
    for (const size_t i : unit.parameters)
      gradients.back().tensors.push_back(nodes_[place.at_owner].gradients[i].contiguous());
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
  return reduce_to_owned(communicator, unit.shards, gradients, add, owned(unit, communicator));
}

// What one micro-batch of each sender gave, added in the order of the ranks, or as leaves of trees.
Result<> GradientSum::reduce_to_owners(ShardUnit& unit) {
  const c10::NoGradGuard no_grad;
  if (MatrixWindows* const windows = windows_of(unit); windows != nullptr && trees_ == nullptr) {
    // The head's was sent while the pass walked over it.
    if (unit.part == 0) windows->send_gradient(senders_);
    return model_->gate()->status();
  }
  Communicator& communicator = *TRY(same_part());
  std::vector<RankGradient> gradients;
  for (const int rank : senders_) {
    gradients.push_back({rank, {}});
    if (rank != communicator.rank()) continue;
    for (const size_t i : unit.parameters) {
      const at::Tensor& tensor = (*parameters_)[i].tensor;
      const at::Tensor& grad = tensor.grad();
      // Gradients of transposed products may lie the other way.
      gradients.back().tensors.push_back(grad.defined() ? grad.contiguous() : at::zeros_like(tensor.detach()));
    }
  }
  const auto add = [&](const std::vector<at::Tensor>& terms, const at::Tensor& own) {
    for (size_t i = 0; i < terms.size(); ++i) {
      if (trees_ != nullptr)
        trees_->add(own, first_leaf(communicator) + static_cast<size_t>(senders_[i]), terms[i]);
      else
        own.add_(terms[i]);
    }
  };
  const size_t most = trees_ != nullptr ? static_cast<size_t>(communicator.size()) : 0;
  TRY(reduce_to_owned(communicator, unit.shards, gradients, add, owned(unit, communicator), most));
  for (const size_t i : unit.parameters) (*parameters_)[i].tensor.mutable_grad() = at::Tensor();
  return {};
}

}  // namespace mortise
