// What ends every update: the gradient's norm, and the optimizer's step where loss and gradient are finite.
#pragma once

#include <cmath>

#include "learn/optim/optimizer.h"
#include "model/model.h"

namespace mortise {

struct FiniteStep {
  StepNorm grad_norm;  // before clipping
  bool has_finite_loss = true;
  // Something was not finite: no parameter was touched. Waits for the device.
  [[nodiscard]] bool skipped() const { return !has_finite_loss || !grad_norm.is_finite(); }
};

// What a report of an update says of its step. Waits for the device.
template <class Report>
void report_step(const FiniteStep& step, Report& report) {
  report.grad_norm = step.grad_norm.wait();
  report.skipped = step.skipped();
}

// `optimizer` has the trainable parameters of `model`. A parameter without a gradient received none: it counts as zero,
// and the optimizer's moments still decay. A collective if the optimizer is sharded.
inline Result<FiniteStep> step_if_finite(Model& model, Optimizer& optimizer, double loss, double lr, double grad_clip) {
  if (!optimizer.is_sharded()) fill_absent_gradients(optimizer.parameters());
  if (!std::isfinite(loss)) return FiniteStep{TRY(optimizer.grad_norm()), false};
  const ClippedStep done = TRY(optimizer.step_clipped(lr, grad_clip, model.copies_to_step()));
  const bool is_skipped = done.grad_norm.is_known() && !done.grad_norm.is_finite();  // else the weights may be new
  if (!is_skipped && !done.writes_copies) model.weights_changed();
  return FiniteStep{done.grad_norm};
}

}  // namespace mortise
