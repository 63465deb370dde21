#include "train/pack_lock.h"

#include <algorithm>

#include "config/full_kl.h"
#include "foundation/base/text.h"
#include "plugin/host/kinds/kl_estimator.h"

namespace mortise {

namespace {

std::string spelled(std::string_view version, std::string_view sha256) {
  return std::string(version) + " (" + std::string(sha256.substr(0, 12)) + ")";
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = json_find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

}  // namespace

std::vector<PluginUse> plugin_uses(const RunConfig& config) {
  const AlgorithmConfig& algorithm = config.algorithm;
  const ActorConfig& actor = config.actor;
  std::vector<PluginUse> uses;
  for (size_t i = 0; i < config.reward.size(); ++i) {
    const std::string table = "reward." + std::to_string(i);
    uses.push_back({"reward", config.reward[i].use, table + ".use", table, config.reward[i].params});
  }
  uses.push_back({"policy_loss", actor.policy_loss.loss_mode, "actor.policy_loss.loss_mode", "actor.policy_loss",
                  actor.policy_loss.params});
  uses.push_back({"advantage_estimator", algorithm.adv_estimator, "algorithm.adv_estimator", "algorithm.adv_params",
                  algorithm.adv_params});
  if (actor.use_kl_loss && actor.kl_loss_type != kFullKl)
    uses.push_back(
        {"kl_estimator", kl_base_name(actor.kl_loss_type), "actor.kl_loss_type", "actor.kl_params", actor.kl_params});
  if (algorithm.use_kl_in_reward)
    uses.push_back({"kl_estimator", kl_base_name(algorithm.kl_penalty), "algorithm.kl_penalty", "algorithm.kl_params",
                    algorithm.kl_params});
  uses.push_back({"rollout_backend", config.rollout.name, "rollout.name", "rollout." + config.rollout.name,
                  config.rollout.params});
  return uses;
}

std::string pack_lock_text(const PluginRegistry& registry, const RunConfig& config) {
  Json packs = Json::array(), uses = Json::array();
  for (const Candidate& candidate : registry.candidates()) {
    if (!candidate.hidden_by.empty()) continue;
    packs.push_back({{"id", candidate.info.id},
                     {"version", candidate.info.version},
                     {"sha256", candidate.info.sha256},
                     {"path", candidate.info.path}});
  }
  for (const PluginUse& use : plugin_uses(config)) {
    const auto ref = registry.find(use.kind, use.name);
    if (!ref.ok()) continue;  // of a kind that this run (a warm start, say) has no need of
    uses.push_back({{"kind", use.kind},
                    {"name", use.name},
                    {"pack", ref->pack->id},
                    {"version", ref->pack->version},
                    {"sha256", ref->pack->sha256}});
  }
  return dump_json(Json{{"packs", packs}, {"uses", uses}}, 2) + "\n";
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
      return text_of(entry, "kind") == use.kind && text_of(entry, "name") == use.name;
    });
    const auto ref = registry.find(use.kind, use.name);
    if (was == uses->end() || !ref.ok() || text_of(*was, "sha256") == ref->pack->sha256) continue;
    const std::string id = text_of(*was, "pack");
    std::string now = spelled(ref->pack->version, ref->pack->sha256);
    if (id != ref->pack->id) now = ref->pack->id + " " + now;
    std::string& list = ref->candidate->origin == PackOrigin::kBuiltin ? out.builtin : out.others;
    list += "\n  pack " + id + " (" + use.kind + " " + use.name +
            "): " + spelled(text_of(*was, "version"), text_of(*was, "sha256")) + " -> " + now;
  }
  return out;
}

}  // namespace mortise
