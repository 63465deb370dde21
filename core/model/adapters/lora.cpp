// See lora.h.
#include "model/adapters/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <map>
#include <unordered_map>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"

namespace mortise {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

struct Pair {
  const TensorView* a = nullptr;
  const TensorView* b = nullptr;
};

class Applier {
 public:
  Applier(const SafetensorsFile& file, const LoraConfig& config, std::span<NamedParameter> parameters)
      : file_(file), config_(config), where_(file.path().string()) {
    for (NamedParameter& parameter : parameters) {
      by_name_.emplace(parameter.name, &parameter);
      names_.push_back(parameter.name);
    }
  }

  Result<> apply() {
    std::map<std::string, Pair> pairs;
    for (const TensorView& view : file_.tensors()) {
      if (!view.name.starts_with(kPrefix)) return bad(view.name, "does not begin with 'base_model.model.'");
      const std::string name = view.name.substr(kPrefix.size());
      if (name.ends_with(".lora_A.weight")) {
        pairs[name.substr(0, name.size() - 14)].a = &view;
      } else if (name.ends_with(".lora_B.weight")) {
        pairs[name.substr(0, name.size() - 14)].b = &view;
      } else {
        TRY(replace(view, name));
      }
    }
    if (file_.tensors().empty()) return Error{ErrorKind::kData, "the adapter holds no tensor", where_, {}};
    for (const auto& [module, pair] : pairs) TRY(merge(module, pair));
    return {};
  }

 private:
  Error bad(const std::string& tensor, const std::string& problem, std::string next = {}) const {
    return {ErrorKind::kData, "tensor " + quote(tensor) + " " + problem, where_, std::move(next)};
  }

  // A tensor of modules_to_save, or a bias: stored as a whole.
  Result<> replace(const TensorView& view, const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      const bool is_variant = name.find("lora_") != std::string::npos;
      return bad(view.name, is_variant ? "is of a LoRA variant that is not supported" : "is not of the base model",
                 is_variant ? "supported: lora_A and lora_B of linear layers" : did_you_mean(name, names_));
    }
    return copy_stored(view, where_, found->second->tensor.detach());
  }

  Result<at::Tensor> matrix(const TensorView& view, int64_t rows, int64_t columns) const {
    at::Tensor out = at::empty({rows, columns}, at::kDouble);
    TRY(copy_stored(view, where_, out));
    return out;
  }

  Result<> merge(const std::string& module, const Pair& pair) {
    if (pair.a == nullptr || pair.b == nullptr) {
      const TensorView& there = pair.a != nullptr ? *pair.a : *pair.b;
      return bad(there.name, std::string("has no lora_") + (pair.a != nullptr ? "B" : "A") + " beside it",
                 "save the adapter again");
    }
    const auto found = by_name_.find(module + ".weight");
    if (found == by_name_.end()) {
      return bad(pair.a->name,
                 "adapts " + quote(module) + ", which the base model does not have as a matrix of its own",
                 did_you_mean(module + ".weight", names_));
    }
    at::Tensor target = found->second->tensor.detach();
    if (target.dim() != 2) return bad(pair.a->name, "adapts " + quote(module) + ", which is no matrix");
    const int64_t rank = config_.rank_of(module);
    const at::Tensor a = TRY(matrix(*pair.a, rank, target.size(1)));
    const at::Tensor b = TRY(matrix(*pair.b, target.size(0), rank));
    target.copy_(target.to(at::kDouble) + at::matmul(b, a) * config_.scale_of(module));
    return {};
  }

  const SafetensorsFile& file_;
  const LoraConfig& config_;
  std::string where_;
  std::unordered_map<std::string, NamedParameter*> by_name_;
  std::vector<std::string> names_;
};

}  // namespace

Result<LoraAdapter> apply_lora(Env& env, const Path& folder, std::span<NamedParameter> parameters) {
  LoraAdapter adapter;
  adapter.config = TRY(read_lora_config(env, folder));
  const Path path = folder / kAdapterWeightsFile;
  if (!env.exists(path)) {
    return Error{ErrorKind::kData, std::string("there is no ") + kAdapterWeightsFile + " in this adapter",
                 folder.string(), "save it as safetensors (no pickle is read)"};
  }
  const SafetensorsFile file = TRY(SafetensorsFile::open(env, path));
  TRY(Applier(file, adapter.config, parameters).apply());
  adapter.weights = {kAdapterWeightsFile, std::string(file.head()), {}};
  for (const TensorView& view : file.tensors()) {
    const auto* bytes = reinterpret_cast<const char*>(view.bytes.data());
    adapter.weights.slots.push_back({"", view.dtype, std::string(bytes, view.bytes.size())});
  }
  return adapter;
}

Result<> save_lora(Env& env, const Path& folder, const LoraAdapter& adapter, const std::string& base_model) {
  std::string text = adapter.config.text;
  if (!base_model.empty() && base_model != adapter.config.base_model) {
    Json json = TRY(parse_json(text, kAdapterConfigFile));
    json["base_model_name_or_path"] = base_model;
    text = dump_json(json, 2) + "\n";
  }
  const auto write = [&](WritableFile& out) -> Result<> {
    TRY(out.append_text(adapter.weights.head));
    for (const StoredSlot& slot : adapter.weights.slots) TRY(out.append_text(slot.bytes));
    return {};
  };
  TRY(write_weight_file(env, folder / kAdapterWeightsFile, write));
  return write_file_atomic(env, folder / kAdapterConfigFile, text);
}

}  // namespace mortise
