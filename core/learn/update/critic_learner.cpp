// Runs the critic's value passes and updates.
#include "learn/update/critic_learner.h"

#include <ATen/ops/from_blob.h>

#include "learn/objective/value_objective.h"
#include "learn/update/column_pass.h"
#include "learn/update/finite_step.h"
#include "learn/update/gradient_sum.h"
#include "learn/update/small_weights.h"
#include "learn/update/update_slice.h"
#include "model/layers/linear.h"
#include "model/tensor/compute_team.h"

namespace mortise {

namespace {

// [R] of the micro-batch's response tokens, row by row.
at::Tensor values_of(const Model& model, const PackedForward& forward) {
  const at::Tensor head = model.head_weight();
  return fused_linear(forward.selected_RH, head.detach(), {}, {head}, {}).squeeze(-1);
}

std::vector<float> floats_of(const at::Tensor& values) {
  const at::Tensor plain = on_host(values.detach()).to(at::kFloat).contiguous();
  const float* data = plain.const_data_ptr<float>();
  return {data, data + plain.numel()};
}

}  // namespace

Result<std::vector<float>> CriticLearner::values(const StepTable& table) const {
  std::vector<float> out;
  std::vector<float>* const columns[] = {&out};
  const auto compute = [&](const PackedForward& forward, std::span<const int64_t>) {
    return std::vector<at::Tensor>{values_of(*model_, forward)};
  };
  TRY(run_column_pass(*model_, table, options_.learner.micro_batch, options_.learner, "values", compute, columns));
  const auto mask = table.get<column::ResponseMask>();
  for (size_t t = 0; t < out.size(); ++t) {
    if (mask[t] == 0) out[t] = 0.0F;
  }
  return out;
}

Result<LeafReport> CriticLearner::compute(const StepTable& table, std::span<const int64_t> micro,
                                          const UpdateCounts& counts, BackwardPass& backward) {
  LeafReport leaf;
  const PackedForward forward = TRY(forward_rows(*model_, table, micro, options_.learner.pass));
  if (forward.targets.num_targets() == 0) return leaf;
  const at::Tensor vpreds_R = values_of(*model_, forward);
  const std::vector<float> vpreds = floats_of(forward.targets.whole(vpreds_R.detach()));
  StepTable part = table.take(micro, {});
  TRY(put_weights(options_.aggregation, counts, part));
  std::vector<float> grad(vpreds.size());
  leaf.sums.loss = value_objective(vpreds, part.view(), options_.cliprange_value, grad, leaf.metrics);
  const at::Tensor grad_R = at::from_blob(grad.data(), {static_cast<int64_t>(grad.size())}, at::kFloat);
  const at::Tensor d_vpreds_R =
      forward.targets.own(grad_R).to(vpreds_R.options().requires_grad(false), /*non_blocking=*/false, /*copy=*/true);
  backward = [forward, vpreds_R, d_vpreds_R] {
    vpreds_R.backward(d_vpreds_R);
    forward.count_backward();
  };
  leaf.has_gradient = true;
  return leaf;
}

Result<CriticReport> CriticLearner::update(const StepTable& table, std::span<const int64_t> rows,
                                           const CriticPlace& place) {
  const LibtorchAlone alone(has_small_weights(*model_, options_.learner.pass));
  CriticReport report;
  const UpdateCounts counts = count_rows(table, rows);
  model_->zero_grad();
  const MicroPlan plan = plan_micro_batches(table, rows, options_.learner.micro_batch);
  const RankShare share =
      share_update(micro_tokens(table, plan), options_.learner.ranks, optimizer_->shares_gradients());
  GradientSum gradient(*model_, *optimizer_, share, options_.learner.ranks);
  std::vector<LeafReport> leaves(plan.size());
  for (const std::optional<size_t>& micro : share.rounds()) {
    BackwardPass backward;
    if (micro) {
      leaves[*micro] = TRY(compute(table, plan[*micro], counts, backward));
      show_micro_batch("critic", *micro, plan.size());
    }
    TRY(finish_forward({model_}));
    TRY(gradient.end_round(micro, backward));
  }
  TRY(exchange_leaves(share, leaves));
  for (const LeafReport& leaf : leaves) {
    report.loss += leaf.sums.loss;
    TRY(report.metrics.merge(leaf.metrics));
  }
  report.metrics.add_mean("critic/vf_loss", report.loss, 1.0);
  TRY(gradient.finish(leaves));
  report.lr = place.lr();
  const FiniteStep step = TRY(step_if_finite(*model_, *optimizer_, report.loss, report.lr, options_.learner.grad_clip));
  if (place.open_step == nullptr)
    report_step(step, report);
  else
    *place.open_step = step;
  return report;
}

}  // namespace mortise
