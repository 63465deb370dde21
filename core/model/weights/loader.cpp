// See loader.h.
#include "model/weights/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

#include "foundation/base/lfs_pointer.h"
#include "foundation/base/text.h"
#include "foundation/formats/safetensors.h"
#include "model/weights/four_bit.h"
#include "model/weights/names.h"

namespace mortise {
namespace {

constexpr size_t kMaxKeptBytes = size_t{1} << 20;  // redundant tensors kept for a save of the same bytes

class Loader {
 public:
  Loader(Env& env, const Path& folder, const ModelConfig& config, std::vector<NamedParameter>& parameters,
         const ReadsParameter& reads)
      : env_(env), folder_(folder), config_(config), parameters_(parameters), reads_(reads) {
    for (size_t i = 0; i < parameters.size(); ++i) index_.emplace(parameters[i].name, i);
    filled_.resize(parameters.size(), false);
  }

  Result<StoredLayout> load() {
    FileList list = TRY(list_weight_files(env_, folder_));
    layout_.index_text = std::move(list.index_text);
    if (config_.four_bit) {
      for (const ListedFile& file : list.files)
        opened_.push_back(TRY(SafetensorsFile::open(env_, folder_ / file.name)));
    }
    for (const ListedFile& file : list.files) TRY(load_file(file));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (filled_[i]) continue;
      const std::string near = did_you_mean(parameters_[i].name, left_over_);
      return Error{
          ErrorKind::kData,
          fmt::format("tensor {}, which config.json asks for, is missing from the weights", quote(parameters_[i].name)),
          folder_.string(), near.empty() ? "download the folder again, or correct config.json" : near};
    }
    if (!left_over_.empty()) {
      return Error{ErrorKind::kData, fmt::format("tensor {} is not part of this model", quote(left_over_.front())),
                   left_over_where_, "config.json and weights must belong together"};
    }
    TRY(check_tied_head());
    if (kept_bytes_ > kMaxKeptBytes) layout_.files.clear();
    return std::move(layout_);
  }

 private:
  Result<> load_file(const ListedFile& listed) {
    const SafetensorsFile file = TRY(SafetensorsFile::open(env_, folder_ / listed.name));
    const std::string where = file.path().string();
    std::set<std::string> missing = listed.tensors.value_or(std::set<std::string>());
    StoredFile stored{listed.name, std::string(file.head()), {}};
    bool is_whole = true;  // every tensor of the file is listed
    for (const TensorView& view : file.tensors()) {
      if (listed.tensors && !listed.tensors->contains(view.name)) {
        is_whole = false;
        continue;
      }
      missing.erase(view.name);
      StoredSlot slot{"", view.dtype, ""};
      TRY(load_tensor(view, where, slot));
      stored.slots.push_back(std::move(slot));
    }
    if (!missing.empty()) {
      return Error{ErrorKind::kData,
                   fmt::format("tensor {} is not in this file, the index says it is", quote(*missing.begin())), where,
                   "download the folder again"};
    }
    if (!is_whole) kept_bytes_ = kMaxKeptBytes + 1;  // what else is in it would be lost: saved afresh
    layout_.files.push_back(std::move(stored));
    return {};
  }

  Result<> load_tensor(const TensorView& view, const std::string& where, StoredSlot& slot) {
    const auto found = index_.find(view.name);
    if (found != index_.end()) {
      TRY(claim(found->second, view, where));
      TRY(fill(view, where, found->second));
      if (view.name == kEmbeddingName) layout_.dtype = view.dtype;
      slot.parameter = view.name;
      return {};
    }
    if (view.name == kHeadName && config_.tie_word_embeddings && !config_.is_classifier) {
      slot.parameter = kEmbeddingName;
      tied_head_file_ = where;
      return {};
    }
    if (view.name.ends_with("rotary_emb.inv_freq") || (view.name == kHeadName && config_.is_classifier)) {
      kept_bytes_ += view.bytes.size();
      if (kept_bytes_ > kMaxKeptBytes) return {};
      slot.bytes.assign(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
      return {};
    }
    if (config_.four_bit && is_four_bit_part(view.name)) return {};  // read with its matrix
    if (const auto matrix = mxfp4_parameter(view.name); matrix != index_.end()) return load_mxfp4(view, where, *matrix);
    if (const auto parts = stacked_experts(view.name); !parts.empty()) return load_stacked(view, where, parts);
    if (left_over_.empty()) left_over_where_ = where;
    left_over_.push_back(view.name);
    return {};
  }

  // Only one tensor may hold the numbers of a parameter.
  Result<> claim(size_t index, const TensorView& view, const std::string& where) {
    if (filled_[index]) {
      return Error{ErrorKind::kData,
                   fmt::format("the numbers of {} are in two tensors, and one of them is {}",
                               quote(parameters_[index].name), quote(view.name)),
                   where, "download the folder again, or take one of the two out"};
    }
    filled_[index] = true;
    return {};
  }

  // In any file, if matrices are in four bits.
  [[nodiscard]] const TensorView* find_tensor(const std::string& name) const {
    for (const SafetensorsFile& file : opened_) {
      if (const TensorView* found = file.find(name); found != nullptr) return found;
    }
    return nullptr;
  }

  [[nodiscard]] bool reads(size_t index) const { return !reads_ || reads_(index); }

  Result<> fill_plain(const TensorView& view, const std::string& where, size_t index) {
    const at::Tensor target = parameters_[index].tensor.detach();
    if (reads(index)) return copy_stored(view, where, target);
    TRY(check_stored(view, where, target.sizes()));
    return {};
  }

  Result<> fill(const TensorView& view, const std::string& where, size_t index) {
    const FindTensor find = [this](const std::string& name) { return find_tensor(name); };
    if (!is_four_bit(view, find)) return fill_plain(view, where, index);
    kept_bytes_ = kMaxKeptBytes + 1;  // a save writes plain numbers
    if (!reads(index)) return {};
    const at::Tensor target = parameters_[index].tensor.detach();
    target.copy_(TRY(read_four_bit(view, target.sizes(), find, where)));
    return {};
  }

  // The matrix of which a tensor is a part in MXFP4; the end if there is none.
  [[nodiscard]] std::unordered_map<std::string, size_t>::const_iterator mxfp4_parameter(const std::string& name) const {
    if (!config_.four_bit || !config_.moe.is_gpt_oss) return index_.end();
    const auto found = index_.find(std::string(mxfp4_matrix(name)));
    return found != index_.end() && parameters_[found->second].tensor.dim() == 3 ? found : index_.end();
  }

  Result<> load_mxfp4(const TensorView& view, const std::string& where,
                      const std::pair<const std::string, size_t>& matrix) {
    if (is_mxfp4_scales(view.name)) return {};  // read with its blocks
    const FindTensor find = [this](const std::string& name) { return find_tensor(name); };
    TRY(claim(matrix.second, view, where));
    kept_bytes_ = kMaxKeptBytes + 1;  // a save writes plain numbers
    if (!reads(matrix.second)) return {};
    const at::Tensor target = parameters_[matrix.second].tensor.detach();
    const at::Tensor host = target.is_cpu() ? target : at::empty(target.sizes(), target.options().device(at::kCPU));
    TRY(read_mxfp4(view, find, where, host));
    if (!target.is_cpu()) target.copy_(host);
    return {};
  }

  // The parameters of one tensor of all experts, as transformers 5 keeps them: experts.gate_up_proj [E, 2 I, H],
  // experts.down_proj [E, H, I], and Mixtral's router, under `mlp`. Empty for any other name.
  [[nodiscard]] std::vector<std::string> stacked_experts(const std::string& name) const {
    const MoeConfig& moe = config_.moe;
    const size_t at = name.find(".mlp.");
    if (moe.num_experts == 0 || at == std::string::npos) return {};
    const std::string prefix = name.substr(0, at) + (moe.mixtral_names ? ".block_sparse_moe." : ".mlp.");
    const std::string rest = name.substr(at + std::string_view(".mlp.").size());
    if (rest == "gate.weight") return {prefix + rest};
    std::vector<const char*> parts;
    if (rest == "experts.gate_up_proj")
      parts = {moe.mixtral_names ? "w1" : "gate_proj", moe.mixtral_names ? "w3" : "up_proj"};
    if (rest == "experts.down_proj") parts = {moe.mixtral_names ? "w2" : "down_proj"};
    std::vector<std::string> out;
    for (int64_t e = 0; e < moe.num_experts && !parts.empty(); ++e) {
      for (const char* part : parts) out.push_back(fmt::format("{}experts.{}.{}.weight", prefix, e, part));
    }
    return out;
  }

  // The parameters are equal slices of it.
  Result<> load_stacked(const TensorView& view, const std::string& where, const std::vector<std::string>& names) {
    const auto first = index_.find(names.front());
    if (first == index_.end()) {
      if (left_over_.empty()) left_over_where_ = where;
      left_over_.push_back(view.name);
      return {};
    }
    const std::vector<int64_t> slice = parameters_[first->second].tensor.sizes().vec();
    std::vector<int64_t> shape = slice;
    if (names.size() > 1 || view.shape.size() == 3) {
      const int64_t parts = static_cast<int64_t>(names.size()) / config_.moe.num_experts;
      shape = {config_.moe.num_experts, parts * slice[0], slice[1]};
    }
    if (view.shape != shape) {
      return Error{ErrorKind::kData,
                   fmt::format("tensor {} has shape {}, the configuration asks for {}", quote(view.name),
                               shape_text(view.shape), shape_text(shape)),
                   where, "configuration and weights must belong together: download the folder again"};
    }
    const size_t bytes = view.bytes.size() / names.size();
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t index = index_.at(names[i]);
      TensorView part = view;
      part.shape = slice;
      part.bytes = view.bytes.subspan(i * bytes, bytes);
      TRY(claim(index, view, where));
      TRY(fill_plain(part, where, index));
    }
    kept_bytes_ = kMaxKeptBytes + 1;  // a save is made afresh, expert by expert
    return {};
  }

  // A head next to tied embeddings must be the same matrix, because transformers would use both if they differ.
  Result<> check_tied_head() const {
    if (tied_head_file_.empty() || !reads(index_.at(kEmbeddingName))) return {};
    const SafetensorsFile file = TRY(SafetensorsFile::open(env_, tied_head_file_));
    const TensorView view = TRY(file.get(kHeadName));
    const at::Tensor embedding = parameters_[index_.at(kEmbeddingName)].tensor.detach();
    constexpr int64_t kRows = 4096;
    const auto bytes_of_row = static_cast<int64_t>(view.bytes.size()) / std::max<int64_t>(1, embedding.size(0));
    for (int64_t row = 0; row < embedding.size(0); row += kRows) {
      const int64_t count = std::min(kRows, embedding.size(0) - row);
      TensorView part = view;
      if (!part.shape.empty() && part.shape[0] == embedding.size(0)) {
        part.shape[0] = count;
        part.bytes = view.bytes.subspan(static_cast<size_t>(row * bytes_of_row));
      }
      const at::Tensor expected = embedding.narrow(0, row, count);
      const at::Tensor head = at::empty_like(expected);
      TRY(copy_stored(part, tied_head_file_.string(), head));
      if (at::equal(head, expected)) continue;
      return Error{ErrorKind::kData, "tensor 'lm_head.weight' differs from the embeddings that config.json ties it to",
                   tied_head_file_.string(), "set tie_word_embeddings to false in config.json, or take the tensor out"};
    }
    return {};
  }

  Env& env_;
  const Path& folder_;
  const ModelConfig& config_;
  std::vector<NamedParameter>& parameters_;
  const ReadsParameter& reads_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<bool> filled_;
  std::vector<std::string> left_over_;
  std::string left_over_where_;
  std::vector<SafetensorsFile> opened_;  // all files, if matrices are in four bits
  Path tied_head_file_;
  size_t kept_bytes_ = 0;
  StoredLayout layout_;
};

}  // namespace

Result<> check_weight_bytes(Env& env, const Path& folder, const ModelConfig& config) {
  const FileList list = TRY(list_weight_files(env, folder));
  uint64_t num_bytes = 0;
  for (const ListedFile& listed : list.files) {
    const Path path = folder / listed.name;
    if (!env.exists(path)) {
      const std::string tensor = listed.tensors && !listed.tensors->empty() ? *listed.tensors->begin() : "";
      return Error{ErrorKind::kData,
                   fmt::format("this file, in which model.safetensors.index.json places {}, is missing", quote(tensor)),
                   path.string(), "download the folder again"};
    }
    TRY(refuse_lfs_pointer(env, path));
    TRY(SafetensorsFile::open(env, path));  // the file's header is wrong: cut off, empty, or a web page
    num_bytes += TRY(env.info(path)).size_bytes;
  }
  const auto num_parameters = static_cast<uint64_t>(config.num_parameters());
  // A number has at least two bytes (F16 or BF16), or half of one.
  const uint64_t most_parameters = config.four_bit ? num_bytes * 2 : num_bytes / 2;
  if (num_parameters <= most_parameters) return {};
  return Error{ErrorKind::kData,
               fmt::format("config.json asks for {} parameters, more than the weight files hold with their {} bytes",
                           num_parameters, num_bytes),
               folder.string(), "config.json and weights must belong together: download the folder again"};
}

Result<StoredLayout> load_weights(Env& env, const Path& folder, const ModelConfig& config,
                                  std::vector<NamedParameter>& parameters, const ReadsParameter& reads) {
  return Loader(env, folder, config, parameters, reads).load();
}

}  // namespace mortise
