// Runs the reference on the micro-batch, and calls the full-vocabulary KL head.
#include "learn/update/full_kl_term.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "model/head/full_kl.h"

namespace mortise {

namespace {

Result<HeadSide> reference_side(const StepTable& table, const LearnerOptions& options) {
  c10::NoGradGuard no_grad;
  PassOptions pass = options.pass;
  pass.activation_bytes.reset();  // nothing is kept for backward
  const PackedForward forward = TRY(forward_rows(*options.reference, table, all_rows(table), pass));
  return HeadSide{forward.hidden_RH, options.reference->head()};
}

}  // namespace

Result<FullKlTerm> full_kl_term(const ActorObjective& objective, const Model& policy, const UpdateSlice& slice,
                                const PackedForward& forward, const LearnerOptions& options) {
  FullKlTerm out;
  if (!objective.uses_full_kl() || slice.num_tokens() == 0) return out;
  if (options.reference == nullptr)
    return Error{ErrorKind::kConfig, "the KL over the whole vocabulary needs the reference model", "actor.kl_loss_type",
                 "use an estimator"};
  const HeadSide reference = TRY(reference_side(slice.table, options));
  const double coefficient = objective.kl_loss_coef();
  const auto mask = slice.mask();
  const auto weights = slice.table.get<column::Weight>();
  std::vector<double> weight(slice.num_tokens());
  for (size_t t = 0; t < weight.size(); ++t)
    weight[t] = mask[t] != 0 ? coefficient * static_cast<double>(weights[t]) : 0.0;
  at::Tensor d_weight_VH;
  if (std::any_of(weight.begin(), weight.end(), [](double w) { return w != 0.0; })) {
    out.d_hidden_RH = at::empty_like(forward.hidden_RH);
    d_weight_VH = policy.head_grad();
  }
  const std::vector<double> kl = head_full_kl({forward.hidden_RH, policy.head()}, reference, options.temperature,
                                              weight, out.d_hidden_RH, d_weight_VH, options.head);
  for (size_t t = 0; t < kl.size(); ++t) {
    if (mask[t] == 0) continue;
    out.sums.kl += kl[t];
    out.sums.kl_loss += static_cast<double>(weights[t]) * kl[t];
  }
  out.sums.loss = coefficient * out.sums.kl_loss;
  return out;
}

}  // namespace mortise
