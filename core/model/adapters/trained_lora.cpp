// See trained_lora.h.
#include "model/adapters/trained_lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "model/adapters/lora.h"
#include "model/weights/saver.h"

namespace mortise {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kWeight = ".weight";

// Routers, experts and the gates of shared experts: transformers keeps a layer's experts in one tensor, for which PEFT has
// another form of adapter.
bool is_of_mixture(const std::string& name) {
  return name.find(".experts.") != std::string::npos || name.ends_with(".mlp.gate.weight") ||
         name.ends_with(".block_sparse_moe.gate.weight") || name.ends_with(".shared_expert_gate.weight");
}

// Every matrix of the layers that an adapter may have, without ".weight".
std::vector<std::string> linear_modules(std::span<const NamedParameter> parameters) {
  std::vector<std::string> out;
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.dim() != 2 || !parameter.name.starts_with("model.layers.")) continue;
    if (is_of_mixture(parameter.name)) continue;
    out.push_back(parameter.name.substr(0, parameter.name.size() - kWeight.size()));
  }
  return out;
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool is_named_by(const std::string& module, const std::string& entry) {
  return entry == kAllLinear || module == entry || module.ends_with("." + entry);
}

Error refuse_mixture(const std::string& module) {
  return {ErrorKind::kConfig,
          fmt::format("{} is part of a mixture of experts, whose experts and routers cannot have an adapter",
                      quote(module)),
          {},
          "name matrices of attention, of dense layers or of shared experts"};
}

Result<> check_entries(std::span<const std::string> entries, std::span<const NamedParameter> parameters) {
  const std::vector<std::string> modules = linear_modules(parameters);
  for (const std::string& entry : entries) {
    if (std::ranges::any_of(modules, [&](const std::string& module) { return is_named_by(module, entry); })) continue;
    for (const NamedParameter& parameter : parameters) {
      if (!is_of_mixture(parameter.name)) continue;
      const std::string module = parameter.name.substr(0, parameter.name.size() - kWeight.size());
      if (is_named_by(module, entry)) return refuse_mixture(module);
    }
    std::set<std::string> names = {std::string(kAllLinear)};
    for (const std::string& module : modules) names.insert(last_part(module));
    const std::vector<std::string> known(names.begin(), names.end());
    return Error{ErrorKind::kConfig,
                 fmt::format("the model has no matrix that {} names", quote(entry)),
                 {},
                 "known: " + join(known, ", ")};
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> choose_lora_modules(std::span<const NamedParameter> parameters,
                                                     const LoraChoice& choice) {
  const std::vector<std::string> modules = linear_modules(parameters);
  TRY(check_entries(choice.target_modules, parameters));
  TRY(check_entries(choice.exclude_modules, parameters));
  std::vector<std::string> out;
  for (const std::string& module : modules) {
    const auto names = [&](const std::string& entry) { return is_named_by(module, entry); };
    if (std::ranges::any_of(choice.target_modules, names) && std::ranges::none_of(choice.exclude_modules, names))
      out.push_back(module);
  }
  if (out.empty()) return Error{ErrorKind::kConfig, "no matrix is left to adapt", {}, "name some, or all-linear"};
  return out;
}

Result<std::vector<std::string>> list_lora_modules(Env& env, const Path& folder,
                                                   std::span<const NamedParameter> parameters) {
  const LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  const std::string where = tensors.file.path().string();
  const std::string next = "merge it into its base with `mortise model save`, and train from there";
  if (!tensors.others.empty()) {
    return Error{ErrorKind::kData,
                 fmt::format("tensor {} is no lora_A or lora_B, and only these are trained",
                             quote(tensors.others.front()->name)),
                 where, next};
  }
  const std::vector<std::string> known = linear_modules(parameters);
  std::vector<std::string> out;
  for (const std::string& module : known) {
    if (tensors.pairs.contains(module)) out.push_back(module);
  }
  for (const auto& [module, pair] : tensors.pairs) {
    if (std::ranges::find(out, module) != out.end()) continue;
    if (is_of_mixture(module + std::string(kWeight))) return refuse_mixture(module);
    return Error{ErrorKind::kData,
                 fmt::format("the adapter's module {} is no matrix of the model's layers", quote(module)), where,
                 did_you_mean(module, known)};
  }
  return out;
}

LoraSize measure_lora(std::span<const NamedParameter> parameters, std::span<const std::string> modules,
                      std::span<const LoraRank> ranks) {
  LoraSize size;
  for (const NamedParameter& parameter : parameters) {
    const std::string module = parameter.name.substr(0, parameter.name.size() - kWeight.size());
    const auto found = std::ranges::find(modules, module);
    if (found == modules.end()) continue;
    const int64_t rank = ranks[static_cast<size_t>(found - modules.begin())].rank;
    const int64_t out = parameter.tensor.size(0), in = parameter.tensor.size(1);
    size.num_trained += rank * (out + in);
    size.shapes.push_back({rank, in});
    size.shapes.push_back({out, rank});
    size.num_adapted += parameter.tensor.numel();
  }
  return size;
}

LoraConfig make_lora_config(const LoraChoice& choice, std::span<const std::string> modules,
                            std::span<const NamedParameter> parameters) {
  LoraConfig config;
  config.rank = choice.rank;
  config.alpha = choice.alpha;
  config.dropout = choice.dropout;
  config.use_rslora = choice.use_rslora;
  std::set<std::string> in_part;  // last parts of names that are adapted in some layers only
  for (const std::string& module : linear_modules(parameters)) {
    if (std::ranges::find(modules, module) == modules.end()) in_part.insert(last_part(module));
  }
  std::set<std::string> names;
  for (const std::string& module : modules)
    names.insert(in_part.contains(last_part(module)) ? module : last_part(module));
  Json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = "";
  json["r"] = choice.rank;
  json["lora_alpha"] =
      choice.alpha == std::floor(choice.alpha) ? Json(static_cast<int64_t>(choice.alpha)) : Json(choice.alpha);
  json["target_modules"] = names;
  json["lora_dropout"] = choice.dropout;
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["init_lora_weights"] = true;
  json["use_rslora"] = choice.use_rslora;
  json["use_dora"] = false;
  json["rank_pattern"] = Json::object();
  json["alpha_pattern"] = Json::object();
  json["modules_to_save"] = nullptr;
  json["inference_mode"] = true;
  config.text = dump_json(json, 2) + "\n";
  return config;
}

TrainedLora::TrainedLora(LoraConfig config, std::span<const std::string> modules, std::span<const LoraRank> ranks,
                         ParameterStore& store)
    : config_(std::move(config)), modules_(modules.begin(), modules.end()), ranks_(ranks.begin(), ranks.end()) {
  std::unordered_map<const void*, size_t> index_of;  // leaf -> parameter
  for (size_t i = 0; i < store.parameters.size(); ++i) {
    store.parameters[i].tensor.requires_grad_(false);
    index_of[store.parameters[i].tensor.unsafeGetTensorImpl()] = i;
  }
  base_ = store;
  for (size_t i = 0; i < base_.leaves.layers.size(); ++i) {
    LayerWeights& weights = base_.weights.layers[i];
    LayerLeaves& base = base_.leaves.layers[i];
    LayerLeaves& merged = store.leaves.layers[i];
    const auto adapt_one = [&](at::Tensor& weight, at::Tensor& leaf, std::vector<LoraMatrix>& lora) {
      std::vector<at::Tensor> one = {leaf};
      adapt(weight, one, lora, index_of, static_cast<int64_t>(i));
      leaf = one.front();
    };
    adapt(weights.qkv_weight_QH, base.qkv_weights, merged.qkv_lora, index_of, static_cast<int64_t>(i));
    adapt_one(weights.o_weight_HQ, base.o_weight, merged.o_lora);
    if (!base.down_weight.defined()) continue;  // a mixture without a shared expert
    adapt(weights.gate_up_weight_2IH, base.gate_up_weights, merged.gate_up_lora, index_of, static_cast<int64_t>(i));
    adapt_one(weights.down_weight_HI, base.down_weight, merged.down_lora);
  }
}

void TrainedLora::adapt(at::Tensor& fused_OI, std::vector<at::Tensor>& leaves, std::vector<LoraMatrix>& lora,
                        const std::unordered_map<const void*, size_t>& index_of, int64_t layer) {
  std::vector<size_t> indices;
  std::vector<std::string> names;
  for (const at::Tensor& leaf : leaves) {
    indices.push_back(index_of.at(leaf.unsafeGetTensorImpl()));
    const std::string& name = base_.parameters[indices.back()].name;
    names.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  const auto is_adapted = [&](const std::string& module) {
    return std::ranges::find(modules_, module) != modules_.end();
  };
  if (std::ranges::none_of(names, is_adapted)) return;
  fused_OI = fused_OI.detach().clone();
  int64_t row = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor merged = leaves[i];
    leaves[i] = fused_OI.narrow(0, row, merged.size(0));
    row += merged.size(0);
    base_.parameters[indices[i]].tensor = leaves[i];
    const auto module = static_cast<size_t>(std::ranges::find(modules_, names[i]) - modules_.begin());
    lora.push_back(module < modules_.size() ? add_matrix(module, leaves[i]) : LoraMatrix{});
    if (lora.back().defined()) matrices_.push_back({lora.back(), merged});
    rows_.push_back({layer, leaves[i].detach(), merged.detach(), lora.back()});
  }
}

LoraMatrix TrainedLora::add_matrix(size_t module, const at::Tensor& base_OI) {
  const int64_t rank = ranks_[module].rank;
  LoraMatrix out;
  out.base_OI = base_OI;
  out.scale = ranks_[module].scale;
  out.module = static_cast<int64_t>(module);
  out.a_RI = at::zeros({rank, base_OI.size(1)}, base_OI.options()).requires_grad_(true);
  out.b_OR = at::zeros({base_OI.size(0), rank}, base_OI.options()).requires_grad_(true);
  parameters_.push_back({fmt::format("{}{}.lora_A.weight", kLoraPrefix, modules_[module]), out.a_RI, true});
  parameters_.push_back({fmt::format("{}{}.lora_B.weight", kLoraPrefix, modules_[module]), out.b_OR, true});
  return out;
}

void TrainedLora::initialize(uint64_t seed) {
  for (size_t m = 0; m < matrices_.size(); ++m) {
    matrices_[m].factors.b_OR.detach().zero_();
    const at::Tensor a = matrices_[m].factors.a_RI.detach();
    const double bound = 1.0 / std::sqrt(static_cast<double>(a.size(1)));
    for (int64_t row = 0; row < a.size(0); ++row) {
      RandomStream stream({seed, RandomPurpose::kAdapterInit, m, static_cast<uint64_t>(row), 0});
      const at::Tensor values = a.select(0, row);
      for (int64_t i = 0; i < a.size(1); ++i) {
        const double value = (2.0 * stream.next_double() - 1.0) * bound;
        if (a.scalar_type() == at::kDouble) {
          values.mutable_data_ptr<double>()[i] = value;
        } else {
          values.mutable_data_ptr<float>()[i] = static_cast<float>(value);
        }
      }
    }
  }
  merge();
}

Result<> TrainedLora::load(Env& env, const Path& folder) {
  const LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  const std::string where = tensors.file.path().string();
  for (size_t i = 0; i < modules_.size(); ++i) {
    const auto found = tensors.pairs.find(modules_[i]);
    if (found == tensors.pairs.end()) {
      return Error{ErrorKind::kData, "the adapter has no lora_A and lora_B of " + quote(modules_[i]), where,
                   "use the adapter of the same modules"};
    }
    TRY(copy_stored(*found->second.a, where, parameters_[2 * i].tensor.detach()));
    TRY(copy_stored(*found->second.b, where, parameters_[2 * i + 1].tensor.detach()));
  }
  merge();
  return {};
}

void TrainedLora::merge() {
  const at::NoGradGuard no_grad;
  for (Matrix& matrix : matrices_) {
    const LoraMatrix& f = matrix.factors;
    at::addmm_out(matrix.merged_OI, f.base_OI, f.b_OR, f.a_RI, /*beta=*/1.0, /*alpha=*/f.scale);
  }
}

void TrainedLora::merge_layer(int64_t layer) {
  const at::NoGradGuard no_grad;
  for (const Rows& rows : rows_) {
    if (rows.layer != layer) continue;
    at::Tensor merged = rows.merged_OI.variable_data(), base = rows.base_OI.variable_data();
    const LoraMatrix& f = rows.factors;
    if (f.defined())
      at::addmm_out(merged, base, f.b_OR, f.a_RI, /*beta=*/1.0, /*alpha=*/f.scale);
    else
      merged.copy_(base);
  }
}

std::vector<at::Tensor> TrainedLora::merged_matrices(int64_t layer) const {
  std::vector<at::Tensor> out;
  for (const Rows& rows : rows_) {
    if (rows.layer == layer) out.push_back(rows.merged_OI);
  }
  return out;
}

Result<std::vector<FolderFile>> TrainedLora::plan_save(const std::string& base_model, at::ScalarType stored) const {
  Json json = TRY(parse_json(config_.text, kAdapterConfigFile));
  if (!base_model.empty()) json["base_model_name_or_path"] = base_model;
  std::vector<NamedTensor> tensors;
  for (const NamedParameter& parameter : parameters_) tensors.push_back({parameter.name, parameter.tensor});
  std::vector<FolderFile> files = {plan_tensor_file(kAdapterWeightsFile, std::move(tensors), stored)};
  files.push_back(text_folder_file(kAdapterConfigFile, dump_json(json, 2) + "\n"));
  return files;
}

}  // namespace mortise
