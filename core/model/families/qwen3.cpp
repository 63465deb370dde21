// Qwen3: RMSNorm over each head of q and k, head_dim independent of hidden / heads, no biases unless attention_bias.
#include "model/families/families.h"

namespace mortise {

Result<> read_qwen3(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", 128));
  config.qk_norm = true;
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", false));
  return refuse_qwen_windows(reader, config);
}

}  // namespace mortise
