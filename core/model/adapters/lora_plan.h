// What a LoRA adapter in training is made of: which matrices get A and B, with which rank and scale, and which
// parameters are trained as a whole. Settings with PEFT's names and meanings choose it, or an adapter's folder.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/adapter_choice.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "model/adapters/lora_config.h"
#include "model/weights/parameters.h"

namespace mortise {

// What is trained. A module is named by its name's end, from a dot on ("q_proj", "0.mlp.up_proj"); "all-linear": every
// matrix of the layers. PEFT's names and meanings.
struct LoraChoice {
  int64_t rank = 8;
  double alpha = 8.0;
  std::vector<std::string> target_modules = {"all-linear"};
  std::vector<std::string> exclude_modules = {};
  // Parameters of a mixture by the end of their name: mlp.experts.gate_up_proj, mlp.gate.weight (expert_stacks.h).
  std::vector<std::string> target_parameters = {};
  double dropout = 0.0;     // for the adapter's input, in [0, 1)
  bool use_rslora = false;  // scale alpha / sqrt(rank)
  bool use_dora = false;
  LoraInit init = LoraInit::kDefault;
  std::vector<int64_t> layers_to_transform = {};  // empty: all
  Json rank_pattern = Json::object();
  Json alpha_pattern = Json::object();
  std::vector<std::string> modules_to_save = {};
  LoraBias bias = LoraBias::kNone;
};

// An adapter of a model, before there is memory for it.
struct LoraPlan {
  LoraConfig config;
  // "model.layers.0.self_attn.q_proj", in the order of the parameters, then what target_parameters names. By
  // transformers' names; all experts of a layer are one (expert_stacks.h).
  std::vector<std::string> modules;
  std::vector<LoraRank> ranks;     // one per module
  std::vector<std::string> whole;  // parameters that are trained as a whole
};
// Errors name the entry that fits nothing; their place is the choice's name ("rank_pattern").
Result<LoraPlan> plan_fresh_lora(std::span<const NamedParameter> parameters, const LoraChoice& choice);
// The adapter of a folder. A tensor that cannot be trained is an error that names it.
Result<LoraPlan> plan_lora_of_folder(Env& env, const Path& folder, std::span<const NamedParameter> parameters);

// PEFT's names: a tensor of an adapted module ("lora_A.weight"), and a parameter that is trained as a whole. It names the
// bias of an adapted matrix by its wrapper. If both stacks of a layer's experts are adapted, one wraps the other.
std::string lora_tensor_name(const LoraPlan& plan, const std::string& module, std::string_view tensor);
std::string lora_whole_name(const LoraPlan& plan, std::string parameter);

struct LoraSize {
  int64_t num_trained = 0;  // elements that are trained
  int64_t num_added = 0;    // elements that there are for the adapter: A, B, magnitudes, and the base's numbers kept
  std::vector<std::string> names;            // PEFT names of the parameters that are trained
  std::vector<std::vector<int64_t>> shapes;  // their shapes
  bool use_dora = false;
  bool changes_base = false;  // PiSSA, OLoRA
  double dropout = 0.0;       // in updates
};
LoraSize measure_lora(std::span<const NamedParameter> parameters, const LoraPlan& plan);

}  // namespace mortise
