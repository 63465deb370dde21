// Decides where a reward runs, and makes it with its rights, variables and number of workers.
#include "plugin/worker/reward_function.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/cpus.h"
#include "foundation/base/log.h"
#include "foundation/base/secrets.h"
#include "foundation/base/text.h"
#include "parse/url.h"
#include "plugin/worker/launcher.h"
#include "plugin/worker/local_reward.h"
#include "plugin/worker/reward_pool.h"

namespace mortise {
namespace {

constexpr int kMaxDefaultWorkers = 8;

// Why this pack cannot run in workers here.
Result<std::filesystem::path> worker_for(const PackInfo& pack) {
  if (pack.tier == "torch-locked") {
    return Error{ErrorKind::kPlugin, "the pack needs libtorch, which workers do not have", pack.path,
                 "build the reward without libtorch, or set plugins.isolation = \"none\""};
  }
  TRY(check_worker_support());
  return find_worker_program();
}

// Its config's limits without those on what the plugin declares that it cannot do without: who names such a reward
// wants it to work.
WorkerLimits grant_needs(const WorkerLimits& limits, const PluginRef& ref) {
  WorkerLimits out = limits;
  std::string granted;
  const auto grant = [&](uint32_t flag, bool* allowed, const char* what) {
    if ((ref.plugin->flags & flag) == 0 || *allowed) return;
    *allowed = true;
    granted += (granted.empty() ? "" : ", ") + std::string(what);
  };
  grant(MORTISE_FLAG_NEEDS_NETWORK, &out.network, "use the network");
  grant(MORTISE_FLAG_NEEDS_PROGRAMS, &out.start_programs, "start programs");
  grant(MORTISE_FLAG_NEEDS_FILES, &out.write_files, "write files");
  grant(MORTISE_FLAG_NEEDS_SANDBOX, &out.make_sandboxes, "make sandboxes");
  if (!granted.empty()) log_info(fmt::format("reward {} may do what it declares to need: {}", ref.label(), granted));
  return out;
}

void tell_of_no_worker(const std::string& reward, const std::string& why) {
  log_info(fmt::format(
      "reward {} runs in the trainer's own process ({}): nothing limits what it may do, and a crash or a hang of it "
      "ends the run",
      reward, why));
}

// Whether a reward that asks for workers gets none, because it needs what workers do not have.
Result<bool> needs_this_process(const PluginRef& ref, Isolation mode) {
  if ((ref.plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) == 0) return false;
  if (mode == Isolation::kProcess) {
    return Error{ErrorKind::kPlugin,
                 "the reward needs a service of the engine's own process, which workers do not have, and "
                 "plugins.isolation = \"process\" asks for workers",
                 ref.label(), "set plugins.isolation = \"auto\": every other reward then still runs in workers"};
  }
  tell_of_no_worker(ref.label(), "it needs a service of the engine, which workers do not have");
  return true;
}

// A config that a run has written lacks the logins of its URLs.
Result<> refuse_redacted(const PluginRef& ref, const nlohmann::ordered_json& params) {
  for (const auto& [key, value] : params.items()) {
    if (!value.is_string() || !parse::is_redacted(value.get_ref<const std::string&>())) continue;
    return Error{ErrorKind::kConfig, quote(key) + " is a URL whose login was taken out when a run wrote its config",
                 ref.label(), "give the URL again, or the name of an environment variable that holds it: env:NAME"};
  }
  return {};
}

// The variables that plugins.env names, and those that the parameters do: "env:NAME", or a parameter `..._env`.
std::vector<std::string> variables_of(std::vector<std::string> names, const nlohmann::ordered_json& params) {
  for (const auto& [key, value] : params.items()) {
    if (!value.is_string()) continue;
    const std::string text = value.get<std::string>();
    const std::string_view secret = secret_reference(text);
    if (!secret.empty()) names.emplace_back(secret);
    if (key.ends_with("_env") && is_variable_name(text)) names.push_back(text);
  }
  return names;
}

int worker_count(const IsolationOptions& options) {
  if (options.num_workers > 0) return options.num_workers;
  int64_t cpus = usable_cpus();
  if (options.limits.num_cpus > 0) cpus = std::min(cpus, options.limits.num_cpus);
  return static_cast<int>(std::clamp<int64_t>(cpus, 1, kMaxDefaultWorkers));
}

}  // namespace

Result<RewardOutput> RewardFunction::score(const ScoreRequest& request, const RewardBatch& rows, MetricSet* metrics) {
  TRY(begin(request));
  TRY(add(rows));
  return finish(metrics);
}

Result<std::unique_ptr<RewardFunction>> make_reward_function(PluginRegistry& registry, std::string_view name,
                                                             const nlohmann::ordered_json& params, const RunKey& key,
                                                             const IsolationOptions& options) {
  const PluginRef ref = TRY(registry.find(MORTISE_KIND_REWARD, name));
  TRY(refuse_redacted(ref, params));
  WorkerLimits limits = options.limits;
  limits.env = variables_of(options.limits.env, params);
  for (const std::string& variable : limits.env) add_secret_variable(variable);
  if (options.mode == Isolation::kNone) {
    tell_of_no_worker(ref.label(), "plugins.isolation = \"none\"");
  } else if (!TRY(needs_this_process(ref, options.mode))) {
    auto program = worker_for(*ref.pack);
    if (program.ok()) {
      PoolOptions pool;
      pool.num_workers = worker_count(options);
      pool.program = *program;
      if (options.bubblewrap) {
        pool.bubblewrap = find_bubblewrap();
        if (pool.bubblewrap.empty()) pool.without = "bubblewrap (bwrap) is not installed";
      } else {
        pool.without = "without bubblewrap, as configured";
      }
      InstanceIdentity identity = TRY(PluginInstance::identify(ref, params, key));
      return RewardPool::start(ref, std::move(identity), key, grant_needs(limits, ref), pool);
    }
    if (options.mode == Isolation::kProcess) return std::move(program).error();
    log_warn(fmt::format("{} runs in the trainer's own process: {}", name, program.error().to_string()));
  }
  return make_local_reward(TRY(Reward::create(registry, name, params, key)));
}

}  // namespace mortise
