// Gathers and frees the parts of a model, and keeps this rank's numbers of them.
#include "learn/optim/weight_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <malloc.h>

#include <algorithm>
#include <string_view>

#include "model/tensor/storage_memory.h"
#include "model/weights/names.h"

namespace mortise {

namespace {

constexpr std::string_view kWeightsStage = "gathering weights";

std::vector<int64_t> sizes_of(std::span<const at::Tensor> tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

// The storages of some tensors, each once.
std::vector<c10::Storage> storages_of(std::span<const at::Tensor> tensors) {
  std::vector<c10::Storage> out;
  for (const at::Tensor& tensor : tensors) {
    const bool is_known =
        std::ranges::any_of(out, [&](const c10::Storage& one) { return one.is_alias_of(tensor.storage()); });
    if (!is_known) out.push_back(tensor.storage());
  }
  return out;
}

// The storages of `from` that are not in `out`.
std::vector<c10::Storage> without(std::span<const c10::Storage> from, std::span<const c10::Storage> out) {
  std::vector<c10::Storage> rest;
  for (const c10::Storage& one : from) {
    if (std::ranges::none_of(out, [&](const c10::Storage& other) { return other.is_alias_of(one); }))
      rest.push_back(one);
  }
  return rest;
}

}  // namespace

WeightUnits weight_units(const ModelConfig& config, std::span<const NamedParameter> parameters) {
  WeightUnits units;
  units.parts.resize(static_cast<size_t>(config.num_layers) + 2);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string_view name = parameters[i].name;
    if (parameters[i].tensor.dim() == 1 || name == kScoreHead) {
      units.whole.push_back(i);
      continue;
    }
    size_t part = name == kEmbeddingName ? 0 : units.parts.size() - 1;
    if (const auto layer = layer_of(name)) part = static_cast<size_t>(*layer) + 1;
    units.parts[part].push_back(i);
  }
  return units;
}

WeightShards::WeightShards(Model& model, Communicator& communicator, ShardCut cut, std::shared_ptr<Holds> holds,
                           bool merges)
    : model_(&model),
      part_(model.model_part()),
      communicator_(&communicator),
      cut_(cut),
      holds_(std::move(holds)),
      merges_(merges),
      units_(weight_units(model.config(), parameters())) {
  const c10::NoGradGuard no_grad;
  is_tied_ = units_.parts.back().empty() && !model.config().is_classifier;
  for (size_t part = 0; part < units_.parts.size(); ++part) {
    std::vector<at::Tensor> tensors;
    for (const size_t i : units_.parts[part]) tensors.push_back(parameters()[i].tensor.variable_data());
    Part& unit = parts_.emplace_back(
        Part{Shards(sizes_of(tensors), communicator.size(), cut), tensors, storages_of(tensors), {}, {}, {}, {}});
    const bool is_layer = part > 0 && part + 1 < units_.parts.size();
    if (!merges || !is_layer) continue;
    const auto layer = static_cast<int64_t>(part) - 1;
    unit.merged =
        storages_of(part_ != nullptr ? part_->merged_matrices(layer) : model.trained_lora()->merged_matrices(layer));
    const std::vector<NamedParameter>& of_passes = part_ != nullptr ? part_->parameters() : model.parameters();
    std::vector<at::Tensor> seen;
    for (const size_t i : units_.parts[part]) seen.push_back(of_passes[i].tensor);
    unit.base_only = without(unit.storages, storages_of(seen));
  }
  // The norm in front of a layer is computed behind the layer before it (decoder.cpp).
  first_backward_ = std::max<int64_t>(1, model.lowest_backward() - 1);
}

std::shared_ptr<WeightShards> WeightShards::spread(Model& model, Communicator& communicator, ShardCut cut) {
  const c10::NoGradGuard no_grad;
  std::shared_ptr<WeightShards> shards(
      new WeightShards(model, communicator, cut, std::make_shared<Holds>(), model.trains_lora()));
  shards->take_changes();
  for (const Part& unit : shards->parts_) {
    for (const auto* storages : {&unit.storages, &unit.merged}) std::ranges::for_each(*storages, free_memory);
  }
  model.use_gate(shards);
  return shards;
}

std::shared_ptr<WeightShards> WeightShards::spread_copy(Model& model) const {
  const c10::NoGradGuard no_grad;
  std::shared_ptr<WeightShards> shards(new WeightShards(model, *communicator_, cut_, std::make_shared<Holds>(), false));
  for (size_t part = 0; part < parts_.size(); ++part) {
    Part& unit = shards->parts_[part];
    std::ranges::for_each(unit.storages, free_memory);
    if (unit.tensors.empty()) continue;
    unit.padded = parts_[part].padded.clone();
    unit.own = unit.padded.narrow(0, 0, parts_[part].own.numel());
  }
  for (const size_t i : units_.whole) shards->parameters()[i].tensor.detach().copy_(parameters()[i].tensor.detach());
  model.use_gate(shards);
  return shards;
}

std::shared_ptr<WeightShards> WeightShards::spread_base(Model& base) const {
  std::shared_ptr<WeightShards> shards(new WeightShards(base, *communicator_, cut_, holds_, false));
  for (size_t part = 0; part < parts_.size(); ++part) {
    shards->parts_[part].padded = parts_[part].padded;
    shards->parts_[part].own = parts_[part].own;
  }
  base.use_gate(shards);
  return shards;
}

WeightShards::Part& WeightShards::unit_of(int64_t part) {
  return parts_[is_tied_ && part == num_layers() + 1 ? 0 : static_cast<size_t>(part)];
}

void WeightShards::take_changes() {
  const c10::NoGradGuard no_grad;
  for (Part& unit : parts_) {
    if (unit.tensors.empty()) continue;
    const FlatRange range = unit.shards.of(communicator_->rank());
    if (!unit.padded.defined()) {
      unit.padded = at::zeros({unit.shards.largest()}, unit.tensors.front().options());
      unit.own = unit.padded.narrow(0, 0, range.size());
    }
    copy_from_tensors(unit.shards, unit.tensors, range, unit.own);
  }
}

void WeightShards::hold(std::span<const c10::Storage> storages) {
  for (const c10::Storage& storage : storages) {
    if ((*holds_)[storage.unsafeGetStorageImpl()]++ == 0) allocate_memory(storage);
  }
}

void WeightShards::release(std::span<const c10::Storage> storages) {
  for (const c10::Storage& storage : storages) {
    if (--(*holds_)[storage.unsafeGetStorageImpl()] == 0) free_memory(storage);
  }
}

void WeightShards::take_memory(int64_t part) {
  Part& unit = unit_of(part);
  hold(unit.storages);
  unit.has_memory = true;
}

// The merged matrices of a layer that has arrived; the base's make room for them, unless all weights are wanted.
void WeightShards::merge(int64_t part) {
  Part& unit = unit_of(part);
  if (unit.merged.empty()) return;
  hold(unit.merged);
  if (part_ != nullptr)
    part_->merge_layer(part - 1);
  else
    model_->trained_lora()->merge_layer(part - 1);
  if (!is_whole()) release(unit.base_only);
}

void WeightShards::drop(int64_t part) {
  Part& unit = unit_of(part);
  if (!unit.has_memory) return;
  unit.has_memory = false;
  release(unit.merged);
  if (unit.merged.empty() || is_whole())
    release(unit.storages);
  else
    release(without(unit.storages, unit.base_only));
}

// Starts to gather a layer.
void WeightShards::prefetch(int64_t part) {
  if (!is_layer(part) || error_) return;
  Part& unit = parts_[static_cast<size_t>(part)];
  if (unit.tensors.empty()) return;
  Prefetch next{part, at::empty({communicator_->size() * unit.padded.numel()}, unit.padded.options()), nullptr};
  auto started = communicator_->start_all_gather(unit.padded, next.numbers, kWeightsStage);
  if (!started.ok()) {
    error_ = started.error();
    return;
  }
  next.pending = std::move(*started);
  prefetched_ = std::move(next);
}

// Gives a part its memory and numbers, or only helps the others.
void WeightShards::gather(int64_t part, bool keeps) {
  const c10::NoGradGuard no_grad;
  Part& unit = unit_of(part);
  if (unit.tensors.empty()) return;
  if (keeps) take_memory(part);
  if (is_layer(part))
    receive(part, keeps);
  else
    gather_in_pieces(unit, keeps);
  if (keeps) merge(part);
}

void WeightShards::receive(int64_t part, bool keeps) {
  if (!prefetched_ || prefetched_->part != part) prefetch(part);
  if (error_) return;
  Part& unit = unit_of(part);
  const Prefetch arrived = *std::exchange(prefetched_, std::nullopt);
  if (const Result<> done = arrived.pending->wait(); !done.ok()) {
    error_ = done.error();
    return;
  }
  const int64_t longest = unit.padded.numel();
  for (int rank = 0; keeps && rank < communicator_->size(); ++rank) {
    const FlatRange range = unit.shards.of(rank);
    copy_to_tensors(unit.shards, arrived.numbers.narrow(0, rank * longest, range.size()), range, unit.tensors);
  }
}

void WeightShards::gather_in_pieces(Part& unit, bool keeps) {
  const int64_t longest = unit.padded.numel(), num_ranks = communicator_->size();
  const int64_t most = Shards::kRoundBytes / static_cast<int64_t>(unit.padded.element_size()) / num_ranks;
  for (int64_t begin = 0; begin < longest && !error_; begin += std::max<int64_t>(1, most)) {
    const int64_t size = std::min(std::max<int64_t>(1, most), longest - begin);
    const at::Tensor numbers = at::empty({num_ranks * size}, unit.padded.options());
    if (const Result<> done = communicator_->all_gather(unit.padded.narrow(0, begin, size), numbers, kWeightsStage);
        !done.ok()) {
      error_ = done.error();
      return;
    }
    for (int rank = 0; keeps && rank < communicator_->size(); ++rank) {
      const FlatRange all = unit.shards.of(rank);
      const FlatRange range = all.within({all.begin + begin, all.begin + begin + size});
      if (range.size() > 0)
        copy_to_tensors(unit.shards, numbers.narrow(0, rank * size, range.size()), range, unit.tensors);
    }
  }
}

// A part that this rank does not need, but others may.
void WeightShards::pass_by(int64_t part, GatePass pass) {
  gather(part, false);
  if (pass == GatePass::kForward) {
    prefetch(part + 1);
    return;
  }
  if (part > first_backward_) prefetch(part - 1);
  if (on_layer_) on_layer_(part);
}

void WeightShards::open(int64_t part, GatePass pass) {
  if (is_whole()) return;
  if (pass == GatePass::kForward) {
    if (part == 0) {
      if (in_forward_) finish_forward();
      in_forward_ = true;
      next_ = 0;
    }
    for (; next_ < part; ++next_) pass_by(next_, pass);
    gather(part, true);
    prefetch(part + 1);
    next_ = part + 1;
    return;
  }
  for (; next_ > part; --next_) pass_by(next_, pass);
  gather(part, true);
  if (part > first_backward_) prefetch(part - 1);
}

void WeightShards::close(int64_t part, GatePass pass) {
  if (is_whole()) return;
  drop(part);
  if (pass == GatePass::kForward) return;
  if (on_layer_) on_layer_(part);
  next_ = part - 1;
}

void WeightShards::finish_forward() {
  if (is_whole()) return;
  if (!in_forward_) next_ = 0;
  for (; next_ < static_cast<int64_t>(parts_.size()); ++next_) pass_by(next_, GatePass::kForward);
  drop(num_layers() + 1);
  in_forward_ = false;
}

void WeightShards::run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) {
  next_ = num_layers();
  on_layer_ = on_layer;
  if (own) own();
  // The lowest layer is not closed by backward if its input has no gradient.
  if (!is_whole() && next_ >= 1 && parts_[static_cast<size_t>(next_)].has_memory) close(next_, GatePass::kBackward);
  for (; next_ >= first_backward_; --next_) pass_by(next_, GatePass::kBackward);
  on_layer_ = nullptr;
}

Result<> WeightShards::status() const {
  if (error_) return *error_;
  return {};
}

Result<> WeightShards::gather_all(const KeepsPart& keeps) {
  if (num_whole_++ > 0) return {};
  ::malloc_trim(0);  // the allocator still has the pages of the last update
  for (int64_t part = 0; part < static_cast<int64_t>(parts_.size()); ++part) {
    if (is_tied_ && part == num_layers() + 1) continue;
    gather(part, !keeps || keeps(part));
    if (part < num_layers()) prefetch(part + 1);
  }
  // Copies that others have made of them are stale.
  const auto& changed = part_ != nullptr ? part_->parameters() : model_->parameters();
  for (const NamedParameter& parameter : changed) parameter.tensor.unsafeGetTensorImpl()->bump_version();
  return status();
}

void WeightShards::release_all() {
  if (num_whole_ == 1) {
    for (int64_t part = 0; part < static_cast<int64_t>(parts_.size()); ++part) drop(part);
    ::malloc_trim(0);
  }
  --num_whole_;
}

void WeightShards::move_towards(const WeightShards& other, double weight) {
  const c10::NoGradGuard no_grad;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const Part& to = parts_[part];
    int64_t at = 0;
    // Tensor by tensor, so that the kernel takes the same numbers together as for whole tensors.
    for (const TensorPart& piece : to.shards.parts(to.shards.of(communicator_->rank()))) {
      to.own.narrow(0, at, piece.size).lerp_(other.parts_[part].own.narrow(0, at, piece.size), weight);
      at += piece.size;
    }
  }
}

Result<WholeWeights> WholeWeights::gather(std::initializer_list<const Model*> models, const KeepsPart& keeps,
                                          GatheredLayers layers) {
  WholeWeights out;
  for (const Model* model : models) {
    if (model == nullptr) continue;
    ModelPart* const part = model->model_part();
    if (WeightShards* const shards = shards_of(*model); shards != nullptr) {
      out.shards_.push_back(shards);
      TRY(shards->gather_all(part == nullptr ? keeps : KeepsPart()));
    }
    if (part == nullptr || layers == GatheredLayers::kOwnPart) continue;
    const bool gathers_layers = layers == GatheredLayers::kWhole;
    (gathers_layers ? out.parts_ : out.vocabularies_).push_back(part);
    TRY(gathers_layers ? part->gather_all(keeps) : part->gather_vocabulary());
  }
  return out;
}

WeightShards* shards_of(const Model& model) { return dynamic_cast<WeightShards*>(model.gate()); }

}  // namespace mortise
