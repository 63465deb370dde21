#include "train/run_parts.h"

#include <mortise/ext/generate.h>

#include <algorithm>
#include <filesystem>

#include "config/check.h"
#include "experience/engine_params.h"
#include "experience/plugin_settings.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "generate/extension.h"
#include "learn/objective/actor_objective.h"
#include "model/tensor/peak_flops.h"
#include "model/tensor/torch_version.h"
#include "train/run_data.h"
#include "train/threads.h"

namespace mortise {

RunParts::~RunParts() {
  // Engines made for the backends end before the model that they read.
  rollout.reset();
  val_rollout.reset();
  install_generate_model(nullptr, {});
}

MicroBatchOptions micro_batch_options(const RunConfig& config) {
  // Larger passes cost memory and, on a CPU whose caches they overflow, time.
  constexpr int64_t kTokens = 2048;
  const ActorConfig& actor = config.actor;
  MicroBatchOptions options;
  options.token_budget = actor.ppo_max_token_len_per_gpu.value_or(
      std::max(kTokens, config.data.max_prompt_length + response_length(config)));
  if (actor.ppo_micro_batch_size_per_gpu && !actor.use_dynamic_bsz) options.rows = *actor.ppo_micro_batch_size_per_gpu;
  return options;
}

LearnerOptions learner_options(const RunConfig& config) {
  LearnerOptions options;
  options.temperature = config.rollout.temperature > 0.0 ? config.rollout.temperature : 1.0;
  options.grad_clip = config.actor.grad_clip;
  options.micro_batch = micro_batch_options(config);
  if (config.model.layers == "plain") options.pass.path = LayerPath::kPlain;
  if (config.model.enable_gradient_checkpointing)
    options.pass.activation_bytes = config.model.activation_memory_mib.value_or(0) << 20;
  return options;
}

MicroBatchOptions reference_pass_options(const RunConfig& config) {
  const RefConfig& ref = config.ref;
  RunConfig merged = config;
  ActorConfig& actor = merged.actor;
  if (ref.log_prob_micro_batch_size_per_gpu) actor.ppo_micro_batch_size_per_gpu = ref.log_prob_micro_batch_size_per_gpu;
  if (ref.log_prob_max_token_len_per_gpu) actor.ppo_max_token_len_per_gpu = ref.log_prob_max_token_len_per_gpu;
  actor.use_dynamic_bsz = ref.log_prob_use_dynamic_bsz.value_or(actor.use_dynamic_bsz);
  return micro_batch_options(merged);
}

SaveOptions save_options(const RunConfig& config) {
  const TrainerConfig& trainer = config.trainer;
  const bool has_adapter = config.model.lora_rank > 0 || config.model.lora_adapter_path;
  SaveOptions options;
  if (trainer.save_dtype != "train") options.dtype = trainer.save_dtype;
  if (trainer.max_shard_size) options.max_shard_bytes = parse_byte_size(*trainer.max_shard_size).value_or(0);
  if (has_adapter && !trainer.save_merged_lora) options.lora = LoraSave::kApart;
  // A relative path would lead elsewhere from the checkpoint's folder.
  options.base_model = std::filesystem::absolute(config.model.path).lexically_normal().string();
  return options;
}

Result<PluginRegistry> open_registry(const LoadedConfig& loaded) {
  return PluginRegistry::open(registry_options(loaded, kTorchVersion));
}

std::vector<OptimizedParameter> optimized_parameters(Model& model) {
  std::vector<OptimizedParameter> out;
  for (const NamedParameter& p : model.trainable()) out.push_back({p.name, p.tensor, p.decay});
  return out;
}

AdamWOptions adamw_options(const OptimConfig& optim) {
  return {optim.betas[0], optim.betas[1], optim.eps, optim.weight_decay};
}

ScheduleOptions schedule_options(const OptimConfig& optim, int64_t total_steps, int64_t updates_per_step) {
  ScheduleOptions out;
  out.type = optim.lr_scheduler_type;
  out.lr = optim.lr;
  out.total_units = optim.schedule_unit == "step" ? total_steps : total_steps * updates_per_step;
  out.warmup_units = resolve_warmup(optim.lr_warmup_steps, optim.lr_warmup_steps_ratio, out.total_units);
  out.min_lr_ratio = optim.min_lr_ratio;
  out.num_cycles = optim.num_cycles;
  return out;
}

namespace {

uint64_t sampling_seed(const RunConfig& config) {
  return static_cast<uint64_t>(config.rollout.seed.value_or(config.trainer.seed));
}

Result<> load_adapter(RunParts& parts) {
  const ModelSection& model = parts.config.model;
  if (parts.model->has_adapter() && (model.lora_rank > 0 || model.lora_adapter_path)) {
    return Error{ErrorKind::kConfig, "model.path is the folder of an adapter, and another one is to be trained",
                 parts.loaded.where("model.path"),
                 "name the base's folder, and the adapter as model.lora_adapter_path to go on from it"};
  }
  if (model.lora_adapter_path) {
    auto loaded = parts.model->train_lora(parts.env, *model.lora_adapter_path);
    if (!loaded.ok() && loaded.error().where.empty())
      loaded.error().where = parts.loaded.where("model.lora_adapter_path");
    return loaded;
  }
  if (model.lora_rank == 0) return {};
  const LoraChoice choice{model.lora_rank, model.lora_alpha, model.target_modules, model.exclude_modules};
  auto made = parts.model->train_lora(choice, parts.key.seed);
  if (!made.ok()) made.error().where = parts.loaded.where("model.target_modules");
  return made;
}

// The initial policy; of an adapter's run the base without it. `has_moved`: the model at hand is not the initial one.
Result<> load_reference(RunParts& parts, bool has_moved) {
  const RunConfig& config = parts.config;
  if (parts.model->trains_lora()) {
    parts.reference = parts.model->base_view();
  } else if (has_moved) {
    const Model initial = TRY(Model::load(parts.env, config.model.path, config.model.dtype));
    parts.reference = initial.clone_frozen();
    parts.reference->set_rope_length(parts.model->config().rope_length);
  } else {
    parts.reference = parts.model->clone_frozen();
  }
  return {};
}

// `weights_from` is a checkpoint's folder. What save_dtype "stored" means, model.path says.
Result<Model> load_policy(const RunParts& parts, const std::optional<Path>& weights_from) {
  const RunConfig& config = parts.config;
  if (!weights_from) return Model::load(parts.env, config.model.path, config.model.dtype);
  if (config.trainer.save_dtype != "stored") return Model::load(parts.env, *weights_from, config.model.dtype);
  Model model = TRY(Model::load(parts.env, config.model.path, config.model.dtype));
  TRY(model.read_weights(parts.env, *weights_from));
  return model;
}

Result<> load_model(RunParts& parts, RunKind kind, const std::optional<Path>& weights_from) {
  const RunConfig& config = parts.config;
  use_threads(config.trainer);
  parts.folder = TRY(PolicyFolder::load(parts.env, config));
  parts.encoder = parts.folder->encoder(config);
  if (kind != RunKind::kEval) TRY(check_policy(parts.env, config.model.path));
  parts.model = TRY(load_policy(parts, weights_from));
  // Sampling and training turn all sequences of the run alike, whatever their length.
  if (parts.model->config().rope_switch() > 0)
    parts.model->set_rope_length(config.data.max_prompt_length + response_length(config));
  TRY(load_adapter(parts));
  if (parts.model->trains_lora() || !TRY(parts.model->saves_exactly(save_options(config)))) {
    parts.model_state.emplace(ModelState::kPolicy, *parts.model);
    TRY(parts.stateful.add(*parts.model_state));
  }
  const bool wants_reference =
      kind == RunKind::kTrain && (config.actor.use_kl_loss || config.algorithm.use_kl_in_reward);
  return wants_reference ? load_reference(parts, weights_from.has_value()) : Result<>();
}

Result<> load_data(RunParts& parts, RunKind kind) {
  const RunConfig& config = parts.config;
  const RowSource rows{parts.env, parts.loaded, *parts.registry, *parts.encoder, parts.model->config(), kind};
  if (kind == RunKind::kTrain) {
    parts.train_data = TRY(load_train_prompts(rows));
    if (config.algorithm.filter_groups.enable) {
      parts.filter.emplace(config.algorithm.filter_groups, config.data.train_batch_size);
      TRY(parts.stateful.add(*parts.filter));
    }
    parts.source = TRY(PromptSource::create(*parts.train_data, train_source_options(config)));
  } else if (kind == RunKind::kSft) {
    parts.train_data = TRY(load_sft_rows(rows, parts.folder->tokenizer));
    parts.source = TRY(PromptSource::create(*parts.train_data, sft_source_options(config)));
  }
  if (!config.data.val_files.empty()) parts.val_data = TRY(load_val_prompts(rows));
  parts.columns = TRY(settle_columns(rows, parts.train_data ? &*parts.train_data : nullptr,
                                     parts.val_data ? &*parts.val_data : nullptr));
  return {};
}

Result<> load_rollout(RunParts& parts, RunKind kind) {
  const RunConfig& config = parts.config;
  const EngineOptions options = rollout_engine_options(config, &parts.folder->tokenizer);
  parts.sampling = TRY(rollout_sampling(config, parts.model->config(), options.tokenizer));
  install_generate_model(&*parts.model, options);
  register_host_extension(MORTISE_EXT_GENERATE, generate_extension());
  if (kind == RunKind::kTrain) {
    parts.rollout =
        TRY(at_place(parts.loaded.where("rollout.name"),
                     RolloutRunner::create(*parts.registry, config.rollout.name, config.rollout.params, parts.key)));
    parts.plugin_states.add("rollout:" + config.rollout.name, parts.rollout->backend().instance());
  }
  if (parts.val_data)
    parts.val_rollout = TRY(RolloutRunner::create(*parts.registry, "native", Json::object(), parts.key));
  return {};
}

// A reward that scores a whole step in one call has no row whose time could be taken.
void warn_of_row_timeouts(const RunParts& parts,
                          const std::vector<std::pair<std::string, RewardFunction*>>& functions) {
  for (size_t i = 0; i < functions.size(); ++i) {
    const std::string key = "reward." + std::to_string(i) + ".row_timeout";
    if (functions[i].second->granularity() != Granularity::kBatch || !parts.loaded.is_set(key)) continue;
    const Error warning{ErrorKind::kConfig,
                        "'row_timeout' has no effect: the reward scores the rows of a step in one call",
                        parts.loaded.where(key), "set timeout, or the reward's own limit for a row where it has one"};
    log_warn(warning.to_string());
  }
}

Result<> load_rewards(RunParts& parts, RunKind kind) {
  const PluginsConfig& plugins = parts.config.plugins;
  Json max_steps;  // null where nothing is trained
  if (kind == RunKind::kTrain) max_steps = plan_total_steps(parts.config, parts.train_data->size());
  std::vector<RewardSpec> specs;
  for (const RewardConfig& reward : parts.config.reward) {
    const PluginRef ref = TRY(parts.registry->find("reward", reward.use));
    const std::string where = parts.loaded.where("reward." + std::to_string(specs.size()));
    WorkerLimits limits = worker_limits(plugins, reward);
    limits.memory_where = parts.loaded.where("plugins.worker_memory_mib");
    specs.push_back({reward.use, reward.name, where, reward.weight, reward.timeout.count(), row_timeout_ms(reward),
                     std::move(limits), offer_params(*ref.plugin, reward.params, {{"max_steps", max_steps}})});
  }
  RunKey key = parts.key;
  // A step of training is ended first, with all its rewards; an evaluation has nothing to save.
  if (kind == RunKind::kEval) key.cancelled = &stop_flag();
  parts.reward =
      TRY(RewardRunner::create(*parts.registry, specs, key, plugins.max_failed_fraction, isolation_options(plugins)));
  parts.reward->use_columns(parts.columns);
  const std::vector<std::pair<std::string, RewardFunction*>> functions = parts.reward->functions();
  for (const auto& [name, function] : functions) parts.plugin_states.add(name, *function);
  warn_of_row_timeouts(parts, functions);
  return {};
}

Result<> load_learner(RunParts& parts) {
  const RunConfig& config = parts.config;
  const PluginRef estimator = TRY(parts.registry->find("advantage_estimator", config.algorithm.adv_estimator));
  const Json params = offer_params(*estimator.plugin, config.algorithm.adv_params,
                                   {{"norm_adv_by_std_in_grpo", config.algorithm.norm_adv_by_std_in_grpo},
                                    {"gamma", config.algorithm.gamma},
                                    {"lam", config.algorithm.lam}});
  parts.advantage =
      TRY(at_place(parts.loaded.where("algorithm.adv_estimator"),
                   AdvantageRunner::create(*parts.registry, config.algorithm.adv_estimator, params, parts.key)));
  parts.plugin_states.add("advantage:" + config.algorithm.adv_estimator, parts.advantage->instance());
  parts.objective = TRY(ActorObjective::create(*parts.registry, parts.loaded, parts.key));
  parts.plugin_states.add("policy_loss:" + config.actor.policy_loss.loss_mode,
                          parts.objective->policy_loss().instance());
  if (KlEstimator* const kl = parts.objective->kl())
    parts.plugin_states.add("kl_loss:" + config.actor.kl_loss_type, kl->instance());
  if (parts.objective->needs_reference() && !parts.reference) TRY(load_reference(parts, /*has_moved=*/true));
  if (config.algorithm.use_kl_in_reward) {
    parts.reward_kl = TRY(at_place(
        parts.loaded.where("algorithm.kl_penalty"),
        KlEstimator::create(*parts.registry, config.algorithm.kl_penalty, config.algorithm.kl_params, parts.key)));
    parts.plugin_states.add("kl_penalty:" + config.algorithm.kl_penalty, parts.reward_kl->instance());
  }
  parts.kl_controller.emplace(config.algorithm.kl_ctrl);
  TRY(parts.stateful.add(*parts.kl_controller));
  parts.entropy_controller.emplace(config.actor);
  if (parts.entropy_controller->is_adaptive()) TRY(parts.stateful.add(*parts.entropy_controller));
  if (config.ref.sync_steps && parts.reference) {
    parts.reference_state.emplace("ref.model", *parts.reference);
    TRY(parts.stateful.add(*parts.reference_state));
  }
  if (parts.advantage->info().requires_input("values")) TRY(load_critic(parts));
  parts.compute.peak_flops = measured_peak_flops(parts.model->dtype());
  LearnerOptions options = learner_options(config);
  options.pass.flops = &parts.compute.flops;
  if (parts.reference) options.reference = &*parts.reference;
  parts.learner.emplace(*parts.model, *parts.optimizer, *parts.objective, options);
  return {};
}

}  // namespace

Result<std::unique_ptr<RunParts>> assemble(Env& env, const LoadedConfig& loaded, PluginRegistry registry, RunKind kind,
                                           const std::optional<Path>& weights_from) {
  auto parts = std::make_unique<RunParts>(env, loaded);
  parts->counters.kind = kind == RunKind::kTrain ? "train" : kind == RunKind::kSft ? "sft" : "eval";
  parts->key.seed = static_cast<uint64_t>(loaded.config.trainer.seed);
  parts->key.check_writes = loaded.config.plugins.check;
  parts->registry = std::move(registry);
  TRY(check_plugins(*parts->registry, loaded, kind));
  TRY(load_model(*parts, kind, weights_from));
  TRY(load_data(*parts, kind));
  TRY(load_rollout(*parts, kind));
  if (!loaded.config.reward.empty()) TRY(load_rewards(*parts, kind));
  TRY(parts->stateful.add(parts->counters));
  TRY(parts->stateful.add(parts->plugin_states));
  if (kind == RunKind::kEval) return parts;
  TRY(parts->stateful.add(*parts->source));
  TRY(parts->stateful.add(parts->owed_validation));
  if (kind == RunKind::kTrain) {
    TRY(parts->stateful.add(parts->step));
    TRY(parts->stateful.add(parts->limits));
    parts->plan = plan_batches(loaded.config);
    parts->total_steps = plan_total_steps(loaded.config, parts->train_data->size());
  } else {
    parts->total_steps = loaded.config.sft.total_training_steps;
  }
  const OptimConfig& optim = loaded.config.actor.optim;
  parts->optimizer.emplace(optimized_parameters(*parts->model), adamw_options(optim));
  parts->schedule =
      schedule_options(optim, parts->total_steps, kind == RunKind::kTrain ? parts->plan.updates_per_step : 1);
  if (kind == RunKind::kTrain) TRY(load_learner(*parts));
  TRY(parts->stateful.add(*parts->optimizer));
  TRY(add_inputs(*parts));
  TRY(parts->stateful.add(parts->inputs));
  return parts;
}

bool takes_ref_log_prob(const RunParts& parts) {
  return parts.reference && (parts.reward_kl || parts.objective->needs_ref_log_prob());
}

RolloutPlan train_plan(const RunParts& parts) {
  const RolloutConfig& rollout = parts.config.rollout;
  RolloutPlan plan;
  plan.num_samples = rollout.n;
  plan.seed = sampling_seed(parts.config);
  plan.sampling = parts.sampling;
  plan.vocab_size = parts.model->config().vocab_size;
  return plan;
}

RolloutPlan val_plan(const RunParts& parts) {
  RolloutPlan plan = train_plan(parts);
  const ValKwargs& val = parts.config.rollout.val_kwargs;
  plan.num_samples = val.n;
  plan.stop_on_signal = parts.counters.kind == "eval";
  // Another stream than training's, so that a validation at step k does not see that step's random numbers.
  plan.seed = random_u64({plan.seed, RandomPurpose::kValidation});
  Sampling sampling;  // all other options are off
  sampling.max_new_tokens = parts.sampling.max_new_tokens;
  sampling.stop_ids = parts.sampling.stop_ids;
  sampling.stop_strings = parts.sampling.stop_strings;
  sampling.temperature = val.do_sample ? val.temperature : 0.0;
  sampling.top_k = val.top_k;
  sampling.top_p = val.top_p;
  plan.sampling = std::move(sampling);
  return plan;
}

}  // namespace mortise
