// The losses of the routers of a mixture of experts, over one update.
//
//   balance = E sum_e (C_e / M)(P_e / M),   z = (1/M) sum_m logsumexp(logits_m)^2
//
// E experts. M counts the tokens of the update's rows (a prompt's once for each row that has it), once for each layer with
// experts. C_e of these choose expert e, P_e is the sum of its probabilities. `balance` is load_balancing_loss_func of
// transformers on the update as one batch (Switch, arXiv 2101.03961); z is ST-MoE's (arXiv 2202.08906). Counts have no
// gradient. A token's gradient needs C of the whole update, so if the update has several micro-batches, count() finds C
// in a pass without gradient before them. The gradient therefore does not depend on the split, and the ranks get the
// same numbers. Private to this folder, but for RouterLossOptions. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "foundation/metrics/registry.h"
#include "learn/update/leaf_report.h"
#include "learn/update/learner_options.h"
#include "learn/update/packed_forward.h"
#include "model/model.h"

namespace mortise {

class RouterLosses {
 public:
  // Borrows all. `rows` of the table are those of the update.
  RouterLosses(const Model& model, const StepTable& table, std::span<const int64_t> rows,
               const LearnerOptions& options);

  [[nodiscard]] bool is_on() const { return terms_ != nullptr; }
  // What the passes of the update tell the routers; null: nothing.
  [[nodiscard]] const std::shared_ptr<const RouterTerms>& terms() const { return terms_; }
  // Every rank, before the update's passes; `pass` is theirs.
  Result<> count(const MicroPlan& plan, const RankShare& share, const PassOptions& pass);
  // After the forward pass of a micro-batch, and before its backward pass.
  void note(const PackedForward& forward, LeafReport& leaf);
  // The values, from all micro-batches: adds the losses to `loss`, and metrics.
  void report(std::span<const LeafReport> leaves, double& loss, MetricSet& metrics) const;

 private:
  void set_balance(const at::Tensor& count_E);

  const Model* model_;
  const StepTable* table_;
  double aux_coef_ = 0.0, z_coef_ = 0.0;
  double num_tokens_ = 0.0;  // M
  bool is_counted_ = false;
  std::shared_ptr<const RouterTerms> terms_;
};

}  // namespace mortise
