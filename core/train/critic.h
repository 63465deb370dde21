// The critic of a run: loaded where the advantage estimator asks for values, and its two stages of a step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "experience/selection/experience.h"
#include "foundation/batch/advantage_batch.h"
#include "learn/optim/schedule.h"
#include "learn/update/critic_learner.h"
#include "train/model_state.h"

namespace mortise {

struct RunParts;

struct Critic {
  Critic(Model model_in, const RunConfig& config, int64_t total_steps, FlopCount* flops);
  Critic(const Critic&) = delete;
  Critic& operator=(const Critic&) = delete;

  Model model;
  ModelState state;
  AdamW optimizer;
  ScheduleOptions schedule;
  CriticLearner learner;
  int64_t rows_per_update = 1;
  int64_t num_epochs = 1;
};

// A folder (also that of a reward model's adapter) with a head of one label as it is; a language model gets a fresh
// head, random by `seed`, in place of its own.
Result<Model> load_critic_model(Env& env, const Path& folder, const std::string& dtype, uint64_t seed);

// How its passes are cut: as [critic] says, else as the actor's.
MicroBatchOptions critic_pass_options(const RunConfig& config);

// The config of such a model. An Error (kData) where the folder is no start for a critic.
Result<ModelConfig> critic_config(Env& env, const Path& folder);

// Makes parts.critic and adds its state to the checkpoint's.
Result<> load_critic(RunParts& parts);

// [N] values of the response tokens, before anything is learnt; empty without a critic.
Result<std::vector<float>> value_stage(RunParts& parts, const Experience& experience, MetricSet& metrics);

// The critic's updates of the step; nothing without one.
Result<> critic_stage(RunParts& parts, const Experience& experience, const AdvantageBatch& advantages,
                      const std::vector<float>& values, int64_t step, MetricSet& metrics);

}  // namespace mortise
