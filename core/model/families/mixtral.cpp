// Mixtral: Mistral whose MLPs are mixtures of experts in every layer (Jiang et al. 2024).
#include <fmt/core.h>

#include "foundation/base/text.h"
#include "model/families/families.h"

namespace mortise {
namespace {

Result<> read_mixtral(const ConfigReader& reader, ModelConfig& config) {
  TRY(read_mistral_block(reader, config));
  if (reader.has("sliding_window")) set_window(TRY(reader.positive("sliding_window")), config);
  MoeConfig& moe = config.moe;
  const char* const key = TRY(key_of_num_experts(reader));
  moe.num_experts = TRY(reader.positive_or(key, 8));
  moe.expert_size = config.intermediate_size;
  moe.normalizes = moe.mixtral_names = true;
  moe.is_dense.assign(static_cast<size_t>(config.num_layers), false);
  if (TRY(reader.number_or("router_jitter_noise", 0.0)) != 0.0) {
    if (!config.dropout.empty()) config.dropout += ", ";
    config.dropout +=
        fmt::format("{} = {}", quote("router_jitter_noise"), dump_json(*reader.find("router_jitter_noise")));
  }
  return read_routing(reader, 2, config);
}

void write_mixtral(const ModelConfig& config, Json& json) {
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = activation_name(config.activation);
  json["sliding_window"] = window_json(config);
  json["num_local_experts"] = config.moe.num_experts;
  json["num_experts_per_tok"] = config.moe.experts_per_token;
  json["router_aux_loss_coef"] = config.moe.aux_loss_coef;
}

}  // namespace

extern const FamilyInfo kMixtralFamily = {"mixtral",
                                          "MixtralForCausalLM",
                                          "MixtralForSequenceClassification",
                                          {.max_position_embeddings = 131072,
                                           .rms_norm_eps = 1e-5,
                                           .num_kv_heads = 8,
                                           .intermediate_size = 14336,
                                           .rope_theta = 1e6,
                                           .bos_token_id = 1,
                                           .eos_token_id = 2},
                                          read_mixtral,
                                          write_mixtral};

}  // namespace mortise
