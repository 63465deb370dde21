// Qwen3: RMSNorm over each head of q and k, head_dim independent of hidden / heads, no biases unless attention_bias.
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

Result<> read_qwen3(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", 128));
  config.qk_norm = true;
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", false));
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config));
  return read_qwen_windows(reader, config);
}

void write_qwen3(const ModelConfig& config, Json& json) {
  json["head_dim"] = config.head_dim;
  json["attention_bias"] = config.qkv_bias;
  json["hidden_act"] = activation_name(config.activation);
  write_qwen_windows(config, json);
}

}  // namespace

extern const FamilyInfo kQwen3Family = {
    "qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification", {.num_kv_heads = 32}, read_qwen3, write_qwen3};

}  // namespace mortise
