// See loader.h.
#include "model/weights/loader.h"

#include <ATen/ops/from_blob.h>

#include <map>
#include <optional>
#include <set>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"

namespace mortise {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

struct StoredTensor {
  TensorView view;
  std::string where;  // the file
};

// All files of a folder, mapped; views stay valid while this lives.
struct WeightFiles {
  std::vector<SafetensorsFile> files;
  std::map<std::string, StoredTensor> tensors;
};

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

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// File name -> the tensors that the index places there; a null set means all of the file's.
Result<std::map<std::string, std::optional<std::set<std::string>>>> list_files(Env& env, const Path& folder) {
  std::map<std::string, std::optional<std::set<std::string>>> files;
  if (env.exists(folder / kSingleFile)) {
    files[kSingleFile] = std::nullopt;
    return files;
  }
  const Path index = folder / kIndexFile;
  if (!env.exists(index)) {
    return Error{ErrorKind::kData, std::string("neither ") + kSingleFile + " nor " + kIndexFile + " in this folder",
                 folder.string(), "convert the weights to safetensors (no pickle is read)"};
  }
  const Json json = TRY(read_json_file(env, index));
  const Json* map = json_find(json, "weight_map");
  if (map == nullptr || !map->is_object()) {
    return Error{ErrorKind::kData, "key 'weight_map' must be an object", index.string(), {}};
  }
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      return Error{ErrorKind::kData,
                   "weight_map of tensor " + quote(name) + " must be a file name in this folder",
                   index.string(),
                   {}};
    }
    std::optional<std::set<std::string>>& names = files[file.get<std::string>()];
    if (!names) names.emplace();
    names->insert(name);
  }
  return files;
}

Result<WeightFiles> open_files(Env& env, const Path& folder) {
  WeightFiles out;
  for (const auto& [file, names] : TRY(list_files(env, folder))) {
    const std::string where = (folder / file).string();
    out.files.push_back(TRY(SafetensorsFile::open(env, folder / file)));
    std::set<std::string> missing = names.value_or(std::set<std::string>());
    for (const TensorView& view : out.files.back().tensors()) {
      if (names && !names->contains(view.name)) continue;
      missing.erase(view.name);
      out.tensors[view.name] = {view, where};
    }
    if (!missing.empty()) {
      return Error{ErrorKind::kData, "tensor " + quote(*missing.begin()) + " is not in this file, the index says it is",
                   where, "download the folder again"};
    }
  }
  return out;
}

bool is_redundant(const std::string& name, const ModelConfig& config) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return name == "lm_head.weight" && (config.tie_word_embeddings || config.is_classifier);
}

Result<> copy_tensor(const StoredTensor& stored, at::Tensor target) {
  const TensorView& view = stored.view;
  const std::optional<at::ScalarType> type = torch_type(view.dtype);
  if (!type) {
    return Error{ErrorKind::kData, "tensor " + quote(view.name) + " has dtype " + std::string(dtype_name(view.dtype)),
                 stored.where, "supported: F64, F32, F16, BF16"};
  }
  if (at::IntArrayRef(view.shape) != target.sizes()) {
    return Error{ErrorKind::kData,
                 "tensor " + quote(view.name) + " has shape " + shape_text(view.shape) + ", config.json asks for " +
                     shape_text(target.sizes()),
                 stored.where, "config.json and weights must belong together"};
  }
  auto* bytes = const_cast<std::byte*>(view.bytes.data());  // only read from
  target.copy_(at::from_blob(bytes, view.shape, at::TensorOptions().dtype(*type)));
  return {};
}

}  // namespace

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

Result<> load_weights(Env& env, const Path& folder, const ModelConfig& config,
                      std::vector<NamedParameter>& parameters) {
  const WeightFiles files = TRY(open_files(env, folder));
  std::set<std::string> wanted;
  std::vector<std::string> known;
  for (const auto& [name, stored] : files.tensors) known.push_back(name);
  for (NamedParameter& parameter : parameters) {
    const auto found = files.tensors.find(parameter.name);
    if (found == files.tensors.end()) {
      return Error{ErrorKind::kData, "tensor " + quote(parameter.name) + " is missing from the weights",
                   folder.string(), did_you_mean(parameter.name, known)};
    }
    TRY(copy_tensor(found->second, parameter.tensor.detach()));
    wanted.insert(parameter.name);
  }
  for (const auto& [name, stored] : files.tensors) {
    if (wanted.contains(name) || is_redundant(name, config)) continue;
    return Error{ErrorKind::kData, "tensor " + quote(name) + " is not part of this model", stored.where,
                 "config.json and weights must belong together"};
  }
  return {};
}

Result<> save_weights(Env& env, const Path& folder, const std::vector<NamedParameter>& parameters,
                      at::ScalarType stored) {
  std::vector<at::Tensor> held;
  std::vector<TensorView> views;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor tensor = parameter.tensor.detach().to(stored).contiguous();
    held.push_back(tensor);
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    views.push_back({parameter.name, stored_type(stored), tensor.sizes().vec(), {data, tensor.nbytes()}});
  }
  return write_safetensors_file(env, folder / kSingleFile, views, {{"format", "pt"}});
}

}  // namespace mortise
