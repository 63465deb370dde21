// Qwen3-MoE: Qwen3 whose MLPs are mixtures of experts, but for layers that the config names; one window for all layers
// or none (Qwen Team 2025).
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

constexpr QwenMoeDefaults kQwen3MoeExperts = {
    .num_experts = 128, .experts_per_token = 8, .expert_size = 768, .has_alias = true};

Result<> read_qwen3_moe(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.qk_norm = true;
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", false));
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config));
  if (TRY(reader.flag_or("use_sliding_window", false)) && !reader.is_null("sliding_window"))
    set_window(TRY(reader.positive_or("sliding_window", 4096)), config);
  return read_qwen_experts(reader, kQwen3MoeExperts, config);
}

void write_qwen3_moe(const ModelConfig& config, Json& json) {
  json["head_dim"] = config.head_dim;
  json["attention_bias"] = config.qkv_bias;
  json["hidden_act"] = activation_name(config.activation);
  json["use_sliding_window"] = !config.windows.empty();
  json["sliding_window"] = window_json(config);
  write_qwen_experts(config, json);
}

}  // namespace

extern const FamilyInfo kQwen3MoeFamily = {"qwen3_moe",
                                           "Qwen3MoeForCausalLM",
                                           "Qwen3MoeForSequenceClassification",
                                           {.num_kv_heads = 4, .intermediate_size = 6144},
                                           read_qwen3_moe,
                                           write_qwen3_moe};

}  // namespace mortise
