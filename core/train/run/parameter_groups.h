// Which group of optim.groups each trainable parameter of a model is in. The names are Hugging Face's; of an adapter
// those of its folder ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight").
// Thread rule: plain values.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "config/optim_groups.h"
#include "model/model.h"

namespace mortise {

// By the parameter's name; those without a group are absent.
using ParameterGroups = std::map<std::string, OptimGroup, std::less<>>;

[[nodiscard]] bool is_frozen(const ParameterGroups& groups, std::string_view name);

// The groups of `table` ("actor.optim") for these parameters. Errors (kConfig): a group that gets no parameter, one for
// Muon that gets no matrix, or no parameter that is left to train.
Result<ParameterGroups> group_parameters(const LoadedConfig& loaded, const std::string& table,
                                         std::span<const NamedParameter> parameters);
// The same for a model, whose frozen parameters require no gradient from now on.
Result<ParameterGroups> group_and_freeze(const LoadedConfig& loaded, const std::string& table, Model& model);

}  // namespace mortise
