// `mortise config explain` for the parameters of plugins, by the tables in the notes of packs: no code of a pack runs.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "config/explain.h"
#include "config/fields.h"
#include "config/load.h"
#include "config_command.h"
#include "experience/plugin_settings.h"
#include "foundation/base/text.h"
#include "learn/objective/loss_settings.h"
#include "model/tensor/torch_version.h"
#include "plugin/host/params.h"
#include "plugin_show.h"
#include "train/pack_lock.h"

namespace mortise {
namespace {

// Where a config gives parameters to plugins; some have an engine's key of the same name beside the table.
struct ParamTable {
  std::string_view name, kind, beside;
};
constexpr ParamTable kTables[] = {{"actor.policy_loss.", "policy_loss", "actor."},
                                  {"actor.kl_params.", "kl_estimator", ""},
                                  {"algorithm.kl_params.", "kl_estimator", ""},
                                  {"algorithm.adv_params.", "advantage_estimator", "algorithm."},
                                  {"reward.*.", "reward", ""},
                                  {"rollout.", "rollout_backend", ""}};

// "rollout.replay.path" in its parts; a plugin's name may stand before the parameter in the other tables too.
struct ParamKey {
  std::string key, kind;
  std::string plugin;  // of the key itself; empty: any of the kind
  std::string param;
  std::string beside;  // "actor.clip_ratio"; empty where there is none
};

ParamKey key_in(const ParamTable& table, const std::string& key) {
  ParamKey out{key, std::string(table.kind), "", key.substr(table.name.size()), ""};
  if (const size_t dot = out.param.rfind('.'); dot != std::string::npos) {  // a pack's id may have dots
    out.plugin = plugin_bare_name(out.param.substr(0, dot));
    out.param.erase(0, dot + 1);
    if (out.kind != "rollout_backend") out.key = std::string(table.name) + out.param;  // as a config has it
  }
  const std::string beside = std::string(table.beside) + out.param;
  if (!table.beside.empty() && find_field(beside) != nullptr) out.beside = beside;
  return out;
}

// A name alone may stand in each of the tables, a key in its own.
std::vector<ParamKey> read_keys(const std::string& text) {
  const std::string key = canonical_key(text);
  const bool is_bare = !key.empty() && key.find('.') == std::string::npos;
  std::vector<ParamKey> keys;
  for (const ParamTable& table : kTables) {
    if (!is_bare && !key.starts_with(table.name)) continue;
    ParamKey one = key_in(table, is_bare ? std::string(table.name) + key : key);
    if (one.kind == "rollout_backend" && one.plugin.empty()) continue;  // the engine's own table
    keys.push_back(std::move(one));
  }
  return keys;
}

// Those that the key may mean: of a run the plugins that it uses, else all in use.
Result<std::vector<PluginRef>> plugins_for(const ParamKey& key, const PluginRegistry& registry,
                                           const LoadedConfig& loaded) {
  std::vector<PluginRef> refs;
  if (!loaded.file.empty()) {
    for (const PluginUse& use : plugin_uses(loaded.config)) {
      if (use.kind != key.kind || (!key.plugin.empty() && plugin_bare_name(use.name) != key.plugin)) continue;
      refs.push_back(TRY(registry.find(use.kind, use.name)));
    }
    if (!refs.empty()) return refs;
  }
  for (const Candidate& candidate : registry.candidates()) {
    if (!candidate.hidden_by.empty()) continue;
    for (const PluginInfo& plugin : candidate.info.plugins) {
      if (plugin.kind != full_kind(key.kind) || (!key.plugin.empty() && plugin.name != key.plugin)) continue;
      refs.push_back({&candidate.info, &plugin, &candidate});
    }
  }
  return refs;
}

// Empty where no plugin's name is near.
Result<std::string> no_plugin(const ParamKey& key, const PluginRegistry& registry) {
  std::vector<std::string> known;
  for (const Candidate& candidate : registry.candidates()) {
    for (const PluginInfo& plugin : candidate.info.plugins) {
      if (plugin.kind == full_kind(key.kind) && candidate.hidden_by.empty()) known.push_back(plugin.name);
    }
  }
  std::string next = did_you_mean(key.plugin, known);
  if (next.empty()) return std::string();
  return Error{ErrorKind::kConfig, "no " + key.kind + " is named " + quote(key.plugin), "", std::move(next)};
}

// Empty where nothing can be suggested.
Result<std::string> no_param(const ParamKey& key, const std::vector<PluginRef>& refs, const PluginRegistry& registry,
                             const LoadedConfig& loaded) {
  if (refs.empty()) return no_plugin(key, registry);
  std::vector<std::string> known;
  for (const PluginRef& ref : refs) {
    for (const ParamInfo& param : ref.plugin->params) known.push_back(param.name);
  }
  std::string next = did_you_mean(key.param, known);
  if (next.empty() && !key.plugin.empty()) next = "`mortise plugin describe " + key.plugin + "` lists its parameters";
  if (next.empty() && !loaded.file.empty()) next = "without --config all plugins are looked at";
  if (next.empty()) return std::string();
  std::string what = "no " + key.kind + " has a parameter " + quote(key.param);
  if (refs.size() == 1)
    what = "the " + key.kind + " " + quote(refs.front().plugin->name) + " has no parameter " + quote(key.param);
  return Error{ErrorKind::kConfig, std::move(what), "", std::move(next)};
}

// As a config may name it.
std::string name_of(const PluginRef& ref) {
  const bool is_builtin = ref.candidate->origin == PackOrigin::kBuiltin;
  return is_builtin ? ref.plugin->name : ref.pack->id + "/" + ref.plugin->name;
}

struct Meaning {
  ParamInfo param;
  std::vector<std::string> plugins;
};

std::string_view type_words(ParamType type) {
  switch (type) {
    case ParamType::kF64:
      return "number";
    case ParamType::kI64:
      return "integer";
    case ParamType::kBool:
      return "true or false";
    case ParamType::kText:
      return "text";
  }
  return "unknown";
}

std::string text_of(const ParamKey& key, const std::vector<Meaning>& meanings) {
  std::string text = key.key + "\n";
  for (size_t i = 0; i < meanings.size(); ++i) {
    const auto& [param, plugins] = meanings[i];
    if (i > 0) text += "\n";
    text += "  Parameter of the " + key.kind + " " + join(plugins, ", ") + ": " + param.doc + "\n";
    text += "  type:    " + std::string(type_words(param.type)) + "\n";
    text += "  default: " + param.default_text.value_or("(mandatory)") + "\n";
    if (const std::string range = range_text(param); !range.empty()) text += "  allowed: " + range + "\n";
  }
  if (!key.beside.empty()) text += "\n  see also " + key.beside + "\n";
  return text;
}

struct Explanation {
  std::string text;
  Json list = Json::array();
};

// What those of the plugins say that have the parameter.
void explain_key_of(const ParamKey& key, const std::vector<PluginRef>& refs, Explanation& out) {
  std::vector<Meaning> meanings;  // what several plugins say alike is said once
  for (const PluginRef& ref : refs) {
    const ParamInfo* const param = ref.plugin->find_param(key.param);
    if (param == nullptr) continue;
    const auto same = std::ranges::find(meanings, *param, &Meaning::param);
    if (same == meanings.end())
      meanings.push_back({*param, {name_of(ref)}});
    else if (std::ranges::find(same->plugins, name_of(ref)) == same->plugins.end())
      same->plugins.push_back(name_of(ref));
    Json object = {{"key", key.key}, {"kind", key.kind}, {"plugin", ref.plugin->name}, {"pack", ref.pack->id}};
    object.update(param_json(*param));
    out.list.push_back(std::move(object));
  }
  if (!meanings.empty()) out.text += (out.text.empty() ? "" : "\n") + text_of(key, meanings);
}

Result<std::string> explain_param(const std::string& text, const std::string& config_file, bool json) {
  const std::vector<ParamKey> keys = read_keys(text);
  if (keys.empty()) return std::string();
  LoadedConfig loaded;
  if (!config_file.empty()) loaded = TRY(load_config(default_env(), config_file, {}));
  const PluginRegistry registry = TRY(PluginRegistry::open(registry_options(loaded, kTorchVersion)));
  Explanation all;
  std::vector<PluginRef> refs;
  for (const ParamKey& key : keys) {
    refs = TRY(plugins_for(key, registry, loaded));
    explain_key_of(key, refs, all);
  }
  if (!all.list.empty()) return json ? dump_json(all.list, 2) : all.text;
  if (keys.size() > 1) return std::string();  // of a name alone, the keys of the engine are suggested
  return no_param(keys.front(), refs, registry, loaded);
}

}  // namespace

namespace {

std::map<std::string, std::string> remarks_of(const LoadedConfig& loaded) {
  const auto registry = PluginRegistry::open(registry_options(loaded, kTorchVersion));
  if (!registry.ok()) return {};
  const auto loss = registry->find("policy_loss", loaded.config.actor.policy_loss.loss_mode);
  return loss.ok() ? loss_remarks(*loss->plugin, loaded) : std::map<std::string, std::string>{};
}

}  // namespace

int cmd_config(Arguments args) { return run_config(args, explain_param, remarks_of); }

}  // namespace mortise
