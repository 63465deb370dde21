// The rotary embedding's keys of a config.json, in the form of transformers 4 (rope_theta, rope_scaling) and of 5
// (rope_parameters), for families with one rotation and for those with a second one in windowed layers.
// Thread rule: pure functions.
#pragma once

#include "model/weights/config_reader.h"
#include "model/weights/model_config.h"

namespace mortise {

// kPhi3: heads may be rotated in part, "su" and "yarn" are old names of longrope, and original_max_position_embeddings
// is next to the rope's object (4096 if it is absent).
enum class RopeDialect { kCommon, kPhi3 };

// One rotation for all layers: config.rope. Needs config.head_dim.
Result<> read_rope(const ConfigReader& reader, ModelConfig& config, RopeDialect dialect = RopeDialect::kCommon);

// By how much YaRN of so large a factor multiplies cos and sin.
double yarn_attention_factor(double factor, double mscale = 1.0);

// Gemma 3: config.rope for full attention, config.window_rope for windowed layers. Classic files give the second base
// as rope_local_base_freq; rope_scaling belongs to full attention only.
Result<> read_rope_by_layer_type(const ConfigReader& reader, double full_theta, double window_theta,
                                 ModelConfig& config);

}  // namespace mortise
