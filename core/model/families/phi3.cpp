// Phi-3: Llama with q, k, v in one matrix and gate and up in one, as the kernels want them anyway, and one window or
// none. Its long-context variants (longrope) and partly rotated heads are refused by name.
#include "model/families/families.h"
#include "model/weights/rope_config.h"

namespace mortise {
namespace {

Result<> read(const ConfigReader& reader, ModelConfig& config) {
  config.head_dim = TRY(reader.positive_or("head_dim", config.hidden_size / config.num_heads));
  config.fused_projections = true;
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) {
    if (TRY(reader.number_or(key, 0.0)) != 0.0) return reader.unsupported(key, "0.0");
  }
  TRY(read_activation(reader, "hidden_act", Activation::kSilu, config));
  TRY(read_rope(reader, config));
  if (config.rope.type != RopeType::kDefault) {  // transformers takes yarn for longrope here, and refuses the others
    return reader.unsupported(reader.has("rope_scaling") ? "rope_scaling" : "rope_parameters", "rope type default");
  }
  if (reader.has("sliding_window")) set_window(TRY(reader.positive("sliding_window")), config);
  return {};
}

void write(const ModelConfig& config, Json& json) {
  if (config.head_dim * config.num_heads != config.hidden_size) json["head_dim"] = config.head_dim;
  json["hidden_act"] = activation_name(config.activation);
  json["sliding_window"] = window_json(config);
  json["resid_pdrop"] = 0.0;
  json["embd_pdrop"] = 0.0;
}

}  // namespace

const FamilyInfo kPhi3Family = {Family::kPhi3,
                                "phi3",
                                "Phi3ForCausalLM",
                                "Phi3ForSequenceClassification",
                                {.max_position_embeddings = 4096,
                                 .rms_norm_eps = 1e-5,
                                 .bos_token_id = 1,
                                 .eos_token_id = 32000,
                                 .pad_token_id = 32000},
                                read,
                                write};

}  // namespace mortise
