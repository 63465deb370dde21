// Parameters into a Hugging Face folder: one model.safetensors, or shards with their index, in a chosen dtype; or in
// the very layout that they were read from, which gives the same bytes where nothing was trained.
//
// Tensors of the stored dtype are written from where they are; for another dtype a converted copy of one shard is held.
// Every file is written atomically. Thread rule: only reads the parameters.
#pragma once

#include <span>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

// max_shard_bytes: a file holds no more, unless a single tensor is larger; 0: one file.
Result<> save_weights(Env& env, const Path& folder, std::span<const NamedParameter> parameters, at::ScalarType stored,
                      int64_t max_shard_bytes);

// Files, order, headers and dtypes of `layout`.
Result<> save_weights_as_read(Env& env, const Path& folder, std::span<const NamedParameter> parameters,
                              const StoredLayout& layout);

// One file of tensors under names of their own.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
Result<> save_tensor_file(Env& env, const Path& path, std::span<const NamedTensor> tensors, at::ScalarType stored);

}  // namespace mortise
