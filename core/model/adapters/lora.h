// A LoRA adapter in PEFT's folder form, applied to parameters: W += scale B A for every adapted matrix; with DoRA each
// row is then divided by its norm and multiplied by its magnitude. Tensors of modules_to_save and trained biases replace
// those of the base. If they are the head of a sequence classifier (TRL's reward models: task_type SEQ_CLS), the base,
// usually a language model, becomes a classifier.
//
// The sum is computed in float64 and rounded once. Cost: 2 out in r flops per matrix. Memory: the adapter stays, so
// that it can be saved separately. Thread rule: plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/formats/safetensors.h"
#include "model/adapters/expert_stacks.h"
#include "model/adapters/lora_config.h"
#include "model/weights/model_config.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

// Before the name of a module in the adapter's tensors.
inline constexpr std::string_view kLoraPrefix = "base_model.model.";

// A and B of one module. Both are present and have the configuration's rank.
struct LoraPair {
  const TensorView* a = nullptr;
  const TensorView* b = nullptr;
  const TensorView* magnitude = nullptr;  // DoRA's magnitudes; else null
  LoraRank rank;
};
// adapter_model.safetensors of a folder. The views are of `file`.
struct LoraTensors {
  SafetensorsFile file;
  // By module: "model.layers.0.self_attn.q_proj". Names are transformers' (expert_stacks.h); for all experts of a layer
  // the name of their stack.
  std::map<std::string, LoraPair> pairs;
  std::vector<const TensorView*> others;
};
// Errors name file and tensor: a name without the prefix, A without B, no tensor at all, a rank that differs from
// adapter_config.json. Memory is allocated by the tensors' shapes, never by a rank that only the configuration claims.
Result<LoraTensors> read_lora_tensors(Env& env, const Path& folder);

// An Error (kData) if A and B of a stack's adapter do not have the shapes of its experts and rank.
Result<> check_stack_pair(const ExpertStack& stack, const LoraPair& pair, const std::string& where);

// The configuration of a model's folder, or of an adapter's folder with its base.
Result<ModelConfig> read_model_folder_config(Env& env, const Path& folder);
// `config` of the base under the adapter's own head, where it has one.
Result<ModelConfig> add_adapter_head(Env& env, const Path& folder, ModelConfig config);

// The parameter that a tensor of LoraTensors::others holds, by its name in the model.
std::string whole_parameter_name(const std::string& tensor);

// What `init` starts with, and takes out of the base: A [R, I] and B [O, R] of the weight's dtype, on the host.
// An Error (kConfig) if the matrix has fewer rows or columns than the rank. Precondition: changes_base(init).
struct LoraStart {
  at::Tensor a_RI, b_OR;
};
Result<LoraStart> lora_start(LoraInit init, const at::Tensor& weight_OI, const LoraRank& rank);

struct LoraAdapter {
  LoraConfig config;
  StoredFile weights;  // adapter_model.safetensors, every tensor as bytes
};

// Merges the adapter of a folder into the parameters of its base, while these are read part by part.
class LoraMerge {
 public:
  // For a model with such parameters, which need no memory yet. Errors name file and tensor: one that is not of this model, A
  // without B, another rank than the configuration's, a variant that is not supported. `drops_head`: the model has another
  // head than the base, and what the adapter has for the base's is left out.
  static Result<LoraMerge> open(Env& env, const Path& folder, std::span<const NamedParameter> parameters,
                                bool drops_head);

  // The parameters with these places have the base's numbers, and get their sums. They are in the order that open() saw.
  // Errors name file and tensor: a shape that does not fit.
  Result<> apply(std::span<const size_t> places, std::span<const NamedParameter> parameters) const;
  // The adapter as it was read, for a save.
  [[nodiscard]] LoraAdapter adapter() const;

 private:
  class Parts;
  explicit LoraMerge(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

// The two files of the folder: the same bytes as were read, except for the base's path if one is given.
Result<std::vector<FolderFile>> plan_lora(std::shared_ptr<const LoraAdapter> adapter, const std::string& base_model);

}  // namespace mortise
