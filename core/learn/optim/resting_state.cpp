// See resting_state.h.
#include "learn/optim/resting_state.h"

#include <ATen/ops/empty.h>

namespace mortise {

void RestingState::fetch(State& state, c10::Device device) {
  if (!is_resting_) return;
  if (copies_ == nullptr) copies_ = std::make_unique<StagedCopies>(copy_stream(device));
  for (std::vector<at::Tensor>& tensors : state) {
    for (at::Tensor& tensor : tensors) {
      const at::Tensor host = tensor;
      tensor = at::empty(host.sizes(), host.options().device(device));
      copies_->send(host, tensor);
    }
  }
  is_resting_ = false;
}

void RestingState::rest(State& state) {
  if (is_resting_) return;
  for (size_t part = 0; part < state.size(); ++part) {
    for (size_t i = 0; i < state[part].size(); ++i) {
      copies_->receive(state[part][i], on_host_[part][i], nullptr);
      state[part][i] = on_host_[part][i];
    }
  }
  copies_->finish();
  is_resting_ = true;
}

}  // namespace mortise
