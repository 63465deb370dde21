// See saver.h.
#include "model/weights/saver.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "model/weights/weight_files.h"

namespace mortise {
namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// The numbers in the dtype of a file. float16 ends at 65504: larger numbers become infinite, and the log says so.
at::Tensor in_dtype(const at::Tensor& numbers, at::ScalarType stored, const std::string& name) {
  const at::Tensor out = numbers.to(at::TensorOptions().device(at::kCPU).dtype(stored));
  const bool rounds = stored == at::kHalf && numbers.scalar_type() != at::kHalf;
  if (rounds && at::isinf(out).logical_and(at::isfinite(numbers).to(at::kCPU)).any().item<bool>()) {
    log_warn_once(fmt::format(
        "numbers of {} are beyond 65504, the largest of float16, and are saved as infinity; save in bfloat16 or float32",
        quote(name)));
  }
  return out;
}

// A tensor in the dtype of a file, converted piece by piece, so that no copy of it is ever whole in memory. If its numbers
// lie in a file of `offload`, their pages leave the process behind the reader.
class ConvertedTensor : public TensorSource {
 public:
  ConvertedTensor(const NamedTensor& parameter, at::ScalarType stored, SavedFrom from)
      : name_(parameter.name),
        flat_(parameter.tensor.detach().reshape({-1})),
        stored_(stored),
        from_(std::move(from)) {}

  Result<> read(uint64_t begin, std::span<std::byte> out) const override {
    if (from_.numbers != nullptr) TRY(from_.numbers->reach(name_));
    const auto element = static_cast<int64_t>(c10::elementSize(stored_));
    const at::Tensor piece =
        in_dtype(flat_.narrow(0, static_cast<int64_t>(begin) / element, static_cast<int64_t>(out.size()) / element),
                 stored_, name_);
    std::ranges::copy(bytes_of(piece), out.begin());
    if (from_.offload != nullptr) from_.offload->release(flat_);
    return {};
  }

 private:
  std::string name_;
  at::Tensor flat_;
  at::ScalarType stored_;
  SavedFrom from_;
};

int64_t stored_bytes(const NamedParameter& parameter, at::ScalarType stored) {
  return parameter.tensor.numel() * static_cast<int64_t>(dtype_bytes(stored_type(stored)));
}

// The beginning of each shard; the last entry is the number of parameters.
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

FolderFile index_file(const std::map<std::string, std::string>& file_of, int64_t elements, int64_t bytes) {
  Json json;
  json["metadata"]["total_parameters"] = elements;
  json["metadata"]["total_size"] = bytes;
  for (const auto& [name, file] : file_of) json["weight_map"][name] = file;
  return text_folder_file(kIndexFile, dump_json(json, 2) + "\n");
}

// Weights of an earlier save in this folder that would be read in the place of ours, or with them.
Result<> remove_stale(Env& env, const Path& folder, std::span<const FolderFile> written) {
  const auto is_written = [&](const std::string& name) {
    return std::ranges::any_of(written, [&](const FolderFile& file) { return file.name == name; });
  };
  for (const std::string& name : TRY(env.list_dir(folder))) {
    const bool is_weights =
        name == kSingleFile || name == kIndexFile || (name.starts_with("model-") && name.ends_with(".safetensors"));
    if (is_weights && !is_written(name)) TRY(env.unlink(folder / name));
  }
  return {};
}

}  // namespace

FolderFile plan_tensor_file(std::string name, std::vector<NamedTensor> tensors, at::ScalarType stored, SavedFrom from) {
  const auto write = [tensors = std::move(tensors), stored, from = std::move(from)](WritableFile& out) -> Result<> {
    std::vector<TensorView> views;
    for (const NamedTensor& item : tensors) {
      views.push_back({item.name,
                       stored_type(stored),
                       item.tensor.sizes().vec(),
                       {},
                       std::make_shared<ConvertedTensor>(item, stored, from)});
    }
    return write_safetensors(out, views, {{"format", "pt"}});
  };
  return {std::move(name), write};
}

std::vector<FolderFile> plan_weights(std::span<const NamedParameter> parameters, at::ScalarType stored,
                                     int64_t max_shard_bytes, const SavedFrom& from) {
  const std::vector<size_t> cuts = cut_shards(parameters, stored, max_shard_bytes);
  const size_t num_shards = cuts.size() - 1;
  std::map<std::string, std::string> file_of;
  std::vector<FolderFile> files;
  int64_t elements = 0;
  int64_t bytes = 0;
  for (size_t shard = 0; shard < num_shards; ++shard) {
    const std::string name = num_shards == 1 ? kSingleFile : shard_name(shard, num_shards);
    std::vector<NamedTensor> tensors;
    for (const NamedParameter& parameter : parameters.subspan(cuts[shard], cuts[shard + 1] - cuts[shard])) {
      tensors.push_back({parameter.name, parameter.tensor});
      file_of[parameter.name] = name;
      elements += parameter.tensor.numel();
      bytes += stored_bytes(parameter, stored);
    }
    FolderFile& file = files.emplace_back(plan_tensor_file(name, std::move(tensors), stored, from));
    for (size_t i = cuts[shard]; i < cuts[shard + 1]; ++i) {
      file.parameters.push_back(parameters[i].name);
      file.weight_bytes += stored_bytes(parameters[i], stored);
    }
  }
  if (num_shards > 1) files.push_back(index_file(file_of, elements, bytes));
  return files;
}

std::vector<FolderFile> plan_weights_as_read(std::span<const NamedParameter> parameters,
                                             std::shared_ptr<const StoredLayout> layout, const SavedFrom& from) {
  std::map<std::string, at::Tensor> by_name;
  for (const NamedParameter& parameter : parameters) by_name[parameter.name] = parameter.tensor.detach();
  std::vector<FolderFile> files;
  for (const StoredFile& file : layout->files) {
    const auto write = [layout, by_name, from, &file](WritableFile& out) -> Result<> {  // `file` lives in the layout
      TRY(out.append_text(file.head));
      for (const StoredSlot& slot : file.slots) {
        if (slot.parameter.empty()) {
          TRY(out.append_text(slot.bytes));
        } else {
          if (from.numbers != nullptr) TRY(from.numbers->reach(slot.parameter));
          const at::Tensor& numbers = by_name.at(slot.parameter);
          TRY(out.append(bytes_of(in_dtype(numbers, *torch_type(slot.dtype), slot.parameter).contiguous())));
          if (from.offload != nullptr) from.offload->release(numbers);
        }
      }
      return {};
    };
    FolderFile& planned = files.emplace_back(FolderFile{file.name, write});
    for (const StoredSlot& slot : file.slots) {
      if (slot.parameter.empty()) continue;
      planned.parameters.push_back(slot.parameter);
      planned.weight_bytes += by_name.at(slot.parameter).numel() * static_cast<int64_t>(dtype_bytes(slot.dtype));
    }
  }
  if (!layout->index_text.empty()) files.push_back(text_folder_file(kIndexFile, layout->index_text));
  return files;
}

Result<> write_folder(Env& env, const Path& folder, std::span<const FolderFile> files) {
  TRY(env.create_dirs(folder));
  for (const FolderFile& file : files) TRY(write_folder_file(env, folder, file));
  const auto is_model = [](const FolderFile& file) { return file.name == kSingleFile || file.name == kIndexFile; };
  return std::ranges::any_of(files, is_model) ? remove_stale(env, folder, files) : Result<>();
}

}  // namespace mortise
