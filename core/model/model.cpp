// See model.h.
#include "model/model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "model/tensor/torch_guard.h"
#include "model/weights/loader.h"
#include "model/weights/saver.h"

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
    const bool is_adapter = is_adapter_folder(env, folder);
    Path base = folder;
    if (is_adapter) {
      const LoraConfig lora = TRY(read_lora_config(env, folder));
      base = TRY(find_base_folder(env, folder, lora));
    }
    Model model;
    model.config_ = TRY(read_model_config(env, base));
    model.adopt(allocate_parameters(model.config_, TRY(compute_type(dtype)), /*requires_grad=*/true));
    const at::NoGradGuard no_grad;
    model.layout_ = std::make_shared<StoredLayout>(TRY(load_weights(env, base, model.config_, model.parameters_)));
    if (is_adapter) {
      model.adapter_ = std::make_shared<LoraAdapter>(TRY(apply_lora(env, folder, model.parameters_)));
    }
    model.loaded_version_ = model.version_sum();
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

VocabularyHead Model::head() const {
  return {leaves_.head.detach(), config_.is_classifier ? 0.0 : config_.final_softcap};
}

at::Tensor Model::head_weight() const { return leaves_.head; }

at::Tensor Model::head_grad() const {
  at::Tensor head = leaves_.head;
  if (!head.grad().defined()) head.mutable_grad() = at::zeros_like(head.detach());
  return head.grad();
}

uint64_t Model::version_sum() const {
  uint64_t sum = 0;
  for (const NamedParameter& parameter : parameters_) {
    if (!parameter.tensor.is_inference()) sum += static_cast<uint64_t>(parameter.tensor._version());
  }
  return sum;
}

Result<> Model::save_adapter(Env& env, const Path& folder, const SaveOptions& options) const {
  if (adapter_ == nullptr) {
    return Error{ErrorKind::kConfig, "this model was not read from an adapter's folder, so there is none to save apart",
                 folder.string(), "save it merged"};
  }
  if (version_sum() != loaded_version_) {
    return Error{ErrorKind::kConfig, "the merged weights were trained, the adapter alone no longer says what they are",
                 folder.string(), "save it merged"};
  }
  return save_lora(env, folder, *adapter_, options.base_model);
}

Result<> Model::save(Env& env, const Path& folder, const SaveOptions& options) const {
  return guard_torch("saving to " + folder.string(), [&]() -> Result<> {
    const bool as_read = options.dtype == "stored";
    if (as_read && layout_ == nullptr) {
      return Error{ErrorKind::kConfig, "this model was not read from a folder, so it has no stored dtype",
                   folder.string(), "choose float32, bfloat16 or float16"};
    }
    at::ScalarType stored = dtype();
    if (as_read) {
      stored = torch_type(layout_->dtype).value_or(stored);
    } else if (!options.dtype.empty()) {
      stored = TRY(parse_scalar_type(options.dtype));
    }
    TRY(env.create_dirs(folder));
    if (options.lora == LoraSave::kApart) return save_adapter(env, folder, options);
    std::string config_text = config_.config_text;
    if (as_read && !layout_->files.empty() && options.max_shard_bytes == 0) {
      TRY(save_weights_as_read(env, folder, parameters_, *layout_));
    } else {
      TRY(save_weights(env, folder, parameters_, stored, options.max_shard_bytes));
      config_text = TRY(model_config_text(config_, scalar_type_name(stored)));
    }
    // Without a generation_config.json of its own a folder that was read keeps its end ids in config.json.
    if (!config_.generation_config_text.empty() || config_.config_text.empty()) {
      TRY(write_file_atomic(env, folder / "generation_config.json", generation_config_text(config_)));
    }
    return write_file_atomic(env, folder / "config.json", config_text);
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
