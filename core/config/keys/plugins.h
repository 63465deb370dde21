// [plugins]: where plugins are looked for, and the worker processes that rewards run in, and others that ask for it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys/reward.h"
#include "foundation/base/isolation.h"

namespace mortise {

// Which packs a run uses in addition to those of the installation.
enum class PackTrust { kAny, kLocked, kSigned, kLockedAndSigned };
constexpr auto choice_names(PackTrust) {
  return std::array<std::string_view, 4>{"any", "locked", "signed", "locked and signed"};
}

struct PluginsConfig {
  std::vector<std::string> paths;  // folders searched for packs, first wins
  std::vector<std::string> files;  // pack files loaded by name
  PackTrust trust = PackTrust::kAny;
  double max_failed_fraction = 0.1;                   // share of a step's rows on which a reward may fail
  Isolation isolation = Isolation::kAuto;             // whether rewards run in worker processes
  std::optional<int64_t> num_workers;                 // per reward and rank; null = one per core, eight at most
  bool bubblewrap = true;                             // put workers into bubblewrap if the machine has it
  int64_t worker_memory_mib = 8192;                   // address space of one worker; 0 = no limit
  int64_t worker_file_mib = 256;                      // longest file that a worker may write; 0 = no limit
  int64_t worker_open_files = 256;                    // per worker; 0 = no limit
  std::chrono::milliseconds worker_cpu_time{0};       // CPU time of one call of a reward; 0 = no limit
  std::optional<int64_t> worker_cpus;                 // processors that the workers of a reward share; null = all
  std::chrono::milliseconds call_timeout{3'600'000};  // for a call of a plugin other than a reward; 0 = no limit
  std::vector<std::string> env;  // environment variables that workers get in addition to harmless ones
  bool check = false;            // put guard words around outputs of plugins
  bool operator==(const PluginsConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr auto has_no_workers = [](const auto& k) {
  const auto& algorithm = k.config.algorithm;
  const auto& actor = k.config.actor;
  return k.config.plugins.isolation == Isolation::kNone && algorithm.adv_isolation == Isolation::kNone &&
         algorithm.kl_isolation == Isolation::kNone && actor.kl_isolation == Isolation::kNone &&
         actor.policy_loss.isolation == Isolation::kNone;
};

template <class Keys>
void describe_packs(Keys& keys) {
  keys.free("paths", &PluginsConfig::paths,
            "Folders to search for packs, before MORTISE_PLUGIN_PATH, the user's folder and the built-in packs.");
  keys.free("files", &PluginsConfig::files, "Pack files (.so) to load in addition to those found in folders.");
  keys.free(
      "trust", &PluginsConfig::trust,
      "Which packs the run uses in addition to those of the installation. any: all that it finds. locked: those in "
      "the mortise.lock next to the run's file (`mortise pack lock`), by hash. signed: those installed with a "
      "signature of a trusted key (`mortise pack trust`). The command line and the machine's "
      "/etc/mortise/policy.toml can only make it stricter.");
  keys.free("max_failed_fraction", &PluginsConfig::max_failed_fraction,
            "Share of a step's rows on which one reward may fail (crash, time-out, error). Above it the run stops. "
            "Failed rows have no score from that reward.")
      .at_least(0)
      .at_most(1);
  keys.free("isolation", &PluginsConfig::isolation,
            "Where rewards run. process: in worker processes, so that a crash or a hang costs one row; it is an error "
            "if the machine cannot do this. none: in the trainer's own process. auto: process if the machine can, else "
            "none. The log says which. Losses and estimators have keys of their own: actor.policy_loss.isolation, "
            "actor.kl_isolation, algorithm.adv_isolation and algorithm.kl_isolation.");
  keys.free(
          "num_workers", &PluginsConfig::num_workers,
          "Worker processes of each reward that score at the same time; one more is kept ready as a spare. Results "
          "do not depend on it. Each rank starts workers of its own. null: one per processor that the run may use, at "
          "most eight. The ranks of a machine share these processors equally.")
      .at_least(1)
      .at_most(1024)
      .no_effect(kInTrain | kInEval, has_no_reward_workers, kNoWorkers);
  keys.free("bubblewrap", &PluginsConfig::bubblewrap,
            "Start workers inside bubblewrap (bwrap) if the machine has it. A worker then sees only its own processes. "
            "Without `allow` in the reward's table it also has read-only files, no network and no devices. The filter "
            "of system calls applies with and without it.")
      .no_effect(kInTrain | kInEval, has_no_workers, kNoWorkers);
}

template <class Keys>
void describe_worker_limits(Keys& keys) {
  keys.free(
          "worker_memory_mib", &PluginsConfig::worker_memory_mib,
          "Maximum address space of one worker in MiB. A row that needs more fails; a loss or an estimator that needs "
          "more stops the run. 0: no limit.")
      .at_least(0)
      .no_effect(kInTrain | kInEval, has_no_workers, kNoWorkers);
  keys.free("worker_file_mib", &PluginsConfig::worker_file_mib,
            "Maximum size in MiB of a file that a worker writes, if its plugin may write files. 0: no limit.")
      .at_least(0)
      .no_effect(kInTrain | kInEval, has_no_workers, kNoWorkers);
  keys.free("worker_open_files", &PluginsConfig::worker_open_files,
            "Maximum number of files that a worker may have open. 0: no limit.")
      .at_least(0)
      .no_effect(kInTrain | kInEval, has_no_workers, kNoWorkers);
  keys.free(
          "worker_cpu_time", &PluginsConfig::worker_cpu_time,
          "Maximum CPU time of one row over all threads: \"500ms\", \"10s\". For a reward that scores groups or "
          "batches it limits each of them. Unlike row_timeout it does not depend on how busy the machine is. Programs "
          "that a reward starts are not counted. 0s: no limit.")
      .at_least(0)
      .no_effect(kInTrain | kInEval, has_no_reward_workers, kNoWorkers);
  keys.free("worker_cpus", &PluginsConfig::worker_cpus,
            "Processors that the workers of a reward, and the programs they start, share. The others stay free for the "
            "trainer. null: all.")
      .at_least(1)
      .at_most(1024)
      .no_effect(kInTrain | kInEval, has_no_reward_workers, kNoWorkers);
  keys.free(
          "call_timeout", &PluginsConfig::call_timeout,
          "Longest call of a loss, an estimator or a rollout backend, and of a reward that has no worker. A call that "
          "returns too late stops the run with an error, and so does one in a worker that does not return. One that "
          "does not return in the trainer's own process cannot be ended alone: the program ends within a second, "
          "with exit code 4 and a line that names the plugin and the step. Resume from the last checkpoint then. "
          "Plugins that compute with the engine itself have no limit. 0s: no limit.")
      .at_least(0);
  keys.free(
          "env", &PluginsConfig::env,
          "Names of further environment variables that workers get: [\"OPENAI_API_KEY\"]. By default they get only "
          "harmless ones (PATH, HOME, locale, Python, threads, caches), so that no token of the trainer reaches a "
          "plugin there. A parameter \"env:NAME\", or one whose name ends in _env, adds its variable without this key.")
      .no_effect(kInTrain | kInEval, has_no_workers, kNoWorkers);
  keys.free("check", &PluginsConfig::check,
            "Put guard words around what plugins write, and check them after every call. A plugin that writes past its "
            "outputs then stops the run with its name, instead of damaging memory. It costs a copy of the outputs. "
            "Losses and estimators in workers have guard words without this key, and without that cost.");
}

template <class Catalog>
void describe_plugins_section(Catalog& catalog) {
  auto keys = catalog.table("plugins", "Where plugins are found, and the worker processes that they run in.",
                            [](auto& run) -> PluginsConfig& { return run.plugins; });
  describe_packs(keys);
  describe_worker_limits(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
