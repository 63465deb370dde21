// Gathers and frees the parts of WeightShards: one by one as passes open and close them, or all at once.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <malloc.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "learn/optim/weight_shards.h"
#include "model/tensor/storage_memory.h"
#include "model/weights/rounded_matrices.h"

namespace mortise {

namespace {

constexpr std::string_view kWeightsStage = "gathering weights";

}  // namespace

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
      if (in_forward_) {
        finish_forward();
        help_walks();
      }
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
  if (is_whole() || has_finished_) return;
  if (!in_forward_) next_ = 0;
  for (; next_ < static_cast<int64_t>(parts_.size()); ++next_) pass_by(next_, GatePass::kForward);
  drop(num_layers() + 1);
  in_forward_ = false;
  has_finished_ = true;
}

void WeightShards::help_walks() {
  has_finished_ = false;
  if (!is_whole() && head_ != nullptr) head_->help_walks();
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

Result<> WeightShards::gather_all() {
  if (num_whole_++ > 0) return {};
  ::malloc_trim(0);  // the allocator still has the pages of the last update
  for (int64_t part = 0; part < static_cast<int64_t>(parts_.size()); ++part) {
    if (is_tied_ && part == num_layers() + 1) continue;
    gather(part, /*keeps=*/true);
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

Result<> WeightShards::open_whole(int64_t part, bool keeps) {
  const c10::NoGradGuard no_grad;
  if (keeps) ++num_whole_;
  gather(part, keeps);
  const SpreadPart& unit = unit_of(part);
  if (unit.masters.empty()) return status();
  if (keeps) std::ranges::for_each(unit.of_masters, allocate_memory);
  gather_in_pieces(unit.shards, unit.padded_masters, unit.masters, keeps);
  leave_file(unit.padded_masters);
  return status();
}

void WeightShards::close_whole(int64_t part) {
  drop(part);
  std::ranges::for_each(unit_of(part).of_masters, free_memory);
  --num_whole_;
}

Result<> WeightShards::gather_masters() {
  if (num_with_masters_++ > 0) return status();
  const c10::NoGradGuard no_grad;
  for (const SpreadPart& unit : parts_) {
    if (unit.masters.empty()) continue;
    std::ranges::for_each(unit.of_masters, allocate_memory);
    gather_in_pieces(unit.shards, unit.padded_masters, unit.masters, /*keeps=*/true);
    leave_file(unit.padded_masters);
  }
  return status();
}

void WeightShards::release_masters() {
  if (--num_with_masters_ > 0) return;
  for (const SpreadPart& unit : parts_) std::ranges::for_each(unit.of_masters, free_memory);
}

}  // namespace mortise
