// Mistral: Llama without biases, and with an attention window in every layer or none (Jiang et al. 2023).
#include "model/families/families.h"

namespace mortise {
namespace {

Result<> read_mistral(const ConfigReader& reader, ModelConfig& config) {
  TRY(read_mistral_block(reader, config));
  // null means none, but an absent key means 4096 (transformers' default).
  if (!reader.is_null("sliding_window")) set_window(TRY(reader.positive_or("sliding_window", 4096)), config);
  return {};
}

void write_mistral(const ModelConfig& config, Json& json) {
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = activation_name(config.activation);
  json["sliding_window"] = window_json(config);
}

}  // namespace

extern const FamilyInfo kMistralFamily = {
    "mistral",
    "MistralForCausalLM",
    "MistralForSequenceClassification",
    {.max_position_embeddings = 131072, .num_kv_heads = 8, .bos_token_id = 1, .eos_token_id = 2},
    read_mistral,
    write_mistral};

}  // namespace mortise
