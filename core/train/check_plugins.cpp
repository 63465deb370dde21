// check_plugins (run_parts.h): all that is wrong with the plugins a config names, in one error.
#include <mortise/pack.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace mortise
