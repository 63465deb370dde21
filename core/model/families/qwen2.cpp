// Qwen2 and Qwen2.5: biases on q, k and v only.
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

Result<> read_qwen2(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.qkv_bias = true;
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config));
  return read_qwen_windows(reader, config);
}

void write_qwen2(const ModelConfig& config, Json& json) {
  if (config.head_dim * config.num_heads != config.hidden_size) json["head_dim"] = config.head_dim;
  json["hidden_act"] = activation_name(config.activation);
  write_qwen_windows(config, json);
}

}  // namespace

extern const FamilyInfo kQwen2Family = {
    "qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification", {.num_kv_heads = 32}, read_qwen2, write_qwen2};

}  // namespace mortise
