// Runs the reference or the teacher on the micro-batch, and calls the heads that compare distributions.
#include "learn/update/vocabulary_terms.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>

#include "model/head/divergence.h"
#include "model/head/full_kl.h"

namespace mortise {

namespace {

Result<HeadSide> side_of(const Model& model, const StepTable& table, const LearnerOptions& options) {
  c10::NoGradGuard no_grad;
  PassOptions pass = options.pass;
  pass.activation_bytes.reset();  // nothing is kept for backward
  const PackedForward forward = TRY(forward_rows(model, table, all_rows(table), pass));
  return HeadSide{forward.hidden_RH, model.head()};
}

// The values of one term from the weights of its tokens, of this rank's targets, and where its gradients go.
using Compare = std::function<std::vector<double>(std::span<const double> weight, const at::Tensor& d_hidden_RH,
                                                  const at::Tensor& d_weight_VH)>;

// Adds the gradient of the sum of coefficient * w_t * value_t, with the given w. The values [R] of all targets are
// returned.
std::vector<double> add_term(double coefficient, const Model& policy, const UpdateSlice& slice,
                             std::span<const float> weights, const PackedForward& forward, const Compare& compare,
                             VocabularyTerms& out) {
  const auto mask = slice.mask();
  std::vector<double> weight(slice.num_tokens());
  for (size_t t = 0; t < weight.size(); ++t)
    weight[t] = mask[t] != 0 ? coefficient * static_cast<double>(weights[t]) : 0.0;
  at::Tensor d_hidden_RH, d_weight_VH;
  if (std::any_of(weight.begin(), weight.end(), [](double w) { return w != 0.0; })) {
    d_hidden_RH = at::empty_like(forward.hidden_RH);
    d_weight_VH = policy.head_grad();
  }
  std::vector<double> values = compare(forward.targets.own(std::move(weight)), d_hidden_RH, d_weight_VH);
  if (out.d_hidden_RH.defined() && d_hidden_RH.defined())
    out.d_hidden_RH.add_(d_hidden_RH);
  else if (d_hidden_RH.defined())
    out.d_hidden_RH = d_hidden_RH;
  return forward.targets.whole(values);
}

Result<> add_full_kl(const ActorObjective& objective, const Model& policy, const UpdateSlice& slice,
                     const PackedForward& forward, const LearnerOptions& options, double share, VocabularyTerms& out) {
  if (options.reference == nullptr)
    return Error{ErrorKind::kConfig, "the KL over the whole vocabulary needs the reference model", "actor.kl_loss_type",
                 "use an estimator"};
  const HeadSide reference = TRY(side_of(*options.reference, slice.table, options));
  const HeadSide own{forward.hidden_RH, policy.head()};
  const std::span<const float> weights = slice.kl_weights();
  const std::vector<double> kl = add_term(
      share * objective.kl_loss_coef(), policy, slice, weights, forward,
      [&](std::span<const double> weight, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH) {
        return head_full_kl(own, reference, options.temperature, weight, d_hidden_RH, d_weight_VH, options.head);
      },
      out);
  const auto mask = slice.mask();
  for (size_t t = 0; t < kl.size(); ++t) {
    if (mask[t] == 0) continue;
    out.sums.kl += kl[t];
    out.sums.kl_loss += static_cast<double>(weights[t]) * kl[t];
  }
  out.sums.loss += objective.kl_loss_coef() * out.sums.kl_loss;
  return {};
}

Result<> add_teacher(const Model& policy, const UpdateSlice& slice, const PackedForward& forward,
                     const LearnerOptions& options, double share, VocabularyTerms& out) {
  const TeacherLoss& loss = options.teacher_loss;
  const HeadSide teacher = TRY(side_of(*loss.teacher, slice.table, options));
  const HeadSide own{forward.hidden_RH, policy.head()};
  const auto weights = slice.table.get<column::Weight>();
  const std::vector<double> values = add_term(
      share * loss.coef, policy, slice, weights, forward,
      [&](std::span<const double> weight, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH) {
        return head_divergence(own, teacher, loss.beta, options.temperature, weight, d_hidden_RH, d_weight_VH,
                               options.head);
      },
      out);
  const auto mask = slice.mask();
  double sum = 0, aggregated = 0, num_tokens = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    if (mask[t] == 0) continue;
    sum += values[t];
    aggregated += static_cast<double>(weights[t]) * values[t];
    num_tokens += 1;
  }
  out.sums.loss += loss.coef * aggregated;
  if (num_tokens > 0) out.metrics.add_mean("actor/teacher_divergence", sum / num_tokens, num_tokens);
  return {};
}

}  // namespace

bool has_vocabulary_terms(const ActorObjective& objective, const LearnerOptions& options) {
  return objective.uses_full_kl() || options.teacher_loss.teacher != nullptr;
}

Result<VocabularyTerms> vocabulary_terms(const ActorObjective& objective, const Model& policy, const UpdateSlice& slice,
                                         const PackedForward& forward, const LearnerOptions& options, double share) {
  VocabularyTerms out;
  if (slice.num_tokens() == 0) {  // the policy's routers may send a gradient through its head nevertheless
    TRY(help_forward(objective.uses_full_kl() ? options.reference : nullptr));
    return out;
  }
  if (objective.uses_full_kl()) TRY(add_full_kl(objective, policy, slice, forward, options, share, out));
  if (options.teacher_loss.teacher != nullptr) TRY(add_teacher(policy, slice, forward, options, share, out));
  TRY(check_tensor_ranks(policy));
  return out;
}

}  // namespace mortise
