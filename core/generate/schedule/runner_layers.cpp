// See runner_layers.h.
#include "generate/schedule/runner_layers.h"

#include <ATen/ops/empty_like.h>

#include <utility>

namespace mortise {

ModelConfig layers_here(const ModelConfig& whole, const TensorRanks* ranks) {
  return ranks == nullptr ? whole : split_config(whole, ranks->size());
}

RunnerLayers::RunnerLayers(const Model& model, std::shared_ptr<TensorRanks> ranks)
    : model_(model), ranks_(std::move(ranks)), config_(layers_here(model.config(), ranks_.get())) {}

VocabularyHead RunnerLayers::head() const {
  VocabularyHead out = model_.head_to_sample();
  if (out.rounds) out.rounded_VH = rounded_head_;
  return out;
}

void RunnerLayers::round_head() {
  const VocabularyHead head = model_.head_to_sample();
  if (!head.rounds || !is_head_old_) return;
  if (!rounded_head_.defined())
    rounded_head_ = at::empty_like(head.weight_VH, head.weight_VH.options().dtype(at::kBFloat16));
  rounded_head_.copy_(head.weight_VH);
  is_head_old_ = false;
}

at::Tensor RunnerLayers::hidden_states(const PackedBatch& batch, const ForwardOptions& options) {
  if (ranks_ == nullptr) return model_.forward_hidden(batch, options);
  if (part_ == nullptr) part_ = model_.part_of_layers(ranks_);
  ForwardOptions own = options;
  if (model_.device().by_operators) own.path = LayerPath::kOperators;
  own.tensor = ranks_;
  return decoder_forward(part_->config(), part_->weights(), part_->leaves_to_sample(), batch, own);
}

}  // namespace mortise
