// Loads the weights of a Hugging Face folder into parameters: model.safetensors, or shards with their index.
//
// It maps one file after the other and copies every tensor straight to its place, in the order of the file, widened to
// the parameters' dtype. That is one pass over the page cache, without a second copy. A tensor that is missing, has
// another shape, or is not part of the model is an error that names it. (rotary_emb.inv_freq buffers are known to be
// redundant, and so is lm_head.weight if it equals tied embeddings or is next to a classifier's head.)
// Matrices in four bits become plain numbers (four_bit.h). saver.h writes.
#pragma once

#include <functional>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

// Checks that the files can hold what the configuration says, before memory is allocated for it.
Result<> check_weight_bytes(Env& env, const Path& folder, const ModelConfig& config);

// Returns how the folder stores them; no files where something redundant is too large to be kept for a save. `reads`: does this
// one of them get its numbers now? The others are only checked, and need no memory. Empty: all do.
using ReadsParameter = std::function<bool(size_t parameter)>;
Result<StoredLayout> load_weights(Env& env, const Path& folder, const ModelConfig& config,
                                  std::vector<NamedParameter>& parameters, const ReadsParameter& reads = {});

}  // namespace mortise
