// Phi-3 and Phi-4-mini: Llama with q, k, v in one matrix and gate and up in one, as the kernels store them anyway; one
// window or none; heads that may be rotated in part; longrope for long contexts.
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

Result<> read_phi3(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.fused_projections = true;
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config, RopeDialect::kPhi3));
  if (reader.has("sliding_window")) set_window(TRY(reader.positive("sliding_window")), config);
  return {};
}

void write_phi3(const ModelConfig& config, Json& json) {
  if (config.head_dim * config.num_heads != config.hidden_size) json["head_dim"] = config.head_dim;
  json["hidden_act"] = activation_name(config.activation);
  json["sliding_window"] = window_json(config);
  json["resid_pdrop"] = 0.0;
  json["embd_pdrop"] = 0.0;
  json["partial_rotary_factor"] = config.rope.partial_rotary_factor;
  if (config.rope.type == RopeType::kLongrope) json["original_max_position_embeddings"] = config.rope_switch();
}

}  // namespace

extern const FamilyInfo kPhi3Family = {"phi3",
                                       "Phi3ForCausalLM",
                                       "Phi3ForSequenceClassification",
                                       {.max_position_embeddings = 4096,
                                        .rms_norm_eps = 1e-5,
                                        .has_residual_dropout = true,
                                        .bos_token_id = 1,
                                        .eos_token_id = 32000,
                                        .pad_token_id = 32000},
                                       read_phi3,
                                       write_phi3};

}  // namespace mortise
