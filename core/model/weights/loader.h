// Weights of a Hugging Face folder into parameters, and back: model.safetensors, or shards with their index.
//
// Reading maps each file and copies every tensor straight to its place, raised to the parameters' dtype. A tensor that
// is missing, has another shape, or is not part of the model is an error that names it (rotary_emb.inv_freq buffers,
// and lm_head.weight beside tied embeddings, are known to be redundant). Cost: one pass over the bytes.
#pragma once

#include <string>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/weights/parameters.h"

namespace mortise {

Result<> load_weights(Env& env, const Path& folder, const ModelConfig& config, std::vector<NamedParameter>& parameters);

// Writes folder/model.safetensors atomically. Tensors of the stored dtype are written from where they are; for another
// dtype a converted copy is held while writing.
Result<> save_weights(Env& env, const Path& folder, const std::vector<NamedParameter>& parameters,
                      at::ScalarType stored);

// "float32" and so on, as config.json names them.
Result<at::ScalarType> parse_scalar_type(const std::string& name);
std::string scalar_type_name(at::ScalarType type);

}  // namespace mortise
