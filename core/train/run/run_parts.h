// RunParts: the objects of a run, made once, in the order they depend on one another.
//
// This is the wiring alone: a stage takes the groups of parts that it needs (train/loop/stages.h), and what a part does
// is in its own room.
// Thread rule: one thread. Not movable: parts point at one another.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "experience/reward/reward_runner.h"
#include "plugin/host/registry.h"
#include "train/loop/critic.h"
#include "train/loop/parts.h"
#include "train/loop/stages.h"
#include "train/loop/validation.h"
#include "train/resume/checkpointing.h"
#include "train/sampling/round_ranks.h"
#include "train/sampling/sampler.h"

namespace mortise {

struct RunParts {
  RunParts(Env& env, const LoadedConfig& loaded, Communicator& ranks)
      : run(env, loaded, ranks), round_ranks(ranks), progress(loaded.config) {}
  RunParts(const RunParts&) = delete;
  RunParts& operator=(const RunParts&) = delete;
  ~RunParts();

  [[nodiscard]] CheckpointSource checkpoint_source() {
    const bool is_spread = run.ranks.size() > 1 && run.config.ranks.zero_stage > 0;
    return {run, *registry, policy, progress, saved.stateful, is_spread || policy.model->model_part() != nullptr};
  }

  RunSettings run;
  RoundRanks round_ranks;  // which sample and score
  std::optional<PluginRegistry> registry;
  PolicyParts policy;
  DataParts data;
  std::optional<Sampler> sampler;  // samples for training
  std::optional<RewardRunner> reward;
  std::optional<Validator> validator;  // where there is something to validate
  AdvantageParts advantage;
  LearnerParts learning;
  std::unique_ptr<Critic> critic;  // where the advantage estimator asks for values
  RunProgress progress;
  SavedParts saved;
};

// Makes the parts. `weights_from` is the folder to read the policy's weights from where it is not model.path (see
// resume_weights in resume.h).
Result<std::unique_ptr<RunParts>> assemble(Env& env, const LoadedConfig& loaded, Communicator& ranks,
                                           PluginRegistry registry, RunKind kind,
                                           const std::optional<Path>& weights_from);

// The packs that [plugins] names, and those found without.
Result<PluginRegistry> open_registry(const LoadedConfig& loaded);

// A plugin that keeps state over micro-batches would see only some of them on each rank. One that looks at the whole
// update sees it on every rank.
Result<> check_state_of_losses(const RunSettings& run, ActorObjective& objective);

// Every plugin name and plugin parameter that a user wrote, against the plugins' own tables: all that is wrong at once,
// each with the place where it was written. Warns of settings that a plugin can do little with.
Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded, RunKind kind);
// Only for the plugins of these kinds.
Result<> check_plugins(const PluginRegistry& registry, const LoadedConfig& loaded,
                       std::span<const std::string_view> kinds);

// What the plugins of a run that trains need and a device cannot do (config/device_rules.h). Nothing if a plugin is not
// there, which check_plugins says.
std::vector<Error> device_plugin_problems(const PluginRegistry& registry, const LoadedConfig& loaded);

}  // namespace mortise
