// Models that are read from folders, or made. See model.h.
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>

#include "model/model.h"
#include "model/tensor/storage_memory.h"
#include "model/tensor/torch_guard.h"
#include "model/weights/loader.h"
#include "model/weights/weight_units.h"

namespace mortise {
namespace {

// The dtype of the parameters. bfloat16 has float32 masters.
Result<at::ScalarType> parameter_type(const std::string& name) {
  const at::ScalarType type = TRY(parse_scalar_type(name));
  if (type == at::kBFloat16) return at::kFloat;
  if (type == at::kFloat || type == at::kDouble) return type;
  return Error{ErrorKind::kConfig,
               fmt::format("computing in {} is not supported on the CPU", name),
               {},
               "use float32, bfloat16 or float64 (weights stored in it are read)"};
}

bool rounds_matrices(const std::string& dtype) { return dtype == "bfloat16"; }

void give_memory(const at::Tensor& tensor) {
  if (!has_memory(tensor)) allocate_memory(tensor.storage());
}

}  // namespace

Result<Model> Model::open(Env& env, const Path& folder, const std::string& dtype, const std::optional<NewHead>& head) {
  return guard_torch("loading " + folder.string(), [&]() -> Result<Model> {
    const bool is_adapter = is_adapter_folder(env, folder);
    const Path base = TRY(find_model_folder(env, folder));
    Model model;
    model.config_ = TRY(read_model_config(env, base));
    TRY(check_weight_bytes(env, base, model.config_));
    const bool base_is_classifier = model.config_.is_classifier;
    if (is_adapter) model.config_ = TRY(add_adapter_head(env, folder, std::move(model.config_)));
    const bool makes_head = head && !model.config_.is_classifier;
    if (makes_head) model.config_ = head->config;
    ParameterStore store = allocate_parameters(model.config_, TRY(parameter_type(dtype)), /*requires_grad=*/true,
                                               at::kCPU, ParameterMemory::kCommon);
    if (makes_head) {
      replace_head_by_score(store, model.config_, head->seed);
      store.leaves.head.requires_grad_(true);
    }
    model.adopt(std::move(store));
    if (rounds_matrices(dtype)) allocate_rounded(model.weights_);
    model.unread_ =
        std::make_shared<UnreadWeights>(env, base, model.config_, model.config_.is_classifier && !base_is_classifier);
    if (is_adapter) {
      const LoraMerge merge = TRY(LoraMerge::open(env, folder, model.parameters_, makes_head));
      model.adapter_ = std::make_shared<LoraAdapter>(merge.adapter());
      model.unread_->change_by([merge](std::span<const size_t> places, std::span<const NamedParameter> parameters) {
        const at::NoGradGuard no_grad;
        return merge.apply(places, parameters);
      });
    }
    model.layout_ = std::make_shared<StoredLayout>(TRY(model.unread_->read_common(model.parameters_)));
    return model;
  });
}

Result<Model> Model::load(Env& env, const Path& folder, const std::string& dtype) {
  Model model = TRY(open(env, folder, dtype));
  TRY(model.read_parts());
  return model;
}

Result<> Model::read_part(int64_t part) {
  if (unread_ == nullptr) return {};
  return guard_torch("loading " + unread_->folder().string(), [&]() -> Result<> {
    const auto place = static_cast<size_t>(part);
    TRY(unread_->read(part, stored_parameters()));
    if (trained_lora_ != nullptr) {
      take_base(weight_units(config_, stored_parameters()).parts[place]);
      trained_lora_->merge();
    }
    if (tensor_ == nullptr) return {};
    (tensor_->base() != nullptr ? *tensor_->base() : *tensor_).take(place);
    tensor_->take_trained(place);
    return {};
  });
}

// Matrices that hold rows which an adapter trains as a whole have memory next to the base's, and begin like these. If the
// start of an adapter left the base, its rows in them are computed when their layer is opened. Merged rows are stale then.
void Model::take_base(std::span<const size_t> read) {
  const at::NoGradGuard no_grad;
  for (const size_t i : read) {
    const at::Tensor own = parameters_[i].tensor.detach(), base = stored_parameters()[i].tensor.detach();
    if (has_memory(own) && !own.is_alias_of(base) && !trained_lora_->has_loaded(parameters_[i].name)) own.copy_(base);
  }
}

Result<> Model::read_parts() {
  if (unread_ == nullptr) return {};
  if (tensor_ == nullptr) {
    TRY(guard_torch("loading " + unread_->folder().string(), [&] { return unread_->read_all(stored_parameters()); }));
    if (trained_lora_ != nullptr) {
      for (const std::vector<size_t>& part : weight_units(config_, stored_parameters()).parts) take_base(part);
      trained_lora_->merge();
    }
  } else {
    for (int64_t part = 0; part < config_.num_layers + 2; ++part) TRY(read_part(part));
  }
  merge_parts();
  if (adapter_ != nullptr) loaded_version_ = version_sum();
  end_reading();
  return {};
}

// Layer by layer, if the adapter starts from the numbers of a base that is unread.
Result<> Model::start_adapter() {
  const WeightUnits units = weight_units(config_, stored_parameters());
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    TRY(unread_->read(layer + 1, stored_parameters()));
    const std::vector<at::Tensor> computed = trained_lora_->merged_matrices(layer);
    std::ranges::for_each(computed, give_memory);
    TRY(trained_lora_->start_from_base());
    for (const at::Tensor& one : computed) free_memory(one.storage());
    for (const size_t i : units.parts[static_cast<size_t>(layer) + 1])
      free_memory(stored_parameters()[i].tensor.storage());
  }
  return {};
}

void Model::merge_parts() {
  const at::NoGradGuard no_grad;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (trained_lora_ != nullptr) {
      const auto merged = tensor_ != nullptr ? tensor_->merged_matrices(layer) : trained_lora_->merged_matrices(layer);
      std::ranges::for_each(merged, give_memory);
      tensor_ != nullptr ? tensor_->merge_layer(layer) : trained_lora_->merge_layer(layer);
    }
    const DecoderWeights& read = pass_weights();
    if (read.rounded.empty()) continue;
    std::ranges::for_each(copies_of_layer(read, static_cast<size_t>(layer)), give_memory);
    round_to_nearest(read, static_cast<size_t>(layer));
  }
}

Result<> Model::read_weights(Env& env, const Path& folder) {
  return guard_torch("loading " + folder.string(), [&]() -> Result<> {
    const at::NoGradGuard no_grad;
    if (unread_ != nullptr) {
      unread_ = std::make_shared<UnreadWeights>(env, folder, config_, /*has_new_head=*/false);
      TRY(unread_->read_common(parameters_));
      return {};
    }
    TRY(load_weights(env, folder, config_, parameters_));
    weights_changed();
    return {};
  });
}

Result<Model> Model::random(ModelConfig config, uint64_t seed, const std::string& dtype) {
  return guard_torch("making a model", [&]() -> Result<Model> {
    Model model;
    model.config_ = std::move(config);
    ParameterStore store = allocate_parameters(model.config_, TRY(parameter_type(dtype)), /*requires_grad=*/true);
    initialize_parameters(store, model.config_, seed);
    model.adopt(std::move(store));
    if (rounds_matrices(dtype)) model.add_rounded_matrices();
    return model;
  });
}

}  // namespace mortise
