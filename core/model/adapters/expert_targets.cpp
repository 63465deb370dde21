// See expert_targets.h.
#include "model/adapters/expert_targets.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "foundation/base/text.h"
#include "model/weights/names.h"

namespace mortise {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";
constexpr const char* kGateUp = "gate_up_proj";
constexpr const char* kDown = "down_proj";
constexpr const char* kRouterWeight = "gate.weight";
constexpr const char* kGateUpPattern = ".*\\.gate_up_proj";

bool ends_name(std::string_view name, const std::string& entry) { return names_parameter({&entry, 1}, name); }

bool is_gate_or_up(std::string_view part) {
  return part == "gate_proj" || part == "up_proj" || part == "w1" || part == "w3";
}

std::string module_name(const NamedParameter& parameter) {
  return transformers_name(parameter.name.substr(0, parameter.name.rfind(kWeightSuffix)));
}

// What an entry of target_modules names in the mixture; empty: nothing there.
std::string mixture_module(const std::string& entry, std::span<const NamedParameter> parameters) {
  for (const NamedParameter& parameter : parameters) {
    const std::string module = module_name(parameter);
    const std::string stack = expert_stack_of(parameter.name);
    if (stack.empty() && !is_router(module)) continue;
    if (ends_name(module, entry) || ends_name(parameter.name, entry)) return module;
    if (!stack.empty() && ends_name(stack, entry)) return stack;
  }
  return {};
}

Error refuse_entry(const std::string& entry, const std::string& module) {
  return {
      ErrorKind::kConfig,
      fmt::format("target_modules: {} names {}, which is part of a mixture of experts", quote(entry), quote(module)),
      "target_modules",
      "name it in target_parameters, such as mlp.experts.gate_up_proj, mlp.experts.down_proj or the router's weight"};
}

}  // namespace

bool converts_expert_names(std::span<const NamedParameter> parameters) {
  bool has_experts = false;
  for (const NamedParameter& parameter : parameters) {
    if (is_expert_stack(parameter.name) || parameter.name.find(".shared_expert.") != std::string::npos) return false;
    has_experts = has_experts || !expert_stack_of(parameter.name).empty();
  }
  return has_experts;
}

Result<LoraChoice> convert_expert_targets(LoraChoice choice, std::span<const NamedParameter> parameters,
                                          std::span<const std::string> modules) {
  std::vector<std::string> kept;
  std::set<std::string> parts;  // those that gate_up_proj holds
  const auto add = [&](const char* parameter) {
    if (!names_parameter(choice.target_parameters, parameter)) choice.target_parameters.emplace_back(parameter);
  };
  for (const std::string& entry : choice.target_modules) {
    const bool names_matrix =
        std::ranges::any_of(modules, [&](const auto& module) { return ends_name(module, entry); });
    const std::string module = names_matrix ? std::string() : mixture_module(entry, parameters);
    if (module.empty()) {
      kept.push_back(entry);
    } else if (!converts_expert_names(parameters) || entry.find('.') != std::string::npos) {
      return refuse_entry(entry, module);
    } else if (is_router(module)) {
      add(kRouterWeight);
    } else if (is_gate_or_up(entry)) {
      parts.insert(entry);
    } else {
      add(kDown);
    }
  }
  if (parts.size() == 1) {
    return Error{ErrorKind::kConfig,
                 fmt::format("target_modules: {} of the experts cannot have an adapter alone, because PEFT keeps it in "
                             "one tensor with its partner",
                             quote(*parts.begin())),
                 "target_modules", "name gate_proj and up_proj (Mixtral: w1 and w3), or neither"};
  }
  if (!parts.empty()) {
    add(kGateUp);
    choice.rank_pattern[kGateUpPattern] = 2 * choice.rank;
    choice.alpha_pattern[kGateUpPattern] = 2 * choice.alpha;
  }
  choice.target_modules = std::move(kept);
  return choice;
}

std::vector<std::string> single_expert_modules(const ExpertStack& stack, std::span<const NamedParameter> parameters) {
  std::vector<std::string> out;
  for (const size_t i : stack.parameters) {
    if (!is_expert_stack(parameters[i].name)) out.push_back(module_name(parameters[i]));
  }
  return out;
}

namespace {

// The rank of the experts of a stack that an adapter's file holds one by one; nullopt: it holds none of them.
Result<std::optional<LoraRank>> single_rank(const LoraTensors& tensors, const std::vector<std::string>& modules) {
  std::optional<LoraRank> rank;
  std::string missing;
  for (const std::string& module : modules) {
    const auto found = tensors.pairs.find(module);
    if (found == tensors.pairs.end()) {
      missing = module;
      continue;
    }
    if (rank && rank->rank != found->second.rank.rank) {
      return Error{ErrorKind::kData,
                   fmt::format("the adapter of {} has another rank than other experts", quote(module)),
                   tensors.file.path().string(), "train an adapter with one rank for all experts"};
    }
    rank = found->second.rank;
  }
  if (!rank || missing.empty()) return rank;
  return Error{ErrorKind::kData, fmt::format("the adapter has other experts of the layer, but not {}", quote(missing)),
               tensors.file.path().string(),
               "adapt all experts, and gate and up together, or merge it into its base with `mortise model save`"};
}

}  // namespace

Result<LoraConfig> config_of_stacks(LoraConfig config, const LoraTensors& tensors,
                                    std::span<const NamedParameter> parameters) {
  std::vector<std::string> targets = config.target_parameters;
  std::set<std::string> experts;
  std::optional<LoraRank> gate_up;
  for (const ExpertStack& stack : expert_stacks(parameters)) {
    const std::vector<std::string> modules = single_expert_modules(stack, parameters);
    const std::optional<LoraRank> rank = TRY(single_rank(tensors, modules));
    if (!rank) continue;
    experts.insert(modules.begin(), modules.end());
    targets.push_back(stack.name);
    if (stack.name.ends_with(kGateUp)) gate_up = rank;
  }
  if (experts.empty()) return config;
  if (!config.rank_pattern.empty() || !config.alpha_pattern.empty()) {
    return Error{ErrorKind::kData, "rank_pattern and alpha_pattern cannot be continued for single experts",
                 config.where, "merge the adapter into its base with `mortise model save`, and train from there"};
  }
  Json json = TRY(parse_json(config.text, config.where));
  std::vector<std::string> modules;
  for (const auto& [module, pair] : tensors.pairs) {
    if (experts.contains(module)) continue;
    if (is_router(module) || module.find(".mlp.") != std::string::npos)  // see take_dense_modules
      targets.push_back(module + std::string(kWeightSuffix));
    else
      modules.push_back(module);
  }
  json["target_modules"] = modules;
  json["target_parameters"] = targets;
  if (gate_up) {
    json["rank_pattern"][kGateUpPattern] = 2 * gate_up->rank;
    json["alpha_pattern"][kGateUpPattern] = 2 * config.alpha;
  }
  return parse_lora_config(dump_json(json, 2) + "\n", config.where);
}

std::vector<std::string> targeted_mixture(std::span<const NamedParameter> parameters,
                                          std::span<const std::string> targets) {
  std::vector<std::string> out;
  for (const NamedParameter& parameter : parameters) {
    const std::string stack = expert_stack_of(parameter.name);
    if (!stack.empty() && names_parameter(targets, stack) && std::ranges::find(out, stack) == out.end())
      out.push_back(stack);
    const std::string name = transformers_name(parameter.name);
    const std::string module = module_name(parameter);
    if (is_router(module) && name.ends_with(kWeightSuffix) && names_parameter(targets, name)) out.push_back(module);
  }
  return out;
}

Result<> check_target_parameters(std::span<const std::string> targets, std::span<const NamedParameter> parameters) {
  for (const std::string& target : targets) {
    if (!targeted_mixture(parameters, {&target, 1}).empty()) continue;
    return Error{ErrorKind::kConfig,
                 fmt::format("target_parameters: the model has no experts or router that {} names", quote(target)),
                 "target_parameters",
                 "use mlp.experts.gate_up_proj, mlp.experts.down_proj or the router's weight; other matrices go into "
                 "target_modules"};
  }
  return {};
}

Result<> check_mixture_settings(const LoraConfig& config, std::span<const std::string> modules) {
  const auto is_of_parameters = [](const std::string& m) { return is_expert_stack(m) || is_router(m); };
  if (std::ranges::none_of(modules, is_of_parameters)) return {};
  const auto refuse = [&](const char* key, const char* next) {
    return Error{ErrorKind::kConfig,
                 fmt::format("{}: PEFT has none for adapters of experts and routers (target_parameters)", key),
                 config.where.empty() ? std::string(key) : config.where, next};
  };
  if (config.dropout > 0.0) return refuse("lora_dropout", "set lora_dropout to 0");
  if (config.use_dora) return refuse("use_dora", "set use_dora to false");
  if (changes_base(config.init)) return refuse("init_lora_weights", "use default or gaussian");
  return {};
}

Result<> check_saved_mixture(std::span<const std::string> modules, std::span<const std::string> saved) {
  for (const std::string& name : saved) {
    const std::string module = transformers_name(name.substr(0, name.rfind('.')));
    if (std::ranges::find(modules, module) == modules.end()) continue;
    return Error{ErrorKind::kConfig, fmt::format("{} is in modules_to_save and in target_parameters", quote(module)),
                 "target_parameters", "remove it from one of the two"};
  }
  return {};
}

}  // namespace mortise
