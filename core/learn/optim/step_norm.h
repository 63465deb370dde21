// StepNorm: the norm of an update's gradients before clipping, which a device may still compute. Copies are one norm.
// Thread rule: one thread at a time.
#pragma once

#include <cmath>
#include <memory>
#include <utility>

#include "model/device/kernel_table.h"

namespace mortise {

class StepNorm {
 public:
  StepNorm(double value = 0.0) : value_(value) {}  // NOLINT: a norm that is known
  // A float32 that a device computes: the first number of `copy`.
  explicit StepNorm(HostCopy copy) : copy_(std::make_shared<HostCopy>(std::move(copy))) {}

  // Waits for the device, if nobody has waited before.
  [[nodiscard]] double wait() const {
    return copy_ == nullptr ? value_ : static_cast<double>(copy_->wait().const_data_ptr<float>()[0]);
  }
  // Does it need no wait?
  [[nodiscard]] bool is_known() const { return copy_ == nullptr; }
  [[nodiscard]] bool is_finite() const { return std::isfinite(wait()); }

 private:
  double value_ = 0.0;
  std::shared_ptr<HostCopy> copy_;  // null: value_ is the norm
};

}  // namespace mortise
