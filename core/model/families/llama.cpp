// Llama 1 to 3 and what is shaped like it; Mistral is the same without biases and with an attention window.
#include "model/families/families.h"

namespace mortise {

Result<> read_llama(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", false));
  config.mlp_bias = TRY(reader.flag_or("mlp_bias", false));
  return {};
}

Result<> read_mistral(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  // null means none, but an absent key means 4096 (transformers' default). A window that no row can leave is none.
  if (reader.is_null("sliding_window")) return {};
  if (TRY(reader.positive_or("sliding_window", 4096)) >= config.max_position_embeddings) return {};
  return reader.unsupported("sliding_window", "null, or at least max_position_embeddings");
}

}  // namespace mortise
