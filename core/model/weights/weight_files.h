// The safetensors files of a folder as they are, and what a save of unchanged weights needs to give the same bytes.
// Thread rule: plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/base/tensor_view.h"

namespace mortise {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// A file that is to be read, and the tensors that the index places in it (all of them where there is no index).
struct ListedFile {
  std::string name;
  std::optional<std::set<std::string>> tensors;
};
struct FileList {
  std::vector<ListedFile> files;
  std::string index_text;  // empty without an index
};
// model.safetensors, or what model.safetensors.index.json names.
Result<FileList> list_weight_files(Env& env, const Path& folder);

// One tensor of a stored file. `parameter` names the leaf that fills it; where that is empty, `bytes` do.
struct StoredSlot {
  std::string parameter;
  DType dtype = DType::kF32;
  std::string bytes;
};
struct StoredFile {
  std::string name;
  std::string head;  // length and header, up to the first tensor
  std::vector<StoredSlot> slots;
};
struct StoredLayout {
  std::vector<StoredFile> files;
  std::string index_text;
  DType dtype = DType::kF32;  // number format of the embedding
};

std::optional<at::ScalarType> torch_type(DType dtype);  // for floating dtypes
DType stored_type(at::ScalarType type);
// "float32" and so on, as config.json names them.
Result<at::ScalarType> parse_scalar_type(const std::string& name);
std::string scalar_type_name(at::ScalarType type);

// The number format of a stored tensor of these sizes. Errors name tensor and file.
Result<at::ScalarType> check_stored(const TensorView& view, const std::string& where, at::IntArrayRef sizes);
// target = the stored values, converted to its dtype. The same errors.
Result<> copy_stored(const TensorView& view, const std::string& where, at::Tensor target);

// target = as many numbers of `stored`, which are of this type, from the number `begin` on. Piece by piece, so that a
// tensor in several files is never whole in memory. `target` is contiguous.
Result<> copy_numbers(const TensorView& stored, at::ScalarType type, int64_t begin, const at::Tensor& target);

// A file of a model folder to write, which a save puts into a folder and a checkpoint into its own.
struct FolderFile {
  std::string name;
  std::function<Result<>(WritableFile&)> write;
  std::vector<std::string> parameters = {};  // those whose numbers it holds; empty for other files
  int64_t weight_bytes = 0;                  // their size, as stored
};
// One with its bytes in memory.
FolderFile text_folder_file(std::string name, std::string bytes);

// Writes folder / file.name: temporary file next to it, fsync, rename.
Result<> write_folder_file(Env& env, const Path& folder, const FolderFile& file);

// "[4, 48]".
[[nodiscard]] std::string shape_text(at::IntArrayRef shape);

}  // namespace mortise
