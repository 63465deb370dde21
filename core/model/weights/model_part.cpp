// See model_part.h.
#include "model/weights/model_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "model/tensor/storage_memory.h"
#include "model/weights/names.h"
#include "model/weights/rounded_matrices.h"
#include "model/weights/weight_units.h"

namespace mortise {
namespace {

// The parts of a layer that every rank has.
void share_layer(const LayerWeights& weights, const LayerLeaves& leaves, LayerWeights& to, LayerLeaves& to_leaves) {
  to.input_norm_H = weights.input_norm_H;
  to.q_norm_D = weights.q_norm_D;
  to.k_norm_D = weights.k_norm_D;
  to.o_bias_H = weights.o_bias_H;
  to.attention_norm_H = weights.attention_norm_H;
  to.post_norm_H = weights.post_norm_H;
  to.down_bias_H = weights.down_bias_H;
  to.mlp_norm_H = weights.mlp_norm_H;
  to_leaves.input_norm = leaves.input_norm;
  to_leaves.q_norm = leaves.q_norm;
  to_leaves.k_norm = leaves.k_norm;
  to_leaves.o_bias = leaves.o_bias;
  to_leaves.attention_norm = leaves.attention_norm;
  to_leaves.post_norm = leaves.post_norm;
  to_leaves.down_bias = leaves.down_bias;
  to_leaves.mlp_norm = leaves.mlp_norm;
  to.experts.router_EH = weights.experts.router_EH;
  to.experts.router_bias_E = weights.experts.router_bias_E;
  to.experts.down_bias_EH = weights.experts.down_bias_EH;
  to.experts.shared_gate_1H = weights.experts.shared_gate_1H;
  to_leaves.experts.router = leaves.experts.router;
  to_leaves.experts.router_bias = leaves.experts.router_bias;
  to_leaves.experts.down_bias = leaves.experts.down_bias;
  to_leaves.experts.shared_gate = leaves.experts.shared_gate;
}

void share_vocabulary(const ParameterStore& whole, ParameterStore& part) {
  part.weights.embedding_VH = whole.weights.embedding_VH;
  part.weights.head_VH = whole.weights.head_VH;
  part.leaves.embedding = whole.leaves.embedding;
  part.leaves.head = whole.leaves.head;
}

void share_common(const ParameterStore& whole, ParameterStore& part) {
  part.weights.final_norm_H = whole.weights.final_norm_H;
  part.leaves.final_norm = whole.leaves.final_norm;
  for (size_t layer = 0; layer < part.leaves.layers.size(); ++layer)
    share_layer(whole.weights.layers[layer], whole.leaves.layers[layer], part.weights.layers[layer],
                part.leaves.layers[layer]);
}

// Frees all that ModelPart::gather_matrices() gives memory. `started`: what the starts of adapters left of matrices.
template <class Started>
void free_part(size_t part, const std::vector<std::vector<c10::Storage>>& storages, const DecoderWeights& whole,
               const std::vector<Started>& started) {
  std::ranges::for_each(storages[part], free_memory);
  if (part >= 1 && part <= whole.rounded.size()) free_rounded(whole, part - 1);
  for (const Started& one : started) {
    if (one.part == part && one.factors.split.is_split()) free_memory(one.whole_left_OI.storage());
  }
}

}  // namespace

ModelPart::ModelPart(const ModelConfig& config, const ParameterStore& whole, std::shared_ptr<TensorRanks> ranks,
                     Numbers numbers, Vocabulary vocabulary)
    : ranks_(std::move(ranks)),
      config_(split_config(config, ranks_->size())),
      whole_embedding_VH_(whole.weights.embedding_VH),
      whole_head_VH_(whole.weights.head_VH),
      embedding_leaf_(whole.leaves.embedding),
      head_leaf_(whole.leaves.head) {
  const at::NoGradGuard no_grad;
  const bool splits_vocabulary = vocabulary == Vocabulary::kSplit && !config.is_classifier;
  if (!splits_vocabulary) config_.vocab_size = config.vocab_size;
  store_ = allocate_parameters(config_, whole.weights.embedding_VH.scalar_type(), /*requires_grad=*/false,
                               whole.weights.embedding_VH.device(),
                               numbers == Numbers::kLater ? ParameterMemory::kCommon : ParameterMemory::kAll);
  share_common(whole, store_);
  if (!splits_vocabulary) share_vocabulary(whole, store_);
  by_part_.resize(static_cast<size_t>(config.num_layers) + 2);
  storages_.resize(by_part_.size());
  for (size_t i = 0; i < whole.parameters.size(); ++i) {
    const NamedParameter& parameter = whole.parameters[i];
    places_.emplace(parameter.name, i);
    const bool is_of_tokens = is_split_by_tokens(parameter.name);
    const TensorSplit& split = splits_.emplace_back(
        is_of_tokens && !splits_vocabulary ? TensorSplit() : split_of(config, parameter.name, ranks_->size()));
    const at::Tensor& all = whole_.emplace_back(parameter.tensor.detach());
    at::Tensor& own = store_.parameters[i].tensor;
    if (!split.is_split()) {
      own = parameter.tensor;
      continue;
    }
    const bool has_master = has_memory(all) || whole.weights.rounded.empty();
    if (numbers == Numbers::kTaken)
      take_numbers(i, has_master ? all : rounded_slice(whole.weights, parameter.tensor));
    else if (has_memory(own))
      take_numbers(i, all);
    if (is_of_tokens) {
      const SplitRange& range = split.ranges.front();
      vocabulary_ = std::make_shared<const VocabularyShare>(VocabularyShare{
          ranks_, range.begin_on(ranks_->rank()), split.used_size(ranks_->rank()), range.size, config.vocab_size});
    }
    own.set_requires_grad(parameter.tensor.requires_grad());
    const size_t part = part_of_matrix(parameter.name, by_part_.size());
    by_part_[part].push_back(i);
    auto& known = storages_[part];
    if (std::ranges::none_of(known, [&](const c10::Storage& one) { return one.is_alias_of(all.storage()); }))
      known.push_back(all.storage());
  }
  if (whole.weights.rounded.empty()) return;
  whole_matrices_ = whole.weights;
  allocate_rounded(store_.weights);
  if (numbers == Numbers::kTaken) round();
}

// What is unused of this rank's rows of the vocabulary is 0.
void ModelPart::take_numbers(size_t parameter, const at::Tensor& whole) const {
  const TensorSplit& split = splits_[parameter];
  const at::Tensor own = store_.parameters[parameter].tensor.detach();
  const bool is_of_tokens = is_split_by_tokens(store_.parameters[parameter].name);
  const int64_t size = own.size(split.dim());
  const int64_t used = is_of_tokens ? split.ranges.front().size_on(ranks_->rank()) : size;
  own.narrow(split.dim(), 0, used).copy_(split.part_of(whole, ranks_->rank()));
  if (is_of_tokens) own.narrow(0, used, size - used).zero_();
}

void ModelPart::take(size_t part) const {
  const at::NoGradGuard no_grad;
  for (const size_t i : by_part_[part]) {
    if (!has_memory(whole_[i])) continue;  // a vector, which was taken at once
    const at::Tensor& own = store_.parameters[i].tensor;
    if (!has_memory(own)) allocate_memory(own.storage());
    take_numbers(i, whole_[i]);
  }
  std::ranges::for_each(storages_[part], free_memory);
}

void ModelPart::free_whole() const {
  for (size_t part = 0; part < storages_.size(); ++part) {
    if (num_vocabulary_ == 0 || !is_vocabulary(part)) free_part(part, storages_, whole_matrices_, started_);
  }
}

void ModelPart::add_rounded(DecoderWeights& whole) {
  if (!store_.weights.rounded.empty()) {  // another view has added them
    whole.rounded = whole_matrices_.rounded;
    return;
  }
  allocate_rounded(whole);
  whole_matrices_ = whole;
  for (size_t layer = 0; layer < whole.rounded.size(); ++layer) free_rounded(whole, layer);
  allocate_rounded(store_.weights);
  round();
}

void ModelPart::forget_rounded() {
  store_.weights.rounded.clear();
  whole_matrices_ = {};
}

void ModelPart::round(const Offload* offload) const { round_to_nearest(store_.weights, offload); }

void ModelPart::drop_masters() {
  has_masters_ = store_.weights.rounded.empty();
  for (size_t layer = 0; layer < store_.weights.rounded.size(); ++layer) free_masters(store_.weights, layer);
}

std::vector<NamedParameter> ModelPart::numbers() const {
  std::vector<NamedParameter> out = store_.parameters;
  for (NamedParameter& parameter : out) {
    if (!has_masters_ && !has_memory(parameter.tensor) && rounded_layer(store_.weights, parameter.tensor) >= 0)
      parameter.tensor = rounded_slice(store_.weights, parameter.tensor);
  }
  return out;
}

at::Tensor ModelPart::parts_of(const at::Tensor& own) const {
  const at::Tensor parts = at::empty({ranks_->size(), own.numel()}, own.options());
  ranks_->gather(own.contiguous().view({-1}), parts.view({-1}));
  return parts;
}

// Some rows of each rank at a time: an embedding is large.
void ModelPart::gather_rows(size_t parameter, bool keeps) const {
  constexpr int64_t kMostNumbers = int64_t{4} << 20;  // those of all ranks
  const SplitRange& range = split(parameter).ranges.front();
  const at::Tensor own = store_.parameters[parameter].tensor.detach();
  const int64_t at_once = std::max<int64_t>(1, kMostNumbers / (own.size(1) * ranks_->size()));
  for (int64_t begin = 0; begin < range.size; begin += at_once) {
    const int64_t count = std::min(at_once, range.size - begin);
    const at::Tensor parts = parts_of(own.narrow(0, begin, count));
    for (int64_t rank = 0; keeps && rank < ranks_->size(); ++rank) {
      const int64_t used = std::min(count, range.size_on(rank) - begin);
      if (used <= 0) continue;
      whole_[parameter]
          .narrow(0, range.begin_on(rank) + begin, used)
          .copy_(parts.select(0, rank).view({count, own.size(1)}).narrow(0, 0, used));
    }
  }
}

void ModelPart::gather_matrices(size_t part, bool keeps) const {
  const bool has_rounded = !is_vocabulary(part) && !whole_matrices_.rounded.empty();
  if (keeps && has_rounded) allocate_rounded(whole_matrices_, part - 1);
  for (const size_t i : by_part_[part]) {
    at::Tensor own = store_.parameters[i].tensor.detach(), whole = whole_[i];
    if (!has_memory(own)) {  // there are no masters, or they lie on other ranks
      own = rounded_slice(store_.weights, own);
      whole = rounded_slice(whole_matrices_, whole);
    } else if (keeps && !has_memory(whole)) {
      allocate_memory(whole.storage());
    }
    if (is_vocabulary(part)) {
      gather_rows(i, keeps);
      continue;
    }
    const at::Tensor parts = parts_of(own);
    if (keeps) split(i).put_parts(parts, whole);
  }
  if (keeps && has_rounded) round_to_nearest(whole_matrices_, part - 1);
  if (keeps) leave_whole(part);
}

DecoderWeights ModelPart::weights_to_sample() const {
  DecoderWeights out = store_.weights;
  out.embedding_VH = whole_embedding_VH_;
  out.head_VH = whole_head_VH_;
  return out;
}

DecoderLeaves ModelPart::leaves_to_sample() const {
  DecoderLeaves out = store_.leaves;
  out.embedding = embedding_leaf_;
  out.head = head_leaf_;
  return out;
}

at::Tensor ModelPart::gathered(size_t parameter, const at::Tensor& own) const {
  const at::NoGradGuard no_grad;
  if (!split(parameter).is_split()) return own;
  const at::Tensor whole = at::empty(whole_sizes(parameter), own.options());
  split(parameter).put_parts(parts_of(own), whole);
  return whole;
}

Result<> ModelPart::gather_all() {
  if (num_whole_++ > 0) return {};
  // Plain layers read the base of adapted matrices. What no adapter changes is the base's too.
  if (base_ != nullptr) TRY(base_->gather_all());
  const at::NoGradGuard no_grad;
  for (size_t part = 0; part < by_part_.size(); ++part) {
    if (num_vocabulary_ > 0 && is_vocabulary(part)) continue;  // every rank has it
    gather_matrices(part, /*keeps=*/true);
  }
  // Copies that others have made of them are stale.
  for (const at::Tensor& one : whole_) one.unsafeGetTensorImpl()->bump_version();
  return ranks_->status();
}

Result<> ModelPart::gather_part(size_t part, bool keeps) {
  if (base_ != nullptr) TRY(base_->gather_part(part, keeps));
  const at::NoGradGuard no_grad;
  gather_matrices(part, keeps);
  return ranks_->status();
}

void ModelPart::release_part(size_t part) {
  free_part(part, storages_, whole_matrices_, started_);
  if (base_ != nullptr) base_->release_part(part);
}

Result<> ModelPart::gather_vocabulary() {
  const bool is_there = num_vocabulary_++ > 0 || num_whole_ > 0;
  if (base_ != nullptr) TRY(base_->gather_vocabulary());
  if (is_there) return {};
  const at::NoGradGuard no_grad;
  gather_matrices(0, /*keeps=*/true);
  gather_matrices(by_part_.size() - 1, /*keeps=*/true);
  return ranks_->status();
}

void ModelPart::release_vocabulary() {
  if (--num_vocabulary_ == 0 && num_whole_ == 0) {
    for (const size_t part : {size_t{0}, by_part_.size() - 1}) std::ranges::for_each(storages_[part], free_memory);
  }
  if (base_ != nullptr) base_->release_vocabulary();
}

void ModelPart::release_all() {
  if (num_whole_-- > 1) return;
  free_whole();
  if (base_ != nullptr) base_->release_all();
}

}  // namespace mortise
