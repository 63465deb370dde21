// One micro-batch through the model: packed rows in, the hidden state that predicts each response token out. With
// sequence parallel a rank has those of its own tokens.
// Shared by the policy's updates, the supervised warm start and the log-prob passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>

#include "learn/update/learner_options.h"
#include "learn/update/micro_batches.h"
#include "model/model.h"

namespace mortise {

struct PackedForward {
  // The response tokens that this rank has: all of them without sequence parallel.
  at::Tensor selected_RH;                    // in the autograd graph where GradMode is on
  at::Tensor hidden_RH;                      // the same, detached: what the head works on
  at::Tensor targets_R;                      // int64, the response tokens row by row
  TargetShare targets;                       // which ones these are
  std::shared_ptr<RouterPass> routing = {};  // what the routers were told, and told; null: nothing
  ExpertChoices experts = {};                // that the rows took, if the pass records them
  FlopCount* flops = nullptr;
  double backward_flops = 0.0;

  // From the gradient of hidden_RH into the model, for GradientSum::end_round.
  [[nodiscard]] std::function<void()> backward_pass(const at::Tensor& d_hidden_RH) const {
    return [forward = *this, d_hidden_RH] {
      // Where only the head is trained, the hidden states have no gradient.
      if (forward.selected_RH.requires_grad()) forward.selected_RH.backward(d_hidden_RH);
      forward.count_backward();
    };
  }
  // For a head that is part of the graph, if the caller runs backward.
  void count_backward() const {
    if (flops != nullptr) flops->total += backward_flops;
  }
};

// Errors (kind data) name the row whose ids do not fit the model. If its weights are spread over ranks, its head stays in
// memory until finish_forward().
Result<PackedForward> forward_rows(const Model& model, const StepTable& table, std::span<const int64_t> rows,
                                   const PassOptions& options = {});

// The first failure of the ranks that share the model's layers, if there are any: its numbers have no meaning then.
Result<> check_tensor_ranks(const Model& model);

// A rank that has no forward pass of this model in a round helps the others, before it walks over the head of another model.
// Null, and a model that every rank has as a whole: nothing.
Result<> help_forward(const Model* model);

// Every rank, when the forward passes of a round are over, also where a rank had none: models whose weights are spread
// over ranks let go of their heads. Null models count as whole.
Result<> finish_forward(std::initializer_list<const Model*> models);

}  // namespace mortise
