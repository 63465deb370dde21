// Exchanges numbers in a group of ranks, and splits the response tokens of a micro-batch among them.
#include "learn/update/sequence_group.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace mortise {

namespace {

constexpr std::string_view kSequenceStage = "sequence parallel";

}  // namespace

Result<Communicator*> SequenceGroup::group() const {
  Communicator* const block = TRY(ranks_->neighbours(size_ * tensor_size_));
  return tensor_size_ == 1 ? Result<Communicator*>(block) : block->strided(tensor_size_);
}

template <class Call>
void SequenceGroup::run(const Call& call) {
  if (error_) return;
  const Result<> done = [&]() -> Result<> { return call(*TRY(group())); }();
  if (!done.ok()) error_ = done.error();
}

void SequenceGroup::all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                               std::span<const int64_t> output_sizes) {
  run([&](Communicator& group) { return group.all_to_all(input, input_sizes, output, output_sizes, kSequenceStage); });
}

void SequenceGroup::sum(const at::Tensor& tensor) {
  run([&](Communicator& group) { return group.all_reduce_sum(tensor, kSequenceStage); });
}

Result<std::vector<std::string>> SequenceGroup::exchange(const std::string& bytes) {
  TRY(status());
  return TRY(group())->exchange(bytes, kSequenceStage);
}

Result<> SequenceGroup::status() const {
  if (error_) return *error_;
  return {};
}

TargetShare::TargetShare(std::shared_ptr<SequenceGroup> group, const SequenceShard& shard,
                         const at::Tensor& predict_index_R)
    : num_targets_(predict_index_R.numel()), group_(std::move(group)) {
  const int64_t* const predict = predict_index_R.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < num_targets_; ++r) {
    const auto behind = std::upper_bound(shard.offsets.begin(), shard.offsets.end(), predict[r]);
    owners_.push_back(static_cast<int>(behind - shard.offsets.begin()) - 1);
    if (owners_.back() == group_->rank()) places_.push_back(r);
  }
  index_O_ = at::tensor(places_, at::kLong);
}

at::Tensor TargetShare::own(const at::Tensor& whole_R) const {
  return is_whole() || !whole_R.defined() ? whole_R : at::index_select(whole_R, 0, index_O_.to(whole_R.device()));
}

KeptTokens TargetShare::own(const KeptTokens& whole_R) const {
  if (is_whole() || whole_R.empty()) return whole_R;
  KeptTokens out;
  for (const int64_t place : places_) out.append(whole_R, place, place + 1);
  return out;
}

// The others add zeros, so the values stay what they are.
at::Tensor TargetShare::whole(const at::Tensor& own_O) const {
  if (is_whole() || !own_O.defined()) return own_O;
  const at::Tensor out = at::zeros({num_targets_}, own_O.options());
  out.index_copy_(0, index_O_.to(own_O.device()), own_O);
  group_->sum(out);
  return out;
}

std::vector<double> TargetShare::whole(const std::vector<double>& own_O) const {
  if (is_whole()) return own_O;
  std::vector<double> out = in_place(own_O);
  group_->sum(at::from_blob(out.data(), {num_targets_}, at::kDouble));
  return out;
}

}  // namespace mortise
