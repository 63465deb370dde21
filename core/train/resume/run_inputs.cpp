// See run_inputs.h.
#include "train/resume/run_inputs.h"

#include <fmt/core.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "experience/data/column_types.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"
#include "learn/optim/weight_shards.h"
#include "model/adapters/lora_config.h"
#include "train/loop/critic.h"
#include "train/loop/parts.h"
#include "train/run/plugin_files.h"
#include "train/run/reference.h"

namespace mortise {

namespace {

// SHA-256 of the SHA-256s of pieces of 1 MiB.
Sha256Digest digest_of(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<Sha256Digest> pieces((bytes.size() + kPiece - 1) / kPiece);
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      pieces[i] = sha256(bytes.subspan(i * kPiece, std::min(kPiece, bytes.size() - i * kPiece)));
  });
  return sha256(std::as_bytes(std::span(pieces)));
}

void hash_numbers(const std::string& name, const at::Tensor& numbers, Sha256& all) {
  const at::Tensor tensor = on_host(numbers.detach());
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  const Sha256Digest digest = digest_of(bytes);
  all.update(name);
  all.update(std::as_bytes(std::span(digest)));
}

Result<std::string> digest_of_files(Env& env, const Path& folder, const std::vector<std::string>& names) {
  Sha256 all;
  for (const std::string& name : names) {
    const MappedFile file = TRY(env.map_file(folder / name));
    const Sha256Digest digest = digest_of(file.bytes());
    all.update(name);
    all.update(std::as_bytes(std::span(digest)));
  }
  return to_hex(all.finish());
}

Result<std::string> digest_of_file(Env& env, const Path& file) {
  return digest_of_files(env, file.parent_path(), {file.filename().string()});
}

// Relative to the folder, sorted. Links to folders are not followed.
Result<std::vector<std::string>> files_below(Env& env, const Path& folder, const Path& inner = {}) {
  std::vector<std::string> names;
  for (const std::string& name : TRY(env.list_dir(folder / inner))) {
    const Path path = inner / name;
    const auto info = env.info(folder / path);  // a link may lead nowhere
    if (!info.ok()) continue;
    if (info->is_file) names.push_back(path.string());
    if (!info->is_directory || std::filesystem::is_symlink(folder / path)) continue;
    for (std::string& below : TRY(files_below(env, folder, path))) names.push_back(std::move(below));
  }
  return names;
}

// Configuration, weights, tokenizer and template; of an adapter its base's too.
Result<std::string> digest_of_model_folder(Env& env, const Path& folder) {
  constexpr std::string_view kRead[] = {".json", ".safetensors", ".jinja", ".model", ".txt"};
  std::vector<std::string> names;
  for (const std::string& name : TRY(env.list_dir(folder))) {
    const bool is_read = std::ranges::count(kRead, std::string_view(Path(name).extension().native())) > 0;
    if (!is_read) continue;
    const auto info = env.info(folder / name);  // a link may lead nowhere
    if (info.ok() && info->is_file) names.push_back(name);
  }
  std::string digest = TRY(digest_of_files(env, folder, names));
  if (!is_adapter_folder(env, folder)) return digest;
  const Path base = TRY(find_model_folder(env, folder));
  if (base == folder) return digest;
  digest += TRY(digest_of_model_folder(env, base));
  return sha256_hex(digest);
}

// Which GPU it is does not matter, nor whether "auto" chose it.
void add_device(const ComputeDevice& device, RunInputs& inputs) {
  const std::string kind = device.device.is_cuda() ? "a GPU" : device.by_operators ? "cpu-as-device" : "the CPU";
  inputs.add("device", "model.device: where the models learn and sample, now " + kind, kind);
}

Result<> add_reference(const RunConfig& config, const PolicyParts& policy, RunInputs& inputs) {
  if (!policy.reference || (policy.model->trains_lora() && !config.ref.path)) return {};
  const std::string key(reference_key(config));
  if (!policy.reference_state) {
    inputs.add("reference", key + ": the weights of the reference", TRY(digest_of_model(*policy.reference)));
  } else {  // whose weights the checkpoint holds
    inputs.add("reference_config", key + ": config.json of the reference",
               sha256_hex(policy.reference->config().config_text));
  }
  return {};
}

Result<> add_models(const RunConfig& config, const PolicyParts& policy, const Critic* critic, RunInputs& inputs) {
  if (policy.model->trains_lora()) {
    const Model base = policy.model->base_view(Model::BaseUse::kNumbers);
    inputs.add("base", "model.path: the model under the adapter",
               sha256_hex(TRY(digest_of_model(base, shards_of(*policy.model))) + base.config().generation_config_text));
  }
  TRY(add_reference(config, policy, inputs));
  if (policy.teacher)
    inputs.add("teacher", "teacher.path: the teacher's weights", TRY(digest_of_model(*policy.teacher)));
  if (critic == nullptr) return {};
  inputs.add("critic_config", "critic.model.path: config.json of the critic",
             sha256_hex(critic->model.config().config_text));
  if (critic->model.trains_lora())
    inputs.add("critic_base", "critic.model.path: the model under the critic's adapter",
               TRY(digest_of_model(critic->model.base_view(Model::BaseUse::kNumbers), shards_of(critic->model))));
  return {};
}

Result<> add_model_files(const RunSettings& run, const PolicyParts& policy, bool has_critic, RunInputs& inputs) {
  const ModelSection& model = run.config.model;
  const Path& tokenizer = policy.folder->tokenizer_path;
  const std::vector<std::string> names = TRY(list_tokenizer_files(tokenizer, run.env));
  std::string digest = TRY(digest_of_files(run.env, tokenizer, names));
  inputs.add("tokenizer", "model.path: the tokenizer's files", std::move(digest));
  if (model.custom_chat_template) {
    digest = TRY(digest_of_file(run.env, *model.custom_chat_template));
    inputs.add("chat_template", "model.custom_chat_template: the file", std::move(digest));
  }
  if (model.lora_adapter_path) {
    digest = TRY(digest_of_file(run.env, Path(*model.lora_adapter_path) / kAdapterConfigFile));
    inputs.add("adapter_config", "model.lora_adapter_path: adapter_config.json", std::move(digest));
  }
  const std::optional<std::string>& of_critic = run.config.critic.model.lora_adapter_path;
  if (has_critic && of_critic) {
    digest = TRY(digest_of_file(run.env, Path(*of_critic) / kAdapterConfigFile));
    inputs.add("critic_adapter_config", "critic.model.lora_adapter_path: adapter_config.json", std::move(digest));
  }
  return {};
}

// The types of the training rows' columns, if rewards read them. Validation rows have a say in the types.
void add_columns(const DataParts& data, RunInputs& inputs) {
  if (data.columns.empty()) return;
  ColumnTypes seen;
  const std::vector<std::string> names = data.train->column_names();
  for (const auto& column : data.columns) {
    if (std::ranges::find(names, column.first) != names.end()) seen.push_back(column);
  }
  const std::string types = describe_columns(seen);
  inputs.add("data_columns", "data.train_files, data.val_files: the types of the data columns, now " + types, types);
}

Result<std::string> digest_of_plugin_file(Env& env, const PluginFile& file) {
  if (file.role == ParamRole::kModel) return digest_of_model_folder(env, file.path);
  if (file.role == ParamRole::kFolder) return digest_of_files(env, file.path, TRY(files_below(env, file.path)));
  return digest_of_file(env, file.path);
}

Result<> add_file_sets(Env& env, const ToldReads& told, RunInputs& inputs) {
  for (const FileSet& set : told.reads.files) {
    const std::string key = fmt::format("{}.{}", told.key, set.param);
    std::string digest = TRY(digest_of_files(env, set.folder, set.files));
    const std::string names = set.files.empty() ? "none are left" : join(set.files, ", ");
    inputs.add(fmt::format("{}.{}", key, set.name), fmt::format("{}: {} ({})", key, set.what, names),
               std::move(digest));
  }
  return {};
}

}  // namespace

PartDigests digests_of_part(const Model& model) {
  const ModelPart& part = *model.model_part();
  Sha256 common, own;
  const std::vector<NamedParameter> numbers = part.numbers();
  for (size_t i = 0; i < numbers.size(); ++i)
    hash_numbers(numbers[i].name, numbers[i].tensor, part.split(i).is_split() ? own : common);
  if (model.trains_lora()) {
    for (const NamedParameter& factor : model.trainable()) hash_numbers(factor.name, factor.tensor, common);
  }
  return {to_hex(common.finish()), to_hex(own.finish())};
}

Result<std::string> digest_of_model(const Model& model) { return digest_of_model(model, shards_of(model)); }

Result<std::string> digest_of_model(const Model& model, WeightShards* shards) {
  const ModelPart* const part = model.model_part();
  const bool is_split = part != nullptr && !part->is_whole();
  const std::vector<NamedParameter> numbers = model.numbers();
  const std::vector<NamedParameter> own = is_split ? part->numbers() : std::vector<NamedParameter>();
  Sha256 all;
  all.update(model.config().config_text);
  PartWalk walk(shards);
  for (size_t i = 0; i < numbers.size(); ++i) {
    TRY(walk.reach(numbers[i]));
    if (is_split)
      hash_numbers(numbers[i].name, part->gathered(i, own[i].tensor.detach()), all);
    else
      hash_numbers(numbers[i].name, numbers[i].tensor, all);
  }
  if (is_split) TRY(part->ranks()->status());
  return to_hex(all.finish());
}

void RunInputs::add(std::string name, std::string what, std::string digest) {
  inputs_.push_back({std::move(name), std::move(what), std::move(digest)});
}

Result<> RunInputs::save_state(StateWriter& writer) const {
  for (const Input& input : inputs_) writer.put_text(input.name, input.digest);
  return {};
}

Result<> RunInputs::load_state(StateReader& reader) {
  std::string changed;
  for (const Input& input : inputs_) {
    if (!reader.has(input.name)) continue;
    if (TRY(reader.get_text(input.name)) != input.digest) changed += "\n  " + input.what;
  }
  for (const std::string& name : reader.unread_keys()) TRY(reader.get_text(name));
  if (changed.empty()) return {};
  if (takes_changes) {
    log_warn("the run continues although these changed since the checkpoint:" + changed);
    return {};
  }
  return Error{
      ErrorKind::kData,
      fmt::format("inputs of the run have changed since the checkpoint:{}\nRestore them, give --allow-change to "
                  "continue with the present ones, or --resume never to start over.",
                  changed),
      "", ""};
}

Result<RunInputs> make_inputs(const RunSettings& run, const PluginRegistry& registry, const PolicyParts& policy,
                              const DataParts& data, const Critic* critic) {
  RunInputs inputs;
  const bool samples = run.kind == RunKind::kTrain;  // a warm start makes no plugin but its rewards
  add_device(run.device, inputs);
  TRY(add_models(run.config, policy, critic, inputs));
  TRY(add_model_files(run, policy, critic != nullptr, inputs));
  if (samples) add_columns(data, inputs);
  for (const PluginFile& file : plugin_files(registry, run.config)) {
    if (!samples && !file.key.starts_with("reward.")) continue;
    std::string digest = TRY(digest_of_plugin_file(run.env, file));
    inputs.add(file.key, fmt::format("{}: {}", file.key, file.path.string()), std::move(digest));
  }
  for (const ToldReads& told : TRY(told_reads(registry, run.config))) {
    if (samples || told.key.starts_with("reward.")) TRY(add_file_sets(run.env, told, inputs));
  }
  return inputs;
}

}  // namespace mortise
