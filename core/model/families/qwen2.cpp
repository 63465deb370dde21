// Qwen2 and Qwen2.5: biases on q, k, v alone.
#include "model/families/families.h"

namespace mortise {

Result<> read_qwen2(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.qkv_bias = true;
  return refuse_qwen_windows(reader, config);
}

}  // namespace mortise
