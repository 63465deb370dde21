// Model: a decoder read from, or written to, a Hugging Face folder.
//
// The named parameters are the leaves (HF names). They are row slices of the fused matrices in weights(), so an
// optimizer updates in place and every reader sees it. With dtype "bfloat16" the passes read rounded copies of
// the layers' matrices (rounded_matrices.h), and the parameters are the float32 masters. Training changes the
// parameters. After train_lora they hold base and adapter merged, and training changes the adapter. forward_hidden
// builds an autograd graph if GradMode is on. The vocabulary head is separate (model/head), so that tokens x vocabulary
// is never in memory. Thread rule: several threads may call const methods while no thread writes the weights. Move-only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/base/rng.h"
#include "model/adapters/lora.h"
#include "model/adapters/trained_lora.h"
#include "model/device/compute_device.h"
#include "model/head/log_prob_head.h"
#include "model/layers/decoder.h"
#include "model/layers/decoder_weights.h"
#include "model/layers/weight_gate.h"
#include "model/tensor/offload.h"
#include "model/tensor/packing.h"
#include "model/weights/model_config.h"
#include "model/weights/model_part.h"
#include "model/weights/parameters.h"
#include "model/weights/rounded_matrices.h"
#include "model/weights/saver.h"
#include "model/weights/unread_weights.h"

namespace mortise {

enum class LoraSave { kMerged, kApart };

struct SaveOptions {
  // "float32", "bfloat16", "float16", "float64"; empty: the model's own; "stored": file by file and tensor by tensor as
  // in the folder that was read, the same bytes where nothing was trained.
  std::string dtype = {};
  int64_t max_shard_bytes = 0;  // largest file, except for a single larger tensor; 0: one file, or as read
  // For a model from an adapter's folder, or with an adapter in training: the sum, or only the adapter (an error if the
  // merged weights were trained).
  LoraSave lora = LoraSave::kMerged;
  std::string base_model = {};       // kApart: what the adapter names as its base; empty: as read
  NumbersToSave* numbers = nullptr;  // borrowed. Null: all weights have memory while files are written
};

// The lowest layer that has one of these trained parameters, counted from 1; with a trained embedding 1. One behind the
// last layer: only a head or the last norm is trained. Backward ends there, or at the norm in front of that layer.
[[nodiscard]] int64_t lowest_backward(int64_t num_layers, std::span<const NamedParameter> trained);

class Model {
 public:
  // A model folder, or that of a LoRA adapter, which is merged into its base. dtype: "float32", "float64" or "bfloat16",
  // whatever the files have (F16, BF16, F32, F64 are converted).
  static Result<Model> load(Env& env, const Path& folder, const std::string& dtype = "float32");
  struct NewHead {
    ModelConfig config;  // the language model as a classifier
    uint64_t seed = 0;
  };
  // As load(), for ranks that keep only some of the numbers: matrices (weight_units.h) have no memory before read_part() or
  // read_parts(), and `env` has to live until then. An adapter is merged into each part as this is read. `head`: a folder of a
  // language model, or of its adapter, gets it in place of its own.
  static Result<Model> open(Env& env, const Path& folder, const std::string& dtype,
                            const std::optional<NewHead>& head = {});
  // Gives the matrices of a part (embedding, layers from 1, head) memory and numbers: those that this rank has of them, and with
  // an adapter those of the base. Nothing to do if all were read.
  Result<> read_part(int64_t part);
  // The same of all parts. Merged and rounded matrices follow.
  Result<> read_parts();
  // Someone has taken all parts.
  void end_reading() { unread_.reset(); }
  // Replaces the weights by those of another folder of the same model. A save as "stored" keeps the layout and dtypes
  // of the first folder.
  Result<> read_weights(Env& env, const Path& folder);
  // Normal(0, initializer_range) matrices, zero biases, norms that multiply by 1; a function of (config, seed).
  static Result<Model> random(ModelConfig config, uint64_t seed, const std::string& dtype = "float32");

  // Moves all numbers to a device, whose code computes every pass from then on. Before an adapter is trained, and before
  // anything holds the parameters. Copies of the model lie there too. save() and plan_save() read through the host.
  Result<> move_to(const ComputeDevice& device);
  [[nodiscard]] const ComputeDevice& device() const { return device_; }

  Model(Model&&) = default;
  Model& operator=(Model&&) = default;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  // The dtype of the parameters: float32 or float64.
  [[nodiscard]] at::ScalarType dtype() const { return weights_.embedding_VH.scalar_type(); }
  // Do the layers multiply by bfloat16 copies of their matrices?
  [[nodiscard]] bool has_rounded_matrices() const { return !weights_.rounded.empty(); }
  // Are there float32 numbers of these matrices? They may lie on other ranks. See drop_masters().
  [[nodiscard]] bool has_masters() const { return tensor_ != nullptr ? tensor_->has_masters() : has_masters_; }
  [[nodiscard]] std::vector<NamedParameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_; }
  [[nodiscard]] bool has_adapter() const { return adapter_ != nullptr || trained_lora_ != nullptr; }
  // What training changes: the parameters, or the adapter's. Those that do not require a gradient are frozen.
  [[nodiscard]] const std::vector<NamedParameter>& trainable() const {
    if (trained_lora_ != nullptr) return trained_lora_->parameters();
    return tensor_ != nullptr ? tensor_->parameters() : parameters_;
  }
  // The same of what training changes now.
  [[nodiscard]] int64_t lowest_backward() const;
  // What a checkpoint needs next to trainable(): where a PiSSA or OLoRA adapter started. After a change of it:
  // start_changed().
  [[nodiscard]] std::span<const NamedParameter> adapter_start() const {
    return trained_lora_ != nullptr ? std::span<const NamedParameter>(trained_lora_->start())
                                    : std::span<const NamedParameter>();
  }
  void start_changed();

  // Freezes the weights and trains a fresh adapter, or the one of a folder, in their place. If a setting of `choice`
  // does not fit, the error's place is its name ("rank_pattern").
  Result<> train_lora(const LoraChoice& choice, uint64_t seed, RandomPurpose purpose = RandomPurpose::kAdapterInit);
  Result<> train_lora(Env& env, const Path& adapter_folder);
  [[nodiscard]] bool trains_lora() const { return trained_lora_ != nullptr; }
  // The dropout of the adapter in training, for the ForwardOptions::lora_dropout of updates. 0: no dropout.
  [[nodiscard]] double lora_dropout() const { return trains_lora() ? trained_lora_->dropout() : 0.0; }
  // To be called after every change of trainable(), or of parameters(): merged weights and rounded matrices follow. Those
  // without memory follow when a gate opens their part.
  void weights_changed();
  // The bfloat16 copies that passes read, where they are copies of trainable() alone: who writes them with every change needs
  // no weights_changed(). Empty: there are none, or others follow too.
  [[nodiscard]] MasterCopies copies_to_step() const {
    const bool is_plain = trained_lora_ == nullptr && tensor_ == nullptr && gate_ == nullptr;
    return is_plain && has_masters_ ? copies_by_master(weights_) : MasterCopies();
  }
  // The model without its adapter, frozen, in the same memory. Precondition: trains_lora(). kNumbers: to read its parameters,
  // not for passes, which may need rounded matrices of their own.
  enum class BaseUse { kPasses, kNumbers };
  [[nodiscard]] Model base_view(BaseUse use = BaseUse::kPasses) const;
  // That base as a classifier of `config`, with a new head by `seed`. An adapter of it (train_lora) leaves the shared memory
  // as it is. Precondition: trains_lora(), and no gate.
  [[nodiscard]] Model base_as_classifier(ModelConfig config, uint64_t seed) const;
  // Frees the float32 matrices of the layers, which passes do not read: the rounded ones are then the weights, also of a part of
  // the layers. Precondition: has_rounded_matrices(), and no adapter.
  void drop_masters();
  // The parameters where they have masters, else slices of the rounded matrices. To read, or, after a load, to write.
  [[nodiscard]] std::vector<NamedParameter> numbers() const;
  // By HF name; null if there is none.
  [[nodiscard]] const NamedParameter* find_parameter(std::string_view name) const;
  [[nodiscard]] const DecoderWeights& weights() const { return weights_; }

  // [N, H], final norm applied. Ids and positions were checked by pack_rows.
  [[nodiscard]] at::Tensor forward_hidden(const PackedBatch& batch, const ForwardOptions& options = {}) const;
  // Moves the master weights of a bfloat16 model into `files`, which also hold its optimizer's state. zero_grad() and
  // weights_changed() then give their pages back. After load and train_lora. Masters on a device then have no memory there:
  // numbers() has those of the files.
  Result<> offload_masters(std::shared_ptr<Offload> files);
  // The same into the host's memory: between steps masters then have no memory on the device. fetch_masters() comes before the
  // steps, and rest_masters() behind them; both do nothing if masters lie elsewhere.
  Result<> rest_masters_on_host();
  void fetch_masters();
  void rest_masters();
  // Moves all weights into `files`, from which passes read part after part. For a model without gate and adapter.
  Result<> offload_weights(const std::shared_ptr<Offload>& files);
  // Calls `change` with a tensor that has the parameter's numbers on the model's device, wherever they lie.
  void change_numbers(const at::Tensor& parameter, const std::function<void(const at::Tensor&)>& change) const;
  // Do the numbers of this parameter lie in a file?
  [[nodiscard]] bool lies_in_file(const at::Tensor& parameter) const {
    return offload_ != nullptr && offload_->holds(parameter);
  }
  // Passes go through `gate` from now on (weight_gate.h), which decides when a matrix has memory.
  void use_gate(std::shared_ptr<WeightGate> gate) { gate_ = std::move(gate); }
  // Engines keep what they compute of a step's rows in this store, for passes that read it. Null: nowhere.
  void keep_sampled_forward(std::shared_ptr<SampledForward> store) { sampled_forward_ = std::move(store); }
  [[nodiscard]] SampledForward* sampled_forward() const { return sampled_forward_.get(); }
  // Null: all weights are in memory.
  [[nodiscard]] WeightGate* gate() const { return gate_.get(); }
  // Tensor parallel: this rank has its part of the layers from now on (weights/model_part.h), which training changes.
  // Passes are collectives of the ranks. After parameters were frozen, and before use_gate() and drop_masters().
  void split_layers(const std::shared_ptr<TensorRanks>& ranks);
  // Its part of them. If this rank has whole layers, or parts for other groups, a copy that `ranks` cut alike, for which all
  // weights need memory. Those numbers do not follow the model.
  [[nodiscard]] std::shared_ptr<const ModelPart> part_of_layers(const std::shared_ptr<TensorRanks>& ranks) const;
  // Null: this rank has whole layers.
  [[nodiscard]] ModelPart* model_part() const { return tensor_.get(); }
  // Does this rank have its part of the layers for groups like these? Null: no group.
  [[nodiscard]] bool has_part_of(const TensorRanks* ranks) const;
  // Do all weights have memory here?
  [[nodiscard]] bool is_whole() const;
  // The same of what this rank has of them, if ranks share the layers.
  [[nodiscard]] bool has_own_weights() const { return gate_ == nullptr || gate_->is_whole(); }
  // Shapes of the layers in this rank's passes.
  [[nodiscard]] const ModelConfig& pass_config() const { return tensor_ != nullptr ? tensor_->config() : config_; }
  // The parameters, but of a model with an adapter in training those of its base: parameters() follow from them.
  [[nodiscard]] const std::vector<NamedParameter>& stored_parameters() const {
    return trained_lora_ != nullptr ? trained_lora_->base().parameters : parameters_;
  }
  // The adapter in training; null if there is none.
  [[nodiscard]] TrainedLora* trained_lora() const { return trained_lora_.get(); }

  // What turns hidden states into logits (scores of a classifier); outside autograd. If ranks share the layers, it has this
  // rank's rows, and passes through it are collectives of the ranks. The same if a gate gives its rows window by window.
  [[nodiscard]] VocabularyHead head() const;
  // The whole one, for which the whole head needs memory.
  [[nodiscard]] VocabularyHead head_to_sample() const;
  // The leaf of the head [V, H] (the embedding where tied); of a rank's part its own.
  [[nodiscard]] at::Tensor head_weight() const;
  // The same of the embedding, outside autograd.
  [[nodiscard]] at::Tensor embedding_weight() const;
  // The gradient of head().weight_VH, created as zeros if there is none yet. Pass it as d_weight_VH of the head. Undefined if
  // the head is frozen, or if its owners get the gradient (VocabularyHead::rows).
  [[nodiscard]] at::Tensor head_grad() const;

  // config.json, generation_config.json and the weights: a folder that transformers loads; an adapter that PEFT loads.
  [[nodiscard]] Result<> save(Env& env, const Path& folder, const SaveOptions& options = {}) const;
  // The same files for another writer, who has to be done before the weights change.
  [[nodiscard]] Result<std::vector<FolderFile>> plan_save(const SaveOptions& options = {}) const;
  // Whether load() of what `options` save gives the very weights back.
  [[nodiscard]] Result<bool> saves_exactly(const SaveOptions& options) const;
  // A copy of the numbers that never requires grad: the reference model. With kAlike, ranks that share the layers of this
  // model share those of the copy, too. With kWhole the copy has whole layers, and all weights of this model must be in memory.
  enum class Layers { kAlike, kWhole };
  [[nodiscard]] Model clone_frozen(Layers layers = Layers::kAlike) const;
  // Takes the numbers of a model with the same parameters, whose layers are split alike; for whole layers they need memory. If
  // the other one has no masters, those of this one are left as they are.
  void copy_numbers(const Model& from);
  // As clone_frozen(), before the numbers are copied. With kAlike it has memory where this model has.
  [[nodiscard]] Model frozen_shape(Layers layers = Layers::kAlike) const;
  void zero_grad();  // forgets all gradients
  // Sequences of up to so many tokens will come: see ModelConfig::rope_length. Call this before an engine is made.
  void set_rope_length(int64_t length) {
    config_.rope_length = length;
    if (tensor_ != nullptr) tensor_->set_rope_length(length);
  }

 private:
  Model() = default;
  void adopt(ParameterStore store);
  void merge_parts();  // that were read
  void take_base(std::span<const size_t> read);
  Result<> start_adapter();
  void add_rounded_matrices();
  void split_layers(const std::shared_ptr<TensorRanks>& ranks, ModelPart::Numbers numbers,
                    ModelPart::Vocabulary vocabulary);
  // Those that passes of this rank use.
  [[nodiscard]] const DecoderWeights& pass_weights() const {
    return tensor_ != nullptr ? tensor_->weights() : weights_;
  }
  // Do passes use this rank's part of the layers?
  [[nodiscard]] bool uses_part() const { return tensor_ != nullptr && !tensor_->is_whole(); }
  Result<> adapt(LoraPlan plan);
  // How `options` store the weights: the dtype, or nothing for "as they were read".
  [[nodiscard]] Result<std::optional<at::ScalarType>> stored_dtype(const SaveOptions& options) const;
  [[nodiscard]] Result<std::vector<FolderFile>> plan_adapter(const SaveOptions& options) const;
  [[nodiscard]] uint64_t version_sum() const;  // grows with every in-place change of a parameter

  ModelConfig config_;
  DecoderWeights weights_;
  std::vector<NamedParameter> parameters_;
  DecoderLeaves leaves_;
  bool has_masters_ = true;
  std::shared_ptr<const StoredLayout> layout_;  // layout of the folder that was read; null for a model made here
  std::shared_ptr<const LoraAdapter> adapter_;  // merged into the parameters; null if there is none
  std::unique_ptr<TrainedLora> trained_lora_;   // null where the parameters themselves are trained
  bool shares_memory_ = false;                  // the parameters are another model's too
  std::shared_ptr<WeightGate> gate_;            // null: all weights are in memory
  std::shared_ptr<ModelPart> tensor_;           // null: this rank has whole layers
  std::shared_ptr<Offload> offload_;            // null: nothing lies in files
  bool masters_rest_ = false;                   // offload_ has them in the host's memory
  std::shared_ptr<SampledForward> sampled_forward_;
  std::shared_ptr<UnreadWeights> unread_;  // null: all matrices were read, or made
  uint64_t loaded_version_ = 0;
  ComputeDevice device_;
};

}  // namespace mortise
