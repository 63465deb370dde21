// Writes mortise.lock, and compares it with the packs of a checkpoint.
#include "train/resume/pack_lock.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "config/fields.h"
#include "foundation/base/at_place.h"
#include "foundation/base/text.h"
#include "hub/config_names.h"
#include "packs/run_lock.h"
#include "packs/store.h"
#include "plugin/host/installed.h"
#include "plugin/host/kinds/kinds.h"

namespace mortise {

namespace {

std::string spelled(std::string_view version, std::string_view sha256) {
  return fmt::format("{} ({})", version, sha256.substr(0, 12));
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = json_find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

}  // namespace

namespace {

Json value_of(RunConfig& config, std::string_view key) { return field_value(find_field(key)->ref(config)); }

// "actor.kl_params." is a key itself; the parameters of [actor.policy_loss] are its `params`.
const Field* params_field(std::string_view table) {
  const Field* whole = find_field(table.substr(0, table.size() - 1));
  return whole != nullptr ? whole : find_field(std::string(table) + "params");
}

void add_rewards(const KindInfo& kind, const KindParams& place, RunConfig& config, std::vector<PluginUse>& uses) {
  const auto numbered = [](std::string_view key, size_t i) {
    std::string text(key);
    return text.replace(text.find('*'), 1, std::to_string(i));
  };
  for (size_t i = 0; i < config.reward.size(); ++i) {
    RewardConfig& reward = config.reward[i];
    std::string table = numbered(place.table, i);
    table.pop_back();
    uses.push_back({std::string(kind.name), field_value(find_field(place.name_key)->in_reward(reward)),
                    numbered(place.name_key, i), std::move(table),
                    field_value(params_field(place.table)->in_reward(reward))});
  }
}

void add_use(const KindInfo& kind, const KindParams& place, RunConfig& config, std::vector<PluginUse>& uses) {
  if (!place.used_if.empty() && !value_of(config, place.used_if).get<bool>()) return;
  const std::string value = value_of(config, place.name_key);
  if (value == place.not_a_plugin) return;
  std::string table(place.table.substr(0, place.table.size() - 1));
  if (place.is_by_plugin) table += "." + value;
  uses.push_back({std::string(kind.name), place.plugin_name == nullptr ? value : place.plugin_name(value),
                  std::string(place.name_key), std::move(table), field_value(params_field(place.table)->ref(config))});
}

// The list of tools is a key of its own. The environment takes it as a parameter.
void add_tools(const MultiTurnConfig& turns, std::vector<PluginUse>& uses) {
  for (PluginUse& use : uses) {
    if (use.name_key != "rollout.multi_turn.environment" || turns.tools.empty() || use.params.contains("tools"))
      continue;
    use.params["tools"] = dump_json(Json(turns.tools));
  }
}

}  // namespace

std::vector<PluginUse> plugin_uses(const RunConfig& config) {
  RunConfig copy = config;  // the records refer to values that can be changed
  std::vector<PluginUse> rewards, uses;
  for (const KindInfo& kind : kKinds) {
    for (const KindParams& place : kind.params) {
      if (place.name_key.find('*') != std::string_view::npos) {
        add_rewards(kind, place, copy, rewards);
      } else {
        add_use(kind, place, copy, uses);
      }
    }
  }
  add_tools(config.rollout.multi_turn, uses);
  rewards.insert(rewards.end(), std::make_move_iterator(uses.begin()), std::make_move_iterator(uses.end()));
  return rewards;
}

namespace {

Json pack_entry(const PackInfo& info, const std::vector<InstalledPack>& installed) {
  Json entry = {{"id", info.id}, {"version", info.version}, {"sha256", info.sha256}, {"path", info.path}};
  for (const InstalledPack& one : installed) {
    if (one.id != info.id || one.library_sha256 != info.sha256) continue;
    entry["archive_sha256"] = one.sha256;
    entry["source"] = one.source;
    break;
  }
  return entry;
}

// For the sources of packs; without a store that can be read there are none.
std::vector<InstalledPack> installed_packs() {
  const Path store = default_pack_store();
  if (store.empty()) return {};  // no home folder: never look for one in the current folder
  std::vector<DamagedEntry> damaged;
  auto packs = PackStore(default_env(), store).list(&damaged);
  return packs.ok() ? *std::move(packs) : std::vector<InstalledPack>();
}

Json use_entry(const PluginUse& use, const PackInfo& pack) {
  return {
      {"kind", use.kind}, {"name", use.name}, {"pack", pack.id}, {"version", pack.version}, {"sha256", pack.sha256}};
}

}  // namespace

Result<Json> run_lock_json(const PluginRegistry& registry, const RunConfig& config) {
  const auto installed = installed_packs();
  Json packs = Json::array(), uses = Json::array();
  std::set<std::string> seen;
  for (const PluginUse& use : plugin_uses(config)) {
    const PluginRef ref = TRY(at_place(use.name_key, registry.find(use.kind, use.name)));
    uses.push_back(use_entry(use, *ref.pack));
    if (seen.insert(ref.pack->sha256).second) packs.push_back(pack_entry(*ref.pack, installed));
  }
  return Json{{"packs", packs}, {"uses", uses}};
}

std::string locked_origin(Env& env, const Path& lock, std::string_view kind, std::string_view name) {
  const auto text = env.exists(lock) ? env.read_file(lock) : Result<std::string>(std::string());
  const auto locked = parse_json(text.ok() ? *text : "", lock.string());
  const Json* uses = locked.ok() ? json_find(*locked, "uses") : nullptr;
  if (uses == nullptr || !uses->is_array()) return "";
  const auto packs = read_run_lock(env, lock);
  for (const Json& use : *uses) {
    if (!packs.ok() || short_kind(text_of(use, "kind")) != kind || text_of(use, "name") != name) continue;
    if (const LockedPack* pack = packs->find(text_of(use, "pack"), text_of(use, "sha256"))) return how_to_get(*pack);
  }
  return "";
}

std::string pack_lock_text(const PluginRegistry& registry, const LoadedConfig& loaded) {
  const auto installed = installed_packs();
  Json packs = Json::array(), uses = Json::array();
  for (const Candidate& candidate : registry.candidates())
    if (candidate.hidden_by.empty()) packs.push_back(pack_entry(candidate.info, installed));
  for (const PluginUse& use : plugin_uses(loaded.config)) {
    const auto ref = registry.find(use.kind, use.name);
    if (!ref.ok()) continue;  // this run (a warm start, say) does not need plugins of the kind
    uses.push_back(use_entry(use, *ref->pack));
  }
  Json lock = {{"packs", packs}, {"uses", uses}};
  if (!loaded.hub.empty()) lock["hub"] = hub_lock(loaded.hub);
  return dump_json(lock, 2) + "\n";
}

Result<PackChanges> pack_changes(Env& env, const Path& lock, const PluginRegistry& registry, const RunConfig& config) {
  PackChanges out;
  if (!env.exists(lock)) return out;
  const std::string text = TRY(env.read_file(lock));
  const Json locked = TRY(parse_json(text, lock.string()));
  const Json* uses = json_find(locked, "uses");
  if (uses == nullptr || !uses->is_array()) return out;
  for (const PluginUse& use : plugin_uses(config)) {
    const auto was = std::find_if(uses->begin(), uses->end(), [&](const Json& entry) {
      return short_kind(text_of(entry, "kind")) == use.kind && text_of(entry, "name") == use.name;
    });
    const auto ref = registry.find(use.kind, use.name);
    if (was == uses->end() || !ref.ok() || text_of(*was, "sha256") == ref->pack->sha256) continue;
    const std::string id = text_of(*was, "pack");
    std::string now = spelled(ref->pack->version, ref->pack->sha256);
    if (id != ref->pack->id) now = fmt::format("{} {}", ref->pack->id, now);
    std::string& list = ref->candidate->origin == PackOrigin::kBuiltin ? out.builtin : out.others;
    list += fmt::format("\n  pack {} ({} {}): {} -> {}", id, use.kind, use.name,
                        spelled(text_of(*was, "version"), text_of(*was, "sha256")), now);
  }
  return out;
}

}  // namespace mortise
