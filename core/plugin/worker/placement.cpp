// Grants what plugins declare to need, and finds the programs that workers need.
#include "plugin/worker/placement.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/cpus.h"
#include "foundation/base/log.h"
#include "foundation/base/secrets.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "mortise/pack.h"
#include "plugin/pack/tier.h"
#include "plugin/worker/launcher.h"

namespace mortise {
namespace {

constexpr int kMaxDefaultWorkers = 8;

// "reward python@mortise.reward_python 0.1.0 (1a2b3c4d5e6f)"
std::string name_of(const PluginRef& ref) { return fmt::format("{} {}", short_kind(ref.plugin->kind), ref.label()); }

// The program mortise-worker, or why this pack cannot run in workers here.
Result<std::filesystem::path> worker_for(const PackInfo& pack, const IsolationOptions& options) {
  const std::string instead = fmt::format("set {} = \"none\"", options.key);
  if (pack.tier == kTorchLocked) {
    return Error{ErrorKind::kPlugin, "the pack needs libtorch, which workers do not have", pack.path,
                 "build the plugin without libtorch, or " + instead};
  }
  TRY(check_worker_support());
  auto program = find_worker_program();
  if (!program.ok()) program.error().next += ", or " + instead;
  return program;
}

// Its config's limits without those on what the plugin declares that it cannot do without: who names such a plugin
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
  if (!granted.empty()) log_info(fmt::format("{} may do what it declares to need: {}", name_of(ref), granted));
  return out;
}

void tell_of_no_worker(const PluginRef& ref, const std::string& why) {
  log_info(fmt::format(
      "{} runs in the trainer's own process ({}): nothing limits what it may do, and a crash or a hang of it ends the "
      "run",
      name_of(ref), why));
}

// Whether a plugin that asks for workers gets none, because it needs what workers do not have.
Result<bool> needs_this_process(const PluginRef& ref, const IsolationOptions& options) {
  if ((ref.plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) == 0) return false;
  if (options.mode == Isolation::kProcess) {
    return Error{ErrorKind::kPlugin,
                 fmt::format("the {} needs a service of the engine's own process, which workers do not have, and {} = "
                             "\"process\" asks for workers",
                             short_kind(ref.plugin->kind), options.key),
                 ref.label(),
                 fmt::format("set {} = \"auto\": every other {} then still runs in workers", options.key,
                             short_kind(ref.plugin->kind))};
  }
  tell_of_no_worker(ref, "it needs a service of the engine, which workers do not have");
  return true;
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
  int64_t cpus = own_cpus();
  if (options.limits.num_cpus > 0) cpus = std::min(cpus, options.limits.num_cpus);
  return static_cast<int>(std::clamp<int64_t>(cpus, 1, kMaxDefaultWorkers));
}

PoolOptions pool_options(const IsolationOptions& options, std::filesystem::path program) {
  PoolOptions pool;
  pool.num_workers = worker_count(options);
  pool.program = std::move(program);
  if (options.bubblewrap) {
    pool.bubblewrap = find_bubblewrap();
    if (pool.bubblewrap.empty()) pool.without = "bubblewrap (bwrap) is not installed";
  } else {
    pool.without = "without bubblewrap, as configured";
  }
  return pool;
}

}  // namespace

Result<std::optional<WorkerPlace>> place_plugin(const PluginRef& ref, const nlohmann::ordered_json& params,
                                                const IsolationOptions& options) {
  WorkerLimits limits = options.limits;
  limits.env = variables_of(options.limits.env, params);
  for (const std::string& variable : limits.env) add_secret_variable(variable);
  if (options.mode == Isolation::kNone) {
    tell_of_no_worker(ref, fmt::format("{} = \"none\"", options.key));
    return std::optional<WorkerPlace>();
  }
  if (TRY(needs_this_process(ref, options))) return std::optional<WorkerPlace>();
  auto program = worker_for(*ref.pack, options);
  if (!program.ok()) {
    if (options.mode == Isolation::kProcess) return std::move(program).error();
    log_warn(fmt::format("{} runs in the trainer's own process: {}", name_of(ref), program.error().to_string()));
    return std::optional<WorkerPlace>();
  }
  return std::optional(WorkerPlace{grant_needs(limits, ref), pool_options(options, *std::move(program))});
}

}  // namespace mortise
