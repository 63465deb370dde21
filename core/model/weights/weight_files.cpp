// See weight_files.h.
#include "model/weights/weight_files.h"

#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "foundation/base/limits.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/tensor_pieces.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Result<FileList> list_indexed(const std::string& text, const Path& index) {
  const Json json = TRY(parse_json(text, index.string()));
  const Json* map = json_find(json, "weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    return Error{ErrorKind::kData, "key 'weight_map' must be an object with a file for each tensor", index.string(),
                 "download the folder again"};
  }
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      return Error{ErrorKind::kData,
                   fmt::format("weight_map of tensor {} must be a file name in this folder", quote(name)),
                   index.string(), "download the folder again"};
    }
    files[file.get<std::string>()].insert(name);
  }
  FileList out;
  out.index_text = text;
  for (auto& [file, names] : files) out.files.push_back({file, std::move(names)});
  return out;
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Result<FileList> list_weight_files(Env& env, const Path& folder) {
  if (env.exists(folder / kSingleFile)) return FileList{{{kSingleFile, std::nullopt}}, ""};
  const Path index = folder / kIndexFile;
  if (env.exists(index)) return list_indexed(TRY(env.read_file(index)), index);
  const bool has_pickle =
      env.exists(folder / "pytorch_model.bin") || env.exists(folder / "pytorch_model.bin.index.json");
  return Error{ErrorKind::kData,
               fmt::format("neither {} nor {} in this folder{}", kSingleFile, kIndexFile,
                           has_pickle ? ", only pytorch_model.bin" : ""),
               folder.string(), "convert the weights to safetensors (no pickle is read)"};
}

std::optional<at::ScalarType> torch_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return at::kDouble;
    case DType::kF32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    default:
      return std::nullopt;
  }
}

DType stored_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::kF64;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}

Result<at::ScalarType> parse_scalar_type(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "float64") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  return Error{ErrorKind::kConfig, "unknown dtype " + quote(name), {}, "use float32, float64, bfloat16 or float16"};
}

std::string scalar_type_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

Result<> copy_numbers(const TensorView& stored, at::ScalarType type, int64_t begin, const at::Tensor& target) {
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t most = static_cast<int64_t>(limits::kWriteChunkBytes) / element;
  const at::Tensor flat = target.view({-1});
  std::vector<std::byte> bytes;
  for (int64_t done = 0; done < flat.numel(); done += most) {
    const int64_t count = std::min(most, flat.numel() - done);
    bytes.resize(static_cast<size_t>(count * element));
    TRY(read_tensor_bytes(stored, static_cast<uint64_t>((begin + done) * element), bytes));
    flat.narrow(0, done, count).copy_(at::from_blob(bytes.data(), {count}, at::TensorOptions().dtype(type)));
  }
  return {};
}

Result<at::ScalarType> check_stored(const TensorView& view, const std::string& where, at::IntArrayRef sizes) {
  const std::optional<at::ScalarType> type = torch_type(view.dtype);
  if (!type) {
    return Error{ErrorKind::kData, fmt::format("tensor {} has dtype {}", quote(view.name), dtype_name(view.dtype)),
                 where, "supported: F64, F32, F16, BF16"};
  }
  if (at::IntArrayRef(view.shape) != sizes) {
    return Error{ErrorKind::kData,
                 fmt::format("tensor {} has shape {}, the configuration asks for {}", quote(view.name),
                             shape_text(view.shape), shape_text(sizes)),
                 where, "configuration and weights must belong together: download the folder again"};
  }
  return *type;
}

Result<> copy_stored(const TensorView& view, const std::string& where, at::Tensor target) {
  const at::ScalarType type = TRY(check_stored(view, where, target.sizes()));
  if (view.source != nullptr) return copy_numbers(view, type, 0, target);
  auto* bytes = const_cast<std::byte*>(view.bytes.data());  // only read from
  target.copy_(at::from_blob(bytes, view.shape, at::TensorOptions().dtype(type)));
  return {};
}

FolderFile text_folder_file(std::string name, std::string bytes) {
  return {std::move(name), [text = std::move(bytes)](WritableFile& out) { return out.append_text(text); }};
}

Result<> write_folder_file(Env& env, const Path& folder, const FolderFile& file) {
  return write_whole(env, folder / file.name, file.write);
}

}  // namespace mortise
