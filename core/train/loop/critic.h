// The critic of a run: loaded where the advantage estimator asks for values, and its two stages of a step.
#pragma once

#include <memory>
#include <string>

#include "config/run_config.h"
#include "foundation/batch/step_table.h"
#include "learn/optim/schedule.h"
#include "learn/update/critic_learner.h"
#include "model/adapters/lora_plan.h"
#include "plugin/pack/pack_info.h"
#include "train/loop/parts.h"
#include "train/resume/model_state.h"

namespace mortise {

struct Critic {
  Critic(Model model_in, const ParameterGroups& groups, const RunSettings& run, FlopCount* flops);
  Critic(const Critic&) = delete;
  Critic& operator=(const Critic&) = delete;

  Model model;
  Result<> spread;  // an error if its weights could not be read
  ModelState state;
  Optimizer optimizer;
  ScheduleOptions schedule;
  CriticLearner learner;
  int64_t rows_per_update = 1;
  int64_t num_epochs = 1;

 private:
  ZeroOptions spread_model(const RunSettings& run);
};

// A folder (also a reward model's adapter) with a head of one label is used as it is. A language model gets a new
// random head, by `seed`, instead of its own. Matrices may be unread (Model::open).
Result<Model> open_critic_model(Env& env, const Path& folder, const std::string& dtype, uint64_t seed);

// Does the estimator ask for values? A run then has a critic.
bool needs_critic(const PluginInfo& estimator);

// The adapter that it trains, with its head as a whole. Precondition: critic.model.lora_rank > 0, and no folder of an
// adapter.
LoraChoice critic_lora_choice(const CriticModelConfig& model);

// Refuses an adapter of a folder without a value head, which a critic continues, and one with dropout, because a
// critic has no dropout.
Result<> check_critic_plan(const LoadedConfig& loaded, const LoraPlan& plan);

// Does it share the policy's frozen base, in the same memory? Not with ranks.zero_stage = 3: ranks spread each model by
// itself.
bool shares_policy_base(const RunConfig& config);

// Where an Error about the adapter's settings is.
std::string critic_lora_place(const LoadedConfig& loaded, const Error& error);

// How its passes are cut: as [critic] says, else as the actor's.
MicroBatchOptions critic_pass_options(const RunConfig& config, bool by_operators);
// Rows of one of its updates; `plan` has the actor's.
int64_t critic_rows_per_update(const RunConfig& config, const BatchPlan& plan);
// Its updates in a step.
int64_t critic_updates_per_step(const RunConfig& config, const BatchPlan& plan);

// The config of such a model. An Error (kData) where the folder is no start for a critic.
Result<ModelConfig> critic_config(Env& env, const Path& folder);

// [critic] for this policy. `flops` counts what its passes compute.
Result<std::unique_ptr<Critic>> load_critic(const RunSettings& run, const Model& policy, FlopCount* flops);

// Puts the values of the response tokens into the table, before anything is learnt; nothing without a critic.
Result<> value_stage(const Critic* critic, StepTable& table, MetricSet& metrics);

// The critic's updates of the step towards the table's returns; nothing without one. Those that are skipped count
// towards trainer.nonfinite_update_limit, as the policy's.
Result<> critic_stage(const RunConfig& config, Critic* critic, const ComputeUse& compute, const StepTable& table,
                      int64_t step, RunProgress& progress, MetricSet& metrics);

}  // namespace mortise
