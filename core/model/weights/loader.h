// Weights of a Hugging Face folder into parameters: model.safetensors, or shards with their index.
//
// Files are mapped one after the other, and every tensor is copied straight to its place in the order of the file,
// raised to the parameters' dtype: one pass over the page cache, no second copy. A tensor that is missing, has another
// shape, or is not part of the model is an error that names it (rotary_emb.inv_freq buffers, and lm_head.weight equal
// to tied embeddings or beside a classifier's head, are known to be redundant). Writing is in saver.h.
#pragma once

#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

// Whether the files can hold what the configuration asks for: to be asked before memory is taken for it.
Result<> check_weight_bytes(Env& env, const Path& folder, const ModelConfig& config);

// Returns how the folder stores them; no files where something redundant is too large to be kept for a save.
Result<StoredLayout> load_weights(Env& env, const Path& folder, const ModelConfig& config,
                                  std::vector<NamedParameter>& parameters);

}  // namespace mortise
