// Writes and reads the exact weights of a model as checkpoint tensors.
#include "train/resume/model_state.h"

#include <ATen/core/grad_mode.h>

#include "model/weights/weight_files.h"

namespace mortise {

Result<> ModelState::save_state(StateWriter& writer) const {
  for (const NamedParameter& parameter : model_->trainable()) {
    const at::Tensor tensor = parameter.tensor.detach();
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    writer.put_tensor(parameter.name, stored_type(tensor.scalar_type()), tensor.sizes().vec(), bytes);
  }
  return {};
}

Result<> ModelState::load_state(StateReader& reader) {
  const at::NoGradGuard no_grad;
  for (const NamedParameter& parameter : model_->trainable()) {
    const at::Tensor tensor = parameter.tensor.detach();
    const TensorView view =
        TRY(reader.get_tensor(parameter.name, stored_type(tensor.scalar_type()), tensor.sizes().vec()));
    TRY(copy_stored(view, "checkpoint", tensor));
  }
  model_->weights_changed();
  return {};
}

}  // namespace mortise
