// See unread_weights.h.
#include "model/weights/unread_weights.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "model/tensor/storage_memory.h"
#include "model/weights/loader.h"
#include "model/weights/weight_units.h"

namespace mortise {

UnreadWeights::UnreadWeights(Env& env, Path folder, ModelConfig config, bool has_new_head)
    : env_(env), folder_(std::move(folder)), config_(std::move(config)), has_new_head_(has_new_head) {}

std::vector<NamedParameter> UnreadWeights::stored(const std::vector<NamedParameter>& parameters) const {
  std::vector<NamedParameter> out = parameters;
  if (has_new_head_) std::erase_if(out, [](const NamedParameter& p) { return p.name == kScoreHead; });
  return out;
}

Result<std::vector<UnreadWeights::FileState>> UnreadWeights::state_of_files() const {
  std::vector<FileState> out;
  for (const ListedFile& file : TRY(list_weight_files(env_, folder_)).files) {
    const FileInfo info = TRY(env_.info(folder_ / file.name));
    out.push_back({info.size_bytes, info.modified_ns});
  }
  return out;
}

Result<StoredLayout> UnreadWeights::read_common(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<NamedParameter> all = stored(parameters);
  files_ = TRY(state_of_files());
  StoredLayout layout =
      TRY(load_weights(env_, folder_, config_, all, [&](size_t parameter) { return is_common(all[parameter]); }));
  if (has_new_head_) layout.files.clear();  // they have no place for the head: a save is made afresh
  if (change_) TRY(change_(weight_units(config_, parameters).whole, parameters));
  return layout;
}

Result<> UnreadWeights::read_matrices(const std::vector<size_t>& indices,
                                      const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  if (TRY(state_of_files()) != files_) {
    return Error{ErrorKind::kData, "the model's files were changed while it was read part by part", folder_.string(),
                 "start again when nothing writes to this folder"};
  }
  std::vector<NamedParameter> all = stored(parameters);
  std::vector<bool> reads(all.size(), false);
  for (const size_t index : indices) {
    reads[index] = true;
    if (!has_memory(all[index].tensor)) allocate_memory(all[index].tensor.storage());
  }
  TRY(load_weights(env_, folder_, config_, all, [&](size_t parameter) { return reads[parameter]; }));
  return change_ ? change_(indices, parameters) : Result<>();
}

Result<> UnreadWeights::read(int64_t part, const std::vector<NamedParameter>& parameters) {
  const WeightUnits units = weight_units(config_, stored(parameters));
  const std::vector<size_t>& indices = units.parts[static_cast<size_t>(part)];
  return indices.empty() ? Result<>() : read_matrices(indices, parameters);
}

Result<> UnreadWeights::read_all(const std::vector<NamedParameter>& parameters) {
  std::vector<size_t> indices;
  for (const std::vector<size_t>& part : weight_units(config_, stored(parameters)).parts)
    indices.insert(indices.end(), part.begin(), part.end());
  return read_matrices(indices, parameters);
}

}  // namespace mortise
