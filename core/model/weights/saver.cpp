// See saver.h.
#include "model/weights/saver.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"

namespace mortise {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

int64_t stored_bytes(const NamedParameter& parameter, at::ScalarType stored) {
  return parameter.tensor.numel() * static_cast<int64_t>(dtype_bytes(stored_type(stored)));
}

// Where each shard begins; the last entry is the number of parameters.
std::vector<size_t> cut_shards(std::span<const NamedParameter> parameters, at::ScalarType stored, int64_t max_bytes) {
  std::vector<size_t> cuts = {0};
  int64_t held = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t size = stored_bytes(parameters[i], stored);
    if (max_bytes > 0 && held > 0 && held + size > max_bytes) {
      cuts.push_back(i);
      held = 0;
    }
    held += size;
  }
  cuts.push_back(parameters.size());
  return cuts;
}

std::string shard_name(size_t shard, size_t num_shards) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", shard + 1, num_shards);
  return name;
}

Result<> save_index(Env& env, const Path& folder, const std::map<std::string, std::string>& file_of, int64_t elements,
                    int64_t bytes) {
  Json json;
  json["metadata"]["total_parameters"] = elements;
  json["metadata"]["total_size"] = bytes;
  for (const auto& [name, file] : file_of) json["weight_map"][name] = file;
  return write_file_atomic(env, folder / kIndexFile, dump_json(json, 2) + "\n");
}

// Weights of an earlier save in this folder that would be read in the place of ours, or with them.
Result<> remove_stale(Env& env, const Path& folder, const std::vector<std::string>& written, bool has_index) {
  for (const std::string& name : TRY(env.list_dir(folder))) {
    const bool is_weights = name == kSingleFile || (name.starts_with("model-") && name.ends_with(".safetensors")) ||
                            (name == kIndexFile && !has_index);
    if (!is_weights || std::find(written.begin(), written.end(), name) != written.end()) continue;
    TRY(env.unlink(folder / name));
  }
  return {};
}

}  // namespace

Result<> save_tensor_file(Env& env, const Path& path, std::span<const NamedTensor> tensors, at::ScalarType stored) {
  std::vector<at::Tensor> held;
  std::vector<TensorView> views;
  for (const NamedTensor& item : tensors) {
    held.push_back(item.tensor.detach().to(stored).contiguous());
    views.push_back({item.name, stored_type(stored), held.back().sizes().vec(), bytes_of(held.back())});
  }
  return write_safetensors_file(env, path, views, {{"format", "pt"}});
}

Result<> save_weights(Env& env, const Path& folder, std::span<const NamedParameter> parameters, at::ScalarType stored,
                      int64_t max_shard_bytes) {
  const std::vector<size_t> cuts = cut_shards(parameters, stored, max_shard_bytes);
  const size_t num_shards = cuts.size() - 1;
  std::map<std::string, std::string> file_of;
  std::vector<std::string> written;
  int64_t elements = 0;
  int64_t bytes = 0;
  for (size_t shard = 0; shard < num_shards; ++shard) {
    written.push_back(num_shards == 1 ? kSingleFile : shard_name(shard, num_shards));
    std::vector<NamedTensor> tensors;
    for (const NamedParameter& parameter : parameters.subspan(cuts[shard], cuts[shard + 1] - cuts[shard])) {
      tensors.push_back({parameter.name, parameter.tensor});
      file_of[parameter.name] = written.back();
      elements += parameter.tensor.numel();
      bytes += stored_bytes(parameter, stored);
    }
    TRY(save_tensor_file(env, folder / written.back(), tensors, stored));
  }
  if (num_shards > 1) TRY(save_index(env, folder, file_of, elements, bytes));
  return remove_stale(env, folder, written, num_shards > 1);
}

Result<> save_weights_as_read(Env& env, const Path& folder, std::span<const NamedParameter> parameters,
                              const StoredLayout& layout) {
  std::map<std::string, const NamedParameter*> by_name;
  for (const NamedParameter& parameter : parameters) by_name[parameter.name] = &parameter;
  std::vector<std::string> written;
  for (const StoredFile& file : layout.files) {
    const auto write = [&](WritableFile& out) -> Result<> {
      TRY(out.append_text(file.head));
      for (const StoredSlot& slot : file.slots) {
        if (slot.parameter.empty()) {
          TRY(out.append_text(slot.bytes));
          continue;
        }
        const at::Tensor tensor = by_name.at(slot.parameter)->tensor.detach();
        TRY(out.append(bytes_of(tensor.to(*torch_type(slot.dtype)).contiguous())));
      }
      return {};
    };
    TRY(write_weight_file(env, folder / file.name, write));
    written.push_back(file.name);
  }
  if (!layout.index_text.empty()) TRY(write_file_atomic(env, folder / kIndexFile, layout.index_text));
  return remove_stale(env, folder, written, !layout.index_text.empty());
}

}  // namespace mortise
