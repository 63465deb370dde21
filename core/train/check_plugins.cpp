// check_plugins (run_parts.h): all that is wrong with the plugins a config names, in one error.
#include <mortise/pack.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experience/reward/named_columns.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "plugin/host/params.h"
#include "train/pack_lock.h"
#include "train/run_parts.h"

namespace mortise {

namespace {

void warn_of_lone_completions(const PluginRef& estimator, const LoadedConfig& loaded) {
  if ((estimator.plugin->flags & MORTISE_FLAG_COMPARES_GROUP) == 0 || loaded.config.rollout.n > 1) return;
  const Error warning{
      ErrorKind::kConfig,
      "rollout.n is 1: " + estimator.plugin->name + " compares the completions of one prompt, and there is only one",
      loaded.where("rollout.n"), "set rollout.n=8 or more"};
  log_warn(warning.to_string());
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
  constexpr std::string_view kAll[] = {"reward", "policy_loss", "advantage_estimator", "kl_estimator",
                                       "rollout_backend"};
  const std::span<const std::string_view> all(kAll);
  return check_plugins(registry, loaded, kind == RunKind::kTrain ? all : all.first(1));
}

Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded,
                       std::span<const std::string_view> kinds) {
  std::vector<Error> problems;
  for (const PluginUse& use : plugin_uses(loaded.config)) {
    if (std::ranges::count(kinds, use.kind) == 0) continue;
    auto ref = at_place(loaded.where(use.name_key), registry.find(use.kind, use.name));
    if (!ref.ok()) {
      problems.push_back(std::move(ref).error());
      continue;
    }
    if (use.kind == "advantage_estimator") warn_of_lone_completions(*ref, loaded);
    for (const ParamError& error : check_params(*ref->plugin, use.params)) {
      const std::string key = error.key.empty() ? use.key : use.key + "." + error.key;
      problems.push_back({ErrorKind::kConfig, error.what, loaded.where(key), error.next});
    }
  }
  if (problems.empty()) return {};
  return one_error(std::move(problems));
}

namespace {

// f(reward, its place in the list, a column that it reads) for each.
template <class F>
Result<> for_named_columns(const RunParts& parts, F&& f) {
  const std::vector<RewardConfig>& rewards = parts.config.reward;
  for (size_t i = 0; i < rewards.size(); ++i) {
    const PluginRef ref = TRY(parts.registry->find("reward", rewards[i].use));
    for (const NamedColumn& column : named_columns(*ref.plugin, rewards[i].params)) TRY(f(*ref.plugin, i, column));
  }
  return {};
}

}  // namespace

Result<> check_reward_columns(const RunParts& parts, RunKind kind) {
  return for_named_columns(parts, [&](const PluginInfo& reward, size_t i, const NamedColumn& column) -> Result<> {
    const std::string where = parts.loaded.where("reward." + std::to_string(i) + "." + column.param);
    if (kind == RunKind::kTrain)
      TRY(at_place(where, check_named_column(column, reward, *parts.train_data, "data.train_files")));
    if (!parts.val_data) return {};
    auto good = at_place(where, check_named_column(column, reward, *parts.val_data, "data.val_files"));
    if (good.ok() || kind == RunKind::kEval) return good;
    log_warn(good.error().to_string());
    return {};
  });
}

Result<std::vector<std::string>> read_row_keys(const RunParts& parts, RunKind kind) {
  std::vector<std::string> keys{"tools", "documents", "chat_template_kwargs"};
  if (kind == RunKind::kSft) {
    keys.push_back(parts.config.data.response_key);
    return keys;
  }
  keys.insert(keys.end(), {"data_source", "reward_model", "extra_info", "ground_truth"});
  TRY(for_named_columns(parts, [&](const PluginInfo&, size_t, const NamedColumn& column) -> Result<> {
    keys.push_back(column.path);
    keys.push_back(column.row_key());
    return {};
  }));
  return keys;
}

}  // namespace mortise
