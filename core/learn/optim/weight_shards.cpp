// Keeps this rank's numbers of a model's parts. gathered_parts.cpp gives the parts memory.
#include "learn/optim/weight_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "model/tensor/storage_memory.h"

namespace mortise {

namespace {

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
    if (window_bytes_ == 0 || unit.tensors.size() != 1 || !unit.is_read ||
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
  for (size_t part = 0; part < shards->parts_.size(); ++part) {
    SpreadPart& unit = shards->parts_[part];
    unit.make_own(communicator.rank());
    if (shards->error_) continue;
    if (const Result<> read = model.read_part(static_cast<int64_t>(part)); read.ok())
      unit.take_from_model(communicator.rank());
    else
      shards->error_ = read.error();
    free_all(unit);
  }
  model.end_reading();
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

void WeightShards::pair_heads(const WeightShards& reference) const {
  if (head_ != nullptr && reference.head_ != nullptr) head_->pair_with(*reference.head_);
}

Result<> WeightShards::status() const {
  if (error_) return *error_;
  return {};
}

// This rank's numbers of what passes read.
at::Tensor WeightShards::merged_numbers(int64_t part) {
  SpreadPart& unit = parts_[static_cast<size_t>(part)];
  if (kind_ != SpreadModel::kAdapted) return unit.numbers();
  static_cast<void>(open_whole(part));  // merged matrices in float32 too; an error is in status()
  std::vector<at::Tensor> merged;
  for (const size_t i : units_.parts[static_cast<size_t>(part)])
    merged.push_back(pass_parameters(*model_)[i].tensor.detach());
  at::Tensor out = at::empty_like(unit.own());
  copy_from_tensors(unit.shards, merged, unit.shards.of(rank()), out);
  close_whole(part);
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
