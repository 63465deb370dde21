// `mortise config explain` for the parameters of plugins, by the tables in the notes of packs: no code of a pack runs.
#include <fmt/core.h>
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
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/params.h"
#include "plugin_show.h"
#include "train/resume/pack_lock.h"

namespace mortise {
namespace {

// The parts of "rollout.replay.path". In the other tables, too, a plugin's name may come before the parameter.
struct ParamKey {
  std::string key, kind;
  std::string plugin;  // the key's own plugin; empty: any plugin of the kind
  std::string param;
  std::string engine_key;  // "actor.clip_ratio"; empty if there is none
};

ParamKey key_in(const KindInfo& kind, const KindParams& params, const std::string& key) {
  ParamKey out{key, std::string(kind.name), "", key.substr(params.table.size()), ""};
  if (const size_t dot = out.param.rfind('.'); dot != std::string::npos) {  // a pack's id may have dots
    out.plugin = plugin_bare_name(out.param.substr(0, dot));
    out.param.erase(0, dot + 1);
    if (!params.is_by_plugin) out.key = std::string(params.table) + out.param;  // as a config writes it
  }
  const std::string engine_key = std::string(params.engine_table) + out.param;
  if (!params.engine_table.empty() && find_field(engine_key) != nullptr) out.engine_key = engine_key;
  return out;
}

// A name without a table may belong to each table, a key only to its own.
std::vector<ParamKey> read_keys(const std::string& text) {
  const std::string key = canonical_key(text);
  const bool is_bare = !key.empty() && key.find('.') == std::string::npos;
  std::vector<ParamKey> keys;
  for (const KindInfo& kind : kKinds) {
    for (const KindParams& params : kind.params) {
      if (!is_bare && !key.starts_with(params.table)) continue;
      ParamKey one = key_in(kind, params, is_bare ? std::string(params.table) + key : key);
      if (params.is_by_plugin && one.plugin.empty()) continue;  // the engine's own table
      keys.push_back(std::move(one));
    }
  }
  return keys;
}

// The parameters that the key may mean: those of the run's plugins, else those of all plugins.
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

// Empty if no plugin has a similar name.
Result<std::string> no_plugin(const ParamKey& key, const PluginRegistry& registry) {
  std::vector<std::string> known;
  for (const Candidate& candidate : registry.candidates()) {
    for (const PluginInfo& plugin : candidate.info.plugins) {
      if (plugin.kind == full_kind(key.kind) && candidate.hidden_by.empty()) known.push_back(plugin.name);
    }
  }
  std::string next = did_you_mean(key.plugin, known);
  if (next.empty()) return std::string();
  return Error{ErrorKind::kConfig, fmt::format("no {} is named {}", key.kind, quote(key.plugin)), "", std::move(next)};
}

// Empty if there is nothing to suggest.
Result<std::string> no_param(const ParamKey& key, const std::vector<PluginRef>& refs, const PluginRegistry& registry,
                             const LoadedConfig& loaded) {
  if (refs.empty()) return no_plugin(key, registry);
  std::vector<std::string> known;
  for (const PluginRef& ref : refs) {
    for (const ParamInfo& param : ref.plugin->params) known.push_back(param.name);
  }
  std::string next = did_you_mean(key.param, known);
  if (next.empty() && !key.plugin.empty())
    next = fmt::format("`mortise plugin describe {}` lists its parameters", key.plugin);
  if (next.empty() && !loaded.file.empty()) next = "without --config, the command looks at all plugins";
  if (next.empty()) return std::string();
  std::string what = fmt::format("no {} has a parameter {}", key.kind, quote(key.param));
  if (refs.size() == 1)
    what = fmt::format("the {} {} has no parameter {}", key.kind, quote(refs.front().plugin->name), quote(key.param));
  return Error{ErrorKind::kConfig, std::move(what), "", std::move(next)};
}

// The name of the parameter as a config writes it.
std::string name_of(const PluginRef& ref) {
  const bool is_builtin = ref.candidate->origin == PackOrigin::kBuiltin;
  return is_builtin ? ref.plugin->name : fmt::format("{}/{}", ref.pack->id, ref.plugin->name);
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
    text += fmt::format("  Parameter of the {} {}: {}\n", key.kind, join(plugins, ", "), param.doc);
    const bool is_plain = param.role == ParamRole::kPlain;
    const std::string stands_for = is_plain ? "" : fmt::format(" ({})", param_role_name(param.role));
    text += fmt::format("  type:    {}{}\n", type_words(param.type), stands_for);
    text += fmt::format("  default: {}\n", param.default_text.value_or("(mandatory)"));
    if (const std::string range = range_text(param); !range.empty()) text += fmt::format("  allowed: {}\n", range);
  }
  if (!key.engine_key.empty()) text += fmt::format("\n  see also {}\n", key.engine_key);
  return text;
}

struct Explanation {
  std::string text;
  Json list = Json::array();
};

// The texts of all plugins that have the parameter.
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
  if (keys.size() > 1) return std::string();  // for a name without a table, suggest the engine's keys
  return no_param(keys.front(), refs, registry, loaded);
}

}  // namespace

namespace {

std::map<std::string, std::string> remarks_of(const LoadedConfig& loaded) {
  const auto registry = PluginRegistry::open(registry_options(loaded, kTorchVersion));
  if (!registry.ok()) return {};
  return loss_remarks(*registry, loaded);
}

}  // namespace

int cmd_config(Arguments args) { return run_config(args, explain_param, remarks_of); }

}  // namespace mortise
