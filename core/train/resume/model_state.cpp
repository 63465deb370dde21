// Writes and reads the exact weights of a model as checkpoint tensors.
#include "train/resume/model_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "learn/optim/tensor_state.h"
#include "learn/optim/weight_shards.h"
#include "model/weights/weight_files.h"

namespace mortise {

namespace {

// A tensor that has memory only while its checkpoint is written.
class GatheredTensor : public TensorSource {
 public:
  explicit GatheredTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  Result<> read(uint64_t begin, std::span<std::byte> out) const override {
    const auto* const bytes = static_cast<const std::byte*>(tensor_.const_data_ptr());
    std::copy_n(bytes + begin, out.size(), out.begin());
    return {};
  }

 private:
  at::Tensor tensor_;
};

// What training changes. The layers' matrices are bfloat16 if there are no masters.
std::vector<NamedParameter> trained_numbers(const Model& model) {
  return model.trains_lora() ? model.trainable() : model.numbers();
}

// The shards of the parameters that are trained. Null: every rank has them.
WeightShards* spread_parameters(const Model& model) { return model.trains_lora() ? nullptr : shards_of(model); }

}  // namespace

Result<> ModelState::save_state(StateWriter& writer) const {
  for (const NamedParameter& parameter : trained_numbers(*model_)) {
    const at::Tensor tensor = parameter.tensor.detach();
    if (spread_parameters(*model_) != nullptr) {
      writer.put_source(parameter.name, stored_type(tensor.scalar_type()), tensor.sizes().vec(),
                        std::make_shared<GatheredTensor>(tensor));
      continue;
    }
    put_tensor(writer, parameter.name, tensor);
  }
  for (const NamedParameter& start : model_->adapter_start()) put_tensor(writer, start.name, start.tensor);
  return {};
}

Result<> ModelState::load_state(StateReader& reader) {
  const at::NoGradGuard no_grad;
  WeightShards* const spread = spread_parameters(*model_);
  const auto whole = TRY(WholeWeights::gather({spread != nullptr ? model_ : nullptr}));
  for (const NamedParameter& parameter : trained_numbers(*model_)) {
    const at::Tensor tensor = parameter.tensor.detach();
    const TensorView view =
        TRY(reader.get_tensor(parameter.name, stored_type(tensor.scalar_type()), tensor.sizes().vec()));
    TRY(copy_stored(view, "checkpoint", tensor));
  }
  for (const NamedParameter& start : model_->adapter_start()) {
    const TensorView view =
        TRY(reader.get_tensor(start.name, stored_type(start.tensor.scalar_type()), start.tensor.sizes().vec()));
    TRY(copy_stored(view, "checkpoint", start.tensor));
  }
  model_->start_changed();
  if (spread != nullptr) spread->take_changes();
  model_->weights_changed();
  return {};
}

}  // namespace mortise
