// See plugin_files.h.
#include "train/run/plugin_files.h"

#include <fmt/core.h>

#include <mortise/pack.h>

#include <string>
#include <utility>

#include "foundation/base/at_place.h"
#include "foundation/base/home_path.h"
#include "train/loop/score_model.h"
#include "train/resume/pack_lock.h"

namespace mortise {

namespace {

// What `use` sets the parameter to, or its default.
std::string value_of(const ParamInfo& param, const PluginUse& use) {
  const Json* const value = json_find(use.params, param.name);
  if (value == nullptr) return param.default_text.value_or("");
  return value->is_string() ? expand_home(value->get<std::string>()) : "";
}

Result<> check_file(Env& env, const PluginFile& file) {
  const bool is_folder = file.role != ParamRole::kFile;
  if (!env.exists(file.path)) {
    return Error{ErrorKind::kData, is_folder ? "the folder does not exist" : "the file does not exist",
                 file.path.string(),
                 "correct the path; a relative one starts at the folder that the run is started in"};
  }
  const FileInfo info = TRY(env.info(file.path));
  if (is_folder ? info.is_directory : info.is_file) return {};
  return Error{ErrorKind::kData, is_folder ? "this is not a folder" : "this is not a file", file.path.string(),
               is_folder ? "name a folder" : "name a file"};
}

}  // namespace

std::vector<PluginFile> plugin_files(const PluginRegistry& registry, const RunConfig& config) {
  std::vector<PluginFile> files;
  for (const PluginUse& use : plugin_uses(config)) {
    const auto ref = registry.find(use.kind, use.name);
    if (!ref.ok()) continue;  // reported where the plugin is made
    for (const ParamInfo& param : ref->plugin->params) {
      if (!names_place(param.role)) continue;
      const std::string path = value_of(param, use);
      const bool is_scored = param.role == ParamRole::kModel && (ref->plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) != 0;
      if (!path.empty()) files.push_back({fmt::format("{}.{}", use.key, param.name), path, param.role, is_scored});
    }
  }
  return files;
}

Result<std::vector<ToldReads>> told_reads(const PluginRegistry& registry, const RunConfig& config) {
  std::vector<ToldReads> told;
  for (const PluginUse& use : plugin_uses(config)) {
    const auto ref = registry.find(use.kind, use.name);
    if (!ref.ok()) continue;
    PluginReads reads = TRY(plugin_reads(registry, *ref, use.params));
    if (!reads.files.empty() || !reads.columns.empty()) told.push_back({use.key, std::move(reads)});
  }
  return told;
}

Result<> check_plugin_files(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  std::string missing;
  for (const PluginFile& file : plugin_files(registry, loaded.config)) {
    if (file.is_scored) continue;  // reward_model_bytes looks at it
    const auto found = at_place(loaded.where(file.key), check_file(env, file));
    if (!found.ok()) missing += (missing.empty() ? "" : "\n") + found.error().to_string();
  }
  if (missing.empty()) return {};
  return Error{ErrorKind::kData, missing, "", ""};
}

Result<double> reward_model_bytes(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  double bytes = 0;
  for (const PluginFile& file : plugin_files(registry, loaded.config)) {
    if (!file.is_scored) continue;
    const ModelConfig config = TRY(at_place(loaded.where(file.key), read_score_config(env, file.path)));
    bytes += 4.0 * static_cast<double>(config.num_parameters());  // float32 for any model.dtype
  }
  return bytes;
}

}  // namespace mortise
