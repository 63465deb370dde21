// RestingState: an optimizer's state that lies in the host's memory while a run on a device samples, and on the device from
// a step to the end of the step's updates.
// Cost: the state's bytes of the host's memory at all times, and 64 MiB of pinned buffers (device/staged_copies.h). All of
// the state moves twice in each step of a run. Thread rule: one thread. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "model/device/staged_copies.h"

namespace mortise {

class RestingState {
 public:
  using State = std::vector<std::vector<at::Tensor>>;  // by part of an optimizer

  // Once: `state` is on the host.
  void begin(const State& state) { on_host_ = state; }
  // Copies of it on the device take the place of its tensors, if they rest. In the order of the device's stream.
  void fetch(State& state, c10::Device device);
  // The tensors of begin() come back, with the numbers of the copies, which are freed.
  void rest(State& state);

 private:
  State on_host_;
  std::unique_ptr<StagedCopies> copies_;
  bool is_resting_ = true;
};

}  // namespace mortise
