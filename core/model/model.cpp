// See model.h.
#include "model/model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "model/tensor/torch_guard.h"
#include "model/weights/loader.h"

namespace mortise {
namespace {

Result<at::ScalarType> compute_type(const std::string& name) {
  const at::ScalarType type = TRY(parse_scalar_type(name));
  if (type == at::kFloat || type == at::kDouble) return type;
  return Error{ErrorKind::kConfig,
               "computing in " + name + " is not supported on the CPU",
               {},
               "use float32 or float64 (weights stored in it are read)"};
}

}  // namespace

Result<Model> Model::load(Env& env, const Path& folder, const std::string& dtype) {
  return guard_torch("loading " + folder.string(), [&]() -> Result<Model> {
    Model model;
    model.config_ = TRY(read_model_config(env, folder));
    model.adopt(allocate_parameters(model.config_, TRY(compute_type(dtype)), /*requires_grad=*/true));
    const at::NoGradGuard no_grad;
    TRY(load_weights(env, folder, model.config_, model.parameters_));
    return model;
  });
}

Result<Model> Model::random(ModelConfig config, uint64_t seed, const std::string& dtype) {
  return guard_torch("making a model", [&]() -> Result<Model> {
    Model model;
    model.config_ = std::move(config);
    ParameterStore store = allocate_parameters(model.config_, TRY(compute_type(dtype)), /*requires_grad=*/true);
    initialize_parameters(store, model.config_, seed);
    model.adopt(std::move(store));
    return model;
  });
}

void Model::adopt(ParameterStore store) {
  weights_ = std::move(store.weights);
  leaves_ = std::move(store.leaves);
  parameters_ = std::move(store.parameters);
}

const NamedParameter* Model::find_parameter(std::string_view name) const {
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

at::Tensor Model::forward_hidden(const PackedBatch& batch, const ForwardOptions& options) const {
  return decoder_forward(config_, weights_, leaves_, batch, options);
}

at::Tensor Model::head_weight() const { return leaves_.head; }

at::Tensor Model::head_grad() const {
  at::Tensor head = leaves_.head;
  if (!head.grad().defined()) head.mutable_grad() = at::zeros_like(head.detach());
  return head.grad();
}

Result<> Model::save(Env& env, const Path& folder, const SaveOptions& options) const {
  return guard_torch("saving to " + folder.string(), [&]() -> Result<> {
    const at::ScalarType stored = options.dtype.empty() ? dtype() : TRY(parse_scalar_type(options.dtype));
    TRY(env.create_dirs(folder));
    TRY(save_weights(env, folder, parameters_, stored));
    TRY(write_file_atomic(env, folder / "generation_config.json", generation_config_text(config_)));
    return write_file_atomic(env, folder / "config.json", TRY(model_config_text(config_, scalar_type_name(stored))));
  });
}

Model Model::clone_frozen() const {
  const at::NoGradGuard no_grad;
  Model copy;
  copy.config_ = config_;
  copy.adopt(allocate_parameters(config_, dtype(), /*requires_grad=*/false));
  for (size_t i = 0; i < parameters_.size(); ++i) copy.parameters_[i].tensor.copy_(parameters_[i].tensor);
  return copy;
}

void Model::zero_grad() {
  for (NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

}  // namespace mortise
