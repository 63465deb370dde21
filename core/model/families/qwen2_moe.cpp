// Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): Qwen2 whose MLPs are mixtures of experts, with one more expert that every
// token passes behind a sigmoid gate.
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

constexpr QwenMoeDefaults kQwen2MoeExperts = {.num_experts = 60, .experts_per_token = 4, .expert_size = 1408};
constexpr int64_t kMaxSharedSize = int64_t{1} << 20;

// transformers 5 slides in every other layer, from the first on, up to max_window_layers.
Result<> read_layer_windows(const ConfigReader& reader, ModelConfig& config) {
  std::optional<int64_t> window;
  int64_t end = 0;
  if (TRY(reader.flag_or("use_sliding_window", false)) && !reader.is_null("sliding_window")) {
    window = TRY(reader.positive_or("sliding_window", 4096));
    end = reader.present("max_window_layers") ? TRY(reader.whole("max_window_layers")) : 28;
  }
  return read_windows(
      reader, window, [](int64_t layer, int64_t last) { return layer % 2 == 0 && layer < last; }, end, config);
}

Result<> read_qwen2_moe(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.qkv_bias = TRY(reader.flag_or("qkv_bias", true));
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config));
  TRY(read_layer_windows(reader, config));
  TRY(read_qwen_experts(reader, kQwen2MoeExperts, config));
  if (config.moe.num_experts == 0) return {};
  config.moe.shared_size = TRY(reader.positive_or("shared_expert_intermediate_size", 5632));
  if (config.moe.shared_size > kMaxSharedSize)
    return reader.wrong("shared_expert_intermediate_size", "of a size that a model can have");
  return {};
}

void write_qwen2_moe(const ModelConfig& config, Json& json) {
  if (config.head_dim * config.num_heads != config.hidden_size) json["head_dim"] = config.head_dim;
  json["qkv_bias"] = config.qkv_bias;
  json["hidden_act"] = activation_name(config.activation);
  json["use_sliding_window"] = !config.windows.empty();
  if (!config.windows.empty()) {
    json["sliding_window"] = window_json(config);
    json["layer_types"] = layer_types_json(config);
  }
  write_qwen_experts(config, json);
  json["shared_expert_intermediate_size"] = config.moe.shared_size;
}

}  // namespace

extern const FamilyInfo kQwen2MoeFamily = {"qwen2_moe",
                                           "Qwen2MoeForCausalLM",
                                           "Qwen2MoeForSequenceClassification",
                                           {.num_kv_heads = 16, .intermediate_size = 5632},
                                           read_qwen2_moe,
                                           write_qwen2_moe};

}  // namespace mortise
