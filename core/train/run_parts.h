// RunParts: the objects of a run, made once, in the order they depend on one another; the stages use them.
//
// Everything here is what a reader of the loop needs to know exists; what a part does is in its own room.
// Thread rule: one thread. Not movable: parts point at one another.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/check.h"
#include "config/load.h"
#include "experience/advantage/advantage_runner.h"
#include "experience/data/dataset.h"
#include "experience/data/prompt_source.h"
#include "experience/reward/reward_runner.h"
#include "experience/rollout/rollout_runner.h"
#include "experience/selection/group_filter.h"
#include "foundation/base/env.h"
#include "learn/objective/entropy_controller.h"
#include "learn/objective/kl_controller.h"
#include "learn/optim/adamw.h"
#include "learn/optim/schedule.h"
#include "learn/update/actor_learner.h"
#include "model/model.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/host/registry.h"
#include "train/critic.h"
#include "train/model_state.h"
#include "train/policy_folder.h"
#include "train/run_inputs.h"
#include "train/run_state.h"
#include "train/stage_timer.h"
#include "train/step_state.h"
#include "train/stop_limits.h"

namespace mortise {

// Which command the parts are for; each has only what it needs.
enum class RunKind { kTrain, kSft, kEval };

struct RunParts {
  RunParts(Env& env_in, const LoadedConfig& loaded_in)
      : env(env_in), loaded(loaded_in), config(loaded_in.config), limits(config.trainer) {}
  RunParts(const RunParts&) = delete;
  RunParts& operator=(const RunParts&) = delete;
  ~RunParts();

  Env& env;
  const LoadedConfig& loaded;
  const RunConfig& config;
  RunKey key;

  std::optional<PolicyFolder> folder;
  std::optional<PluginRegistry> registry;
  std::optional<Model> model;  // the policy
  // Frozen initial policy, where the objective or the reward penalty needs one; of an adapter's run, a view of its
  // base.
  std::optional<Model> reference;
  std::optional<PromptEncoder> encoder;

  std::optional<Dataset> train_data, val_data;
  ColumnTypes columns;  // of the data, as rewards see them
  std::optional<PromptSource> source;
  std::optional<RolloutRunner> rollout;      // the backend of training
  std::optional<RolloutRunner> val_rollout;  // always the native one
  Sampling sampling;                         // of [rollout]
  std::optional<RewardRunner> reward;
  std::optional<GroupFilter> filter;  // of algorithm.filter_groups
  std::optional<AdvantageRunner> advantage;

  std::optional<AdamW> optimizer;
  std::optional<ActorObjective> objective;
  std::optional<KlEstimator> reward_kl;  // of algorithm.use_kl_in_reward
  std::optional<KlController> kl_controller;
  std::optional<EntropyController> entropy_controller;
  std::optional<ModelState> reference_state;  // where ref.sync_steps changes the reference
  std::unique_ptr<Critic> critic;             // where the advantage estimator asks for values
  ComputeUse compute;                         // of the learners' passes
  std::optional<ActorLearner> learner;
  ScheduleOptions schedule;

  int64_t backend_weights = -1;  // version of the weights that the rollout backend holds, where it holds any
  RunCounters counters;
  StepState step;
  StopLimits limits;
  OwedValidation owed_validation;
  PluginStates plugin_states;
  RunInputs inputs;                       // of a run that learns
  std::optional<ModelState> model_state;  // where the checkpoint's model folder does not hold the weights exactly
  StatefulRegistry stateful;              // all that a checkpoint holds besides its model folder

  BatchPlan plan;
  int64_t total_steps = 0;
};

// Makes the parts. `weights_from` is the folder to read the policy's weights from where it is not model.path (see
// resume_weights in resume.h).
Result<std::unique_ptr<RunParts>> assemble(Env& env, const LoadedConfig& loaded, PluginRegistry registry, RunKind kind,
                                           const std::optional<Path>& weights_from);

// Is there a reader of the reference's log-probs? A KL over the whole vocabulary runs the reference by itself.
bool takes_ref_log_prob(const RunParts& parts);

// How training samples, and how validation does.
RolloutPlan train_plan(const RunParts& parts);
RolloutPlan val_plan(const RunParts& parts);

// The packs that [plugins] names, and those found without.
Result<PluginRegistry> open_registry(const LoadedConfig& loaded);

// Every plugin name and plugin parameter that a user wrote, against the plugins' own tables: all that is wrong at once,
// each with the place where it was written. Warns of settings that a plugin can do little with.
Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded, RunKind kind);
// Of the plugins of these kinds alone.
Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded,
                       std::span<const std::string_view> kinds);

// [*.optim] for a model and its optimizer.
std::vector<OptimizedParameter> optimized_parameters(Model& model);
AdamWOptions adamw_options(const OptimConfig& optim);
ScheduleOptions schedule_options(const OptimConfig& optim, int64_t total_steps, int64_t updates_per_step);

// How the run's model folders are saved.
SaveOptions save_options(const RunConfig& config);

// How updates (also of sft) are computed, and cut into passes.
LearnerOptions learner_options(const RunConfig& config);
MicroBatchOptions micro_batch_options(const RunConfig& config);
// The same of the reference's passes, [ref] over [actor].
MicroBatchOptions reference_pass_options(const RunConfig& config);

}  // namespace mortise
