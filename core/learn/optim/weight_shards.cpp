// Gathers and frees the parts of a model, and keeps this rank's numbers of them.
#include "learn/optim/weight_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <malloc.h>

#include <algorithm>
#include <string_view>

#include "model/tensor/storage_memory.h"
#include "model/weights/rounded_matrices.h"

namespace mortise {

namespace {

constexpr std::string_view kWeightsStage = "gathering weights";

// Frees a part that is closed, between passes.
void free_all(const SpreadPart& unit) {
  for (const auto* storages : {&unit.kept, &unit.passing, &unit.of_masters})
    std::ranges::for_each(*storages, free_memory);
}

}  // namespace

WeightShards::WeightShards(Model& model, Communicator& communicator, ShardCut cut, std::shared_ptr<Holds> holds,
                           SpreadModel kind, bool keeps_base, int64_t window_bytes)
    : model_(&model),
      communicator_(&communicator),
      cut_(cut),
      holds_(std::move(holds)),
      kind_(kind),
      units_(weight_units(model.config(), parameters())),
      window_bytes_(window_bytes) {
  const c10::NoGradGuard no_grad;
  is_tied_ = units_.parts.back().empty() && !model.config().is_classifier;
  for (size_t part = 0; part < units_.parts.size(); ++part) {
    parts_.push_back(make_spread_part(model, kind, part, units_.parts[part], communicator.size(), cut, keeps_base));
  }
  // The norm in front of a layer is computed behind the layer before it (decoder.cpp).
  first_backward_ = std::max<int64_t>(1, model.lowest_backward() - 1);
}

// Once the parts have this rank's numbers. A matrix of at most one window is gathered whole: a window would save its gradient
// only, and cost a second walk.
void WeightShards::make_windows() {
  const auto windows = [&](const SpreadPart& unit) -> std::shared_ptr<MatrixWindows> {
    if (window_bytes_ == 0 || model_->model_part() != nullptr || unit.tensors.size() != 1 || !unit.is_read ||
        static_cast<int64_t>(unit.tensors.front().nbytes()) <= window_bytes_)
      return nullptr;
    return std::make_shared<MatrixWindows>(unit, *communicator_, window_bytes_, error_);
  };
  embedding_ = windows(parts_.front());
  head_ = is_tied_ ? embedding_ : windows(parts_.back());
}

std::shared_ptr<WeightShards> WeightShards::spread(Model& model, Communicator& communicator, ShardCut cut,
                                                   bool keeps_base, int64_t window_bytes) {
  const c10::NoGradGuard no_grad;
  const bool has_adapter = model.trains_lora();
  std::shared_ptr<WeightShards> shards(
      new WeightShards(model, communicator, cut, std::make_shared<Holds>(),
                       has_adapter ? SpreadModel::kAdapted : SpreadModel::kParameters,
                       keeps_base || (has_adapter && model.trained_lora()->passes_read_base()), window_bytes));
  for (SpreadPart& unit : shards->parts_) unit.make_own(communicator.rank());
  shards->take_changes();
  std::ranges::for_each(shards->parts_, free_all);
  shards->make_windows();
  model.use_gate(shards);
  return shards;
}

std::shared_ptr<WeightShards> WeightShards::spread_copy(Model& model) const {
  const c10::NoGradGuard no_grad;
  std::shared_ptr<WeightShards> shards(new WeightShards(model, *communicator_, cut_, std::make_shared<Holds>(),
                                                        SpreadModel::kParameters, false, window_bytes_));
  for (size_t part = 0; part < parts_.size(); ++part) {
    SpreadPart& unit = shards->parts_[part];
    free_all(unit);
    unit.make_own(communicator_->rank());
    if (!unit.tensors.empty()) unit.take_numbers(parts_[part].numbers());
  }
  shards->make_windows();
  for (const size_t i : units_.whole) shards->parameters()[i].tensor.detach().copy_(parameters()[i].tensor.detach());
  model.use_gate(shards);
  return shards;
}

std::shared_ptr<WeightShards> WeightShards::spread_base(Model& base) const {
  const c10::NoGradGuard no_grad;
  std::shared_ptr<WeightShards> shards(
      new WeightShards(base, *communicator_, cut_, holds_, SpreadModel::kBase, false, window_bytes_));
  for (size_t part = 0; part < parts_.size(); ++part) {
    SpreadPart& unit = shards->parts_[part];
    free_all(unit);  // its bfloat16 matrices
    unit.padded = parts_[part].padded;
    unit.own_size = parts_[part].own_size;
  }
  shards->make_windows();
  base.use_gate(shards);
  return shards;
}

SpreadPart& WeightShards::unit_of(int64_t part) {
  return parts_[is_tied_ && part == num_layers() + 1 ? 0 : static_cast<size_t>(part)];
}

void WeightShards::take_changes() {
  const c10::NoGradGuard no_grad;
  for (SpreadPart& unit : parts_) unit.take_from_model(rank());
}

void WeightShards::weights_changed() {
  const c10::NoGradGuard no_grad;
  for (SpreadPart& unit : parts_) {
    unit.round();
    leave_file(unit.padded_masters);
  }
}

void WeightShards::drop_masters() {
  for (SpreadPart& unit : parts_) unit.drop_masters();
}

Result<> WeightShards::offload_numbers(const std::shared_ptr<Offload>& files) {
  for (const SpreadPart& unit : parts_) {
    if (unit.padded.defined()) TRY(files->take(unit.padded));
  }
  return offload_masters(files);
}

Result<> WeightShards::offload_masters(const std::shared_ptr<Offload>& files) {
  files_ = files;
  for (const auto& windows : {embedding_, head_}) {
    if (windows != nullptr) windows->lie_in(files.get());
  }
  for (const SpreadPart& unit : parts_) {
    if (unit.padded_masters.defined()) TRY(files->take(unit.padded_masters));
  }
  return {};
}

// Gives the pages of numbers that lie in a file back.
void WeightShards::leave_file(const at::Tensor& numbers) const {
  if (files_ != nullptr && numbers.defined()) files_->release(numbers);
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

// What passes read of a layer that has arrived. What it is computed from goes, unless all weights are wanted.
void WeightShards::compute_layer(int64_t part) {
  SpreadPart& unit = unit_of(part);
  if (kind_ == SpreadModel::kAdapted) {
    if (model_->model_part() != nullptr)
      model_->model_part()->merge_layer(part - 1);
    else
      model_->trained_lora()->merge_layer(part - 1);
  }
  const DecoderWeights& weights = pass_weights(*model_);
  if (kind_ != SpreadModel::kParameters && !weights.rounded.empty())
    round_to_nearest(weights, static_cast<size_t>(part) - 1);
  if (is_whole()) return;
  release(unit.passing);
  unit.has_passing = false;
}

void WeightShards::drop(int64_t part) {
  SpreadPart& unit = unit_of(part);
  if (!unit.is_open) return;
  unit.is_open = false;
  release(unit.kept);
  if (unit.has_passing) release(unit.passing);
  unit.has_passing = false;
}

// Starts to gather a layer.
void WeightShards::prefetch(int64_t part) {
  if (!is_layer(part) || error_) return;
  const SpreadPart& unit = parts_[static_cast<size_t>(part)];
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
  SpreadPart& unit = unit_of(part);
  if (unit.tensors.empty() || !unit.is_read) return;
  if (keeps) {
    hold(unit.kept);
    hold(unit.passing);
    unit.is_open = unit.has_passing = true;
  }
  if (is_layer(part))
    receive(part, keeps);
  else
    gather_in_pieces(unit.shards, unit.padded, unit.tensors, keeps);
  leave_file(unit.padded);
  if (keeps && is_layer(part)) compute_layer(part);
}

void WeightShards::receive(int64_t part, bool keeps) {
  if (!prefetched_ || prefetched_->part != part) prefetch(part);
  if (error_) return;
  const SpreadPart& unit = unit_of(part);
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

// `own`: padded.
void WeightShards::gather_in_pieces(const Shards& shards, const at::Tensor& own, std::span<const at::Tensor> tensors,
                                    bool keeps) {
  const int64_t longest = own.numel(), num_ranks = communicator_->size();
  const int64_t most = Shards::kRoundBytes / static_cast<int64_t>(own.element_size()) / num_ranks;
  for (int64_t begin = 0; begin < longest && !error_; begin += std::max<int64_t>(1, most)) {
    const int64_t size = std::min(std::max<int64_t>(1, most), longest - begin);
    const at::Tensor numbers = at::empty({num_ranks * size}, own.options());
    if (const Result<> done = communicator_->all_gather(own.narrow(0, begin, size), numbers, kWeightsStage);
        !done.ok()) {
      error_ = done.error();
      return;
    }
    for (int rank = 0; keeps && rank < communicator_->size(); ++rank) {
      const FlatRange all = shards.of(rank);
      const FlatRange range = all.within({all.begin + begin, all.begin + begin + size});
      if (range.size() > 0) copy_to_tensors(shards, numbers.narrow(0, rank * size, range.size()), range, tensors);
    }
  }
}

// A part that this rank does not need, but others may.
void WeightShards::pass_by(int64_t part, GatePass pass) {
  if (windows_of(part) == nullptr)
    gather(part, false);
  else if (part == 0)
    embedding_->help_pick();
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
    next_ = part + 1;
    if (windows_of(part) != nullptr) return;
    gather(part, true);
    prefetch(part + 1);
    return;
  }
  for (; next_ > part; --next_) pass_by(next_, pass);
  gather(part, true);
  if (part > first_backward_) prefetch(part - 1);
}

void WeightShards::close(int64_t part, GatePass pass) {
  if (is_whole()) return;
  drop(part);
  if (pass == GatePass::kForward) {
    if (windows_of(part) != nullptr) prefetch(part + 1);  // behind the windows
    return;
  }
  if (on_layer_) on_layer_(part);
  next_ = part - 1;
}

void WeightShards::finish_forward() {
  if (is_whole()) return;
  if (!in_forward_) next_ = 0;
  for (; next_ < static_cast<int64_t>(parts_.size()); ++next_) pass_by(next_, GatePass::kForward);
  drop(num_layers() + 1);
  if (head_ != nullptr) head_->help_walks();
  in_forward_ = false;
}

void WeightShards::run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) {
  next_ = num_layers();
  on_layer_ = on_layer;
  if (own) own();
  // The lowest layer is not closed by backward if its input has no gradient.
  if (!is_whole() && next_ >= 1 && parts_[static_cast<size_t>(next_)].is_open) close(next_, GatePass::kBackward);
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
  for (const NamedParameter& parameter : pass_parameters(*model_))
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  return status();
}

void WeightShards::release_all() {
  if (num_whole_ == 1) {
    for (int64_t part = 0; part < static_cast<int64_t>(parts_.size()); ++part) drop(part);
    ::malloc_trim(0);
  }
  --num_whole_;
}

Result<> WeightShards::gather_masters(const KeepsPart& keeps) {
  if (num_with_masters_++ > 0) return status();
  const c10::NoGradGuard no_grad;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const SpreadPart& unit = parts_[part];
    if (unit.masters.empty()) continue;
    const bool is_kept = !keeps || keeps(static_cast<int64_t>(part));
    if (is_kept) std::ranges::for_each(unit.of_masters, allocate_memory);
    gather_in_pieces(unit.shards, unit.padded_masters, unit.masters, is_kept);
    leave_file(unit.padded_masters);
  }
  return status();
}

void WeightShards::release_masters() {
  if (--num_with_masters_ > 0) return;
  for (const SpreadPart& unit : parts_) std::ranges::for_each(unit.of_masters, free_memory);
}

// This rank's numbers of what passes read.
at::Tensor WeightShards::merged_numbers(int64_t part) {
  SpreadPart& unit = parts_[static_cast<size_t>(part)];
  if (kind_ != SpreadModel::kAdapted) return unit.numbers();
  ++num_whole_;  // merged matrices in float32 too
  gather(part, true);
  std::vector<at::Tensor> merged;
  for (const size_t i : units_.parts[static_cast<size_t>(part)])
    merged.push_back(pass_parameters(*model_)[i].tensor.detach());
  at::Tensor out = at::empty_like(unit.own());
  copy_from_tensors(unit.shards, merged, unit.shards.of(rank()), out);
  drop(part);
  --num_whole_;
  return out;
}

void WeightShards::move_towards(WeightShards& other, double weight) {
  const c10::NoGradGuard no_grad;
  for (size_t part = 0; part < parts_.size(); ++part) {
    SpreadPart& unit = parts_[part];
    if (unit.tensors.empty()) continue;
    const at::Tensor to = unit.numbers();
    const at::Tensor from = other.merged_numbers(static_cast<int64_t>(part));
    int64_t at = 0;
    // Tensor by tensor, so that the kernel takes the same numbers together as for whole tensors.
    for (const TensorPart& piece : unit.shards.parts(unit.shards.of(rank()))) {
      to.narrow(0, at, piece.size).lerp_(from.narrow(0, at, piece.size).to(to.scalar_type()), weight);
      at += piece.size;
    }
    other.leave_file(from);
    leave_file(to);
  }
  weights_changed();
}

WeightShards* shards_of(const Model& model) { return dynamic_cast<WeightShards*>(model.gate()); }

}  // namespace mortise
