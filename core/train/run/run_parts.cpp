// Makes the objects of a run in the order of their dependencies.
#include "train/run/run_parts.h"

#include <fmt/core.h>

#include <mortise/ext/generate.h>

#include "config/check.h"
#include "config/fields.h"
#include "experience/engine_params.h"
#include "experience/plugin_settings.h"
#include "foundation/base/at_place.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "generate/extension.h"
#include "learn/objective/actor_objective.h"
#include "model/tensor/peak_flops.h"
#include "model/tensor/torch_version.h"
#include "train/run/admission.h"
#include "train/run/run_data.h"
#include "train/run/run_options.h"
#include "train/run/threads.h"

namespace mortise {

RunParts::~RunParts() {
  // Engines made for the backends end before the model that they read.
  sampler.reset();
  validator.reset();
  install_generate_model(nullptr, {});
}

Result<PluginRegistry> open_registry(const LoadedConfig& loaded) {
  return open_admitted(loaded, registry_options(loaded, kTorchVersion));
}

namespace {

std::string dtype_of(const RunConfig& config) { return std::string(choice_name(config.model.dtype)); }

uint64_t sampling_seed(const RunConfig& config) {
  return static_cast<uint64_t>(config.rollout.seed.value_or(config.trainer.seed));
}

Result<> load_adapter(RunParts& parts) {
  const ModelSection& model = parts.run.config.model;
  if (parts.policy.model->has_adapter() && (model.lora_rank > 0 || model.lora_adapter_path)) {
    return Error{ErrorKind::kConfig, "model.path is the folder of an adapter, and another one is to be trained",
                 parts.run.loaded.where("model.path"),
                 "name the base's folder, and the adapter as model.lora_adapter_path to go on from it"};
  }
  if (model.lora_adapter_path) {
    auto loaded = parts.policy.model->train_lora(parts.run.env, *model.lora_adapter_path);
    if (!loaded.ok() && loaded.error().where.empty())
      loaded.error().where = parts.run.loaded.where("model.lora_adapter_path");
    return loaded;
  }
  if (model.lora_rank == 0) return {};
  auto made = parts.policy.model->train_lora(lora_choice(model), parts.run.key.seed);
  if (!made.ok()) made.error().where = parts.run.loaded.where("model.target_modules");
  return made;
}

// The initial policy; for an adapter's run the base without it. `has_moved`: the current model is not the initial one.
Result<> load_reference(RunParts& parts, bool has_moved) {
  const RunConfig& config = parts.run.config;
  if (parts.policy.model->trains_lora()) {
    parts.policy.reference = parts.policy.model->base_view();
  } else if (has_moved) {
    const Model initial = TRY(Model::load(parts.run.env, config.model.path, dtype_of(config)));
    parts.policy.reference = initial.clone_frozen();
    parts.policy.reference->set_rope_length(parts.policy.model->config().rope_length);
  } else {
    parts.policy.reference = parts.policy.model->clone_frozen();
  }
  return {};
}

// `weights_from` is a checkpoint's folder. What save_dtype "stored" means, model.path says.
Result<Model> load_policy(const RunParts& parts, const std::optional<Path>& weights_from) {
  const RunConfig& config = parts.run.config;
  if (!weights_from) return Model::load(parts.run.env, config.model.path, dtype_of(config));
  if (config.trainer.save_dtype != SaveDtype::kStored)
    return Model::load(parts.run.env, *weights_from, dtype_of(config));
  Model model = TRY(Model::load(parts.run.env, config.model.path, dtype_of(config)));
  TRY(model.read_weights(parts.run.env, *weights_from));
  return model;
}

Result<> load_model(RunParts& parts, RunKind kind, const std::optional<Path>& weights_from) {
  const RunConfig& config = parts.run.config;
  use_threads(config.trainer);
  parts.policy.folder = TRY(PolicyFolder::load(parts.run.env, config));
  parts.policy.encoder = parts.policy.folder->encoder(config);
  if (kind != RunKind::kEval) TRY(check_policy(parts.run.env, config.model.path));
  parts.policy.model = TRY(load_policy(parts, weights_from));
  // Sampling and training turn all sequences of the run alike, whatever their length.
  if (parts.policy.model->config().rope_switch() > 0)
    parts.policy.model->set_rope_length(config.data.max_prompt_length + response_length(config));
  TRY(load_adapter(parts));
  if (parts.policy.model->trains_lora() || !TRY(parts.policy.model->saves_exactly(save_options(config)))) {
    parts.policy.model_state.emplace(ModelState::kPolicy, *parts.policy.model);
    TRY(parts.saved.stateful.add(*parts.policy.model_state));
  }
  const bool wants_reference =
      kind == RunKind::kTrain && (config.actor.use_kl_loss || config.algorithm.use_kl_in_reward);
  return wants_reference ? load_reference(parts, weights_from.has_value()) : Result<>();
}

Result<> load_data(RunParts& parts, RunKind kind) {
  const RunConfig& config = parts.run.config;
  const RowSource rows{
      parts.run.env, parts.run.loaded, *parts.registry, *parts.policy.encoder, parts.policy.model->config(), kind};
  if (kind == RunKind::kTrain) {
    parts.data.train = TRY(load_train_prompts(rows));
    if (config.algorithm.filter_groups.enable) {
      parts.data.filter.emplace(config.algorithm.filter_groups, config.data.train_batch_size);
      TRY(parts.saved.stateful.add(*parts.data.filter));
    }
    parts.data.source = TRY(PromptSource::create(*parts.data.train, train_source_options(config)));
  } else if (kind == RunKind::kSft) {
    parts.data.train = TRY(load_sft_rows(rows, parts.policy.folder->tokenizer));
    parts.data.source = TRY(PromptSource::create(*parts.data.train, sft_source_options(config)));
  }
  if (!config.data.val_files.empty()) parts.data.val = TRY(load_val_prompts(rows));
  parts.data.columns = TRY(settle_columns(rows, parts.data.train ? &*parts.data.train : nullptr,
                                          parts.data.val ? &*parts.data.val : nullptr));
  return {};
}

// How training samples.
RolloutPlan train_plan(const RunParts& parts, const Sampling& sampling) {
  RolloutPlan plan;
  plan.num_samples = parts.run.config.rollout.n;
  plan.seed = sampling_seed(parts.run.config);
  plan.sampling = sampling;
  plan.vocab_size = parts.policy.model->config().vocab_size;
  return plan;
}

RolloutPlan val_plan(const RunParts& parts, const Sampling& of_training) {
  RolloutPlan plan = train_plan(parts, of_training);
  const ValKwargs& val = parts.run.config.rollout.val_kwargs;
  plan.num_samples = val.n;
  plan.stop_on_signal = parts.run.kind == RunKind::kEval;
  // Another stream than training's, so that a validation at step k does not see that step's random numbers.
  plan.seed = random_u64({plan.seed, RandomPurpose::kValidation});
  Sampling sampling;  // all other options are off
  sampling.max_new_tokens = of_training.max_new_tokens;
  sampling.stop_ids = of_training.stop_ids;
  sampling.stop_strings = of_training.stop_strings;
  sampling.temperature = val.do_sample ? val.temperature : 0.0;
  sampling.top_k = val.top_k;
  sampling.top_p = val.top_p;
  plan.sampling = std::move(sampling);
  return plan;
}

// Gives the sampling options of [rollout].
Result<Sampling> load_rollout(RunParts& parts) {
  const RunConfig& config = parts.run.config;
  const Tokenizer& tokenizer = parts.policy.folder->tokenizer;
  const Model& model = *parts.policy.model;
  const EngineOptions options = rollout_engine_options(config, &tokenizer);
  Sampling sampling = TRY(rollout_sampling(config, model.config(), options.tokenizer));
  install_generate_model(&*parts.policy.model, options);
  register_host_extension(MORTISE_EXT_GENERATE, generate_extension());
  if (parts.run.kind != RunKind::kTrain) return sampling;
  RolloutRunner runner =
      TRY(at_place(parts.run.loaded.where("rollout.name"),
                   RolloutRunner::create(*parts.registry, config.rollout.name, config.rollout.params, parts.run.key)));
  parts.sampler.emplace(std::move(runner), train_plan(parts, sampling), tokenizer, model, config, parts.run.ranks);
  parts.saved.plugins.add("rollout:" + config.rollout.name, parts.sampler->backend().instance());
  return sampling;
}

Result<> load_validator(RunParts& parts, const Sampling& sampling) {
  if (!parts.data.val || !parts.reward) return {};
  RolloutRunner runner =
      TRY(RolloutRunner::create(*parts.registry, RolloutConfig().name, Json::object(), parts.run.key));
  parts.validator.emplace(Validator{parts.run.config, *parts.data.val, parts.policy.folder->tokenizer, *parts.reward,
                                    std::move(runner), val_plan(parts, sampling), parts.run.ranks});
  return {};
}

// A reward that scores a whole step in one call has no time per row.
void warn_of_row_timeouts(const RunParts& parts,
                          const std::vector<std::pair<std::string, RewardFunction*>>& functions) {
  for (size_t i = 0; i < functions.size(); ++i) {
    const std::string key = fmt::format("reward.{}.row_timeout", i);
    if (functions[i].second->granularity() != Granularity::kBatch || !parts.run.loaded.is_set(key)) continue;
    const Error warning{
        ErrorKind::kConfig, "'row_timeout' has no effect: the reward scores the rows of a step in one call",
        parts.run.loaded.where(key), "set timeout, or the reward's own limit for a row where it has one"};
    log_warn(warning.to_string());
  }
}

Result<> load_rewards(RunParts& parts, RunKind kind) {
  const PluginsConfig& plugins = parts.run.config.plugins;
  Json max_steps;  // null where nothing is trained
  if (kind == RunKind::kTrain) max_steps = plan_total_steps(parts.run.config, parts.data.train->size());
  std::vector<RewardSpec> specs;
  for (const RewardConfig& reward : parts.run.config.reward) {
    const PluginRef ref = TRY(parts.registry->find("reward", reward.use));
    const std::string where = parts.run.loaded.where("reward." + std::to_string(specs.size()));
    WorkerLimits limits = worker_limits(plugins, reward);
    limits.memory_where = parts.run.loaded.where("plugins.worker_memory_mib");
    specs.push_back({reward.use, reward.name, where, reward.weight, reward.timeout.count(), row_timeout_ms(reward),
                     std::move(limits), offer_params(*ref.plugin, reward.params, {{"max_steps", max_steps}})});
  }
  RunKey key = parts.run.key;
  // A step of training is ended first, with all its rewards; an evaluation has nothing to save.
  if (kind == RunKind::kEval) key.cancelled = &stop_flag();
  parts.reward =
      TRY(RewardRunner::create(*parts.registry, specs, key, plugins.max_failed_fraction, isolation_options(plugins)));
  parts.reward->use_columns(parts.data.columns);
  ScoreRanks ranks;
  ranks.rank = parts.run.ranks.rank();
  ranks.size = parts.run.ranks.size();
  ranks.exchange = [&communicator = parts.run.ranks](const std::string& own) {
    return communicator.exchange(own, "rewards");
  };
  TRY(parts.reward->use_ranks(std::move(ranks)));
  const std::vector<std::pair<std::string, RewardFunction*>> functions = parts.reward->functions();
  for (const auto& [name, function] : functions) parts.saved.plugins.add(name, *function);
  warn_of_row_timeouts(parts, functions);
  return {};
}

Result<> load_learner(RunParts& parts) {
  const RunConfig& config = parts.run.config;
  const PluginRef estimator = TRY(parts.registry->find("advantage_estimator", config.algorithm.adv_estimator));
  const Json params =
      offer_params(*estimator.plugin, config.algorithm.adv_params, offered_params(config, "advantage_estimator"));
  parts.advantage.estimator =
      TRY(at_place(parts.run.loaded.where("algorithm.adv_estimator"),
                   AdvantageRunner::create(*parts.registry, config.algorithm.adv_estimator, params, parts.run.key)));
  parts.saved.plugins.add("advantage:" + config.algorithm.adv_estimator, parts.advantage.estimator->instance());
  parts.learning.objective = TRY(ActorObjective::create(*parts.registry, parts.run.loaded, parts.run.key));
  parts.saved.plugins.add("policy_loss:" + config.actor.policy_loss.loss_mode,
                          parts.learning.objective->policy_loss().instance());
  if (KlEstimator* const kl = parts.learning.objective->kl())
    parts.saved.plugins.add("kl_loss:" + config.actor.kl_loss_type, kl->instance());
  TRY(check_state_of_losses(parts.run, *parts.learning.objective));
  if (parts.learning.objective->needs_reference() && !parts.policy.reference)
    TRY(load_reference(parts, /*has_moved=*/true));
  if (config.algorithm.use_kl_in_reward) {
    parts.advantage.reward_kl = TRY(at_place(
        parts.run.loaded.where("algorithm.kl_penalty"),
        KlEstimator::create(*parts.registry, config.algorithm.kl_penalty, config.algorithm.kl_params, parts.run.key)));
    parts.saved.plugins.add("kl_penalty:" + config.algorithm.kl_penalty, parts.advantage.reward_kl->instance());
  }
  parts.advantage.kl_controller.emplace(config.algorithm.kl_ctrl);
  TRY(parts.saved.stateful.add(*parts.advantage.kl_controller));
  parts.learning.entropy_controller.emplace(config.actor);
  if (parts.learning.entropy_controller->is_adaptive())
    TRY(parts.saved.stateful.add(*parts.learning.entropy_controller));
  if (config.ref.sync_steps && parts.policy.reference) {
    parts.policy.reference_state.emplace("ref.model", *parts.policy.reference);
    TRY(parts.saved.stateful.add(*parts.policy.reference_state));
  }
  if (parts.advantage.estimator->info().requires_input(column::Values::name)) {
    parts.critic = TRY(load_critic(parts.run, *parts.policy.model, &parts.learning.compute.flops));
    TRY(parts.saved.stateful.add(parts.critic->state));
    TRY(parts.saved.stateful.add(parts.critic->optimizer));
  }
  parts.learning.compute.peak_flops = measured_peak_flops(parts.policy.model->dtype());
  LearnerOptions options = learner_options(config, parts.run.ranks);
  options.pass.flops = &parts.learning.compute.flops;
  if (parts.policy.reference) options.reference = &*parts.policy.reference;
  parts.learning.learner.emplace(*parts.policy.model, *parts.learning.optimizer, *parts.learning.objective, options);
  return {};
}

}  // namespace

Result<std::unique_ptr<RunParts>> assemble(Env& env, const LoadedConfig& loaded, Communicator& ranks,
                                           PluginRegistry registry, RunKind kind,
                                           const std::optional<Path>& weights_from) {
  auto parts = std::make_unique<RunParts>(env, loaded, ranks);
  parts->run.kind = kind;
  parts->progress.counters.kind = kind == RunKind::kTrain ? "train" : kind == RunKind::kSft ? "sft" : "eval";
  parts->run.key.seed = static_cast<uint64_t>(loaded.config.trainer.seed);
  parts->run.key.check_writes = loaded.config.plugins.check;
  parts->run.key.call_timeout_ms = loaded.config.plugins.call_timeout.count();
  parts->registry = std::move(registry);
  TRY(check_plugins(*parts->registry, loaded, kind));
  TRY(load_model(*parts, kind, weights_from));
  TRY(load_data(*parts, kind));
  const Sampling sampling = TRY(load_rollout(*parts));
  if (!loaded.config.reward.empty()) TRY(load_rewards(*parts, kind));
  TRY(load_validator(*parts, sampling));
  TRY(parts->saved.stateful.add(parts->progress.counters));
  TRY(parts->saved.stateful.add(parts->saved.plugins));
  if (kind == RunKind::kEval) return parts;
  TRY(parts->saved.stateful.add(*parts->data.source));
  TRY(parts->saved.stateful.add(parts->progress.owed_validation));
  if (kind == RunKind::kTrain) {
    TRY(parts->saved.stateful.add(parts->progress.step));
    TRY(parts->saved.stateful.add(parts->progress.limits));
    parts->run.plan = plan_batches(loaded.config);
    parts->run.total_steps = plan_total_steps(loaded.config, parts->data.train->size());
  } else {
    parts->run.total_steps = loaded.config.sft.total_training_steps;
  }
  const OptimConfig& optim = loaded.config.actor.optim;
  parts->learning.optimizer.emplace(optimized_parameters(*parts->policy.model), adamw_options(optim));
  parts->learning.schedule =
      schedule_options(optim, parts->run.total_steps, kind == RunKind::kTrain ? parts->run.plan.updates_per_step : 1);
  if (kind == RunKind::kTrain) TRY(load_learner(*parts));
  TRY(parts->saved.stateful.add(*parts->learning.optimizer));
  TRY(add_inputs(*parts));
  TRY(parts->saved.stateful.add(parts->saved.inputs));
  return parts;
}

LogProbNeeds log_prob_needs(const RunParts& parts) {
  const bool penalizes = parts.advantage.reward_kl.has_value();
  const ActorObjective& objective = *parts.learning.objective;
  LogProbNeeds needs;
  // One update over the whole batch starts where the batch was sampled: its own log-probs are the old ones.
  needs.old = parts.run.plan.updates_per_step > 1 || penalizes || objective.correction().is_active() ||
              parts.advantage.estimator->info().requires_input(column::OldLogProb::name);
  needs.reference = parts.policy.reference && (penalizes || objective.needs_ref_log_prob());
  return needs;
}

}  // namespace mortise
