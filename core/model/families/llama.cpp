// Llama 1 to 3, and models of the same shape.
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

Result<> read_llama(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", false));
  config.mlp_bias = TRY(reader.flag_or("mlp_bias", false));
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  return read_rope(reader, config);
}

void write_llama(const ModelConfig& config, Json& json) {
  if (config.head_dim * config.num_heads != config.hidden_size) json["head_dim"] = config.head_dim;
  json["attention_bias"] = config.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
  json["hidden_act"] = activation_name(config.activation);
}

}  // namespace

extern const FamilyInfo kLlamaFamily = {"llama",
                                        "LlamaForCausalLM",
                                        "LlamaForSequenceClassification",
                                        {.max_position_embeddings = 2048, .bos_token_id = 1, .eos_token_id = 2},
                                        read_llama,
                                        write_llama};

}  // namespace mortise
