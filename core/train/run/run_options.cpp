// Converts the configuration to the options of learning, saving and scheduling.
#include "train/run/run_options.h"

#include <algorithm>
#include <filesystem>

#include "config/check.h"
#include "config/full_kl.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "learn/optim/weight_shards.h"
#include "learn/update/tensor_group.h"
#include "train/run/sequence_rules.h"

namespace mortise {

MicroBatchOptions micro_batch_options(const RunConfig& config, bool by_operators) {
  const ActorConfig& actor = config.actor;
  MicroBatchOptions options;
  const int64_t num_ranks = actor.ulysses_sequence_parallel_size;  // each has a part of the tokens
  options.token_budget = actor.ppo_max_token_len_per_gpu
                             ? *actor.ppo_max_token_len_per_gpu * num_ranks
                             : std::max(default_pass_tokens(by_operators) * num_ranks,
                                        config.data.max_prompt_length + response_length(config));
  if (actor.ppo_micro_batch_size_per_gpu && !actor.use_dynamic_bsz) options.rows = *actor.ppo_micro_batch_size_per_gpu;
  return options;
}

std::shared_ptr<SequenceGroup> sequence_group(Communicator& ranks, int64_t size, int tensor_size) {
  if (size == 1 || ranks.size() == 1) return nullptr;
  return std::make_shared<SequenceGroup>(ranks, static_cast<int>(size), tensor_size);
}

LearnerOptions learner_options(const RunConfig& config, bool by_operators, Communicator& ranks) {
  LearnerOptions options;
  options.ranks = {&ranks, config.trainer.deterministic};
  options.ranks.tensor_size = tensor_size(config, ranks);
  const int tensor = options.ranks.tensor_size;
  options.share_tokens(sequence_group(ranks, config.actor.ulysses_sequence_parallel_size, tensor));
  options.reference_sequence = sequence_group(ranks, reference_sequence_size(config), tensor);
  options.temperature = config.rollout.temperature > 0.0 ? config.rollout.temperature : 1.0;
  options.grad_clip = config.actor.grad_clip;
  options.seed = static_cast<uint64_t>(config.trainer.seed);
  options.pass.noise_alpha = config.actor.neftune_noise_alpha.value_or(0.0);
  options.micro_batch = micro_batch_options(config, by_operators);
  // The head of one process, or of ranks that have all of it, then gives the bits of ranks that have a part.
  if (config.trainer.deterministic) options.head.window_bytes = vocabulary_window_bytes(config, /*by_operators=*/false);
  options.router_losses = {config.actor.router_aux_loss_coef, config.actor.router_z_loss_coef};
  if (config.model.layers == LayerPasses::kPlain) options.pass.path = LayerPath::kPlain;
  if (config.model.enable_gradient_checkpointing)
    options.pass.activation_bytes = config.model.activation_memory_mib.value_or(0) << 20;
  return options;
}

MicroBatchOptions reference_pass_options(const RunConfig& config, bool by_operators) {
  const RefConfig& ref = config.ref;
  RunConfig merged = config;
  ActorConfig& actor = merged.actor;
  if (ref.log_prob_micro_batch_size_per_gpu) actor.ppo_micro_batch_size_per_gpu = ref.log_prob_micro_batch_size_per_gpu;
  if (ref.log_prob_max_token_len_per_gpu) actor.ppo_max_token_len_per_gpu = ref.log_prob_max_token_len_per_gpu;
  actor.use_dynamic_bsz = ref.log_prob_use_dynamic_bsz.value_or(actor.use_dynamic_bsz);
  actor.ulysses_sequence_parallel_size = reference_sequence_size(config);
  return micro_batch_options(merged, by_operators);
}

LoraChoice lora_choice(const ModelSection& model) {
  LoraChoice choice = plain_lora_choice(model);
  choice.dropout = model.lora_dropout;
  choice.use_rslora = model.use_rslora;
  choice.use_dora = model.use_dora;
  choice.init = model.init_lora_weights;
  choice.layers_to_transform = model.layers_to_transform;
  choice.rank_pattern = model.rank_pattern;
  choice.alpha_pattern = model.alpha_pattern;
  choice.modules_to_save = model.modules_to_save;
  choice.bias = model.lora_bias;
  return choice;
}

std::string lora_place(const LoadedConfig& loaded, const Error& error) {
  return loaded.where("model." + (error.where.empty() ? "target_modules" : error.where));
}

SaveOptions save_options(const RunConfig& config) {
  const TrainerConfig& trainer = config.trainer;
  SaveOptions options;
  if (trainer.save_dtype != SaveDtype::kTrain) options.dtype = choice_name(trainer.save_dtype);
  if (trainer.max_shard_size) options.max_shard_bytes = parse_byte_size(*trainer.max_shard_size).value_or(0);
  if (config.model.trains_adapter() && !trainer.save_merged_lora) options.lora = LoraSave::kApart;
  // A relative path would lead elsewhere from the checkpoint's folder.
  options.base_model = std::filesystem::absolute(config.model.path).lexically_normal().string();
  return options;
}

std::vector<OptimizedParameter> optimized_parameters(std::span<const NamedParameter> parameters,
                                                     const at::Tensor& embedding, const at::Tensor& head,
                                                     const OptimConfig& optim, const ParameterGroups& groups) {
  std::vector<OptimizedParameter> out;
  for (const NamedParameter& p : parameters) {
    if (is_frozen(groups, p.name)) continue;
    OptimizedParameter& one =
        out.emplace_back(OptimizedParameter{p.name, p.tensor, p.decay || optim.decay_all_parameters});
    if (const auto found = groups.find(p.name); found != groups.end()) {
      one.lr_scale = found->second.lr_scale;
      one.weight_decay = found->second.weight_decay;
      one.uses_muon = found->second.uses_muon;
    }
    // Storages, because weights that are spread over ranks have no address now.
    if (p.tensor.storage().is_alias_of(embedding.storage()))
      one.role = ParameterRole::kEmbedding;
    else if (p.tensor.storage().is_alias_of(head.storage()))
      one.role = ParameterRole::kHead;
  }
  return out;
}

std::unique_ptr<const UpdateRule> update_rule(const OptimConfig& optim) {
  const AdamWOptions adamw{optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
  switch (optim.optimizer) {
    case OptimizerName::kAdamW:
      break;
    case OptimizerName::kAdamW8Bit:
      return make_adamw_8bit({adamw, optim.min_8bit_size, optim.quantize_embeddings});
    case OptimizerName::kAdafactor:
      return make_adafactor({optim.adafactor_eps[0], optim.adafactor_eps[1], optim.clip_threshold, optim.decay_rate,
                             optim.adafactor_beta1, optim.scale_parameter, optim.relative_step, optim.warmup_init});
    case OptimizerName::kLion:
      return make_lion({optim.betas[0], optim.betas[1]});
    case OptimizerName::kMuon:
      return make_muon({adamw, optim.momentum.value_or(0.95), optim.nesterov.value_or(true), optim.ns_steps,
                        optim.adjust_lr_fn == MuonLr::kMatchRmsAdamW});
    case OptimizerName::kSgd:
      return make_sgd({optim.momentum.value_or(0.0), optim.dampening, optim.nesterov.value_or(false)});
  }
  return make_adamw(adamw);
}

namespace {

StateMemory state_memory(StateOffloading offload, bool is_on_device) {
  if (offload == StateOffloading::kFile) return StateMemory::kLater;
  return offload == StateOffloading::kWhileSampling && is_on_device ? StateMemory::kHost : StateMemory::kNow;
}

}  // namespace

OptimConfig optim_of_sft(OptimConfig optim) {
  if (optim.offload == StateOffloading::kWhileSampling) optim.offload = StateOffloading::kNone;
  return optim;
}

Optimizer make_optimizer(Model& model, const OptimConfig& optim, const ParameterGroups& groups, std::string state_name,
                         const ZeroOptions& zero, const RoundingSeed& rounding) {
  std::vector<OptimizedParameter> parameters =
      optimized_parameters(model.trainable(), model.embedding_weight(), model.head_weight(), optim, groups);
  Optimizer out(std::move(parameters), update_rule(optim), optim.weight_decay, std::move(state_name), zero,
                state_memory(optim.offload, model.device().by_operators));
  if (optim.master_weights || !model.has_rounded_matrices() || model.trains_lora()) return out;
  model.drop_masters();
  out.step_rounded(std::make_shared<const RoundedStep>(model, out.parameters(), rounding));
  return out;
}

Result<Communicator*> ranks_with_weights(const RunConfig& config, Communicator& ranks, const Model& model) {
  if (model.model_part() == nullptr || config.ranks.zero_stage == 0) return &ranks;
  return ranks.strided(model.model_part()->ranks()->size());
}

Result<Communicator*> ranks_of_part(const RunConfig& config, Communicator& ranks, const Model& model) {
  Communicator* const same = TRY(ranks_with_weights(config, ranks, model));
  return same->size() == 1 && model.trains_lora() ? &ranks : same;
}

ZeroOptions zero_options(const RunConfig& config, Communicator& ranks, const Model& model) {
  const ModelPart* const part = model.model_part();
  if (!model.trains_lora()) return {&ranks, config.ranks.zero_stage, shards_of(model), part};
  ZeroOptions zero{&ranks, config.ranks.zero_stage};
  if (part == nullptr) return zero;
  // Every rank of a group has the whole adapter. One group alone shares nothing.
  if (part->ranks()->num_groups() == 1) zero.stage = 0;
  zero.saves = part->ranks()->rank() == 0;
  return zero;
}

bool spreads_weights(const RunConfig& config, const Communicator& ranks) {
  return config.ranks.zero_stage >= 3 && ranks.size() > 1;
}

bool has_full_kl(const RunConfig& config) { return config.actor.use_kl_loss && config.actor.kl_loss_type == kFullKl; }

bool has_teacher_loss(const RunConfig& config) { return config.teacher.path && config.teacher.loss_coef > 0; }

int64_t vocabulary_window_bytes(const RunConfig& config, bool by_operators) {
  return by_operators ? 0 : config.ranks.window_bytes;
}

bool reads_by_parts(const RunConfig& config, const Communicator& ranks) {
  return spreads_weights(config, ranks) || tensor_size(config, ranks) > 1;
}

Result<> spread_weights(const RunConfig& config, Communicator& ranks, const OptimConfig& optim, Model& model) {
  if (!spreads_weights(config, ranks)) return model.read_parts();
  const bool whole =
      model.model_part() != nullptr || (!model.trains_lora() && update_rule(optim)->needs_whole_parameters());
  return WeightShards::spread(model, ranks, whole ? ShardCut::kTensors : ShardCut::kBlocks,
                              /*keeps_base=*/config.model.layers == LayerPasses::kPlain,
                              vocabulary_window_bytes(config, model.device().by_operators))
      ->status();
}

int tensor_size(const RunConfig& config, const Communicator& ranks) {
  return ranks.size() == 1 ? 1 : static_cast<int>(config.actor.tensor_model_parallel_size);
}

void split_layers(const RunConfig& config, Communicator& ranks, Model& model) {
  const int size = tensor_size(config, ranks);
  if (size > 1) model.split_layers(std::make_shared<TensorGroup>(ranks, size));
}

std::shared_ptr<TensorRanks> rollout_ranks(const RunConfig& config, Communicator& ranks, const Model& policy) {
  const auto size = static_cast<int>(config.rollout.tensor_model_parallel_size);
  if (size == 1) return nullptr;
  auto group = std::make_shared<TensorGroup>(ranks, size);
  return policy.has_part_of(group.get()) ? policy.model_part()->ranks() : group;
}

Result<WholeWeights> weights_to_sample(const RunConfig& config, const Model& policy) {
  const ModelPart* const part = policy.model_part();
  const bool has_part = part != nullptr && part->ranks()->size() == config.rollout.tensor_model_parallel_size;
  return WholeWeights::gather({&policy}, has_part ? GatheredLayers::kOwnLayers : GatheredLayers::kWhole,
                              GatheredMasters::kNo);
}

ScheduleOptions schedule_options(const OptimConfig& optim, int64_t total_steps, int64_t total_updates) {
  ScheduleOptions out;
  out.type = optim.lr_scheduler_type;
  out.lr = optim.lr;
  out.first_unit = optim.schedule_from_one ? 1 : 0;
  out.is_length_given = optim.lr_decay_steps >= 0;
  out.total_units = out.is_length_given                          ? optim.lr_decay_steps
                    : optim.schedule_unit == ScheduleUnit::kStep ? total_steps
                                                                 : total_updates;
  out.warmup_units = resolve_warmup(optim.lr_warmup_steps, optim.lr_warmup_steps_ratio, out.total_units);
  out.warmup_init_ratio = optim.lr_warmup_init_ratio;
  out.warmup = optim.lr_warmup_style;
  out.min_lr_ratio = optim.min_lr_ratio;
  out.num_cycles = optim.num_cycles;
  out.power = optim.power;
  out.timescale = resolve_timescale(optim.timescale, out.warmup_units);
  out.decay_units =
      resolve_decay(optim.lr_wsd_decay_steps, out.warmup_units, out.total_units, optim.lr_wsd_stable_ratio);
  out.decay = optim.lr_wsd_decay_style;
  return out;
}

}  // namespace mortise
