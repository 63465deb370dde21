// Adapters of experts that were chosen, or saved, expert by expert: names as in transformers 4, such as gate_proj of
// Qwen3-MoE and w1 of Mixtral. PEFT 0.21 makes adapters of whole stacks (expert_stacks.h) of them: gate and up become one
// with twice the rank and alpha, so that the scale stays. These functions do the same.
// Thread rule: plain values.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "foundation/base/result.h"
#include "model/adapters/expert_stacks.h"
#include "model/adapters/lora.h"
#include "model/adapters/lora_plan.h"
#include "model/weights/parameters.h"

namespace mortise {

// Does PEFT turn names of target_modules into those of stacks for this model? Qwen3-MoE and Mixtral.
bool converts_expert_names(std::span<const NamedParameter> parameters);

// `choice` with the entries of target_modules that name only experts or routers as target_parameters. `modules`: the
// matrices that target_modules may name. An Error (kConfig) for one of gate and up without the other, and for entries that
// PEFT does not convert.
Result<LoraChoice> convert_expert_targets(LoraChoice choice, std::span<const NamedParameter> parameters,
                                          std::span<const std::string> modules);

// Routers and stacks that `targets` names by the rule of target_parameters, in the order of the parameters.
std::vector<std::string> targeted_mixture(std::span<const NamedParameter> parameters,
                                          std::span<const std::string> targets);
// Errors (kConfig): an entry that names nothing; settings that PEFT does not have for parameters, if `modules` holds any;
// a module that is also trained as a whole.
Result<> check_target_parameters(std::span<const std::string> targets, std::span<const NamedParameter> parameters);
Result<> check_mixture_settings(const LoraConfig& config, std::span<const std::string> modules);
Result<> check_saved_mixture(std::span<const std::string> modules, std::span<const std::string> saved);

// The modules of single experts that make up a stack, expert by expert: "model.layers.0.mlp.experts.0.gate_proj".
std::vector<std::string> single_expert_modules(const ExpertStack& stack, std::span<const NamedParameter> parameters);

// The configuration of a folder with tensors of single experts, as one of stacks. Errors (kData) name what is missing: a
// stack needs all of its experts, with one rank. Without such tensors: `config`.
Result<LoraConfig> config_of_stacks(LoraConfig config, const LoraTensors& tensors,
                                    std::span<const NamedParameter> parameters);

}  // namespace mortise
