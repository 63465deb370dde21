// What families with mixtures of experts share; see families.h.
#include <fmt/core.h>

#include "model/families/families.h"

namespace mortise {
namespace {

// Beyond any model; the products of sizes would not fit in 64 bits.
constexpr int64_t kMaxExperts = int64_t{1} << 15;
constexpr int64_t kMaxExpertSize = int64_t{1} << 20;
constexpr int64_t kMaxUnits = int64_t{1} << 26;  // units of all experts of a layer

Result<int64_t> read_count(const ConfigReader& reader, const QwenMoeDefaults& defaults) {
  const char* key = defaults.has_alias ? TRY(key_of_num_experts(reader)) : "num_experts";
  const int64_t count = reader.has(key) ? TRY(reader.whole(key)) : defaults.num_experts;
  if (count > kMaxExperts) return reader.wrong(key, fmt::format("at most {}", kMaxExperts));
  return count;
}

Result<int64_t> read_width(const ConfigReader& reader, const char* key, int64_t fallback) {
  const int64_t size = TRY(reader.positive_or(key, fallback));
  if (size > kMaxExpertSize) return reader.wrong(key, "of a size that a model can have");
  return size;
}

// Every decoder_sparse_step-th layer has experts, less those of mlp_only_layers.
Result<std::vector<bool>> read_dense_layers(const ConfigReader& reader, const ModelConfig& config) {
  const int64_t step = TRY(reader.positive_or("decoder_sparse_step", 1));
  std::vector<bool> is_dense(static_cast<size_t>(config.num_layers), false);
  for (int64_t i = 0; i < config.num_layers; ++i) is_dense[static_cast<size_t>(i)] = (i + 1) % step != 0;
  const Json* dense = reader.find("mlp_only_layers");
  if (dense == nullptr) return is_dense;
  if (!dense->is_array()) return reader.wrong("mlp_only_layers", "a list of layers, counted from 0");
  for (const Json& layer : *dense) {
    if (!layer.is_number_integer()) return reader.wrong("mlp_only_layers", "a list of layers, counted from 0");
    const auto index = layer.get<int64_t>();
    if (index >= 0 && index < config.num_layers) is_dense[static_cast<size_t>(index)] = true;  // others name no layer
  }
  return is_dense;
}

}  // namespace

Result<const char*> key_of_num_experts(const ConfigReader& reader) {
  const char* const other = "num_local_experts";
  if (!reader.has(other)) return "num_experts";
  if (reader.has("num_experts") && *reader.find("num_experts") != *reader.find(other))
    return reader.wrong("num_experts", "the same as num_local_experts, which is another name of it");
  return other;
}

Result<> read_routing(const ConfigReader& reader, int64_t default_per_token, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  if (moe.num_experts > kMaxExperts) return reader.wrong("num_local_experts", fmt::format("at most {}", kMaxExperts));
  if (moe.num_experts * moe.expert_size > kMaxUnits) {
    return Error{ErrorKind::kData,
                 fmt::format("{} experts of {} units are more than a layer can have", moe.num_experts, moe.expert_size),
                 reader.where(), "check the number of experts and their intermediate size"};
  }
  moe.experts_per_token = TRY(reader.positive_or("num_experts_per_tok", default_per_token));
  if (moe.experts_per_token > moe.num_experts)
    return reader.wrong("num_experts_per_tok", "at most the number of experts, " + std::to_string(moe.num_experts));
  moe.aux_loss_coef = TRY(reader.number_or("router_aux_loss_coef", 0.001));
  if (moe.aux_loss_coef < 0.0) return reader.wrong("router_aux_loss_coef", "0 or more");
  return {};
}

Result<> read_qwen_experts(const ConfigReader& reader, const QwenMoeDefaults& defaults, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.num_experts = TRY(read_count(reader, defaults));
  if (moe.num_experts == 0) return {};
  moe.is_dense = TRY(read_dense_layers(reader, config));
  moe.expert_size = TRY(read_width(reader, "moe_intermediate_size", defaults.expert_size));
  moe.normalizes = TRY(reader.flag_or("norm_topk_prob", false));
  return read_routing(reader, defaults.experts_per_token, config);
}

void write_qwen_experts(const ModelConfig& config, Json& json) {
  const MoeConfig& moe = config.moe;
  json["num_experts"] = moe.num_experts;
  json["decoder_sparse_step"] = 1;
  Json dense = Json::array();
  for (size_t i = 0; i < moe.is_dense.size(); ++i) {
    if (moe.is_dense[i]) dense.push_back(i);
  }
  json["mlp_only_layers"] = std::move(dense);
  json["moe_intermediate_size"] = moe.expert_size;
  json["num_experts_per_tok"] = moe.experts_per_token;
  json["norm_topk_prob"] = moe.normalizes;
  json["router_aux_loss_coef"] = moe.aux_loss_coef;
}

}  // namespace mortise
