#include "train/resume.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>

#include "config/show.h"
#include "foundation/base/folder_lock.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "train/checkpointing.h"
#include "train/model_state.h"
#include "train/pack_lock.h"
#include "train/run_parts.h"

namespace mortise {

namespace {

// Settings by which a run may go on differently: how long, how often it saves and looks, how fast and in how much
// memory.
constexpr std::string_view kFree[] = {"preset",  // what it sets is compared
                                      "algorithm.rollout_correction.preset",
                                      "trainer.total_training_steps",
                                      "trainer.total_epochs",
                                      "trainer.save_freq",  // and save_freq_updates
                                      "trainer.test_freq",
                                      "trainer.val_",
                                      "trainer.validation_data_dir",
                                      "trainer.rollout_data_dir",
                                      "trainer.log",
                                      "trainer.num_completions_to_print",
                                      "trainer.default_local_dir",
                                      "trainer.resume_",
                                      "trainer.max_actor_ckpt_to_keep",
                                      "trainer.max_shard_size",
                                      "trainer.save_dtype",
                                      "trainer.save_merged_lora",
                                      "trainer.num_threads",
                                      "trainer.nonfinite_update_limit",
                                      "trainer.rollout_probs_diff_limit",
                                      "trainer.kl_limit",
                                      "trainer.nan_reward_limit",
                                      "trainer.zero_variance_limit",
                                      "trainer.limit_patience",
                                      "data.val_",
                                      "rollout.val_kwargs",
                                      "rollout.max_num_seqs",
                                      "rollout.top_log_probs",  // of `mortise generate`
                                      "rollout.kv_cache_mib",
                                      "rollout.sleep_while_training",
                                      "model.enable_gradient_checkpointing",
                                      "model.activation_memory_mib",
                                      "actor.ppo_micro_batch_size_per_gpu",
                                      "actor.ppo_max_token_len_per_gpu",
                                      "actor.use_dynamic_bsz",
                                      "ref.log_prob_",
                                      "critic.ppo_micro_batch_size_per_gpu",
                                      "critic.ppo_max_token_len_per_gpu",
                                      "plugins.",
                                      "sft.total_training_steps",
                                      "sft.test_freq",
                                      "sft.stop_val_accuracy"};

// What a command does not read: a file may serve several.
constexpr std::string_view kNotOfTrain[] = {"sft.", "data.response_key", "data.messages_key"};
constexpr std::string_view kNotOfSft[] = {
    "algorithm.", "critic.", "ref.", "actor.policy_loss.", "trainer.total_training_steps", "trainer.total_epochs"};

// Of a [[reward]] table, whose other keys may be parameters that begin alike: its label, its time, its workers' rights.
constexpr std::string_view kFreeOfReward[] = {"name", "timeout", "row_timeout", "allow"};

bool begins_with_any(std::string_view key, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [key](std::string_view prefix) { return key.starts_with(prefix); });
}

bool is_free(std::string_view key) {
  if (key.starts_with("reward.")) {
    const size_t leaf = key.find('.', std::string_view("reward.").size());
    return leaf != std::string_view::npos && std::ranges::count(kFreeOfReward, key.substr(leaf + 1)) > 0;
  }
  return begins_with_any(key, kFree);
}

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

bool plans_ahead(const OptimConfig& optim) {
  return optim.lr_scheduler_type != "constant" || (optim.lr_warmup_steps < 0 && optim.lr_warmup_steps_ratio > 0.0);
}

// Where the learning rate depends on how long the run is, its length is no free setting.
bool has_plan(const RunConfig& config, RunKind kind) {
  return plans_ahead(config.actor.optim) || (kind != RunKind::kSft && plans_ahead(config.critic.optim));
}

std::map<std::string, std::string> settings_of(const RunConfig& config, RunKind kind, bool length_counts) {
  constexpr std::string_view kLength[] = {"trainer.total_training_steps", "trainer.total_epochs",
                                          "sft.total_training_steps"};
  std::map<std::string, std::string> out;
  flatten(config_to_json(config), "", out);
  std::span<const std::string_view> not_read(kNotOfTrain);
  if (kind == RunKind::kSft) not_read = kNotOfSft;
  std::erase_if(out, [&](const auto& entry) {
    if (begins_with_any(entry.first, not_read)) return true;
    if (length_counts && begins_with_any(entry.first, kLength)) return false;
    return is_free(entry.first);
  });
  return out;
}

// Packs of users that are others than the run's; of the program's own the log tells.
Result<std::string> changed_packs(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                  const Path& lock) {
  const PackChanges changes = TRY(pack_changes(env, lock, registry, loaded.config));
  if (!changes.builtin.empty())
    log_warn("the program's own plugins are others than those that began the run:" + changes.builtin);
  return changes.others;
}

Result<> check_settings(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry, RunKind kind,
                        const Checkpoint& checkpoint, bool allow_change) {
  const Path lock = TRY(checkpoint.entry(kPackLockFile));
  const Path settings = TRY(checkpoint.entry(kSettingsFile));
  std::string changed = TRY(changed_packs(env, loaded, registry, lock));
  const auto before = load_config(env, settings, {});
  if (before.ok())
    changed = changed_settings(before->config, loaded.config, kind) + changed;
  else
    log_warn("the settings of the run cannot be compared: " + before.error().to_string());
  if (changed.empty()) return {};
  if (allow_change) {
    log_warn("goes on with changed settings:" + changed);
    return {};
  }
  return Error{ErrorKind::kConfig, "the run of this checkpoint had other settings or packs:" + changed,
               checkpoint.path().string(),
               "give --allow-change to go on with the new ones, --resume never to start over, or another "
               "trainer.default_local_dir"};
}

std::string mode_of(const TrainerConfig& trainer, const ResumeRequest& request) {
  if (!request.mode.empty()) return request.mode;
  if (trainer.resume_mode == "disable") return "never";
  if (trainer.resume_mode == "resume_path") return trainer.resume_from_path.value_or("");
  return "auto";
}

// Is it the folder that relative paths of this run start from, or one around it?
bool holds_working_folder(const Path& folder) {
  std::error_code failed;
  const Path here = std::filesystem::current_path(failed);
  const Path from_there = here.lexically_relative(std::filesystem::weakly_canonical(folder, failed));
  return !failed && !from_there.empty() && *from_there.begin() != "..";
}

}  // namespace

std::string changed_settings(const RunConfig& before, const RunConfig& now, RunKind kind) {
  const bool length_counts = has_plan(before, kind) || has_plan(now, kind);
  std::map<std::string, std::string> was = settings_of(before, kind, length_counts);
  const std::map<std::string, std::string> is = settings_of(now, kind, length_counts);
  for (const auto& [key, value] : is) was.try_emplace(key, "not set");
  std::string out;
  for (const auto& [key, value] : was) {
    const auto it = is.find(key);
    const std::string current = it == is.end() ? "not set" : it->second;
    if (value != current) out += "\n  " + key + ": " + value + " -> " + current;
  }
  return out;
}

Result<> set_earlier_run_aside(Env& env, const Path& run_dir) {
  if (!env.exists(run_dir)) return {};
  const auto rows = env.info(run_dir / "metrics.jsonl");
  if ((!rows.ok() || rows->size_bytes == 0) && TRY(list_checkpoints(env, run_dir)).empty()) return {};
  const FolderLock lock = TRY(FolderLock::take(run_dir));  // not from under a run that still writes into it
  if (holds_working_folder(run_dir)) {
    return Error{
        ErrorKind::kConfig,
        "an earlier run is in this folder, which cannot be renamed to set it aside: this run was started in it",
        run_dir.string(),
        "resume that run, move its files away, or name another trainer.default_local_dir, as in \"runs/first\""};
  }
  Path from = run_dir.lexically_normal();
  if (!from.has_filename()) from = from.parent_path();  // "runs/a/"
  Path to;
  for (int i = 1; to.empty() || env.exists(to); ++i) to = from.string() + ".before_" + std::to_string(i);
  TRY(env.rename(from, to));
  log_info("the earlier run is now in " + to.string());
  return {};
}

std::optional<Path> resume_weights(const std::optional<Checkpoint>& checkpoint) {
  if (!checkpoint || checkpoint->state().scalars.contains(ModelState::kPolicy)) return std::nullopt;
  return checkpoint->path() / "huggingface";
}

Result<std::optional<Checkpoint>> find_resume(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                              RunKind kind, const ResumeRequest& request) {
  const TrainerConfig& trainer = loaded.config.trainer;
  const std::string mode = mode_of(trainer, request);
  if (mode == "never") return std::optional<Checkpoint>{};
  Path path = mode;
  if (mode == "auto") {
    auto found = TRY(find_newest_valid(env, trainer.default_local_dir));
    if (!found) return std::optional<Checkpoint>{};
    for (const std::string& warning : found->warnings) log_warn(warning);
    path = found->ref.path;
  }
  Checkpoint checkpoint = TRY(Checkpoint::open(env, path));
  TRY(check_plugins(registry, loaded, kind));  // a misspelt name is no change of settings
  TRY(check_settings(env, loaded, registry, kind, checkpoint, request.allow_change));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

namespace {

// trainer.save_dtype decides where the exact weights are saved, in the model folder or in the state, and may be another
// than the checkpoint's: what is read is where that one has them.
Result<> load_objects(const Checkpoint& checkpoint, RunParts& parts) {
  StatefulRegistry objects = parts.stateful;
  const bool in_state = checkpoint.state().scalars.contains(ModelState::kPolicy);
  std::optional<ModelState> saved;
  if (in_state && !parts.model_state) TRY(objects.add(saved.emplace(ModelState::kPolicy, *parts.model)));
  // resume_weights has had them read from the folder. An adapter's are in the state alone.
  if (!in_state && parts.model_state && !parts.model->trains_lora()) objects.remove(*parts.model_state);
  return checkpoint.load_into(objects);
}

// A step that is under way goes on only where the settings still make of it what they did.
Result<> check_unfinished_step(const RunParts& parts, const Path& path) {
  const StepWork& work = parts.step.work;
  if (work.step == 0) return {};
  const BatchPlan& plan = parts.plan;
  const bool any_token = work.advantages.num_tokens() > 0;
  const bool has_old = !any_token || plan.updates_per_step == 1 || !work.log_probs.old_log_prob.empty();
  const bool has_reference = !any_token || !takes_ref_log_prob(parts) || !work.log_probs.ref_log_prob.empty();
  if (static_cast<int64_t>(work.experience.samples.rows.size()) == plan.rows_per_step &&
      static_cast<int64_t>(work.updates.size()) < plan.updates_per_step && has_old && has_reference)
    return {};
  return Error{ErrorKind::kConfig,
               "the checkpoint stands inside step " + std::to_string(work.step) +
                   ", which the changed settings would cut into other updates or give a reference",
               path.string(), "give --resume and a global_step_N folder to change them between steps"};
}

}  // namespace

Result<> load_policy_state(const Checkpoint& checkpoint, RunParts& parts) {
  if (!checkpoint.state().scalars.contains(ModelState::kPolicy)) return {};
  ModelState model(ModelState::kPolicy, *parts.model);
  StateReader reader(ModelState::kPolicy, &checkpoint.state(), checkpoint.path().string());
  return model.load_state(reader);
}

Result<> load_run(const Checkpoint& checkpoint, bool allow_change, RunParts& parts) {
  StateReader counters(parts.counters.state_name(), &checkpoint.state(), checkpoint.path().string());
  TRY(parts.counters.load_state(counters));
  parts.plugin_states.takes_changes = allow_change;
  parts.inputs.takes_changes = allow_change;
  if (parts.source) parts.source->takes_changes = allow_change;
  TRY(load_objects(checkpoint, parts));
  return check_unfinished_step(parts, checkpoint.path());
}

}  // namespace mortise
