// gpt-oss (OpenAI 2025): a mixture of experts in every layer, attention sinks, and a window in every other layer.
#include "foundation/base/text.h"
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

constexpr int64_t kDefaultWindow = 128;

// transformers takes this rotation if the file has none.
RopeConfig default_rope(double theta) {
  RopeConfig rope;
  rope.type = RopeType::kYarn;
  rope.theta = theta;
  rope.factor = 32.0;
  rope.original_max_position_embeddings = 4096.0;
  rope.attention_factor = yarn_attention_factor(rope.factor);
  rope.truncate = false;
  return rope;
}

Result<> read_experts(const ConfigReader& reader, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  const char* const key = TRY(key_of_num_experts(reader));
  moe.num_experts = TRY(reader.positive_or(key, 128));
  moe.expert_size = config.intermediate_size;
  moe.normalizes = moe.is_gpt_oss = true;
  moe.is_dense.assign(static_cast<size_t>(config.num_layers), false);
  moe.swiglu_alpha = TRY(reader.number_or("swiglu_alpha", moe.swiglu_alpha));
  moe.swiglu_limit = TRY(reader.number_or("swiglu_limit", moe.swiglu_limit));
  if (moe.swiglu_limit <= 0.0) return reader.wrong("swiglu_limit", "a number above 0");
  return read_routing(reader, 4, config);
}

Result<> read_gpt_oss(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", 64));
  config.qkv_bias = config.o_bias = TRY(reader.flag_or("attention_bias", true));
  config.attention_sinks = true;
  // transformers always uses the clamped gate and ignores hidden_act.
  config.activation = Activation::kSilu;
  TRY(read_rope(reader, config));
  if (!reader.has("rope_scaling") && !reader.has("rope_parameters")) config.rope = default_rope(config.rope.theta);
  std::optional<int64_t> window;
  if (!reader.is_null("sliding_window")) window = TRY(reader.positive_or("sliding_window", kDefaultWindow));
  TRY(read_windows(
      reader, window, [](int64_t layer, int64_t) { return layer % 2 == 0; }, 0, config));
  return read_experts(reader, config);
}

void write_gpt_oss(const ModelConfig& config, Json& json) {
  json["head_dim"] = config.head_dim;
  json["attention_bias"] = config.qkv_bias;
  json["hidden_act"] = activation_name(config.activation);
  json["sliding_window"] = window_json(config);
  json["layer_types"] = layer_types_json(config);
  json["num_local_experts"] = config.moe.num_experts;
  json["num_experts_per_tok"] = config.moe.experts_per_token;
  json["router_aux_loss_coef"] = config.moe.aux_loss_coef;
  json["swiglu_alpha"] = config.moe.swiglu_alpha;
  json["swiglu_limit"] = config.moe.swiglu_limit;
}

}  // namespace

extern const FamilyInfo kGptOssFamily = {"gpt_oss",
                                         "GptOssForCausalLM",
                                         "GptOssForSequenceClassification",
                                         {.max_position_embeddings = 131072,
                                          .rms_norm_eps = 1e-5,
                                          .num_kv_heads = 8,
                                          .intermediate_size = 2880,
                                          .rope_theta = 150000.0},
                                         read_gpt_oss,
                                         write_gpt_oss,
                                         true};

}  // namespace mortise
