// Runs the micro-batches of a supervised update.
#include "learn/update/sft_learner.h"

#include "learn/update/finite_step.h"
#include "learn/update/gradient_sum.h"
#include "learn/update/packed_forward.h"
#include "learn/update/router_losses.h"
#include "learn/update/supervised_part.h"

namespace mortise {

Result<SftReport> sft_update(Model& model, Optimizer& optimizer, const StepTable& table, const LearnerOptions& options,
                             const SftPlace& place) {
  SftReport report;
  const SupervisedPart part({&table}, options);
  report.num_tokens = part.num_tokens();
  if (report.num_tokens == 0) return report;

  PassOptions pass = options.update_pass(place.update_index);
  model.zero_grad();
  const RankShare share = share_update(part.loads(), options.ranks, optimizer.shares_gradients());
  RouterLosses routers(model, table, all_rows(table), options);
  pass.router = routers.terms();
  TRY(routers.count(part.plan(), share, pass));
  GradientSum gradient(model, optimizer, share, options.ranks);
  std::vector<LeafReport> leaves(part.num_micro_batches());
  for (const std::optional<size_t>& micro : share.rounds()) {
    BackwardPass backward;
    if (micro) {
      leaves[*micro] = TRY(part.compute(model, *micro, pass, /*coefficient=*/1.0, backward, &routers));
      show_micro_batch("update", *micro, leaves.size());
    }
    TRY(finish_forward({&model}));
    TRY(gradient.end_round(micro, backward));
  }
  TRY(exchange_leaves(share, leaves));
  for (const LeafReport& leaf : leaves) report.loss += leaf.sums.loss;
  routers.report(leaves, report.loss, report.metrics);
  TRY(gradient.finish(leaves));
  report_step(TRY(step_if_finite(model, optimizer, report.loss, place.lr, options.grad_clip)), report);
  return report;
}

}  // namespace mortise
