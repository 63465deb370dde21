// See plugin_files.h.
#include "train/plugin_files.h"

#include <string>
#include <string_view>

#include "foundation/base/at_place.h"
#include "train/pack_lock.h"
#include "train/score_model.h"

namespace mortise {

namespace {

struct FileParam {
  std::string_view kind, plugin, param;
  bool is_model = false, is_python = false;
};
constexpr FileParam kFiles[] = {{.kind = "reward", .plugin = "python", .param = "path", .is_python = true},
                                {.kind = "reward", .plugin = "reward_model", .param = "chat_template"},
                                {.kind = "reward", .plugin = "reward_model", .param = "model", .is_model = true},
                                {.kind = "rollout_backend", .plugin = "replay", .param = "path"}};

// What `use` gives to the parameter; empty where it is of another plugin, or not given.
std::string value_of(const FileParam& file, const PluginUse& use, const PluginRegistry& registry) {
  if (use.kind != file.kind) return "";
  const auto ref = registry.find(use.kind, use.name);
  if (!ref.ok() || ref->candidate->origin != PackOrigin::kBuiltin || ref->plugin->name != file.plugin) return "";
  const Json* const value = json_find(use.params, file.param);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

Result<> check_file(Env& env, const Path& path) {
  if (!env.exists(path)) {
    return Error{ErrorKind::kData, "the file does not exist", path.string(),
                 "correct the path; a relative one starts at the folder that the run is started in"};
  }
  const FileInfo info = TRY(env.info(path));
  if (info.is_file) return {};
  return Error{ErrorKind::kData, "this is no file", path.string(), "name a file"};
}

}  // namespace

std::vector<PluginFile> plugin_files(const PluginRegistry& registry, const RunConfig& config) {
  std::vector<PluginFile> files;
  for (const PluginUse& use : plugin_uses(config)) {
    for (const FileParam& file : kFiles) {
      const std::string path = value_of(file, use, registry);
      if (path.empty()) continue;
      files.push_back({use.key + "." + std::string(file.param), path, file.is_model, file.is_python});
    }
  }
  return files;
}

Result<> check_plugin_files(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  std::string missing;
  for (const PluginFile& file : plugin_files(registry, loaded.config)) {
    if (file.is_model) continue;  // reward_model_bytes looks at it
    const auto found = at_place(loaded.where(file.key), check_file(env, file.path));
    if (!found.ok()) missing += (missing.empty() ? "" : "\n") + found.error().to_string();
  }
  if (missing.empty()) return {};
  return Error{ErrorKind::kData, missing, "", ""};
}

Result<double> reward_model_bytes(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  double bytes = 0;
  for (const PluginFile& file : plugin_files(registry, loaded.config)) {
    if (!file.is_model) continue;
    const ModelConfig config = TRY(at_place(loaded.where(file.key), read_score_config(env, file.path)));
    bytes += 4.0 * static_cast<double>(config.num_parameters());  // float32, whatever model.dtype is
  }
  return bytes;
}

}  // namespace mortise
