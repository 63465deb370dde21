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
};
constexpr FileParam kFiles[] = {
    {"reward", "python", "path"}, {"reward", "reward_model", "chat_template"}, {"rollout_backend", "replay", "path"}};
constexpr FileParam kRewardModel = {"reward", "reward_model", "model"};

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

Result<> check_plugin_files(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  std::string missing;
  for (const PluginUse& use : plugin_uses(loaded.config)) {
    for (const FileParam& file : kFiles) {
      const std::string path = value_of(file, use, registry);
      if (path.empty()) continue;
      const auto found = at_place(loaded.where(use.key + "." + std::string(file.param)), check_file(env, path));
      if (!found.ok()) missing += (missing.empty() ? "" : "\n") + found.error().to_string();
    }
  }
  if (missing.empty()) return {};
  return Error{ErrorKind::kData, missing, "", ""};
}

Result<double> reward_model_bytes(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  double bytes = 0;
  for (const PluginUse& use : plugin_uses(loaded.config)) {
    const std::string folder = value_of(kRewardModel, use, registry);
    if (folder.empty()) continue;
    const std::string place = loaded.where(use.key + "." + std::string(kRewardModel.param));
    const ModelConfig config = TRY(at_place(place, read_score_config(env, folder)));
    bytes += 4.0 * static_cast<double>(config.num_parameters());  // float32, whatever model.dtype is
  }
  return bytes;
}

}  // namespace mortise
