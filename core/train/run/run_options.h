// The configuration in the terms of the rooms below: how updates are computed, cut and scheduled, how models are saved.
// Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/run_config.h"
#include "learn/optim/optimizer.h"
#include "learn/optim/rounded_step.h"
#include "learn/optim/rules.h"
#include "learn/optim/schedule.h"
#include "learn/optim/weight_shards.h"
#include "learn/update/learner_options.h"
#include "model/model.h"
#include "train/run/parameter_groups.h"

namespace mortise {

// [*.optim] for parameters, which may be without memory, and their optimizer: those that are not frozen. `embedding` and
// `head`: the model's, which may be one.
std::vector<OptimizedParameter> optimized_parameters(std::span<const NamedParameter> parameters,
                                                     const at::Tensor& embedding, const at::Tensor& head,
                                                     const OptimConfig& optim, const ParameterGroups& groups);
std::unique_ptr<const UpdateRule> update_rule(const OptimConfig& optim);
// Supervised updates follow one another without samples between them, so that the state never rests.
[[nodiscard]] OptimConfig optim_of_sft(OptimConfig optim);
// The optimizer of a model that has to stay where it is. `rounding`: for optim.master_weights = false. With
// optim.offload = "file" it has no state until offload_optimizer() (offloading.h).
Optimizer make_optimizer(Model& model, const OptimConfig& optim, const ParameterGroups& groups, std::string state_name,
                         const ZeroOptions& zero, const RoundingSeed& rounding);
// The ranks that have the same weights of the policy if it is whole: with ZeRO those with the same part of its layers, else all.
Result<Communicator*> ranks_with_weights(const RunConfig& config, Communicator& ranks, const Model& model);
// The ranks that share the optimizer's state of the policy. An adapter is whole on every rank.
Result<Communicator*> ranks_of_part(const RunConfig& config, Communicator& ranks, const Model& model);
// How `ranks` share an optimizer's state.
ZeroOptions zero_options(const RunConfig& config, Communicator& ranks, const Model& model);
// ranks.zero_stage = 3 on several ranks: each rank has a part of the weights.
bool spreads_weights(const RunConfig& config, const Communicator& ranks);
// Losses that compare distributions over the whole vocabulary.
bool has_full_kl(const RunConfig& config);
bool has_teacher_loss(const RunConfig& config);
// Such ranks read embedding and head in windows of so many bytes (learn/optim/matrix_windows.h); 0: they gather them whole.
// Passes on devices read whole heads.
int64_t vocabulary_window_bytes(const RunConfig& config, bool by_operators);
// Does each rank keep only some of a policy's numbers, so that it reads them part by part?
bool reads_by_parts(const RunConfig& config, const Communicator& ranks);
// Keeps this rank's part of the weights that `optim` trains, if so. `ranks`: those of ranks_with_weights(). The model has to
// stay where it is. What is unread of it is read.
Result<> spread_weights(const RunConfig& config, Communicator& ranks, const OptimConfig& optim, Model& model);
// Ranks that share the layers of the policy and its reference. 1: each has whole layers.
[[nodiscard]] int tensor_size(const RunConfig& config, const Communicator& ranks);
// Keeps this rank's part of the layers, if ranks share them.
void split_layers(const RunConfig& config, Communicator& ranks, Model& model);
// Those that sample the same rows together (rollout.tensor_model_parallel_size); null: each rank samples alone.
std::shared_ptr<TensorRanks> rollout_ranks(const RunConfig& config, Communicator& ranks, const Model& policy);
// What rollouts and validations need in memory while they run: all weights of the policy, unless ranks sample together
// with the parts that they have in updates: in the same groups.
Result<WholeWeights> weights_to_sample(const RunConfig& config, const Model& policy);
ScheduleOptions schedule_options(const OptimConfig& optim, int64_t total_steps, int64_t total_updates);

// The settings that an adapter of the policy and one of the critic both have. No meaning if lora_rank is 0.
template <class Section>
LoraChoice plain_lora_choice(const Section& model) {
  LoraChoice choice;
  choice.rank = model.lora_rank;
  choice.alpha = model.lora_alpha;
  choice.target_modules = model.target_modules;
  choice.exclude_modules = model.exclude_modules;
  choice.target_parameters = model.target_parameters;
  return choice;
}
// The adapter that [model] asks for.
LoraChoice lora_choice(const ModelSection& model);
// Where the file has the setting that an error of such a choice is about.
std::string lora_place(const LoadedConfig& loaded, const Error& error);

// How the run's model folders are saved.
SaveOptions save_options(const RunConfig& config);

// How updates (also of sft) are computed, cut into passes, and shared by ranks. `by_operators`, here and below: the run has
// the code of a device (ComputeDevice).
LearnerOptions learner_options(const RunConfig& config, bool by_operators, Communicator& ranks = alone());
// The group of ranks that share the tokens of a pass. Null: there is none, or this process is alone.
// `tensor_size`: how many share the layers.
std::shared_ptr<SequenceGroup> sequence_group(Communicator& ranks, int64_t size, int tensor_size = 1);
MicroBatchOptions micro_batch_options(const RunConfig& config, bool by_operators);
// The same of the reference's passes, [ref] over [actor].
MicroBatchOptions reference_pass_options(const RunConfig& config, bool by_operators);

}  // namespace mortise
