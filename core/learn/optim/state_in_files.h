// StateInFiles: the step of one part whose state lies in files of the host (model/tensor/offload.h), and perhaps its weights
// (masters of bfloat16 matrices). On a device the step computes on copies there, so that its numbers are those of a state
// that lies on the device.
// Cost there: every number in files goes to the device and back, while the host prepares the next part. Thread rule:
// one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "learn/optim/update_rule.h"
#include "model/tensor/offload.h"

namespace mortise {

class StateInFiles {
 public:
  // The tensors of the part are then on the device of its weights.
  StateInFiles(StepPart& part, const Offload& files)
      : part_(&part), files_(&files), in_files_(part.state), weights_(part.weights) {
    if (weights_.is_cpu()) return;
    part.weights = files.on_device(weights_);
    for (at::Tensor& state : part.state) {
      const at::Tensor in_file = state;
      state = at::empty(in_file.sizes(), in_file.options().device(weights_.device()));
      files.send(in_file, state);
    }
  }
  StateInFiles(const StateInFiles&) = delete;
  StateInFiles& operator=(const StateInFiles&) = delete;

  // The new numbers to the files, whose pages the process does not keep. Behind the step. On a device they are there when
  // Offload::finish() returns.
  void put_back() {
    for (size_t i = 0; i < in_files_.size(); ++i) {
      if (weights_.is_cpu())
        files_->release(in_files_[i]);
      else
        files_->receive(part_->state[i], in_files_[i]);
    }
    part_->state = in_files_;
    if (weights_.is_cpu()) {
      files_->release(weights_);  // if they lie there too
    } else {
      files_->put_back(weights_, std::exchange(part_->weights, weights_));
      weights_.unsafeGetTensorImpl()->bump_version();
    }
  }

 private:
  StepPart* part_;
  const Offload* files_;
  std::vector<at::Tensor> in_files_;
  at::Tensor weights_;
};

}  // namespace mortise
