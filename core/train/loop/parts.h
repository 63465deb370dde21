// The parts of a run in groups, as the stages of a step take them. Who makes them: train/run/run_parts.h.
//
// Thread rule: one thread. Parts point at one another, so that nothing here moves once it is made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/check.h"
#include "config/load.h"
#include "config/val_sets.h"
#include "experience/advantage/advantage_runner.h"
#include "experience/data/dataset.h"
#include "experience/data/prompt_source.h"
#include "experience/selection/group_filter.h"
#include "experience/selection/replay_buffer.h"
#include "foundation/base/env.h"
#include "learn/objective/entropy_controller.h"
#include "learn/objective/kl_controller.h"
#include "learn/optim/metric_schedule.h"
#include "learn/optim/optimizer.h"
#include "learn/optim/schedule.h"
#include "learn/update/actor_learner.h"
#include "model/device/compute_device.h"
#include "model/layers/attention_choice.h"
#include "model/model.h"
#include "plugin/host/devices.h"
#include "plugin/host/kinds/reward.h"
#include "train/loop/best_validation.h"
#include "train/loop/carried_rows.h"
#include "train/loop/reference_refresh.h"
#include "train/loop/step_state.h"
#include "train/loop/stop_limits.h"
#include "train/report/stage_timer.h"
#include "train/resume/model_state.h"
#include "train/resume/run_inputs.h"
#include "train/resume/run_state.h"
#include "train/run/parameter_groups.h"
#include "train/run/policy_folder.h"
#include "train/sampling/over_sampling.h"
#include "train/sampling/rollout_ahead.h"

namespace mortise {

// Which command the parts are for; each has only what it needs.
enum class RunKind { kTrain, kSft, kEval };

// What a run is set to. Nothing of it changes once the parts are made.
struct RunSettings {
  RunSettings(Env& env_in, const LoadedConfig& loaded_in, Communicator& ranks_in)
      : env(env_in), loaded(loaded_in), config(loaded_in.config), ranks(ranks_in) {}

  Env& env;
  const LoadedConfig& loaded;
  const RunConfig& config;
  Communicator& ranks;  // the processes of the run
  RunKey key;
  std::unique_ptr<PluginDevice> plugin_device;  // in a run on a GPU
  RunKind kind = RunKind::kTrain;
  ComputeDevice device;
  BatchPlan plan;                              // how `train` is cut into batches
  int64_t total_steps = 0, total_updates = 0;  // in a run that learns
  int64_t steps_per_epoch = 0;                 // in `train`
};

// The policy, what it is read with, and what it started from.
struct PolicyParts {
  std::optional<PolicyFolder> folder;
  std::optional<PromptEncoder> encoder;
  std::optional<Model> model;
  ParameterGroups groups;  // settings of their own for trained parameters
  // What samples where the model itself may change meanwhile (trainer.mode). Holds older weights: refresh_sampled().
  std::optional<Model> sampled;
  // Frozen initial policy, where the objective or the reward penalty needs one; of an adapter's run, a view of its
  // base.
  std::optional<Model> reference;
  std::optional<Model> teacher;               // frozen, of [teacher]
  std::optional<ModelState> model_state;      // where the checkpoint's model folder does not hold the weights exactly
  std::optional<ModelState> reference_state;  // where ref.sync_steps changes the reference
};

// Null if there is none.
inline const Model* reference_of(const PolicyParts& policy) { return policy.reference ? &*policy.reference : nullptr; }

// The model that completions come from.
inline const Model& sampled_model(const PolicyParts& policy) {
  return policy.sampled ? *policy.sampled : *policy.model;
}
// Refreshes the reference if the run does so after `count` steps or updates.
inline void refresh_if_due(const RunSettings& run, PolicyParts& policy, ScheduleUnit unit, int64_t count) {
  const RefConfig& config = run.config.ref;
  if (!policy.reference_state || config.sync_unit != unit || count % *config.sync_steps != 0) return;
  refresh_reference(*policy.model, *policy.reference, config.mixup_alpha);
}

// A validation, and its rows.
struct ValRows {
  ValSet set;
  Dataset rows;
};

struct DataParts {
  std::optional<Dataset> train;
  std::vector<ValRows> val;
  ColumnTypes columns;  // the data's columns, as rewards see them
  std::optional<PromptSource> source;
  std::optional<Dataset> sft_mix_rows;        // sft_mix.files
  std::optional<PromptSource> sft_mix;        // one of them at a time
  std::optional<GroupFilter> filter;          // for algorithm.filter_groups
  std::optional<ReplayBuffer> replay_buffer;  // for algorithm.replay_buffer
  std::optional<OverSampling> over_sampling;  // for rollout.over_sampling
};

struct AdvantageParts {
  std::optional<AdvantageRunner> estimator;
  std::optional<KlEstimator> reward_kl;  // for algorithm.use_kl_in_reward
  std::optional<KlController> kl_controller;
};

struct LearnerParts {
  std::optional<Optimizer> optimizer;
  ScheduleOptions schedule;
  std::optional<ActorObjective> objective;
  std::optional<EntropyController> entropy_controller;
  ComputeUse compute;                         // what the learners' passes compute
  SampledForward* sampled_forward = nullptr;  // the policy's, for the first update of a step; null: it computes all
  std::optional<ActorLearner> learner;
};

// How far the run is.
struct RunProgress {
  explicit RunProgress(const RunConfig& config)
      : limits(config.trainer),
        best(config.trainer),
        policy_rate(config.actor.optim, "actor.optim"),
        critic_rate(config.critic.optim, "critic.optim") {}

  RunCounters counters;
  StepState step;
  CarriedRows carried;
  RolloutAhead ahead;
  StopLimits limits;
  OwedValidation owed_validation;
  BestValidation best;
  MetricSchedule policy_rate, critic_rate;
};

// What checkpoints hold in addition to their model folder.
struct SavedParts {
  PluginStates plugins;
  PluginStates rollout_plugins;               // those of plugins that sample and score
  RunInputs inputs;                           // inputs of a run that learns
  std::optional<AttentionChoices> attention;  // bfloat16 on a GPU alone
  StatefulRegistry stateful;                  // all of it
};

}  // namespace mortise
