// See model.h.
#include "model/model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>

#include "model/layers/offload_gate.h"
#include "model/tensor/storage_memory.h"
#include "model/tensor/torch_guard.h"
#include "model/weights/names.h"
#include "model/weights/rounded_matrices.h"
#include "model/weights/saver.h"
#include "model/weights/stored_dtype.h"
#include "model/weights/weight_units.h"

namespace mortise {

void Model::adopt(ParameterStore store) {
  weights_ = std::move(store.weights);
  leaves_ = std::move(store.leaves);
  parameters_ = std::move(store.parameters);
}

void Model::add_rounded_matrices() {
  allocate_rounded(weights_);
  round_to_nearest(weights_);
}

Result<> Model::move_to(const ComputeDevice& device) {
  if (trained_lora_ != nullptr || gate_ != nullptr || offload_ != nullptr)
    return Error{ErrorKind::kInternal, "a model moves to a device before its adapter or its files are made", "", ""};
  const auto move = [&]() -> Result<> {
    device_ = device;
    if (device.device == weights_.embedding_VH.device()) return {};
    const at::NoGradGuard no_grad;
    const bool is_unchanged = version_sum() == loaded_version_, rounds = has_rounded_matrices();
    const std::vector<NamedParameter> from = std::move(parameters_);
    adopt(allocate_parameters(config_, from.front().tensor.scalar_type(), /*requires_grad=*/true, device.device,
                              unread_ != nullptr ? ParameterMemory::kCommon : ParameterMemory::kAll));
    for (size_t i = 0; i < from.size(); ++i) {
      if (has_memory(from[i].tensor)) parameters_[i].tensor.detach().copy_(from[i].tensor.detach());
      parameters_[i].tensor.set_requires_grad(from[i].tensor.requires_grad());
    }
    if (rounds) add_rounded_matrices();
    if (is_unchanged) loaded_version_ = version_sum();
    return {};
  };
  return guard_torch("moving the model to " + device.text, move, MemoryUse::kStart);
}

const NamedParameter* Model::find_parameter(std::string_view name) const {
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

at::Tensor Model::forward_hidden(const PackedBatch& batch, const ForwardOptions& options) const {
  ForwardOptions own = options;
  if (device_.by_operators) own.path = LayerPath::kOperators;
  if (uses_part()) {
    own.tensor = tensor_->ranks();
    own.vocabulary = tensor_->vocabulary();
    own.gate = gate_;
    return decoder_forward(tensor_->config(), tensor_->weights(), tensor_->leaves(), batch, own);
  }
  if (gate_ != nullptr) own.gate = gate_;
  return decoder_forward(config_, weights_, leaves_, batch, own);
}

VocabularyHead Model::head() const {
  VocabularyHead head = head_to_sample();
  if (gate_ != nullptr) head.rows = gate_->head_rows();
  if (!uses_part()) return head;
  head.share = tensor_->vocabulary();
  head.weight_VH = head_weight().detach();
  if (head.share != nullptr) head.weight_VH = head.weight_VH.narrow(0, 0, head.share->count);
  return head;
}

VocabularyHead Model::head_to_sample() const {
  VocabularyHead head{leaves_.head.detach(), config_.is_classifier ? 0.0 : config_.final_softcap};
  head.by_operators = device_.by_operators;
  head.rounds = device_.by_operators && has_rounded_matrices() && !config_.is_classifier;
  return head;
}

at::Tensor Model::head_weight() const { return uses_part() ? tensor_->leaves().head : leaves_.head; }

at::Tensor Model::embedding_weight() const {
  return uses_part() ? tensor_->weights().embedding_VH : weights_.embedding_VH;
}

at::Tensor Model::head_grad() const {
  at::Tensor head = head_weight();
  if (!head.requires_grad() || (gate_ != nullptr && gate_->head_rows() != nullptr)) return {};
  if (!head.grad().defined()) head.mutable_grad() = at::zeros_like(head.detach());
  if (!uses_part() || tensor_->vocabulary() == nullptr) return head.grad();
  return head.grad().narrow(0, 0, tensor_->vocabulary()->count);
}

int64_t lowest_backward(int64_t num_layers, std::span<const NamedParameter> trained) {
  int64_t lowest = num_layers + 1;
  for (const NamedParameter& parameter : trained) {
    const std::string_view name = parameter.name;
    if (name.ends_with(kEmbeddingName)) return 1;
    lowest = std::min(lowest, layer_of(name).value_or(num_layers) + 1);
  }
  return lowest;
}

int64_t Model::lowest_backward() const {
  std::vector<NamedParameter> trained = trainable();
  std::erase_if(trained, [](const NamedParameter& p) { return !p.tensor.requires_grad(); });
  return mortise::lowest_backward(config_.num_layers, trained);
}

uint64_t Model::version_sum() const {
  uint64_t sum = 0;
  for (const NamedParameter& parameter : parameters_) {
    if (!parameter.tensor.is_inference()) sum += static_cast<uint64_t>(parameter.tensor._version());
  }
  return sum;
}

Result<> Model::adapt(LoraPlan plan) {
  if (has_adapter()) {
    return Error{ErrorKind::kConfig,
                 "the model has an adapter already",
                 {},
                 "name the base model's folder, or continue the adapter as it is"};
  }
  const at::NoGradGuard no_grad;
  const bool rounds = has_rounded_matrices();
  weights_.rounded.clear();
  ParameterStore store{std::move(weights_), std::move(leaves_), std::move(parameters_)};
  using BaseMemory = TrainedLora::BaseMemory;
  trained_lora_ =
      std::make_unique<TrainedLora>(std::move(plan), store, shares_memory_ ? BaseMemory::kShared : BaseMemory::kOwn);
  adopt(std::move(store));
  // What it trains as a whole stays on every rank.
  for (const NamedParameter& trained : trained_lora_->parameters()) {
    if (!has_memory(trained.tensor)) allocate_memory(trained.tensor.storage());
  }
  if (rounds) add_rounded_matrices();  // merged matrices have memory of their own
  return {};
}

Result<> Model::train_lora(const LoraChoice& choice, uint64_t seed, RandomPurpose purpose) {
  return guard_torch("making an adapter", [&]() -> Result<> {
    LoraPlan plan = TRY(plan_fresh_lora(parameters_, choice));
    const bool starts_from_base = plan.config.use_dora || changes_base(plan.config.init);
    TRY(adapt(std::move(plan)));
    TRY(trained_lora_->initialize(seed, purpose));
    if (unread_ != nullptr && starts_from_base) TRY(start_adapter());
    round_to_nearest(weights_);
    return {};
  });
}

Result<> Model::train_lora(Env& env, const Path& adapter_folder) {
  return guard_torch("reading the adapter of " + adapter_folder.string(), [&]() -> Result<> {
    LoraPlan plan = TRY(plan_lora_of_folder(env, adapter_folder, parameters_));
    const bool starts_from_base = changes_base(plan.config.init);
    TRY(adapt(std::move(plan)));
    if (unread_ != nullptr && starts_from_base) TRY(start_adapter());
    TRY(trained_lora_->load(env, adapter_folder));
    round_to_nearest(weights_);
    return {};
  });
}

void Model::start_changed() {
  if (tensor_ != nullptr)
    tensor_->restore_start();
  else if (trained_lora_ != nullptr)
    trained_lora_->restore_start();
}

void Model::weights_changed() {
  if (gate_ != nullptr) gate_->weights_changed();
  if (tensor_ != nullptr) {
    tensor_->merge();
    tensor_->round(offload_.get());
    return;
  }
  if (trained_lora_ != nullptr) trained_lora_->merge();
  round_to_nearest(weights_, offload_.get());
}

Result<> Model::offload_masters(std::shared_ptr<Offload> files) {
  offload_ = std::move(files);
  if (trained_lora_ != nullptr) return {};  // its matrices are not what an optimizer steps
  return mortise::offload_masters(pass_weights(), *offload_);
}

Result<> Model::rest_masters_on_host() {
  masters_rest_ = true;
  return offload_masters(std::make_shared<Offload>());
}

void Model::fetch_masters() {
  if (masters_rest_) offload_->fetch();
}

void Model::rest_masters() {
  if (masters_rest_) offload_->rest();
}

Result<> Model::offload_weights(const std::shared_ptr<Offload>& files) {
  offload_ = files;
  TRY(mortise::offload_masters(pass_weights(), *files));
  gate_ = TRY(OffloadGate::take(pass_weights(), files));
  return {};
}

void Model::split_layers(const std::shared_ptr<TensorRanks>& ranks) {
  // What an adapter trains as a whole is whole on every rank. Heads by operators read the whole vocabulary.
  const bool keeps_vocabulary =
      device_.by_operators ||
      (trained_lora_ != nullptr && std::ranges::any_of(trained_lora_->whole_parameters(), is_split_by_tokens));
  using Vocabulary = ModelPart::Vocabulary;
  split_layers(ranks, unread_ != nullptr ? ModelPart::Numbers::kLater : ModelPart::Numbers::kTaken,
               keeps_vocabulary ? Vocabulary::kWhole : Vocabulary::kSplit);
}

void Model::split_layers(const std::shared_ptr<TensorRanks>& ranks, ModelPart::Numbers numbers,
                         ModelPart::Vocabulary vocabulary) {
  const ParameterStore whole{weights_, leaves_, parameters_};
  tensor_ = std::make_shared<ModelPart>(config_, whole, ranks, numbers, vocabulary);
  if (trained_lora_ != nullptr) {
    auto base = std::make_shared<ModelPart>(config_, trained_lora_->base(), ranks, numbers, vocabulary);
    base->free_whole();
    tensor_->adapt(leaves_, std::move(base), parameters_);
  }
  tensor_->free_whole();
}

std::shared_ptr<const ModelPart> Model::part_of_layers(const std::shared_ptr<TensorRanks>& ranks) const {
  if (has_part_of(ranks.get())) return tensor_;
  auto part = std::make_shared<ModelPart>(config_, ParameterStore{weights_, leaves_, parameters_}, ranks,
                                          ModelPart::Numbers::kTaken, ModelPart::Vocabulary::kWhole);
  part->drop_masters();
  return part;
}

bool Model::has_part_of(const TensorRanks* ranks) const {
  return ranks != nullptr && tensor_ != nullptr && tensor_->ranks()->size() == ranks->size();
}

bool Model::is_whole() const { return has_own_weights() && (tensor_ == nullptr || tensor_->is_whole()); }

Model Model::base_view(BaseUse use) const {
  Model view;
  view.config_ = config_;
  view.device_ = device_;
  view.adopt(trained_lora_->base());
  if (tensor_ != nullptr) view.tensor_ = tensor_->base();
  if (!has_rounded_matrices() || use == BaseUse::kNumbers) return view;
  if (tensor_ != nullptr)
    tensor_->base()->add_rounded(view.weights_);
  else
    view.add_rounded_matrices();
  return view;
}

Model Model::base_as_classifier(ModelConfig config, uint64_t seed) const {
  Model view;
  view.config_ = std::move(config);
  view.device_ = device_;
  view.shares_memory_ = true;
  ParameterStore store = trained_lora_->base();
  replace_head_by_score(store, view.config_, seed);
  view.adopt(std::move(store));
  if (has_rounded_matrices()) view.add_rounded_matrices();
  return view;
}

Result<std::optional<at::ScalarType>> Model::stored_dtype(const SaveOptions& options) const {
  if (options.dtype.empty()) return std::optional(dtype());
  if (options.dtype != kStoredDtype) return std::optional(TRY(parse_scalar_type(options.dtype)));
  if (layout_ == nullptr) {
    return Error{ErrorKind::kConfig,
                 "this model was not read from a folder, so it has no stored dtype",
                 {},
                 "choose float32, bfloat16 or float16"};
  }
  if (!layout_->files.empty() && options.max_shard_bytes == 0) return std::optional<at::ScalarType>();
  return std::optional(torch_type(layout_->dtype).value_or(dtype()));
}

Result<bool> Model::saves_exactly(const SaveOptions& options) const {
  if (trained_lora_ != nullptr) return false;  // one of base and adapter is not in the folder, or their sum is
  const auto keeps = [&](at::ScalarType type) {
    return type == at::kDouble || (type == at::kFloat && dtype() == at::kFloat);
  };
  const std::optional<at::ScalarType> stored = TRY(stored_dtype(options));
  if (stored) return keeps(*stored);
  for (const StoredFile& file : layout_->files) {
    for (const StoredSlot& slot : file.slots) {
      if (!slot.parameter.empty() && !keeps(torch_type(slot.dtype).value_or(at::kHalf))) return false;
    }
  }
  return true;
}

Result<std::vector<FolderFile>> Model::plan_adapter(const SaveOptions& options) const {
  if (trained_lora_ != nullptr) {
    const std::optional<at::ScalarType> stored = TRY(stored_dtype(options));
    return trained_lora_->plan_save(options.base_model, stored.value_or(dtype()));
  }
  if (adapter_ == nullptr) {
    return Error{ErrorKind::kConfig,
                 "this model was not read from an adapter's folder, so there is none to save apart",
                 {},
                 "save it merged"};
  }
  if (version_sum() != loaded_version_) {
    return Error{ErrorKind::kConfig,
                 "the merged weights were trained, the adapter alone no longer says what they are",
                 {},
                 "save it merged"};
  }
  return plan_lora(adapter_, options.base_model);
}

Result<std::vector<FolderFile>> Model::plan_save(const SaveOptions& options) const {
  const std::optional<at::ScalarType> stored = TRY(stored_dtype(options));
  if (options.lora == LoraSave::kApart) return plan_adapter(options);
  std::vector<FolderFile> files;
  std::string config_text = config_.config_text;
  if (!stored) {
    files = plan_weights_as_read(numbers(), layout_, {offload_, options.numbers});
  } else {
    files = plan_weights(numbers(), *stored, options.max_shard_bytes, {offload_, options.numbers});
    config_text = TRY(model_config_text(config_, scalar_type_name(*stored)));
  }
  // A folder without a generation_config.json keeps its end ids in config.json.
  if (!config_.generation_config_text.empty() || config_.config_text.empty())
    files.push_back(text_folder_file("generation_config.json", generation_config_text(config_)));
  files.push_back(text_folder_file("config.json", std::move(config_text)));
  return files;
}

Result<> Model::save(Env& env, const Path& folder, const SaveOptions& options) const {
  return guard_torch("saving to " + folder.string(), [&]() -> Result<> {
    auto files = plan_save(options);
    if (!files.ok()) {
      files.error().where = folder.string();
      return std::move(files).error();
    }
    return write_folder(env, folder, *files);
  });
}

namespace {

// Memory where `from` has it.
void allocate_alike(std::span<const NamedParameter> from, const DecoderWeights& from_weights,
                    std::span<const NamedParameter> to, const DecoderWeights& to_weights) {
  const auto allocate = [](const at::Tensor& has, const at::Tensor& gets) {
    if (has_memory(has) && !has_memory(gets)) allocate_memory(gets.storage());
  };
  for (size_t i = 0; i < to.size(); ++i) allocate(from[i].tensor, to[i].tensor);
  for (size_t layer = 0; layer < to_weights.rounded.size(); ++layer) {
    const auto has = copies_of_layer(from_weights, layer), gets = copies_of_layer(to_weights, layer);
    for (size_t i = 0; i < has.size(); ++i) allocate(has[i], gets[i]);
  }
}

}  // namespace

Model Model::frozen_shape(Layers layers) const {
  const at::NoGradGuard no_grad;
  Model copy;
  copy.config_ = config_;
  copy.device_ = device_;
  const auto memory = layers == Layers::kWhole ? ParameterMemory::kAll : ParameterMemory::kCommon;
  copy.adopt(allocate_parameters(config_, dtype(), /*requires_grad=*/false, device_.device, memory));
  if (has_rounded_matrices()) allocate_rounded(copy.weights_);
  if (layers == Layers::kWhole) return copy;
  allocate_alike(parameters_, weights_, copy.parameters_, copy.weights_);
  if (tensor_ == nullptr) return copy;
  using Vocabulary = ModelPart::Vocabulary;
  const bool is_split = tensor_->vocabulary() != nullptr;
  copy.split_layers(tensor_->ranks(), ModelPart::Numbers::kLater, is_split ? Vocabulary::kSplit : Vocabulary::kWhole);
  const ModelPart& own = *copy.tensor_;
  allocate_alike(tensor_->parameters(), tensor_->weights(), own.parameters(), own.weights());
  return copy;
}

Model Model::clone_frozen(Layers layers) const {
  Model copy = frozen_shape(layers);
  copy.copy_numbers(*this);
  return copy;
}

void Model::copy_numbers(const Model& from) {
  const at::NoGradGuard no_grad;
  const auto& to = tensor_ != nullptr ? tensor_->parameters() : parameters_;
  const auto& numbers = tensor_ != nullptr ? from.tensor_->parameters() : from.parameters_;
  for (size_t i = 0; i < to.size(); ++i) {
    const at::Tensor own = to[i].tensor.detach(), other = numbers[i].tensor.detach();
    if (has_memory(own) && has_memory(other)) own.copy_(other);
  }
  const DecoderWeights& rounded = tensor_ != nullptr ? from.tensor_->weights() : from.weights_;
  for (size_t layer = 0; layer < rounded.rounded.size(); ++layer) copy_rounded(rounded, pass_weights(), layer);
}

void Model::drop_masters() {
  if (gate_ != nullptr) gate_->drop_masters();
  if (tensor_ != nullptr) return tensor_->drop_masters();
  has_masters_ = weights_.rounded.empty();
  for (size_t layer = 0; layer < weights_.rounded.size(); ++layer) free_masters(weights_, layer);
}

std::vector<NamedParameter> Model::numbers() const {
  std::vector<NamedParameter> out = parameters_;
  const bool reads_copies = has_rounded_matrices() && !has_masters();
  for (NamedParameter& parameter : out) {
    if (has_memory(parameter.tensor)) continue;
    if (reads_copies && rounded_layer(weights_, parameter.tensor) >= 0)
      parameter.tensor = rounded_slice(weights_, parameter.tensor);
    if (offload_ == nullptr) continue;
    if (at::Tensor numbers = offload_->numbers_in_file(parameter.tensor); numbers.defined())
      parameter.tensor = std::move(numbers);
  }
  return out;
}

void Model::change_numbers(const at::Tensor& parameter, const std::function<void(const at::Tensor&)>& change) const {
  if (offload_ == nullptr) return change(parameter);
  const at::Tensor numbers = offload_->on_device(parameter);
  change(numbers);
  offload_->put_back(parameter, numbers);
}

void Model::zero_grad() {
  if (offload_ != nullptr) offload_->release_all();
  for (NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  if (tensor_ != nullptr) {
    for (NamedParameter& parameter : tensor_->parameters()) parameter.tensor.mutable_grad().reset();
  }
  if (trained_lora_ == nullptr) return;
  for (NamedParameter& parameter : trained_lora_->parameters()) parameter.tensor.mutable_grad().reset();
}

}  // namespace mortise
