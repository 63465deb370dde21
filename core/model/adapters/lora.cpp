// See lora.h.
#include "model/adapters/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sqrt.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "foundation/base/choice.h"
#include "foundation/base/lfs_pointer.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "model/adapters/expert_stacks.h"
#include "model/device/compute_device.h"
#include "model/weights/names.h"

namespace mortise {
namespace {

Result<SafetensorsFile> open_weights(Env& env, const Path& folder) {
  const Path path = folder / kAdapterWeightsFile;
  if (!env.exists(path)) {
    return Error{ErrorKind::kData, fmt::format("there is no {} in this adapter", kAdapterWeightsFile), folder.string(),
                 "save it as safetensors (no pickle is read)"};
  }
  TRY(refuse_lfs_pointer(env, path));
  return SafetensorsFile::open(env, path);
}

}  // namespace

// What an adapter has, with the places of it in a model.
class LoraMerge::Parts {
 public:
  Parts(LoraConfig config, LoraTensors tensors, std::span<const NamedParameter> parameters, bool drops_head)
      : config_(std::move(config)),
        tensors_(std::move(tensors)),
        drops_head_(drops_head),
        where_(tensors_.file.path().string()),
        stacks_(expert_stacks(parameters)) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      by_name_.emplace(parameters[i].name, i);
      by_name_.emplace(transformers_name(parameters[i].name), i);
      names_.push_back(parameters[i].name);
    }
  }

  // Everything that the adapter has is of the model.
  Result<> find_places() {
    for (const TensorView* view : tensors_.others) {
      if (const std::optional<size_t> place = TRY(place_of(*view))) whole_.emplace_back(*place, view);
    }
    for (const auto& [module, pair] : tensors_.pairs) {
      const std::vector<size_t> places = TRY(places_of(module, pair));
      if (!places.empty()) adapted_.push_back({places.front(), stack_of(module), &module, &pair});
    }
    return {};
  }

  Result<> apply(std::span<const size_t> places, std::span<const NamedParameter> parameters) const {
    const std::set<size_t> chosen(places.begin(), places.end());
    for (const auto& [place, view] : whole_) {
      if (chosen.contains(place)) TRY(copy_stored(*view, where_, parameters[place].tensor.detach()));
    }
    for (const auto& [place, stack, module, pair] : adapted_) {
      if (!chosen.contains(place)) continue;
      TRY(stack == nullptr ? merge(parameters[place], *module, *pair) : merge_stack(*stack, *pair, parameters));
    }
    return {};
  }

  [[nodiscard]] const LoraConfig& config() const { return config_; }
  [[nodiscard]] const SafetensorsFile& file() const { return tensors_.file; }

 private:
  Error bad(const std::string& tensor, const std::string& problem, std::string next = {}) const {
    return {ErrorKind::kData, fmt::format("tensor {} {}", quote(tensor), problem), where_, std::move(next)};
  }
  [[nodiscard]] bool is_dropped(std::string_view parameter) const { return drops_head_ && parameter == kHeadName; }

  // The parameter that a tensor of modules_to_save, or a bias, is stored for as a whole; none: it is left out.
  Result<std::optional<size_t>> place_of(const TensorView& view) const {
    const std::string name = whole_parameter_name(view.name);
    if (is_dropped(name)) return std::optional<size_t>();
    if (name == kHeadName && is_tied() && config_.ties_weights) return std::optional<size_t>();  // the embedding again
    if (name == kEmbeddingName && is_tied() && !config_.ties_weights)
      return bad(view.name, "is an embedding of its own, but the base's is also its head",
                 "train it with ensure_weight_tying, or untie the base");
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return std::optional(found->second);
    const bool is_variant = name.find("lora_") != std::string::npos;
    return bad(view.name, is_variant ? "is of a LoRA variant that is not supported" : "is not of the base model",
               is_variant ? "supported: lora_A, lora_B and lora_magnitude_vector of linear layers"
                          : did_you_mean(name, names_));
  }

  [[nodiscard]] const ExpertStack* stack_of(const std::string& module) const {
    const auto stack = std::ranges::find(stacks_, module, &ExpertStack::name);
    return stack == stacks_.end() ? nullptr : &*stack;
  }

  // The matrix that a pair adapts, or those of all experts of a layer; none: it is left out.
  Result<std::vector<size_t>> places_of(const std::string& module, const LoraPair& pair) const {
    if (const ExpertStack* const stack = stack_of(module)) return stack->parameters;
    const std::string name = module + ".weight";
    if (is_dropped(name)) return std::vector<size_t>();
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return std::vector<size_t>{found->second};
    return bad(pair.a->name,
               fmt::format("adapts {}, which the base model does not have as a matrix of its own", quote(module)),
               did_you_mean(name, names_));
  }

  Result<at::Tensor> matrix(const TensorView& view, int64_t rows, int64_t columns) const {
    at::Tensor out = at::empty({rows, columns}, at::kDouble);
    TRY(copy_stored(view, where_, out));
    return out;
  }

  // Computed on the host, where the adapter is.
  Result<> merge(const NamedParameter& parameter, const std::string& module, const LoraPair& pair) const {
    at::Tensor target = parameter.tensor.detach();
    if (target.dim() != 2) return bad(pair.a->name, fmt::format("adapts {}, which is not a matrix", quote(module)));
    const at::Tensor a = TRY(matrix(*pair.a, pair.rank.rank, target.size(1)));
    const at::Tensor b = TRY(matrix(*pair.b, target.size(0), pair.rank.rank));
    at::Tensor sum = on_host(target).to(at::kDouble);
    if (changes_base(config_.init)) {
      const LoraStart start = TRY(lora_start(config_.init, sum, pair.rank));
      sum.sub_(at::matmul(start.b_OR, start.a_RI).mul_(pair.rank.scale));
    }
    sum.add_(at::matmul(b, a).mul_(pair.rank.scale));
    if (pair.magnitude != nullptr) {
      const at::Tensor magnitude = at::empty({target.size(0)}, at::kDouble);
      TRY(copy_stored(*pair.magnitude, where_, magnitude));
      sum.mul_((magnitude / at::linalg_vector_norm(sum, 2, {1})).unsqueeze(1));
    }
    target.copy_(sum);
    return {};
  }

  Result<> merge_stack(const ExpertStack& stack, const LoraPair& pair,
                       std::span<const NamedParameter> parameters) const {
    const int64_t count = stack.num_experts, rank = pair.rank.rank;
    TRY(check_stack_pair(stack, pair, where_));
    const at::Tensor a = TRY(matrix(*pair.a, rank * count, stack.in)).view({count, rank, stack.in});
    const at::Tensor b = TRY(matrix(*pair.b, stack.out, rank * count)).view({stack.out, rank, count});
    for (int64_t e = 0; e < count; ++e) {
      const at::Tensor change = at::matmul(b.select(2, e), a.select(0, e)) * pair.rank.scale;
      int64_t row = 0;
      for (const at::Tensor& target : expert_matrices(stack, parameters, e)) {
        at::Tensor rows = target;
        rows.copy_(on_host(rows).to(at::kDouble) + change.narrow(0, row, rows.size(0)));
        row += rows.size(0);
      }
    }
    return {};
  }

  // Without a matrix of its own for the head.
  [[nodiscard]] bool is_tied() const { return !by_name_.contains(kHeadName) && !by_name_.contains(kScoreHead); }

  struct Adapted {
    size_t place;              // that of its matrix, or of the first one of its stack
    const ExpertStack* stack;  // null: one matrix
    const std::string* module;
    const LoraPair* pair;
  };

  LoraConfig config_;
  LoraTensors tensors_;
  bool drops_head_;
  std::string where_;
  std::vector<ExpertStack> stacks_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<std::string> names_;
  std::vector<std::pair<size_t, const TensorView*>> whole_;
  std::vector<Adapted> adapted_;
};

// PEFT's name for a part of an adapted module that is no matrix of the adapter: "q_proj.base_layer.bias". Experts may
// have two wrappers.
std::string whole_parameter_name(const std::string& tensor) {
  std::string name = tensor.substr(kLoraPrefix.size());
  constexpr std::string_view kWrapper = ".base_layer.";
  for (size_t at = name.find(kWrapper); at != std::string::npos; at = name.find(kWrapper))
    name.replace(at, kWrapper.size(), ".");
  return name;
}

Result<> check_stack_pair(const ExpertStack& stack, const LoraPair& pair, const std::string& where) {
  const int64_t columns = pair.rank.rank * stack.num_experts;
  if (pair.a->shape == std::vector<int64_t>{columns, stack.in} &&
      pair.b->shape == std::vector<int64_t>{stack.out, columns})
    return {};
  return Error{
      ErrorKind::kData,
      fmt::format("the adapter of {} has shapes {} and {}, which do not fit {} experts of rank {}", quote(stack.name),
                  shape_text(pair.a->shape), shape_text(pair.b->shape), stack.num_experts, pair.rank.rank),
      where, "correct r or rank_pattern in " + std::string(kAdapterConfigFile)};
}

// The singular values are divided by the scale, so that scale B A is the part of the matrix that they make.
Result<LoraStart> lora_start(LoraInit init, const at::Tensor& weight_OI, const LoraRank& rank) {
  const int64_t most = std::min(weight_OI.size(0), weight_OI.size(1));
  if (rank.rank > most || rank.scale <= 0.0) {
    return Error{ErrorKind::kConfig,
                 fmt::format("an adapter of rank {} and scale {} cannot start from a matrix of shape {} ({})",
                             rank.rank, rank.scale, shape_text(weight_OI.sizes()), choice_name(init)),
                 {},
                 "lower the rank, or use init_lora_weights = \"default\""};
  }
  const at::Tensor weight = on_host(weight_OI);  // a device would need further libraries, and give other bits
  if (init == LoraInit::kOlora) {
    const auto [q, r] = at::linalg_qr(weight, "reduced");
    return LoraStart{r.narrow(0, 0, rank.rank).contiguous(), q.narrow(1, 0, rank.rank).contiguous()};
  }
  const auto [u, s, v] = at::linalg_svd(weight, /*full_matrices=*/false);
  const at::Tensor root = at::sqrt(s.narrow(0, 0, rank.rank) / rank.scale);
  return LoraStart{(root.unsqueeze(1) * v.narrow(0, 0, rank.rank)).contiguous(),
                   (u.narrow(1, 0, rank.rank) * root.unsqueeze(0)).contiguous()};
}

namespace {

// PEFT stores the adapters of a layer's experts by their module: the one of down_proj at the module itself, and that of
// gate_up_proj in front of it, or at the module if it is alone.
Result<> name_stacks(LoraTensors& tensors, const LoraConfig& config, const std::string& where) {
  constexpr std::string_view kModule = ".experts";
  constexpr std::string_view kInner = ".experts.base_layer";
  std::map<std::string, LoraPair> named;
  for (const auto& [module, pair] : tensors.pairs) {
    std::string name = transformers_name(module);
    if (module.ends_with(kModule) || module.ends_with(kInner)) {
      const std::string experts = name.substr(0, name.rfind(kModule) + kModule.size());
      const bool gate_up = names_parameter(config.target_parameters, experts + ".gate_up_proj");
      const bool down = names_parameter(config.target_parameters, experts + ".down_proj");
      const bool is_inner = module.ends_with(kInner);
      if (is_inner ? !(gate_up && down) : !(gate_up || down)) {
        return Error{ErrorKind::kData,
                     fmt::format("tensor {} is of experts that target_parameters does not name",
                                 quote(pair.a != nullptr ? pair.a->name : module)),
                     where, "correct target_parameters in " + std::string(kAdapterConfigFile)};
      }
      name = experts + (is_inner || !down ? ".gate_up_proj" : ".down_proj");
    }
    named.emplace(std::move(name), pair);
  }
  tensors.pairs = std::move(named);
  return {};
}

}  // namespace

Result<LoraTensors> read_lora_tensors(Env& env, const Path& folder) {
  LoraTensors out{TRY(open_weights(env, folder)), {}, {}};
  const Path path = out.file.path();
  const auto bad = [&](const std::string& tensor, const std::string& problem, std::string next) {
    return Error{ErrorKind::kData, fmt::format("tensor {} {}", quote(tensor), problem), path.string(), std::move(next)};
  };
  constexpr std::string_view kA = ".lora_A.weight";
  constexpr std::string_view kB = ".lora_B.weight";
  constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
  for (const TensorView& view : out.file.tensors()) {
    if (!view.name.starts_with(kLoraPrefix)) return bad(view.name, "does not begin with 'base_model.model.'", {});
    const std::string name = view.name.substr(kLoraPrefix.size());
    if (name.ends_with(kA)) {
      out.pairs[name.substr(0, name.size() - kA.size())].a = &view;
    } else if (name.ends_with(kB)) {
      out.pairs[name.substr(0, name.size() - kB.size())].b = &view;
    } else if (name.ends_with(kMagnitude)) {
      out.pairs[name.substr(0, name.size() - kMagnitude.size())].magnitude = &view;
    } else {
      out.others.push_back(&view);
    }
  }
  if (out.file.tensors().empty())
    return Error{ErrorKind::kData, "the adapter holds no tensor", path.string(), "save the adapter again"};
  const LoraConfig config = TRY(read_lora_config(env, folder));
  TRY(name_stacks(out, config, path.string()));
  for (auto& [module, pair] : out.pairs) {
    if (pair.a == nullptr || pair.b == nullptr) {
      const TensorView& there = pair.a != nullptr ? *pair.a : pair.b != nullptr ? *pair.b : *pair.magnitude;
      return bad(there.name, fmt::format("has no lora_{} with it", pair.a != nullptr ? "B" : "A"),
                 "save the adapter again");
    }
    if (config.use_dora != (pair.magnitude != nullptr)) {
      return bad(config.use_dora ? pair.a->name : pair.magnitude->name,
                 config.use_dora ? "has no lora_magnitude_vector with it" : "is of DoRA, but use_dora is false",
                 "correct use_dora in " + std::string(kAdapterConfigFile));
    }
    pair.rank = TRY(config.rank_of(module));
    if (is_expert_stack(module)) continue;  // see check_stack_pair
    for (const auto& [view, side] : {std::pair{pair.a, size_t{0}}, std::pair{pair.b, size_t{1}}}) {
      if (view->shape.size() == 2 && view->shape[side] == pair.rank.rank) continue;
      return bad(view->name,
                 fmt::format("has shape {}, which does not fit the rank {} of its module", shape_text(view->shape),
                             pair.rank.rank),
                 "correct r or rank_pattern in " + std::string(kAdapterConfigFile));
    }
  }
  return out;
}

Result<ModelConfig> add_adapter_head(Env& env, const Path& folder, ModelConfig config) {
  const LoraConfig lora = TRY(read_lora_config(env, folder));
  if (config.is_classifier) return config;  // a head of the adapter has to fit in the place of the base's
  const SafetensorsFile file = TRY(open_weights(env, folder));
  const TensorView* head = file.find(std::string(kLoraPrefix) + kScoreHead);
  if (head == nullptr) {
    if (lora.task_type != "SEQ_CLS") return config;
    return Error{ErrorKind::kData,
                 "key 'task_type' is SEQ_CLS, and neither the adapter nor its base has the head of a sequence "
                 "classifier (score.weight)",
                 (folder / kAdapterConfigFile).string(),
                 "train it with modules_to_save = [\"score\"] and save it again: a fresh head would score at random"};
  }
  if (head->shape.size() == 2 && head->shape[0] > 0) return as_classifier(std::move(config), head->shape[0]);
  return Error{ErrorKind::kData, fmt::format("tensor {} is not a matrix of labels x hidden_size", quote(head->name)),
               file.path().string(), "save the adapter again"};
}

Result<ModelConfig> read_model_folder_config(Env& env, const Path& folder) {
  const Path base = TRY(find_model_folder(env, folder));
  ModelConfig config = TRY(read_model_config(env, base));
  if (!is_adapter_folder(env, folder)) return config;
  return add_adapter_head(env, folder, std::move(config));
}

Result<LoraMerge> LoraMerge::open(Env& env, const Path& folder, std::span<const NamedParameter> parameters,
                                  bool drops_head) {
  LoraConfig config = TRY(read_lora_config(env, folder));
  LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  auto parts = std::make_shared<Parts>(std::move(config), std::move(tensors), parameters, drops_head);
  TRY(parts->find_places());
  return LoraMerge(std::move(parts));
}

Result<> LoraMerge::apply(std::span<const size_t> places, std::span<const NamedParameter> parameters) const {
  return parts_->apply(places, parameters);
}

LoraAdapter LoraMerge::adapter() const {
  LoraAdapter adapter;
  adapter.config = parts_->config();
  adapter.weights = {kAdapterWeightsFile, std::string(parts_->file().head()), {}};
  for (const TensorView& view : parts_->file().tensors()) {
    const auto* bytes = reinterpret_cast<const char*>(view.bytes.data());
    adapter.weights.slots.push_back({"", view.dtype, std::string(bytes, view.bytes.size())});
  }
  return adapter;
}

Result<std::vector<FolderFile>> plan_lora(std::shared_ptr<const LoraAdapter> adapter, const std::string& base_model) {
  std::string text = adapter->config.text;
  if (!base_model.empty() && base_model != adapter->config.base_model) {
    Json json = TRY(parse_json(text, kAdapterConfigFile));
    json["base_model_name_or_path"] = base_model;
    text = dump_json(json, 2) + "\n";
  }
  const auto write = [adapter](WritableFile& out) -> Result<> {
    TRY(out.append_text(adapter->weights.head));
    for (const StoredSlot& slot : adapter->weights.slots) TRY(out.append_text(slot.bytes));
    return {};
  };
  std::vector<FolderFile> files = {{kAdapterWeightsFile, write}};
  files.push_back(text_folder_file(kAdapterConfigFile, std::move(text)));
  return files;
}

}  // namespace mortise
