// check_plugins (run_parts.h): all that is wrong with the plugins a config names, in one error.
#include <fmt/core.h>

#include <mortise/pack.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/check.h"
#include "config/device_rules.h"
#include "config/explain.h"
#include "config/fields.h"
#include "config/full_kl.h"
#include "config/learning_rules.h"
#include "config/presets.h"
#include "config/unused.h"
#include "experience/engine_params.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "learn/objective/actor_objective.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/params.h"
#include "train/loop/critic.h"
#include "train/resume/pack_lock.h"
#include "train/run/reference.h"
#include "train/run/run_options.h"
#include "train/run/run_parts.h"
#include "train/run/sequence_rules.h"

namespace mortise {

namespace {

// What to write instead of an unknown parameter that is a misspelt key of the engine: both are in one table.
std::string near_key(const PluginUse& use, const std::string& name) {
  const std::string table = canonical_key(use.key) + ".";
  std::vector<std::string> keys;
  for (const Field& field : all_fields()) {
    const bool is_here = field.key.starts_with(table) && field.key.find('.', table.size()) == std::string::npos;
    if (is_here && !field.inline_params) keys.push_back(field.key.substr(table.size()));
  }
  return did_you_mean(name, keys);
}

void warn_of_lone_completions(const PluginRef& estimator, const LoadedConfig& loaded) {
  if ((estimator.plugin->flags & MORTISE_FLAG_COMPARES_GROUP) == 0 || loaded.config.rollout.n > 1) return;
  const Error warning{ErrorKind::kConfig,
                      fmt::format("rollout.n is 1: {} compares the completions of one prompt, and there is only one",
                                  estimator.plugin->name),
                      loaded.where("rollout.n"), "set rollout.n=8 or more"};
  log_warn_once(warning.to_string());
}

// Estimators that the engine's normalize_then_sum does not suit, as their tables say.
Result<> check_reward_aggregation(const PluginInfo& estimator, const LoadedConfig& loaded) {
  if (loaded.config.algorithm.multi_objective_aggregation != RewardAggregation::kNormalizeThenSum) return {};
  const std::string where = loaded.where("algorithm.multi_objective_aggregation");
  if ((estimator.flags & MORTISE_FLAG_NORMALIZES_REWARDS) != 0) {
    return Error{ErrorKind::kConfig,
                 fmt::format("normalize_then_sum with {} normalizes twice: that estimator normalizes rewards itself",
                             estimator.name),
                 where, "remove one of the two"};
  }
  if (estimator.requires_input(column::RewardBaselines::name)) {
    return Error{ErrorKind::kConfig,
                 estimator.name + " subtracts the reward of the greedy completion and does not normalize within groups",
                 where, "remove multi_objective_aggregation, or choose another algorithm.adv_estimator"};
  }
  return {};
}

// A loss over groups, and means over prompts, would see parts of them.
Result<> check_partial_groups(const PluginInfo& loss, const LoadedConfig& loaded, const PluginFacts& facts) {
  const RunConfig& config = loaded.config;
  if (!plan_batches(config).cuts_groups) return {};
  const bool averages_critic =
      facts.has_critic && !config.critic.ppo_mini_batch_size && config.critic.loss_agg_mode == LossAggMode::kPromptMean;
  std::string who;
  if (loss.coupling == Coupling::kGroup) who = loss.name + " compares the completions of a prompt";
  if (facts.aggregation == LossAggMode::kPromptMean) who = "actor.loss_agg_mode is a mean over prompts";
  if (averages_critic) who = "critic.loss_agg_mode is a mean over prompts";
  if (who.empty()) return {};
  return Error{ErrorKind::kConfig,
               who + ", and with actor.rows_per_update an update may hold a part of a prompt's completions",
               loaded.where("actor.rows_per_update"), "remove it, and set actor.ppo_mini_batch_size"};
}

// The critic learns each step's rows in that step.
Result<> check_carried_rows(const LoadedConfig& loaded, const PluginFacts& facts) {
  const RunConfig& config = loaded.config;
  if (!facts.has_critic || config.critic.ppo_mini_batch_size || !plan_batches(config).carries_rows) return {};
  return Error{ErrorKind::kConfig,
               "with actor.carry_rows the size of the policy's updates does not divide a step, and the critic would "
               "have the same size",
               loaded.where("actor.carry_rows"),
               "set critic.ppo_mini_batch_size to a divisor of data.train_batch_size"};
}

bool compares_sums_alone(const PluginInfo& estimator) {
  return (estimator.flags & MORTISE_FLAG_COMPARES_GROUP) != 0 &&
         (estimator.flags & MORTISE_FLAG_NORMALIZES_REWARDS) == 0 && estimator.requires_inputs.empty();
}

Result<PluginFacts> facts_of(const PluginInfo& loss, const PluginInfo& estimator, const RunConfig& config) {
  PluginFacts facts;
  facts.loss = loss.name;
  facts.estimator = estimator.name;
  facts.has = [&](std::string_view kind, std::string_view param) {
    const PluginInfo& plugin = kind == short_kind(loss.kind) ? loss : estimator;
    return plugin.find_param(std::string(param)) != nullptr;
  };
  facts.loss_reads_reference = loss.requires_input(column::RefLogProb::name);
  facts.has_critic = needs_critic(estimator);
  facts.aggregation = TRY(aggregation_of(config, loss)).mode;
  return facts;
}

// The passes of a critic or a reference hold the longest row. Without `key` they have the policy's tokens for each of
// their own `num_ranks`.
Result<> check_own_pass_length(const LoadedConfig& loaded, const std::string& key, const std::optional<int64_t>& tokens,
                               int64_t num_ranks) {
  if (tokens) return check_pass_length(loaded, key, tokens, num_ranks);
  return check_pass_length(loaded, "actor.ppo_max_token_len_per_gpu", loaded.config.actor.ppo_max_token_len_per_gpu,
                           num_ranks);
}

// Keys that need plugins which ask for what they set: an error where the run would not do what the key says.
Result<> check_critic(const LoadedConfig& loaded, const PluginFacts& facts) {
  const RunConfig& config = loaded.config;
  if (facts.has_critic) {
    const bool is_ahead = config.trainer.mode != TrainMode::kSync;
    if (is_ahead && config.critic.optim.offload == StateOffloading::kWhileSampling)
      return resting_ahead(loaded, "critic.optim.offload");
    if (critic_pass_options(config, /*by_operators=*/false).rows > 0) return {};
    return check_own_pass_length(loaded, "critic.ppo_max_token_len_per_gpu", config.critic.ppo_max_token_len_per_gpu,
                                 config.critic.ulysses_sequence_parallel_size);
  }
  const int64_t warmup = config.trainer.critic_warmup;
  if (warmup <= 1) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'trainer.critic_warmup' is {}, but there is no critic ({} asks for no values): the run "
                           "would learn nothing before that step",
                           warmup, facts.estimator),
               loaded.where("trainer.critic_warmup"), "set it to 0, or algorithm.adv_estimator=gae"};
}

// The longest row fits into a pass of the reference, if it has passes of its own.
Result<> check_reference(const LoadedConfig& loaded, const PluginFacts& facts) {
  const RunConfig& config = loaded.config;
  const bool by_kl = config.actor.use_kl_loss && config.actor.kl_loss_type != kFullKl;
  if (!by_kl && !config.algorithm.use_kl_in_reward && !facts.loss_reads_reference) return {};
  if (reference_pass_options(config, /*by_operators=*/false).rows > 0) return {};
  return check_own_pass_length(loaded, "ref.log_prob_max_token_len_per_gpu", config.ref.log_prob_max_token_len_per_gpu,
                               reference_sequence_size(config));
}

// Names of losses in other frameworks whose plugin has another name here, or which are not plugins.
struct OtherName {
  std::string_view name, next;
};
constexpr OtherName kOtherLosses[] = {
    {"gmpo", "GMPO is the policy_loss geo_mean"},
    {"ppo_clip", "PPO's clip is the policy_loss vanilla"},
    {"bypass_mode", "set algorithm.rollout_correction.bypass_mode=true"},
};

// Puts what somebody else's name for an algorithm is called here in the place of the nearest names, which mislead.
Error explain_name(Error unknown, const PluginUse& use) {
  const auto* other = std::ranges::find(kOtherLosses, use.name, &OtherName::name);
  std::string next;
  if (find_preset(use.name) != nullptr && (use.kind == "policy_loss" || use.kind == "advantage_estimator"))
    next = fmt::format("it is a preset: preset={} sets {} and what goes with it", use.name, use.name_key);
  else if (use.kind == "policy_loss" && other != std::end(kOtherLosses))
    next = other->next;
  if (!next.empty()) unknown.next.replace(0, std::min(unknown.next.find('\n'), unknown.next.size()), next);
  return unknown;
}

// A line each. Further lines, the places that were searched, are the same for every unknown name: once, at the end.
Error one_error(std::vector<Error> problems) {
  Error all{ErrorKind::kConfig, "", "", ""};
  std::string searched;
  for (Error& problem : problems) {
    if (problem.kind == ErrorKind::kPlugin) all.kind = ErrorKind::kPlugin;
    if (const size_t end = problem.next.find('\n'); end != std::string::npos) {
      const std::string lines = problem.next.substr(end);
      if (searched.find(lines) == std::string::npos) searched += lines;
      problem.next.erase(end);
    }
    all.what += (all.what.empty() ? "" : "\n") + problem.to_string();
  }
  all.what += searched;
  return all;
}

// Ranks sample together with this process's engine only.
Result<> check_shared_rollouts(const PluginRegistry& registry, const LoadedConfig& loaded) {
  const RolloutConfig& rollout = loaded.config.rollout;
  if (rollout.tensor_model_parallel_size == 1) return {};
  const auto backend = registry.find("rollout_backend", rollout.name);
  if (!backend.ok() || (backend->plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) != 0) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'rollout.name' is {}, which does not sample in this process, and cannot be used with "
                           "rollout.tensor_model_parallel_size = {}",
                           rollout.name, rollout.tensor_model_parallel_size),
               loaded.where("rollout.name"), "remove it, or set rollout.tensor_model_parallel_size to 1"};
}

// A backend that does not know of the pattern would sample any text.
Result<> check_guided_backend(const PluginRegistry& registry, const LoadedConfig& loaded) {
  const RolloutConfig& rollout = loaded.config.rollout;
  if (rollout.params.contains(kGuideParam)) {
    const std::vector<PluginUse> uses = plugin_uses(loaded.config);
    const auto own = std::ranges::find(uses, "rollout_backend", &PluginUse::kind);
    const std::string table = own == uses.end() ? "rollout" : own->key;
    return Error{ErrorKind::kConfig, "a pattern set for the servers alone is not checked, and validation ignores it",
                 loaded.where(fmt::format("{}.{}", table, kGuideParam)),
                 "set rollout.structured_outputs_regex instead (docs/guided.md)"};
  }
  if (!rollout.structured_outputs_regex) return {};
  const auto backend = registry.find("rollout_backend", rollout.name);
  if (!backend.ok() || (backend->plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) != 0) return {};
  if (backend->plugin->find_param(kGuideParam) != nullptr) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'rollout.structured_outputs_regex' is set, but the rollout backend '{}' takes no pattern",
                           rollout.name),
               loaded.where("rollout.structured_outputs_regex"),
               "remove it, or take another rollout.name (docs/guided.md)"};
}

}  // namespace

std::vector<Error> device_plugin_problems(const PluginRegistry& registry, const LoadedConfig& loaded) {
  const RunConfig& config = loaded.config;
  const auto loss = registry.find("policy_loss", config.actor.policy_loss.loss_mode);
  const auto estimator = registry.find("advantage_estimator", config.algorithm.adv_estimator);
  if (!loss.ok() || !estimator.ok()) return {};
  DevicePlugins plugins;
  plugins.has_critic = needs_critic(*estimator->plugin);
  plugins.has_reference = has_kl_to_reference(config) || loss->plugin->requires_input(column::RefLogProb::name);
  return check_device_plugin_rules(loaded, plugins);
}

Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded, RunKind kind) {
  constexpr std::string_view kWithoutLearning[] = {"reward", "environment"};
  TRY(check_shared_rollouts(registry, loaded));
  TRY(check_guided_backend(registry, loaded));
  if (kind != RunKind::kTrain) return check_plugins(registry, loaded, kWithoutLearning);
  std::vector<std::string_view> all;
  for (const KindInfo& one : kKinds) all.push_back(one.name);
  TRY(check_plugins(registry, loaded, all));
  const PluginRef loss = TRY(registry.find("policy_loss", loaded.config.actor.policy_loss.loss_mode));
  const PluginRef estimator = TRY(registry.find("advantage_estimator", loaded.config.algorithm.adv_estimator));
  TRY(check_reward_aggregation(*estimator.plugin, loaded));
  const bool reads_vocabulary = estimator.plugin->requires_input(column::SumPiSquared::name);
  TRY(check_filtered_estimator(loaded, estimator.plugin->name, reads_vocabulary));
  TRY(check_replay_estimator(loaded, estimator.plugin->name, compares_sums_alone(*estimator.plugin)));
  const PluginFacts facts = TRY(facts_of(*loss.plugin, *estimator.plugin, loaded.config));
  if (names_device(loaded)) {
    if (auto problems = device_plugin_problems(registry, loaded); !problems.empty()) return std::move(problems.front());
  }
  TRY(check_partial_groups(*loss.plugin, loaded, facts));
  TRY(check_carried_rows(loaded, facts));
  for (const Error& warning : unused_keys(loaded, ConfigUse::kTrain, &facts)) log_warn_once(warning.to_string());
  TRY(check_reference(loaded, facts));
  return check_critic(loaded, facts);
}

Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded,
                       std::span<const std::string_view> kinds) {
  std::vector<Error> problems;
  for (const PluginUse& use : plugin_uses(loaded.config)) {
    if (std::ranges::count(kinds, use.kind) == 0) continue;
    auto ref = at_place(loaded.where(use.name_key), registry.find(use.kind, use.name));
    if (!ref.ok()) {
      Error unknown = explain_name(std::move(ref).error(), use);
      // Another machine, perhaps: the run's folder knows which pack it was and where it came from.
      const Path lock = Path(loaded.config.trainer.default_local_dir) / "mortise.lock";
      if (const std::string origin = locked_origin(default_env(), lock, use.kind, use.name); !origin.empty())
        unknown.next = fmt::format("install the pack that the run had: {}{}", origin,
                                   unknown.next.empty() ? "" : "; " + unknown.next);
      problems.push_back(std::move(unknown));
      continue;
    }
    hide_secrets(*ref->plugin, use.params);
    if (use.kind == "advantage_estimator") warn_of_lone_completions(*ref, loaded);
    for (ParamError& error : check_params(*ref->plugin, use.params)) {
      const std::string key = error.key.empty() ? use.key : fmt::format("{}.{}", use.key, error.key);
      if (ref->plugin->find_param(error.key) == nullptr && !error.next.starts_with("did you mean")) {
        if (std::string near = near_key(use, error.key); !near.empty()) error.next = std::move(near);
      }
      problems.push_back({ErrorKind::kConfig, error.what, loaded.where(key), error.next});
    }
  }
  if (problems.empty()) return {};
  return one_error(std::move(problems));
}

Result<> check_state_of_losses(const RunSettings& run, ActorObjective& objective) {
  if (run.ranks.size() == 1 || objective.coupling() > Coupling::kRow) return {};
  std::vector<std::pair<const char*, PluginInstance*>> plugins{
      {"actor.policy_loss.loss_mode", &objective.policy_loss().instance()}};
  if (objective.kl() != nullptr) plugins.emplace_back("actor.kl_loss_type", &objective.kl()->instance());
  for (const auto& [key, plugin] : plugins) {
    if (!TRY(plugin->save_state())) continue;
    return Error{ErrorKind::kConfig,
                 plugin->label() + " keeps state from one micro-batch to the next, and ranks share the micro-batches",
                 run.loaded.where(key), "run it in one process, or declare that it looks at the whole update"};
  }
  return {};
}

}  // namespace mortise
