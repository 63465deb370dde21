// Terms over the whole vocabulary as plain torch computes them, for the tests of the learner.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>

#include <vector>

#include "learner_fixture.h"

namespace mortise {

struct PlainTerm {
  std::vector<at::Tensor> grads;  // one per trained parameter
  double mean = 0.0;
};

// By autograd over all logits: 0.3 times the mean over the unmasked tokens of divergence(log_p, log_q), where p is the
// model's distribution and q that of `other`.
template <class Divergence>
PlainTerm plain_term(Model& model, const Model& other, const StepTable& batch, double temperature,
                     const Divergence& divergence) {
  const std::vector<int64_t> rows = all_rows(batch);
  const PackedForward ours = forward_rows(model, batch, rows).value(),
                      theirs = forward_rows(other, batch, rows).value();
  const auto log_probs = [&](const at::Tensor& hidden, const at::Tensor& weight) {
    return at::log_softmax(head_logits(hidden, weight) / temperature, -1);
  };
  const at::Tensor values =
      divergence(log_probs(ours.selected_RH, model.head_weight()), log_probs(theirs.hidden_RH, other.head().weight_VH));
  const at::Tensor mask = at::empty({batch.num_tokens()}, at::kDouble);
  for (int64_t t = 0; t < batch.num_tokens(); ++t)
    mask.mutable_data_ptr<double>()[t] = batch.get<column::ResponseMask>()[static_cast<size_t>(t)];
  const at::Tensor mean = (values * mask).sum() / mask.sum();
  model.zero_grad();
  (mean * 0.3).backward();
  PlainTerm out;
  out.mean = mean.item<double>();
  for (const NamedParameter& p : model.trainable()) out.grads.push_back(p.tensor.grad().clone());
  return out;
}

}  // namespace mortise
