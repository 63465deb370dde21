// See lora_plan.h.
#include "model/adapters/lora_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "model/adapters/expert_targets.h"
#include "model/adapters/lora.h"
#include "model/weights/names.h"

namespace mortise {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kLayers = "model.layers.";

// "model.norm" of "model.norm.weight".
std::string module_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

// Routers and experts: transformers keeps a layer's experts in one tensor, for which PEFT has another form of adapter.
bool is_of_mixture(const std::string& name) {
  return name.find(".experts.") != std::string::npos || is_router(transformers_name(module_of(name)));
}

// Every matrix of the layers that target_modules may name, without ".weight".
std::vector<std::string> linear_modules(std::span<const NamedParameter> parameters) {
  std::vector<std::string> out;
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.dim() != 2 || !parameter.name.starts_with(kLayers)) continue;
    if (is_of_mixture(parameter.name)) continue;
    out.push_back(module_of(parameter.name));
  }
  return out;
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool is_named_by(const std::string& module, const std::string& entry) {
  if (entry == kAllLinear) return !module.ends_with(".shared_expert_gate");
  return names_parameter({&entry, 1}, module);
}

Result<> check_entries(std::span<const std::string> entries, std::span<const NamedParameter> parameters,
                       const std::string& where) {
  const std::vector<std::string> modules = linear_modules(parameters);
  for (const std::string& entry : entries) {
    if (std::ranges::any_of(modules, [&](const std::string& module) { return is_named_by(module, entry); })) continue;
    std::set<std::string> names = {std::string(kAllLinear)};
    for (const std::string& module : modules) names.insert(last_part(module));
    const std::vector<std::string> known(names.begin(), names.end());
    return Error{ErrorKind::kConfig, fmt::format("the model has no matrix that {} names", quote(entry)), where,
                 "known: " + join(known, ", ")};
  }
  return {};
}

Result<> check_layers(std::span<const int64_t> layers, std::span<const std::string> modules) {
  int64_t last = 0;
  for (const std::string& module : modules) last = std::max(last, layer_of(module).value_or(0));
  for (const int64_t layer : layers) {
    if (layer <= last) continue;
    return Error{ErrorKind::kConfig, fmt::format("the model has no layer {}", layer), "layers_to_transform",
                 fmt::format("its layers are 0 to {}", last)};
  }
  return {};
}

bool is_tied(std::span<const NamedParameter> parameters) {
  return std::ranges::none_of(parameters, [](const auto& p) { return p.name == kHeadName || p.name == kScoreHead; });
}

// PEFT's rule for modules_to_save: the end of the name of a module, which may hold others. The head of a tied model is
// its embedding.
bool is_saved_by(const std::string& parameter, const std::string& entry, bool tied) {
  if (tied && parameter == kEmbeddingName && module_of(kHeadName).ends_with(entry)) return true;
  for (size_t dot = parameter.rfind('.'); dot != std::string::npos && dot > 0; dot = parameter.rfind('.', dot - 1)) {
    if (std::string_view(parameter).substr(0, dot).ends_with(entry)) return true;
  }
  return false;
}

Result<std::vector<std::string>> saved_parameters(std::span<const NamedParameter> parameters,
                                                  const std::vector<std::string>& entries, const std::string& where) {
  std::vector<std::string> out;
  const bool tied = is_tied(parameters);
  for (const std::string& entry : entries) {
    const size_t before = out.size();
    for (const NamedParameter& parameter : parameters) {
      if (!is_saved_by(parameter.name, entry, tied)) continue;
      if (parameter.name.find(".experts.") != std::string::npos) {
        return Error{ErrorKind::kConfig,
                     fmt::format("modules_to_save: {} names experts of a mixture, which PEFT keeps in another form",
                                 quote(entry)),
                     where, "name other modules"};
      }
      out.push_back(parameter.name);
    }
    if (out.size() > before) continue;
    std::set<std::string> names;
    for (const NamedParameter& parameter : parameters) names.insert(last_part(module_of(parameter.name)));
    const std::vector<std::string> known(names.begin(), names.end());
    return Error{ErrorKind::kConfig, fmt::format("the model has no module whose name ends in {}", quote(entry)), where,
                 "known: " + join(known, ", ")};
  }
  return out;
}

bool contains(std::span<const std::string> names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// The biases that `bias` trains, and `saved`, in the order of the parameters.
std::vector<std::string> whole_parameters(std::span<const NamedParameter> parameters, LoraBias bias,
                                          std::span<const std::string> modules, std::span<const std::string> saved) {
  std::vector<std::string> out;
  for (const NamedParameter& parameter : parameters) {
    const bool of_rule =
        is_bias(parameter.name) &&
        (bias == LoraBias::kAll || (bias == LoraBias::kLoraOnly && contains(modules, module_of(parameter.name))));
    if (of_rule || contains(saved, parameter.name)) out.push_back(parameter.name);
  }
  return out;
}

// Every pattern must name an adapted matrix: a misspelt one would change nothing.
template <class T>
Result<> check_patterns(const std::vector<ModuleValue<T>>& patterns, std::span<const std::string> modules,
                        const char* key) {
  for (const ModuleValue<T>& one : patterns) {
    const auto names = [&](const std::string& module) {
      const auto matched = one.pattern.matches(module);
      return !matched || *matched;  // a fault is told by rank_of
    };
    if (std::ranges::any_of(modules, names)) continue;
    return Error{ErrorKind::kConfig, fmt::format("{}: a pattern matches no adapted matrix", key), key,
                 "write the end of a module's name, such as q_proj"};
  }
  return {};
}

std::string init_name(LoraInit init) { return std::string(choice_name(init)); }

Json number_json(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value)) : Json(value);
}

// Takes the matrices out of `modules` whose names PEFT would turn into those of experts (expert_targets.h): dense
// layers of Qwen3-MoE, which target_parameters can name.
std::vector<std::string> take_dense_modules(const LoraChoice& choice, std::span<const NamedParameter> parameters,
                                            std::vector<std::string>& modules) {
  std::vector<std::string> out;
  // PEFT has neither for target_parameters, so these adapters have no form that it loads.
  if (choice.dropout > 0.0 || choice.use_dora || !converts_expert_names(parameters)) return out;
  std::erase_if(modules, [&](const std::string& module) {
    if (module.find(".mlp.") == std::string::npos) return false;
    out.push_back(module + std::string(kWeight));
    return true;
  });
  return out;
}

// The patterns, such that they also match matrices that target_parameters names: PEFT then looks at the parameter's name.
Json patterns_of_parameters(const Json& patterns) {
  Json out = Json::object();
  for (const auto& [pattern, value] : patterns.items()) out[fmt::format(R"((?:{})(?:\.weight)?)", pattern)] = value;
  return out;
}

// What adapter_config.json of a fresh adapter says.
std::string fresh_config_text(const LoraChoice& choice, std::span<const std::string> modules,
                              std::span<const std::string> all_modules, bool ties_weights) {
  std::set<std::string> in_part;  // last parts of names that are adapted in some layers only
  for (const std::string& module : all_modules) {
    if (!contains(modules, module)) in_part.insert(last_part(module));
  }
  std::set<std::string> names;
  for (const std::string& module : modules)
    names.insert(in_part.contains(last_part(module)) ? module : last_part(module));
  Json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = "";
  json["r"] = choice.rank;
  json["lora_alpha"] = number_json(choice.alpha);
  json["target_modules"] = names;
  json["target_parameters"] = choice.target_parameters.empty() ? Json() : Json(choice.target_parameters);
  json["lora_dropout"] = choice.dropout;
  json["bias"] = choice_name(choice.bias);
  json["fan_in_fan_out"] = false;
  if (choice.init == LoraInit::kDefault)
    json["init_lora_weights"] = true;
  else
    json["init_lora_weights"] = init_name(choice.init);
  json["use_rslora"] = choice.use_rslora;
  json["use_dora"] = choice.use_dora;
  json["rank_pattern"] = choice.rank_pattern;
  json["alpha_pattern"] = choice.alpha_pattern;
  json["modules_to_save"] = choice.modules_to_save.empty() ? Json() : Json(choice.modules_to_save);
  if (ties_weights) json["ensure_weight_tying"] = true;
  json["inference_mode"] = true;
  return dump_json(json, 2) + "\n";
}

bool trains_tied(std::span<const NamedParameter> parameters, std::span<const std::string> whole) {
  return contains(whole, kEmbeddingName) && is_tied(parameters);
}

}  // namespace

Result<LoraPlan> plan_fresh_lora(std::span<const NamedParameter> parameters, const LoraChoice& asked) {
  const std::vector<std::string> all_modules = linear_modules(parameters);
  LoraChoice choice = TRY(convert_expert_targets(asked, parameters, all_modules));
  TRY(check_entries(choice.target_modules, parameters, "target_modules"));
  TRY(check_entries(choice.exclude_modules, parameters, "exclude_modules"));
  TRY(check_target_parameters(choice.target_parameters, parameters));
  TRY(check_layers(choice.layers_to_transform, all_modules));
  if (!choice.target_parameters.empty() && !choice.layers_to_transform.empty()) {
    return Error{ErrorKind::kConfig, "layers_to_transform does not choose among target_parameters, as in PEFT",
                 "layers_to_transform", "name the layers in target_parameters, such as 7.mlp.experts.down_proj"};
  }
  const std::vector<std::string> saved = TRY(saved_parameters(parameters, choice.modules_to_save, "modules_to_save"));
  LoraPlan plan;
  const auto is_in_layers = [&](const std::string& module) {
    const std::vector<int64_t>& layers = choice.layers_to_transform;
    return layers.empty() || std::ranges::find(layers, layer_of(module).value_or(-1)) != layers.end();
  };
  for (const std::string& module : all_modules) {
    const auto names = [&](const std::string& entry) { return is_named_by(module, entry); };
    if (std::ranges::any_of(choice.target_modules, names) && std::ranges::none_of(choice.exclude_modules, names) &&
        is_in_layers(module) && !contains(saved, module + std::string(kWeight)))
      plan.modules.push_back(module);
  }
  std::vector<std::string> named = plan.modules;
  const std::vector<std::string> mixture = targeted_mixture(parameters, choice.target_parameters);
  plan.modules.insert(plan.modules.end(), mixture.begin(), mixture.end());
  TRY(check_saved_mixture(mixture, saved));
  if (plan.modules.empty())
    return Error{ErrorKind::kConfig, "no matrix is left to adapt", "target_modules", "name some, or all-linear"};
  plan.whole = whole_parameters(parameters, choice.bias, plan.modules, saved);
  const std::vector<std::string> dense = take_dense_modules(asked, parameters, named);
  if (!dense.empty()) {
    choice.target_parameters.insert(choice.target_parameters.end(), dense.begin(), dense.end());
    choice.rank_pattern = patterns_of_parameters(choice.rank_pattern);
    choice.alpha_pattern = patterns_of_parameters(choice.alpha_pattern);
  }
  plan.config =
      TRY(parse_lora_config(fresh_config_text(choice, named, all_modules, trains_tied(parameters, plan.whole)), ""));
  TRY(check_mixture_settings(plan.config, plan.modules));
  TRY(check_patterns(plan.config.rank_pattern, plan.modules, "rank_pattern"));
  TRY(check_patterns(plan.config.alpha_pattern, plan.modules, "alpha_pattern"));
  plan.ranks = TRY(plan.config.ranks_of(plan.modules));
  return plan;
}

namespace {

// A parameter of modules_to_save that the file lacks would go on from the base's numbers, or from random ones.
Result<> check_saved(std::span<const std::string> saved, const LoraTensors& tensors, const std::string& where) {
  for (const std::string& name : saved) {
    const auto holds = [&](const TensorView* view) {
      const std::string stored = whole_parameter_name(view->name);
      return stored == name ||
             (name == kEmbeddingName && stored == kHeadName);  // one matrix, if modules_to_save has it
    };
    if (std::ranges::any_of(tensors.others, holds)) continue;
    return Error{ErrorKind::kData,
                 fmt::format("modules_to_save names {}, and the adapter's file has no such tensor", quote(name)), where,
                 "save the whole adapter again, or remove the name from modules_to_save"};
  }
  return {};
}

// The modules of the adapter's tensors.
Result<> take_modules(const LoraTensors& tensors, std::span<const NamedParameter> parameters, LoraPlan& plan) {
  std::set<std::string> taken;
  const std::vector<std::string> known = linear_modules(parameters);
  for (const std::string& module : known) {
    if (!tensors.pairs.contains(module)) continue;
    plan.modules.push_back(module);
    taken.insert(module);
  }
  const std::vector<ExpertStack> stacks = expert_stacks(parameters);
  const std::string where = tensors.file.path().string();
  for (std::string& module : targeted_mixture(parameters, plan.config.target_parameters)) {
    const auto stack = std::ranges::find(stacks, module, &ExpertStack::name);
    const auto pair = tensors.pairs.find(module);
    taken.insert(module);
    if (stack != stacks.end() && pair == tensors.pairs.end()) {  // one by one: config_of_stacks has seen them all
      const std::vector<std::string> experts = single_expert_modules(*stack, parameters);
      taken.insert(experts.begin(), experts.end());
    } else if (stack != stacks.end()) {
      TRY(check_stack_pair(*stack, pair->second, where));
    }
    plan.modules.push_back(std::move(module));
  }
  for (const auto& [module, pair] : tensors.pairs) {
    if (taken.contains(module)) continue;
    return Error{ErrorKind::kData,
                 fmt::format("the adapter's module {} is not a matrix of the model's layers", quote(module)), where,
                 did_you_mean(module, known)};
  }
  return {};
}

}  // namespace

Result<LoraPlan> plan_lora_of_folder(Env& env, const Path& folder, std::span<const NamedParameter> parameters) {
  LoraPlan plan;
  plan.config = TRY(read_lora_config(env, folder));
  const LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  const std::string where = tensors.file.path().string();
  plan.config = TRY(config_of_stacks(std::move(plan.config), tensors, parameters));
  std::vector<std::string> entries = plan.config.modules_to_save;
  if (plan.config.task_type == "SEQ_CLS") std::erase(entries, "classifier");  // PEFT names both heads that there may be
  std::vector<std::string> saved = TRY(saved_parameters(parameters, entries, plan.config.where));
  TRY(check_saved(saved, tensors, plan.config.where));
  for (const TensorView* view : tensors.others) {
    const std::string name = whole_parameter_name(view->name);
    const bool is_known = std::ranges::any_of(parameters, [&](const auto& p) { return p.name == name; });
    const bool is_tied_head = name == kHeadName && is_tied(parameters);
    if (!is_known && !is_tied_head) {
      return Error{ErrorKind::kData,
                   fmt::format("tensor {} is not part of a LoRA adapter of this model", quote(view->name)), where,
                   "merge it into its base with `mortise model save`, and train from there"};
    }
    if (is_known) saved.push_back(name);
  }
  TRY(take_modules(tensors, parameters, plan));
  TRY(check_mixture_settings(plan.config, plan.modules));
  plan.whole = whole_parameters(parameters, plan.config.bias, plan.modules, saved);
  if (trains_tied(parameters, plan.whole) && !plan.config.ties_weights) {
    return Error{ErrorKind::kData, "the adapter trains embedding and head apart, which are one matrix in its base",
                 plan.config.where, "train it with ensure_weight_tying"};
  }
  plan.ranks = TRY(plan.config.ranks_of(plan.modules));
  return plan;
}

std::string lora_tensor_name(const LoraPlan& plan, const std::string& module, std::string_view tensor) {
  if (!is_expert_stack(module)) return fmt::format("{}{}.{}", kLoraPrefix, module, tensor);
  const std::string experts = expert_module(module);
  const bool is_inner = !module.ends_with(".down_proj") && contains(plan.modules, experts + ".down_proj");
  return fmt::format("{}{}{}.{}", kLoraPrefix, experts, is_inner ? ".base_layer" : "", tensor);
}

std::string lora_whole_name(const LoraPlan& plan, std::string parameter) {
  const std::string module = module_of(parameter);
  for (const std::string& adapted : plan.modules) {
    const bool wraps = is_expert_stack(adapted) ? expert_module(adapted) == module : adapted == module;
    if (wraps) parameter.insert(module.size(), ".base_layer");
  }
  return fmt::format("{}{}", kLoraPrefix, parameter);
}

LoraSize measure_lora(std::span<const NamedParameter> parameters, const LoraPlan& plan) {
  LoraSize size;
  size.use_dora = plan.config.use_dora;
  size.changes_base = changes_base(plan.config.init);
  size.dropout = plan.config.dropout;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    int64_t numel = 1;
    for (const int64_t side : shape) numel *= side;
    size.num_trained += numel;
    size.names.push_back(std::move(name));
    size.shapes.push_back(std::move(shape));
    return numel;
  };
  for (const NamedParameter& parameter : parameters) {
    const int64_t numel = parameter.tensor.numel();
    if (contains(plan.whole, parameter.name)) {
      add(lora_whole_name(plan, parameter.name), parameter.tensor.sizes().vec());
      size.num_added += numel;
    }
    const auto found = std::ranges::find(plan.modules, module_of(transformers_name(parameter.name)));
    if (found == plan.modules.end() || parameter.tensor.dim() != 2) continue;
    const int64_t rank = plan.ranks[static_cast<size_t>(found - plan.modules.begin())].rank;
    const int64_t out = parameter.tensor.size(0), in = parameter.tensor.size(1);
    const auto name = [&](std::string_view tensor) { return lora_tensor_name(plan, *found, tensor); };
    size.num_added += add(name("lora_A.weight"), {rank, in}) + add(name("lora_B.weight"), {out, rank}) + numel;
    if (plan.config.use_dora) size.num_added += add(name("lora_magnitude_vector"), {out});
    if (changes_base(plan.config.init)) size.num_added += numel + rank * (in + out);
  }
  for (const ExpertStack& stack : expert_stacks(parameters)) {
    const auto found = std::ranges::find(plan.modules, stack.name);
    if (found == plan.modules.end()) continue;
    const int64_t columns = plan.ranks[static_cast<size_t>(found - plan.modules.begin())].rank * stack.num_experts;
    size.num_added += add(lora_tensor_name(plan, stack.name, "lora_A.weight"), {columns, stack.in}) +
                      add(lora_tensor_name(plan, stack.name, "lora_B.weight"), {stack.out, columns}) +
                      stack.num_experts * stack.in * stack.out;
  }
  return size;
}

}  // namespace mortise
