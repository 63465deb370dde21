// The layers that a runner passes: those of the model, or this rank's part of them where ranks sample together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "model/layers/tensor_ranks.h"
#include "model/model.h"

namespace mortise {

// The shapes of the layers that a rank has. `ranks`: those that share the layers; null: it has all of each.
[[nodiscard]] ModelConfig layers_here(const ModelConfig& whole, const TensorRanks* ranks);

class RunnerLayers {
 public:
  // `ranks`: those that share the layers; null: this rank has all. `model` must outlive this object.
  RunnerLayers(const Model& model, std::shared_ptr<TensorRanks> ranks);

  // The shapes of the layers here.
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const std::shared_ptr<TensorRanks>& ranks() const { return ranks_; }
  // [N, H], final norm applied. If ranks share the layers: a collective, with the same numbers on each. Then status() tells
  // whether it failed.
  [[nodiscard]] at::Tensor hidden_states(const PackedBatch& batch, const ForwardOptions& options);
  [[nodiscard]] Result<> status() const { return ranks_ == nullptr ? Result<>() : ranks_->status(); }
  // What turns them into logits. It has the whole vocabulary. If it rounds, it has the copy of round_head().
  [[nodiscard]] VocabularyHead head() const;
  // Before passes on a device: rounds a head that rounds, if weights have changed. The copy stays where it is.
  void round_head();
  // Weights have changed, or memory is short: frees a copy of the part.
  void forget() {
    part_ = nullptr;
    is_head_old_ = true;
  }
  // Frees the copy of the head, too.
  void free() {
    forget();
    rounded_head_ = at::Tensor();
  }

 private:
  const Model& model_;
  std::shared_ptr<TensorRanks> ranks_;
  ModelConfig config_;
  std::shared_ptr<const ModelPart> part_;
  at::Tensor rounded_head_;
  bool is_head_old_ = true;
};

}  // namespace mortise
