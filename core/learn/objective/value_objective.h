// The critic's loss per token with its gradient (PPO's clipped value loss, arXiv 1707.06347 and 2005.12729, as verl has
// it):
//   v_clip = clamp(v, V_old - cliprange, V_old + cliprange)
//   L = 0.5 sum_t w_t max((v - R)^2, (v_clip - R)^2)
// w is the aggregation, as for the actor. Shapes: N tokens, flat. Pure function.
#pragma once

#include <cstdint>
#include <span>

#include "foundation/batch/step_view.h"
#include "foundation/metrics/registry.h"

namespace mortise {

// The loss of the predictions `vpreds` [N], with V_old, R, the mask and w from the view; grad_vpreds [N] is written
// whole. Adds critic/vf_clipfrac and critic/vpred_mean. The loss of an update, critic/vf_loss, is the sum over its
// micro-batches: the caller adds it.
double value_objective(std::span<const float> vpreds, const StepView& view, double cliprange_value,
                       std::span<float> grad_vpreds, MetricSet& metrics);

}  // namespace mortise
