// Chooses the checkpoint, and compares its settings and packs with those of the run.
#include "train/resume/resume.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "config/fields.h"
#include "config/show.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "train/loop/decision.h"
#include "train/resume/checkpointing.h"
#include "train/resume/model_state.h"
#include "train/resume/pack_lock.h"
#include "train/resume/resume_words.h"
#include "train/resume/verify_on_ranks.h"
#include "train/run/run_data.h"
#include "train/run/run_parts.h"

namespace mortise {

namespace {

void add_plan_keys(const OptimConfig& optim, const std::string& table, std::vector<std::string>& keys) {
  if (optim.lr_decay_steps >= 0) return;
  if (plans_ahead(optim.lr_scheduler_type))
    keys.push_back(fmt::format("{}.lr_scheduler_type = \"{}\"", table, choice_name(optim.lr_scheduler_type)));
  else if (optim.lr_warmup_steps < 0 && optim.lr_warmup_steps_ratio > 0.0)
    keys.push_back(table + ".lr_warmup_steps_ratio");
}

// The first group that matches a parameter counts, and flat settings have no order.
std::string changed_order(const OptimConfig& before, const OptimConfig& now, const std::string& table) {
  const auto names_of = [](const Json& groups) {
    std::vector<std::string> names;
    for (const auto& [name, group] : groups.items()) names.push_back(name);
    return names;
  };
  const std::vector<std::string> was = names_of(before.groups), is = names_of(now.groups);
  if (was == is || !std::ranges::is_permutation(was, is)) return "";
  return fmt::format("\n  {}.groups: the order {} -> {}", table, join(was, ", "), join(is, ", "));
}

// Which settings a resume compares: what each key's record says (config/fields.h).
struct Comparison {
  const RunConfig& before;
  const RunConfig& now;
  RunKind kind;
  bool length_counts;

  [[nodiscard]] bool compares(const Field& record) const {
    const bool is_unread = (record.unread & (kind == RunKind::kSft ? kInSft : kInTrain)) != 0;
    // A file may serve several commands.
    if (is_unread && (!record.read_if || (!record.read_if(before) && !record.read_if(now)))) return false;
    return record.on_resume == OnResume::kCompared || (record.on_resume == OnResume::kLength && length_counts);
  }
};

std::map<std::string, std::string> settings_of(const RunConfig& config, const Comparison& comparison) {
  std::map<std::string, std::string> out = flat_settings(config);
  std::erase_if(out, [&](const auto& entry) {
    const Field* record = find_record(entry.first);
    return record != nullptr && !comparison.compares(*record);
  });
  return out;
}

// Users' packs that differ from the run's. For the program's own packs there is only a log line.
Result<std::string> changed_packs(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                  const Path& lock) {
  const PackChanges changes = TRY(pack_changes(env, lock, registry, loaded.config));
  if (!changes.builtin.empty())
    log_warn("the program's built-in plugins differ from those that the run began with:" + changes.builtin);
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
    log_warn("the run continues with changed settings:" + changed);
    return {};
  }
  return Error{ErrorKind::kConfig,
               fmt::format("the run of this checkpoint had other settings or packs:{}\nGive --allow-change to continue "
                           "with the new ones, --resume never to start over, or another trainer.default_local_dir.",
                           changed),
               checkpoint.path().string(), ""};
}

std::string mode_of(const TrainerConfig& trainer, const ResumeRequest& request) {
  if (!request.mode.empty()) return request.mode;
  switch (trainer.resume_mode) {
    case ResumeMode::kDisable:
      return std::string(kResumeNever);
    case ResumeMode::kResumePath:
      return trainer.resume_from_path.value_or("");
    case ResumeMode::kAuto:
      break;
  }
  return std::string(kResumeAuto);
}

// What people name instead of a checkpoint: a run's folder, a checkpoint's name alone, its huggingface folder.
Result<> check_is_checkpoint(Env& env, const Path& path, const Path& run_dir) {
  if (env.exists(path / kManifestFile)) return {};
  const auto error = [&](std::string what, std::string next, ErrorKind kind = ErrorKind::kConfig) {
    return Error{kind, std::move(what), path.string(), std::move(next)};
  };
  if (env.exists(path.parent_path() / kManifestFile))
    return error("this is a folder inside a checkpoint", fmt::format("name {}", path.parent_path().string()));
  if (!env.exists(path)) {
    const Path there = run_dir / path.filename();
    const std::string next = env.exists(there / kManifestFile) ? fmt::format("did you mean {}?", there.string())
                                                               : "name a global_step_N folder, or use --resume auto";
    return error("there is no such checkpoint", next, ErrorKind::kData);
  }
  const std::vector<CheckpointRef> inside = TRY(list_checkpoints(env, path));
  if (inside.empty()) return {};  // Checkpoint::open says what is missing
  return error("this is the folder of a run, and --resume takes one checkpoint",
               fmt::format("name {}, or set trainer.default_local_dir to this folder", inside.front().path.string()));
}

}  // namespace

std::vector<std::string> keys_that_plan_ahead(const RunConfig& config, RunKind kind) {
  std::vector<std::string> keys;
  add_plan_keys(config.actor.optim, "actor.optim", keys);
  if (kind != RunKind::kSft) add_plan_keys(config.critic.optim, "critic.optim", keys);
  return keys;
}

std::string changed_settings(const RunConfig& before, const RunConfig& now, RunKind kind) {
  const bool length_counts = !keys_that_plan_ahead(before, kind).empty() || !keys_that_plan_ahead(now, kind).empty();
  const Comparison comparison{before, now, kind, length_counts};
  std::map<std::string, std::string> was = settings_of(before, comparison);
  const std::map<std::string, std::string> is = settings_of(now, comparison);
  for (const auto& [key, value] : is) was.try_emplace(key, "not set");
  std::string out;
  for (const auto& [key, value] : was) {
    const auto it = is.find(key);
    const std::string current = it == is.end() ? "not set" : it->second;
    if (value == current) continue;
    out += fmt::format("\n  {}: {} -> {}", key, value, current);
    const Field* record = find_record(key);
    if (record == nullptr || record->on_resume != OnResume::kLength) continue;
    std::vector<std::string> keys = keys_that_plan_ahead(now, kind);
    if (keys.empty()) keys = keys_that_plan_ahead(before, kind);
    out += fmt::format(" (the length of the run counts because of {})", join(keys, " and "));
  }
  out += changed_order(before.actor.optim, now.actor.optim, "actor.optim");
  if (kind != RunKind::kSft) out += changed_order(before.critic.optim, now.critic.optim, "critic.optim");
  return out;
}

std::optional<Path> resume_weights(const std::optional<Checkpoint>& checkpoint) {
  if (!checkpoint || checkpoint->state().scalars.contains(ModelState::kPolicy)) return std::nullopt;
  return checkpoint->path() / "huggingface";
}

Result<std::optional<Checkpoint>> find_resume(Env& env, const LoadedConfig& loaded, Communicator& ranks,
                                              const PluginRegistry& registry, RunKind kind,
                                              const ResumeRequest& request) {
  const TrainerConfig& trainer = loaded.config.trainer;
  const auto choose = [&]() -> Result<std::string> { return mode_of(trainer, request); };
  const std::string mode = TRY(on_main_rank(ranks, "choosing the checkpoint", choose));
  if (mode.empty() || mode == kResumeNever) return std::optional<Checkpoint>{};
  Path path = mode;
  std::optional<Manifest> manifest;
  if (mode == kResumeAuto) {
    auto found = TRY(find_newest_on_ranks(env, ranks, trainer.default_local_dir));
    if (!found) return std::optional<Checkpoint>{};
    if (ranks.is_main()) {
      for (const std::string& warning : found->warnings) log_warn(warning);
    }
    path = found->ref.path;
    manifest = std::move(found->manifest);
  } else {
    // A rank that does not see it is named below: it must not leave while the others verify.
    TRY(do_on_main_rank(ranks, "choosing the checkpoint",
                        [&] { return check_is_checkpoint(env, path, trainer.default_local_dir); }));
    manifest = TRY(verify_on_ranks(env, ranks, path));
  }
  Checkpoint checkpoint = TRY(Checkpoint::open_verified(env, path, *std::move(manifest)));
  TRY(check_plugins(registry, loaded, kind));  // a misspelt name is no change of settings
  TRY(check_settings(env, loaded, registry, kind, checkpoint, request.allow_change));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

namespace {

// The states that a checkpoint may lack (Stateful::may_be_missing) because a resume may switch their parts on.
std::set<std::string> switched_states() {
  return {ReplayBuffer({}, 0).state_name(), OverSampling(1, 1).state_name(), CarriedRows().state_name(),
          sft_mix_source_options({}).state_name, AttentionChoices::kStateName};
}

}  // namespace

Result<std::set<std::string>> states_to_drop(const StateSnapshot& state, const std::vector<std::string>& of_run,
                                             bool allow_change, const Path& checkpoint) {
  std::set<std::string> dropped;
  for (const std::string& name : switched_states()) {
    if (!state.scalars.contains(name) || std::ranges::find(of_run, name) != of_run.end()) continue;
    if (!allow_change) {
      return Error{ErrorKind::kConfig,
                   fmt::format("the checkpoint holds state of '{}', which this run does not have", name),
                   checkpoint.string(), "give --allow-change to continue without it"};
    }
    log_warn(fmt::format("the state of '{}' in the checkpoint is dropped, because this run does not have it", name));
    dropped.insert(name);
  }
  return dropped;
}

namespace {

// trainer.save_dtype decides where the exact weights are saved, in the model folder or in the state, and may differ
// from the checkpoint's. They are read from where the checkpoint has them.
Result<> load_objects(const Checkpoint& checkpoint, bool allow_change, PolicyParts& policy, const SavedParts& into) {
  StatefulRegistry objects = into.stateful;
  const bool in_state = checkpoint.state().scalars.contains(ModelState::kPolicy);
  std::optional<ModelState> saved;
  if (in_state && !policy.model_state) TRY(objects.add(saved.emplace(ModelState::kPolicy, *policy.model)));
  // resume_weights has had them read from the folder. An adapter's are in the state alone.
  if (!in_state && policy.model_state && !policy.model->trains_lora()) objects.remove(*policy.model_state);
  return checkpoint.load_into(
      objects, TRY(states_to_drop(checkpoint.state(), objects.names(), allow_change, checkpoint.path())));
}

}  // namespace

Result<> check_unfinished_step(const StepWork& work, const BatchPlan& plan, ColumnNeeds needs, const Path& checkpoint) {
  if (work.step == 0) return {};
  const bool any_token = work.table.num_tokens() > 0;
  const bool has_old = !any_token || plan.updates_per_step == 1 || work.table.has<column::OldLogProb>();
  const bool has_reference = !any_token || !needs.reference || work.table.has<column::RefLogProb>();
  const bool has_returns = !needs.returns || work.table.has<column::Returns>();
  if (any_token && (!work.table.has<column::Advantages>() || !has_returns)) {
    return Error{ErrorKind::kData,
                 fmt::format("the checkpoint was saved inside step {} by another build of Mortise: it has no column {}",
                             work.step, has_returns ? column::Advantages::name : column::Returns::name),
                 checkpoint.string(), "give --resume and a global_step_N folder to start that step again"};
  }
  if (static_cast<int64_t>(work.experience.samples.rows.size()) == plan.rows_per_step &&
      static_cast<int64_t>(work.updates.size()) < plan.updates_per_step && has_old && has_reference)
    return {};
  return Error{
      ErrorKind::kConfig,
      fmt::format("the checkpoint was saved inside step {}, and with the changed settings this step would have "
                  "other updates or a reference",
                  work.step),
      checkpoint.string(), "give --resume and a global_step_N folder to change them between steps"};
}

Result<> load_policy_state(const Checkpoint& checkpoint, Model& policy) {
  if (!checkpoint.state().scalars.contains(ModelState::kPolicy)) return {};
  ModelState model(ModelState::kPolicy, policy);
  StateReader reader(ModelState::kPolicy, &checkpoint.state(), checkpoint.path().string());
  return model.load_state(reader);
}

Result<> load_run(const Checkpoint& checkpoint, bool allow_change, RunCounters& counters, PolicyParts& policy,
                  DataParts& data, SavedParts& saved) {
  StateReader reader(counters.state_name(), &checkpoint.state(), checkpoint.path().string());
  TRY(counters.load_state(reader));
  saved.plugins.takes_changes = allow_change;
  saved.inputs.takes_changes = allow_change;
  for (std::optional<PromptSource>* source : {&data.source, &data.sft_mix}) {
    if (*source) (*source)->takes_changes = allow_change;
  }
  return load_objects(checkpoint, allow_change, policy, saved);
}

}  // namespace mortise
