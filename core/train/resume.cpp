#include "train/resume.h"

#include <algorithm>
#include <map>

#include "config/show.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "train/pack_lock.h"

namespace mortise {

namespace {

// Settings by which a run may go on differently: how long, how often it saves and looks, how fast and in how much
// memory.
constexpr std::string_view kFree[] = {"trainer.total_training_steps",
                                      "trainer.total_epochs",
                                      "trainer.save_freq",
                                      "trainer.test_freq",
                                      "trainer.val_",
                                      "trainer.validation_data_dir",
                                      "trainer.rollout_data_dir",
                                      "trainer.log",
                                      "trainer.default_local_dir",
                                      "trainer.resume_",
                                      "trainer.max_actor_ckpt_to_keep",
                                      "trainer.num_threads",
                                      "trainer.nonfinite_update_limit",
                                      "data.val_",
                                      "rollout.val_kwargs",
                                      "rollout.max_num_seqs",
                                      "rollout.kv_cache_mib",
                                      "actor.ppo_micro_batch_size_per_gpu",
                                      "actor.ppo_max_token_len_per_gpu",
                                      "actor.use_dynamic_bsz",
                                      "ref.log_prob_",
                                      "plugins.",
                                      "sft.total_training_steps",
                                      "sft.test_freq",
                                      "sft.stop_val_accuracy"};

void flatten(const Json& value, const std::string& key, std::map<std::string, std::string>& out) {
  const bool inner = (value.is_object() || (value.is_array() && !value.empty() && value[0].is_object()));
  if (!inner) {
    out[key] = dump_json(value);
    return;
  }
  size_t index = 0;
  for (const auto& [name, item] : value.items()) {
    flatten(item, (key.empty() ? "" : key + ".") + (value.is_array() ? std::to_string(index++) : name), out);
  }
}

std::map<std::string, std::string> settings_of(const RunConfig& config) {
  std::map<std::string, std::string> out;
  flatten(config_to_json(config), "", out);
  std::erase_if(out, [](const auto& entry) {
    return std::any_of(std::begin(kFree), std::end(kFree),
                       [&](std::string_view free) { return entry.first.starts_with(free); });
  });
  return out;
}

// "actor.optim.lr: 4e-04 -> 1e-03", one line each.
std::string differences(const RunConfig& before, const RunConfig& now) {
  std::map<std::string, std::string> was = settings_of(before);
  const std::map<std::string, std::string> is = settings_of(now);
  for (const auto& [key, value] : is) was.try_emplace(key, "not set");
  std::string out;
  for (const auto& [key, value] : was) {
    const auto it = is.find(key);
    const std::string current = it == is.end() ? "not set" : it->second;
    if (value != current) out += "\n  " + key + ": " + value + " -> " + current;
  }
  return out;
}

// Packs of users that are others than the run's; of the program's own the log tells.
Result<std::string> changed_packs(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                  const Path& run_dir) {
  const PackChanges changes = TRY(pack_changes(env, run_dir / "mortise.lock", registry, loaded.config));
  if (!changes.builtin.empty())
    log_warn("the program's own plugins are others than those that began the run:" + changes.builtin);
  return changes.others;
}

Result<> check_settings(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry, const Path& run_dir,
                        bool allow_change) {
  std::string changed = TRY(changed_packs(env, loaded, registry, run_dir));
  const Path path = run_dir / "config.resolved.toml";
  if (env.exists(path)) {
    const auto before = load_config(env, path, {});
    if (before.ok())
      changed = differences(before->config, loaded.config) + changed;
    else
      log_warn("the settings of the run cannot be compared: " + before.error().to_string());
  }
  if (changed.empty()) return {};
  if (allow_change) {
    log_warn("goes on with changed settings:" + changed);
    return {};
  }
  return Error{ErrorKind::kConfig, "the run in this folder had other settings or packs:" + changed, run_dir.string(),
               "give --allow-change to go on with the new ones, --resume never to start over, or another "
               "trainer.default_local_dir"};
}

std::string mode_of(const TrainerConfig& trainer, const ResumeRequest& request) {
  if (!request.mode.empty()) return request.mode;
  if (trainer.resume_mode == "disable") return "never";
  if (trainer.resume_mode == "resume_path") return trainer.resume_from_path.value_or("");
  return "auto";
}

// Nothing of an earlier run is lost to a later one.
Result<> move_aside(Env& env, const Path& run_dir) {
  if (!env.exists(run_dir)) return {};
  if (TRY(list_checkpoints(env, run_dir)).empty()) return {};
  Path to;
  for (int i = 1; to.empty() || env.exists(to); ++i) to = run_dir.string() + ".before_" + std::to_string(i);
  TRY(env.rename(run_dir, to));
  log_info("the earlier run is now in " + to.string());
  return {};
}

}  // namespace

Result<std::optional<Checkpoint>> find_resume(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                              const ResumeRequest& request) {
  const TrainerConfig& trainer = loaded.config.trainer;
  const std::string mode = mode_of(trainer, request);
  if (mode == "never") {
    TRY(move_aside(env, trainer.default_local_dir));
    return std::optional<Checkpoint>{};
  }
  Path path = mode;
  if (mode == "auto") {
    auto found = TRY(find_newest_valid(env, trainer.default_local_dir));
    if (!found) return std::optional<Checkpoint>{};
    for (const std::string& warning : found->warnings) log_warn(warning);
    path = found->ref.path;
  }
  Checkpoint checkpoint = TRY(Checkpoint::open(env, path));
  TRY(check_settings(env, loaded, registry, checkpoint.path().parent_path(), request.allow_change));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

}  // namespace mortise
