#include "config/load.h"

#include <algorithm>

#include "config/decode.h"
#include "config/overrides.h"
#include "config/presets.h"
#include "foundation/base/limits.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// A file and the files it builds on, merged. `chain`: the files being read, to see a circle.
class FileReader {
 public:
  FileReader(Env& env, std::vector<Error>& problems) : env_(env), problems_(problems) {}

  Result<ConfigNode> read(const Path& path) {
    const std::string text = TRY(read_text(path));
    return parse(text, path);
  }

  Result<ConfigNode> parse(std::string_view text, const Path& path) {
    const std::string where = path.string();
    chain_.push_back(normal(path));
    const toml::table parsed = TRY(parse_toml(text, where));
    ConfigNode root = node_from_toml(parsed, where);
    resolve_alias(root, problems_);
    if (const ConfigNode* base = root.find("base")) {
      ConfigNode below = TRY(read_base(*base, path));
      root.erase("base");
      merge_over(below, std::move(root));
      root = std::move(below);
    }
    chain_.pop_back();
    return root;
  }

 private:
  static std::string normal(const Path& path) { return path.lexically_normal().string(); }

  Result<std::string> read_text(const Path& path) {
    Result<std::string> text = env_.read_file(path, limits::kMaxConfigFileBytes);
    if (text) return text;
    Error error = std::move(text).error();
    error.kind = ErrorKind::kConfig;
    return error;
  }

  Result<ConfigNode> read_base(const ConfigNode& base, const Path& path) {
    const auto bad = [&base](std::string what, std::string next) {
      return Error{ErrorKind::kConfig, std::move(what), base.where, std::move(next)};
    };
    if (base.kind != ConfigNode::Kind::kValue || !base.value.is_string()) {
      return bad("'base' must be the path of a TOML file, is " + base.describe(), "eg: base = \"quickstart.toml\"");
    }
    const Path target = path.parent_path() / base.value.get<std::string>();
    if (std::ranges::find(chain_, normal(target)) != chain_.end()) {
      return bad("'base' runs in a circle: " + join(chain_, " -> ") + " -> " + normal(target), "take one 'base' out");
    }
    if (chain_.size() >= limits::kMaxConfigIncludeDepth) {
      return bad("more than " + std::to_string(limits::kMaxConfigIncludeDepth) + " files build on each other",
                 "put them together");
    }
    Result<std::string> text = read_text(target);
    if (!text)
      return bad("'base': " + text.error().to_string(), "a base path starts from the folder of the file that names it");
    return parse(*text, target);
  }

  Env& env_;
  std::vector<Error>& problems_;
  std::vector<std::string> chain_;
};

const ConfigNode* find_path(const ConfigNode& root, std::span<const std::string_view> path) {
  const ConfigNode* node = &root;
  for (const std::string_view part : path) node = node != nullptr && node->is_table() ? node->find(part) : nullptr;
  return node;
}

// The settings of the preset that the key names lie below everything else.
void apply_preset(ConfigNode& root, std::span<const std::string_view> key, std::span<const Preset> presets,
                  std::vector<Error>& problems) {
  const ConfigNode* chosen = find_path(root, key);
  if (chosen == nullptr || chosen->kind != ConfigNode::Kind::kValue || !chosen->value.is_string()) return;
  const auto name = chosen->value.get<std::string>();
  if (name == "null") return;
  const auto preset = std::ranges::find(presets, name, &Preset::name);
  if (preset == presets.end()) {
    std::vector<std::string> names;
    for (const Preset& known : presets) names.push_back(known.name);
    std::string next = did_you_mean(name, names);
    if (next.empty()) next = "there are " + join(names, ", ");
    problems.push_back({ErrorKind::kConfig, "there is no preset " + quote(name), chosen->where, std::move(next)});
    return;
  }
  ConfigNode below = ConfigNode::table("");
  for (const std::string& setting : preset->settings) {
    Result<> applied = apply_override(below, setting, "preset " + name);
    if (!applied) problems.push_back(std::move(applied).error());
  }
  merge_over(below, std::move(root));
  root = std::move(below);
}

void apply_presets(ConfigNode& root, std::vector<Error>& problems) {
  constexpr std::string_view kRun[] = {"preset"};
  constexpr std::string_view kCorrection[] = {"algorithm", "rollout_correction", "preset"};
  apply_preset(root, kRun, all_presets(), problems);
  apply_preset(root, kCorrection, rollout_correction_presets(), problems);
}

Result<LoadedConfig> finish(ConfigNode root, const std::string& file, std::span<const std::string> overrides,
                            std::vector<Error> problems) {
  for (const std::string& text : overrides) {
    Result<> applied = apply_override(root, text, "override " + quote(text));
    if (!applied) problems.push_back(std::move(applied).error());
  }
  apply_presets(root, problems);
  LoadedConfig loaded;
  loaded.file = file;
  decode_tree(root, loaded, problems);
  if (!problems.empty()) return join_problems(std::move(problems));
  // verl's loss_type of bypass mode decides on the loss, where nobody but a preset has named one.
  const RolloutCorrectionConfig& correction = loaded.config.algorithm.rollout_correction;
  constexpr std::string_view kLoss = "actor.policy_loss.loss_mode";
  const bool is_open = !loaded.is_set(kLoss) || loaded.where(kLoss).starts_with("preset ");
  if (correction.bypass_mode && correction.loss_type == "reinforce" && is_open)
    loaded.config.actor.policy_loss.loss_mode = "reinforce";
  return loaded;
}

}  // namespace

std::string LoadedConfig::where(std::string_view key) const {
  if (key.starts_with("actor_rollout_ref.")) key.remove_prefix(std::string_view("actor_rollout_ref.").size());
  while (!key.empty()) {
    if (const auto found = positions.find(std::string(key)); found != positions.end()) return found->second;
    key = key.substr(0, key.find_last_of('.') == std::string_view::npos ? 0 : key.find_last_of('.'));
  }
  return file.empty() ? "defaults" : file;
}

bool LoadedConfig::is_set(std::string_view key) const {
  if (key.starts_with("actor_rollout_ref.")) key.remove_prefix(std::string_view("actor_rollout_ref.").size());
  return positions.contains(std::string(key));
}

Result<LoadedConfig> load_config(Env& env, const Path& path, std::span<const std::string> overrides) {
  std::vector<Error> problems;
  ConfigNode root = ConfigNode::table("");
  if (!path.empty()) root = TRY(FileReader(env, problems).read(path));
  return finish(std::move(root), path.string(), overrides, std::move(problems));
}

Result<LoadedConfig> load_config_text(Env& env, std::string_view text, std::string_view where,
                                      std::span<const std::string> overrides) {
  std::vector<Error> problems;
  ConfigNode root = TRY(FileReader(env, problems).parse(text, Path(where)));
  return finish(std::move(root), std::string(where), overrides, std::move(problems));
}

}  // namespace mortise
