// What ends every update: the gradient's norm, and the optimizer's step where loss and gradient are finite.
#pragma once

#include <cmath>

#include "learn/optim/optimizer.h"
#include "model/model.h"

namespace mortise {

struct FiniteStep {
  double grad_norm = 0.0;  // before clipping
  bool skipped = false;    // something was not finite: no parameter was touched
};

// `optimizer` has the trainable parameters of `model`. A parameter without a gradient received none: it counts as zero,
// and the optimizer's moments still decay. A collective if the optimizer is sharded.
inline Result<FiniteStep> step_if_finite(Model& model, Optimizer& optimizer, double loss, double lr, double grad_clip) {
  if (!optimizer.is_sharded()) fill_absent_gradients(optimizer.parameters());
  FiniteStep out;
  if (!std::isfinite(loss)) {
    out.grad_norm = TRY(optimizer.grad_norm());
    out.skipped = true;
    return out;
  }
  const ClippedStep done = TRY(optimizer.step_clipped(lr, grad_clip, model.copies_to_step()));
  out.grad_norm = done.grad_norm;
  out.skipped = !std::isfinite(done.grad_norm);
  if (!out.skipped && !done.writes_copies) model.weights_changed();
  return out;
}

}  // namespace mortise
