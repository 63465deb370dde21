// Parameters as the files of a Hugging Face folder: one model.safetensors, or shards with their index, in a chosen
// dtype; or in the layout that was read, which gives the same bytes if nothing was trained.
//
// This file plans the files. The holder of the plan (a folder, a checkpoint) writes them before the parameters change
// or go. Tensors of the stored dtype are written from where they are. For another dtype, a converted copy of one file
// is in memory while it is written. Thread rule: only reads the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/tensor/offload.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

// Gives parameters that lie on several ranks memory here while files are written.
class NumbersToSave {
 public:
  virtual ~NumbersToSave() = default;
  // The numbers of this parameter are here until the next call.
  virtual Result<> reach(const std::string& parameter) = 0;
};

// Where the numbers of parameters are.
struct SavedFrom {
  std::shared_ptr<const Offload> offload = {};  // null: in no file. A save keeps no pages of these
  NumbersToSave* numbers = nullptr;             // borrowed; null: this process has them
};

// max_shard_bytes: the size limit of a file, unless a single tensor is larger; 0: one file.
std::vector<FolderFile> plan_weights(std::span<const NamedParameter> parameters, at::ScalarType stored,
                                     int64_t max_shard_bytes, const SavedFrom& from = {});

// Files, order, headers and dtypes of `layout`.
std::vector<FolderFile> plan_weights_as_read(std::span<const NamedParameter> parameters,
                                             std::shared_ptr<const StoredLayout> layout, const SavedFrom& from = {});

// One file of tensors under names of their own.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
FolderFile plan_tensor_file(std::string name, std::vector<NamedTensor> tensors, at::ScalarType stored,
                            SavedFrom from = {});

// Writes all files, each atomically, and removes the weights of an earlier save that a reader would find next to them.
Result<> write_folder(Env& env, const Path& folder, std::span<const FolderFile> files);

}  // namespace mortise
