// Reads the file and its bases, applies presets and overrides in their order, then decodes and checks the result.
#include "config/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "config/decode.h"
#include "config/overrides.h"
#include "config/presets.h"
#include "foundation/base/limits.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// The tables of a file and of the files it builds on; later ones replace keys of earlier ones.
using Levels = std::vector<ConfigNode>;

// Reads a file and the files it builds on. `chain`: the files being read, to detect a cycle.
class FileReader {
 public:
  FileReader(Env& env, std::vector<Error>& problems) : env_(env), problems_(problems) {}

  Result<Levels> read(const Path& path) {
    const std::string text = TRY(read_text(path));
    return parse(text, path);
  }

  Result<Levels> parse(std::string_view text, const Path& path) {
    const std::string where = path.string();
    chain_.push_back(normal(path));
    const toml::table parsed = TRY(parse_toml(text, where));
    ConfigNode root = node_from_toml(parsed, where);
    resolve_alias(root, problems_);
    Levels levels;
    if (const ConfigNode* base = root.find("base")) {
      levels = TRY(read_base(*base, path));
      root.erase("base");
    }
    levels.push_back(std::move(root));
    chain_.pop_back();
    return levels;
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

  Result<Levels> read_base(const ConfigNode& base, const Path& path) {
    const auto bad = [&base](std::string what, std::string next) {
      return Error{ErrorKind::kConfig, std::move(what), base.where, std::move(next)};
    };
    if (base.kind != ConfigNode::Kind::kValue || !base.value.is_string()) {
      return bad("'base' must be the path of a TOML file, but is " + base.describe(),
                 "for example: base = \"quickstart.toml\"");
    }
    const Path target = path.parent_path() / base.value.get<std::string>();
    if (std::ranges::find(chain_, normal(target)) != chain_.end()) {
      return bad(fmt::format("the 'base' files form a cycle: {} -> {}", join(chain_, " -> "), normal(target)),
                 "remove one of them");
    }
    if (chain_.size() >= limits::kMaxConfigIncludeDepth) {
      return bad(fmt::format("more than {} files build on each other", limits::kMaxConfigIncludeDepth),
                 "merge some of them");
    }
    Result<std::string> text = read_text(target);
    if (!text)
      return bad("'base': " + text.error().to_string(),
                 "write the path relative to the folder of the file that names it");
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

constexpr std::string_view kRunPreset[] = {"preset"};
constexpr std::string_view kCorrectionPreset[] = {"algorithm", "rollout_correction", "preset"};

Result<const Preset*> find_named(std::span<const Preset> presets, const ConfigNode& chosen) {
  const auto name = chosen.value.get<std::string>();
  const auto preset = std::ranges::find(presets, name, &Preset::name);
  if (preset != presets.end()) return &*preset;
  std::vector<std::string> names;
  for (const Preset& known : presets) names.push_back(known.name);
  return Error{ErrorKind::kConfig, "there is no preset " + quote(name), chosen.where, suggest(name, names)};
}

// Files, presets and overrides, merged in this order: later ones replace keys of earlier ones. A preset that a file
// names comes after its base files and before the file's other keys. A preset on the command line comes after all files
// and before the other overrides.
class Layers {
 public:
  Layers(Levels files, std::span<const std::string> overrides, std::vector<Error>& problems)
      : files_(std::move(files)), overrides_(overrides), problems_(problems) {}

  ConfigNode merge(std::vector<std::string>& notes) {
    ConfigNode plain = ConfigNode::table("");
    for (const ConfigNode& file : files_) merge_over(plain, file);
    std::vector<Error> of_plain;
    override(plain, of_plain);
    choose(plain, kCorrectionPreset, rollout_correction_presets());
    choose(plain, kRunPreset, all_presets());
    if (chosen_.empty()) {
      problems_.insert(problems_.end(), of_plain.begin(), of_plain.end());
      return plain;
    }

    ConfigNode root = ConfigNode::table("");
    for (size_t level = 0; level <= files_.size(); ++level) {
      for (Chosen& chosen : chosen_) {
        if (chosen.level == level) lay(root, chosen);
      }
      if (level < files_.size()) merge_over(root, files_[level]);
    }
    override(root, problems_);
    for (const Chosen& chosen : chosen_) tell(root, chosen, notes);
    return root;
  }

 private:
  struct Chosen {
    const Preset* preset;
    size_t level;  // the file that names it; files_.size(): the command line
    std::vector<std::pair<std::string, std::string>> replaced;  // keys that it replaces, "0.1 (run.toml:3:1)"
  };

  void override(ConfigNode& root, std::vector<Error>& problems) const {
    for (const std::string& text : overrides_) {
      Result<> applied = apply_override(root, text, "override " + quote(text));
      if (!applied) problems.push_back(std::move(applied).error());
    }
  }

  // The decoder reports other types than text.
  void choose(const ConfigNode& plain, std::span<const std::string_view> key, std::span<const Preset> presets) {
    const ConfigNode* node = find_path(plain, key);
    if (node == nullptr || node->kind != ConfigNode::Kind::kValue || !node->value.is_string()) return;
    if (node->value == "null") return;
    Result<const Preset*> preset = find_named(presets, *node);
    if (!preset) {
      problems_.push_back(std::move(preset).error());
      return;
    }
    size_t level = files_.size();
    for (size_t i = 0; i < files_.size(); ++i) {
      const ConfigNode* there = find_path(files_[i], key);
      if (there != nullptr && there->where == node->where) level = i;
    }
    chosen_.push_back({*preset, level, {}});
  }

  static std::string place_of(const Chosen& chosen) { return "preset " + chosen.preset->name; }

  void lay(ConfigNode& root, Chosen& chosen) {
    ConfigNode settings = ConfigNode::table("");
    for (const std::string& setting : chosen.preset->settings) {
      Result<> applied = apply_override(settings, setting, place_of(chosen));
      if (!applied) problems_.push_back(std::move(applied).error());
    }
    compare(root, settings, "", [&chosen](const std::string& key, const ConfigNode& below, const ConfigNode&) {
      chosen.replaced.emplace_back(key, fmt::format("{} ({})", below.value.dump(), below.where));
    });
    merge_over(root, std::move(settings));
  }

  // Calls `differs(key, of root, of settings)` for every value of `settings` that differs in `root`.
  template <class Differs>
  static void compare(const ConfigNode& root, const ConfigNode& settings, const std::string& table,
                      const Differs& differs) {
    for (const auto& [name, node] : settings.entries) {
      const std::string key = table.empty() ? name : fmt::format("{}.{}", table, name);
      const ConfigNode* there = root.is_table() ? root.find(name) : nullptr;
      if (there == nullptr) continue;
      if (node.is_table()) {
        compare(*there, node, key, differs);
      } else if (there->kind == ConfigNode::Kind::kValue && there->value != node.value) {
        differs(key, *there, node);
      }
    }
  }

  // Notes which keys of the files the preset replaces, and which of its own were overridden. A key that was overridden
  // is told once, with the value that the run has.
  void tell(const ConfigNode& root, const Chosen& chosen, std::vector<std::string>& notes) const {
    const std::string name = place_of(chosen);
    ConfigNode settings = ConfigNode::table("");
    for (const std::string& setting : chosen.preset->settings) (void)apply_override(settings, setting, name);
    std::vector<std::string> shadowed, replaced;
    std::set<std::string> overridden;
    compare(root, settings, "", [&](const std::string& key, const ConfigNode& node, const ConfigNode& own) {
      overridden.insert(key);
      shadowed.push_back(
          fmt::format("{} is {} ({}) instead of {}", key, node.value.dump(), node.where, own.value.dump()));
    });
    for (const auto& [key, value] : chosen.replaced) {
      if (!overridden.contains(key)) replaced.push_back(fmt::format("{} = {}", key, value));
    }
    if (!replaced.empty()) notes.push_back(fmt::format("{} replaces {}", name, join(replaced, ", ")));
    if (!shadowed.empty()) notes.push_back(fmt::format("{} is overridden: {}", name, join(shadowed, ", ")));
  }

  const Levels files_;
  const std::span<const std::string> overrides_;
  std::vector<Error>& problems_;
  std::vector<Chosen> chosen_;
};

Result<LoadedConfig> finish(Levels files, const std::string& file, std::span<const std::string> overrides,
                            std::vector<Error> problems) {
  LoadedConfig loaded;
  const ConfigNode root = Layers(std::move(files), overrides, problems).merge(loaded.notes);
  loaded.file = file;
  decode_tree(root, loaded, problems);
  if (!problems.empty()) return join_problems(std::move(problems));
  // verl's loss_type of bypass mode decides on the loss, unless a file or an override names one.
  const RolloutCorrectionConfig& correction = loaded.config.algorithm.rollout_correction;
  constexpr std::string_view kLoss = "actor.policy_loss.loss_mode";
  const bool is_open = !loaded.is_set(kLoss) || loaded.where(kLoss).starts_with("preset ");
  if (correction.bypass_mode && correction.loss_type == BypassLoss::kReinforce && is_open)
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
  Levels files;
  if (!path.empty()) files = TRY(FileReader(env, problems).read(path));
  return finish(std::move(files), path.string(), overrides, std::move(problems));
}

Result<LoadedConfig> load_config_text(Env& env, std::string_view text, std::string_view where,
                                      std::span<const std::string> overrides) {
  std::vector<Error> problems;
  Levels files = TRY(FileReader(env, problems).parse(text, Path(where)));
  return finish(std::move(files), std::string(where), overrides, std::move(problems));
}

}  // namespace mortise
