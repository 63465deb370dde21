// Gemma 2 and Gemma 3 (text): norms that count from 1, on both sides of attention and MLP; embeddings times
// sqrt(hidden); windows in some layers. Gemma 2 caps scores and logits (Gemma Team 2024). Gemma 3 normalizes q and k
// instead, and rotates windowed layers with another base (Gemma Team 2025).
#include <cmath>

#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

// A cap under `key`. null means no cap; an absent key means `fallback`.
Result<double> read_cap(const ConfigReader& reader, const char* key, double fallback) {
  if (reader.is_null(key)) return 0.0;
  const double cap = TRY(reader.number_or(key, fallback));
  if (cap < 0.0) return reader.wrong(key, "a number above 0, or null");
  return cap;
}

Result<> read_common(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", 256));
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", false));
  config.norm_plus_one = config.sandwich_norm = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  if (TRY(reader.flag_or("use_bidirectional_attention", false))) {
    return reader.unsupported("use_bidirectional_attention", "false");
  }
  const double scalar = TRY(reader.number_or("query_pre_attn_scalar", 256.0));
  if (scalar <= 0.0) return reader.wrong("query_pre_attn_scalar", "a number above 0");
  config.attention_scale = 1.0 / std::sqrt(scalar);
  return read_activation(reader, "hidden_activation", Activation::kGeluTanh, config);
}

// The window of the layers that have one; null would leave them without.
Result<std::optional<int64_t>> read_window(const ConfigReader& reader) {
  if (reader.is_null("sliding_window")) return std::optional<int64_t>();
  return std::optional<int64_t>(TRY(reader.positive_or("sliding_window", 4096)));
}

Result<> read_gemma2(const ConfigReader& reader, ModelConfig& config) {
  TRY(read_common(reader, config));
  config.attention_softcap = TRY(read_cap(reader, "attn_logit_softcapping", 50.0));
  config.final_softcap = TRY(read_cap(reader, "final_logit_softcapping", 30.0));
  TRY(read_rope(reader, config));
  const auto slides = [](int64_t layer, int64_t pattern) { return (layer + 1) % pattern != 0; };
  return read_windows(reader, TRY(read_window(reader)), slides, 2, config);
}

Result<> read_gemma3(const ConfigReader& reader, ModelConfig& config) {
  TRY(read_common(reader, config));
  config.qk_norm = true;
  // attn_logit_softcapping is not looked at by transformers' Gemma 3.
  config.final_softcap = TRY(read_cap(reader, "final_logit_softcapping", 0.0));
  TRY(read_rope_by_layer_type(reader, 1e6, 1e4, config));
  const auto slides = [](int64_t layer, int64_t pattern) { return (layer + 1) % pattern != 0; };
  const int64_t pattern = TRY(reader.positive_or("sliding_window_pattern", 6));
  return read_windows(reader, TRY(read_window(reader)), slides, pattern, config);
}

Json cap_json(double cap) { return cap > 0.0 ? Json(cap) : Json(nullptr); }

void write_gemma(const ModelConfig& config, Json& json) {
  json["head_dim"] = config.head_dim;
  json["attention_bias"] = config.qkv_bias;
  json["hidden_activation"] = activation_name(config.activation);
  json["query_pre_attn_scalar"] = std::llround(1.0 / (config.attention_scale * config.attention_scale));
  json["attn_logit_softcapping"] = cap_json(config.attention_softcap);
  json["final_logit_softcapping"] = cap_json(config.final_softcap);
  json["sliding_window"] = config.windows.empty() ? Json(4096) : window_json(config);
  json["layer_types"] = layer_types_json(config);
  if (config.window_rope) json["rope_local_base_freq"] = config.window_rope->theta;
}

constexpr FamilyDefaults kGemma2Defaults = {.max_position_embeddings = 8192,
                                            .num_kv_heads = 4,
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 2,
                                            .eos_token_id = 1,
                                            .pad_token_id = 0};
constexpr FamilyDefaults kGemma3Defaults = {.max_position_embeddings = 131072,
                                            .num_kv_heads = 4,
                                            .tie_word_embeddings = true,
                                            .bos_token_id = 2,
                                            .eos_token_id = 1,
                                            .pad_token_id = 0};

}  // namespace

extern const FamilyInfo kGemma2Family = {"gemma2",        "Gemma2ForCausalLM", "Gemma2ForSequenceClassification",
                                         kGemma2Defaults, read_gemma2,         write_gemma};
extern const FamilyInfo kGemma3Family = {"gemma3_text",   "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification",
                                         kGemma3Defaults, read_gemma3,         write_gemma};

}  // namespace mortise
