// StateInFiles: the step of one part whose state lies in files of the host (model/tensor/offload.h). On a device the step
// computes on copies there, so that its numbers are those of a state that lies on the device.
// Cost there: every number of the state goes to the device and back, and the host waits for both. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "learn/optim/update_rule.h"
#include "model/tensor/offload.h"

namespace mortise {

class StateInFiles {
 public:
  // The tensors of part.state are then on the device of its weights.
  StateInFiles(StepPart& part, const Offload& files) : part_(&part), files_(&files), in_files_(part.state) {
    if (part.weights.is_cpu()) return;
    for (at::Tensor& state : part.state) state = state.to(part.weights.device());
  }
  StateInFiles(const StateInFiles&) = delete;
  StateInFiles& operator=(const StateInFiles&) = delete;

  // The new state to the files, whose pages the process does not keep. Behind the step.
  void put_back() {
    for (size_t i = 0; i < in_files_.size(); ++i) {
      if (!part_->weights.is_cpu()) in_files_[i].copy_(part_->state[i]);
      files_->release(in_files_[i]);
    }
    part_->state = in_files_;
    files_->release(part_->weights);  // if they lie there too
  }

 private:
  StepPart* part_;
  const Offload* files_;
  std::vector<at::Tensor> in_files_;
};

}  // namespace mortise
