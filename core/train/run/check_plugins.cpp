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
#include "config/fields.h"
#include "config/full_kl.h"
#include "config/presets.h"
#include "foundation/base/at_place.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "learn/objective/actor_objective.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/params.h"
#include "train/loop/critic.h"
#include "train/resume/pack_lock.h"
#include "train/run/run_options.h"
#include "train/run/run_parts.h"

namespace mortise {

namespace {

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
  if (estimator.requires_input("reward_baselines")) {
    return Error{ErrorKind::kConfig,
                 estimator.name + " subtracts the reward of the greedy completion and does not normalize within groups",
                 where, "remove multi_objective_aggregation, or choose another algorithm.adv_estimator"};
  }
  return {};
}

// Keys that were set although the plugins in use, as their tables say, ask for nothing that reads them: what
// config/unused.h cannot know.
class UnreadKeys {
 public:
  UnreadKeys(const LoadedConfig& loaded, const PluginInfo& loss, const PluginInfo& estimator)
      : loaded_(loaded), config_(loaded.config), loss_(loss), estimator_(estimator) {}

  Result<> tell() const {
    for (const PluginInfo* plugin : {&estimator_, &loss_}) {
      for (const Field& field : all_fields()) {
        const std::string leaf = field.key.substr(field.key.rfind('.') + 1);
        if (field.given_to == short_kind(plugin->kind)) tell_parameter(field.key, *plugin, leaf);
      }
    }
    TRY(tell_reference());
    TRY(tell_aggregation());
    return tell_critic();
  }

 private:
  void tell(const std::string& key, const std::string& because) const {
    // A preset names settings for its own plugins, which others may have replaced.
    if (!loaded_.is_set(key) || loaded_.where(key).starts_with("preset ")) return;
    log_warn_once(Error{ErrorKind::kConfig, fmt::format("'{}' has no effect: {}", key, because), loaded_.where(key), ""}
                      .to_string());
  }

  void tell_parameter(const std::string& key, const PluginInfo& plugin, const std::string& leaf) const {
    if (plugin.find_param(leaf) == nullptr) tell(key, plugin.name + " has no parameter of this name");
  }

  Result<> tell_reference() const {
    const ActorConfig& actor = config_.actor;
    const bool has_kl = actor.use_kl_loss || config_.algorithm.use_kl_in_reward;
    const bool has_reference = has_kl || loss_.requires_input("ref_log_prob");
    for (const char* key : {"ref.sync_steps", "ref.mixup_alpha"}) {
      if (!has_reference) tell(key, kNoReference);
    }
    const bool by_itself = config_.algorithm.use_kl_in_reward || loss_.requires_input("ref_log_prob") ||
                           (actor.use_kl_loss && actor.kl_loss_type != kFullKl);
    if (by_itself) return check_reference_passes();
    for (const char* key : {"ref.log_prob_micro_batch_size_per_gpu", "ref.log_prob_use_dynamic_bsz",
                            "ref.log_prob_max_token_len_per_gpu"})
      tell(key,
           has_reference ? "the reference runs in the policy's own passes (actor.kl_loss_type is full)" : kNoReference);
    return {};
  }

  [[nodiscard]] Result<> check_reference_passes() const {
    if (reference_pass_options(config_).rows > 0) return {};
    return check_pass_length(loaded_, "ref.log_prob_max_token_len_per_gpu", config_.ref.log_prob_max_token_len_per_gpu);
  }

  // The mode that `auto` becomes.
  Result<> tell_aggregation() const {
    if (!config_.actor.loss_agg_mode.is_auto()) return {};
    const TokenWeightOptions aggregation = TRY(aggregation_of(config_, loss_));
    const LossAggMode mode = aggregation.mode;
    const std::string why = fmt::format("the aggregation of {} is {}", loss_.name, choice_name(mode));
    const LossAggMode critic = has_critic() ? config_.critic.loss_agg_mode : mode;
    const auto is_norm = [](LossAggMode one) { return one == LossAggMode::kSeqMeanTokenSumNorm; };
    const auto counts_rows = [](LossAggMode one) {
      return one != LossAggMode::kTokenMean && one != LossAggMode::kTokenSum;
    };
    for (const char* key : {"actor.loss_scale_factor", "actor.loss_scale_by_rows"}) {
      if (!is_norm(mode) && !is_norm(critic)) tell(key, why + ", not seq-mean-token-sum-norm");
    }
    if (!counts_rows(mode) && !counts_rows(critic)) tell("actor.loss_agg_rows", why + ", which counts tokens");
    return {};
  }

  [[nodiscard]] bool has_critic() const { return estimator_.requires_input("values"); }

  Result<> tell_critic() const {
    if (has_critic()) {
      if (critic_pass_options(config_).rows > 0) return {};
      return check_pass_length(loaded_, "critic.ppo_max_token_len_per_gpu", config_.critic.ppo_max_token_len_per_gpu);
    }
    const std::string none = fmt::format("there is no critic ({} asks for no values)", estimator_.name);
    tell("critic", none);
    const int64_t warmup = config_.trainer.critic_warmup;
    if (warmup <= 1) return {};
    return Error{ErrorKind::kConfig,
                 fmt::format("'trainer.critic_warmup' is {}, and {}: before that step nothing would be learnt at all",
                             warmup, none),
                 loaded_.where("trainer.critic_warmup"), "set it to 0, or algorithm.adv_estimator=gae"};
  }

  static constexpr const char* kNoReference =
      "there is no reference (actor.use_kl_loss and algorithm.use_kl_in_reward are false)";
  const LoadedConfig& loaded_;
  const RunConfig& config_;
  const PluginInfo& loss_;
  const PluginInfo& estimator_;
};

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

}  // namespace

Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded, RunKind kind) {
  constexpr std::string_view kWithoutLearning[] = {"reward"};
  if (kind != RunKind::kTrain) return check_plugins(registry, loaded, kWithoutLearning);
  std::vector<std::string_view> all;
  for (const KindInfo& one : kKinds) all.push_back(one.name);
  TRY(check_plugins(registry, loaded, all));
  const PluginRef loss = TRY(registry.find("policy_loss", loaded.config.actor.policy_loss.loss_mode));
  const PluginRef estimator = TRY(registry.find("advantage_estimator", loaded.config.algorithm.adv_estimator));
  TRY(check_reward_aggregation(*estimator.plugin, loaded));
  return UnreadKeys(loaded, *loss.plugin, *estimator.plugin).tell();
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
    for (const ParamError& error : check_params(*ref->plugin, use.params)) {
      const std::string key = error.key.empty() ? use.key : fmt::format("{}.{}", use.key, error.key);
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
