// Runs the micro-batches of a supervised update.
#include "learn/update/sft_learner.h"

#include <ATen/ops/empty_like.h>

#include "learn/update/finite_step.h"
#include "learn/update/gradient_sum.h"
#include "learn/update/packed_forward.h"
#include "learn/update/router_losses.h"
#include "model/head/log_prob_head.h"

namespace mortise {

namespace {

// Loss and gradient of one micro-batch; `weight` is that of a token that is learnt.
Result<LeafReport> sft_backward(const Model& model, const StepTable& table, const std::vector<int64_t>& micro,
                                const LearnerOptions& options, const PassOptions& pass, double weight,
                                RouterLosses& routers, BackwardPass& backward) {
  LeafReport leaf;
  std::vector<uint8_t> mask;
  for (const int64_t row : micro) {
    const auto learnt = table.of_row<column::ResponseMask>(row);
    mask.insert(mask.end(), learnt.begin(), learnt.end());
  }
  if (mask.empty()) return leaf;
  const PackedForward forward = TRY(forward_rows(model, table, micro, pass));
  routers.note(forward, leaf);
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  const auto on_chunk = [&](const HeadChunk& chunk) {
    for (int64_t t = chunk.begin; t < chunk.end; ++t) {
      if (mask[static_cast<size_t>(t)] == 0) continue;
      const auto i = static_cast<size_t>(t - chunk.begin);
      leaf.sums.loss -= weight * chunk.log_prob[i];
      chunk.grad_log_prob[i] = -weight;
    }
  };
  head_one_pass(forward.hidden_RH, model.head(), forward.targets_R, /*temperature=*/1.0, EntropyUse::kNone, on_chunk,
                d_hidden_RH, model.head_grad(), options.head);
  backward = forward.backward_pass(d_hidden_RH);
  leaf.has_gradient = true;
  return leaf;
}

}  // namespace

Result<SftReport> sft_update(Model& model, Optimizer& optimizer, const StepTable& table, const LearnerOptions& options,
                             const SftPlace& place) {
  SftReport report;
  for (const uint8_t m : table.get<column::ResponseMask>()) report.num_tokens += m;
  if (report.num_tokens == 0) return report;
  const double weight = 1.0 / static_cast<double>(report.num_tokens);

  PassOptions pass = options.update_pass(place.update_index);
  model.zero_grad();
  const std::vector<int64_t> rows = all_rows(table);
  const MicroPlan plan = plan_micro_batches(table, rows, options.micro_batch);
  const RankShare share(micro_tokens(table, plan), options.ranks);
  RouterLosses routers(model, table, rows, options);
  pass.router = routers.terms();
  TRY(routers.count(plan, share, pass));
  GradientSum gradient(model, optimizer, share, options.ranks);
  std::vector<LeafReport> leaves(plan.size());
  for (const std::optional<size_t>& micro : share.rounds()) {
    BackwardPass backward;
    if (micro) {
      leaves[*micro] = TRY(sft_backward(model, table, plan[*micro], options, pass, weight, routers, backward));
      show_micro_batch("update", *micro, plan.size());
    }
    TRY(finish_forward({&model}));
    TRY(gradient.end_round(micro, backward));
  }
  TRY(exchange_leaves(share, leaves));
  for (const LeafReport& leaf : leaves) report.loss += leaf.sums.loss;
  routers.report(leaves, report.loss, report.metrics);
  TRY(gradient.finish(leaves));
  const FiniteStep done = TRY(step_if_finite(model, optimizer, report.loss, place.lr, options.grad_clip));
  report.grad_norm = done.grad_norm;
  report.skipped = done.skipped;
  return report;
}

}  // namespace mortise
