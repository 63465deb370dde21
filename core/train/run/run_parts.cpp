// Makes the objects of a run in the order of their dependencies.
#include "train/run/run_parts.h"

#include <fmt/core.h>

#include <mortise/ext/generate.h>

#include <new>

#include "config/check.h"
#include "config/fields.h"
#include "experience/engine_params.h"
#include "experience/plugin_settings.h"
#include "experience/reward/reward_specs.h"
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
#include "train/run/ahead_rules.h"
#include "train/run/device_need.h"
#include "train/run/offloading.h"
#include "train/run/plugin_memory.h"
#include "train/run/policy_parts.h"
#include "train/run/reuse_rules.h"
#include "train/run/router_rules.h"
#include "train/run/run_attention.h"
#include "train/run/run_data.h"
#include "train/run/run_device.h"
#include "train/run/run_options.h"
#include "train/run/sequence_rules.h"
#include "train/run/teacher.h"
#include "train/run/threads.h"
#include "train/run/turn_parts.h"
#include "train/sampling/prompt_queue.h"
#include "train/sampling/rank_handover.h"
#include "train/sampling/sent_adapter.h"
#include "train/sampling/weight_extension.h"

namespace mortise {

RunParts::~RunParts() {
  progress.ahead.wait();
  // Engines made for the backends end before the model that they read.
  sampler.reset();
  validator.reset();
  install_generate_model(nullptr, {});
  use_attention_choices(nullptr);
}

Result<PluginRegistry> open_registry(const LoadedConfig& loaded) {
  return open_admitted(loaded, registry_options(loaded, kTorchVersion));
}

namespace {

uint64_t sampling_seed(const RunConfig& config) {
  return static_cast<uint64_t>(config.rollout.seed.value_or(config.trainer.seed));
}

Result<> load_data(const RunSettings& run, const PluginRegistry& registry, const PolicyParts& policy, DataParts& data,
                   StatefulRegistry& stateful) {
  const RunConfig& config = run.config;
  const RowSource rows{run.env, run.loaded, registry, *policy.encoder, policy.model->config(), run.kind};
  if (run.kind == RunKind::kTrain) {
    data.train = TRY(load_train_prompts(rows));
    if (config.algorithm.filter_groups.enable) {
      data.filter.emplace(config.algorithm.filter_groups, config.data.train_batch_size);
      TRY(stateful.add(*data.filter));
    }
    if (config.algorithm.replay_buffer.enable)
      TRY(stateful.add(data.replay_buffer.emplace(config.algorithm.replay_buffer, run.key.seed)));
    if (config.rollout.over_sampling > 1)
      TRY(stateful.add(data.over_sampling.emplace(config.rollout.over_sampling, config.data.train_batch_size)));
    data.source = TRY(PromptSource::create(*data.train, train_source_options(config)));
    data.sft_mix_rows = TRY(load_sft_mix_rows(rows, policy.folder->tokenizer));
    if (data.sft_mix_rows) {
      data.sft_mix = TRY(PromptSource::create(*data.sft_mix_rows, sft_mix_source_options(config)));
      data.sft_mix->begins_if_missing = true;
      TRY(stateful.add(*data.sft_mix));
    }
  } else if (run.kind == RunKind::kSft) {
    data.train = TRY(load_sft_rows(rows, policy.folder->tokenizer));
    data.source = TRY(PromptSource::create(*data.train, sft_source_options(config)));
  }
  data.val = TRY(load_val_rows(rows));
  data.columns = TRY(settle_columns(rows, data.train ? &*data.train : nullptr, data.val));
  return {};
}

// Before an engine is made: it keeps what it computes for the first update of each step, where that reads it.
Result<> keep_sampled_forward(RunParts& parts) {
  const RunSettings& run = parts.run;
  Model& model = *parts.policy.model;
  const RunFacts facts{run.ranks.size(), run.device.by_operators, model.lora_dropout()};
  if (why_not_reused(run.config, model.config(), facts)) return {};
  try {
    model.keep_sampled_forward(
        std::make_shared<SampledForward>(model.config(), sampled_tokens(run.config), sampled_group_tokens(run.config)));
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::kInternal, "this process gets no memory for what updates reuse of sampling",
                 run.loaded.where("rollout.reuse_forward_mib"), "set rollout.reuse_forward_mib to 0"};
  }
  parts.learning.sampled_forward = model.sampled_forward();
  return {};
}

// How training samples.
RolloutPlan train_plan(const RunConfig& config, const Model& policy, const Sampling& sampling) {
  RolloutPlan plan;
  plan.num_samples = config.rollout.n;
  plan.seed = sampling_seed(config);
  plan.sampling = sampling;
  plan.is_filtered = config.rollout.filtered_log_probs && sampling.changes_distribution();
  plan.vocab_size = policy.config().vocab_size;
  return plan;
}

// `number` counts the sets of data.val_sets from 1; 0 is data.val_files.
RolloutPlan val_plan(const RunSettings& run, const Model& policy, const Sampling& of_training, const ValKwargs& val,
                     uint64_t number) {
  RolloutPlan plan = train_plan(run.config, policy, of_training);
  plan.num_samples = val.n;
  plan.is_validation = true;
  plan.is_filtered = false;
  plan.stop_on_signal = run.kind == RunKind::kEval;
  // Another stream than training's, so that a validation at step k does not see that step's random numbers.
  plan.seed = random_u64({plan.seed, RandomPurpose::kValidation, number});
  Sampling sampling;  // all other options are off
  sampling.max_new_tokens = of_training.max_new_tokens;
  sampling.stop_ids = of_training.stop_ids;
  sampling.stop_strings = of_training.stop_strings;
  sampling.temperature = val.do_sample ? val.temperature : 0.0;
  sampling.top_k = val.top_k;
  sampling.top_p = val.top_p;
  sampling.min_p = val.min_p;
  plan.sampling = std::move(sampling);
  return plan;
}

// Plugins can sample with the policy from here on. Gives the sampling options of [rollout].
Result<Sampling> load_engine(RunParts& parts) {
  const RunSettings& run = parts.run;
  const RunConfig& config = run.config;
  if (run.kind == RunKind::kTrain) TRY(keep_sampled_forward(parts));
  const Model& policy = sampled_model(parts.policy);
  EngineOptions options = rollout_engine_options(config, &parts.policy.folder->tokenizer);
  options.ranks = rollout_ranks(config, run.ranks, policy);
  Sampling sampling = TRY(rollout_sampling(config, policy.config(), options.tokenizer));
  install_generate_model(&policy, options);
  register_host_extension(MORTISE_EXT_GENERATE, generate_extension());
  offer_weight_groups(policy.device().device);
  return sampling;
}

Result<Sampler> load_sampler(const RunSettings& run, PluginRegistry& registry, const PolicyParts& policy,
                             const Sampling& sampling, const std::shared_ptr<TurnParts>& turns, RoundRanks& ranks) {
  const RunConfig& config = run.config;
  const PluginRef backend = TRY(registry.find("rollout_backend", config.rollout.name));
  const std::optional<std::string>& regex = config.rollout.structured_outputs_regex;
  const Json params =
      offer_params(*backend.plugin, config.rollout.params, {{kGuideParam, regex ? Json(*regex) : Json()}});
  RolloutRunner runner = TRY(at_place(run.loaded.where("rollout.name"),
                                      RolloutRunner::create(registry, config.rollout.name, params, run.key)));
  if (run.kind == RunKind::kTrain) TRY(check_replay_backend(run.loaded, runner.backend().info()));
  runner.use_turns(turns);
  const Model& model = sampled_model(policy);
  return Sampler(std::move(runner), train_plan(config, model, sampling), policy.folder->tokenizer, model, *policy.model,
                 config, ranks);
}

Result<Validator> load_validator(RunParts& parts, bool sampler_validates, const Sampling& sampling,
                                 const std::shared_ptr<TurnParts>& turns) {
  const RunSettings& run = parts.run;
  RolloutRunner runner = TRY(RolloutRunner::create(*parts.registry, RolloutConfig().name, Json::object(), run.key));
  runner.use_turns(turns);
  Sampler* const sampler = sampler_validates ? &*parts.sampler : nullptr;
  Validator validator{run.config,       parts.policy.folder->tokenizer, *parts.reward, std::move(runner), sampler, {},
                      parts.round_ranks};
  uint64_t number = 0;
  for (const ValRows& val : parts.data.val) {
    if (!val.set.name.empty()) ++number;
    validator.parts.push_back(
        {&val.set, &val.rows, val_plan(run, *parts.policy.model, sampling, val.set.kwargs, number)});
  }
  return validator;
}

// What making an experience changes, besides the weights.
Result<> add_changing(DataParts& data, PluginStates& plugins, RolloutAhead& ahead) {
  TRY(ahead.add_changing(*data.source));
  if (data.filter) TRY(ahead.add_changing(*data.filter));
  return ahead.add_changing(plugins);
}

// A thread of each rank samples next to the updates.
Result<> sample_aside(RunParts& parts) {
  TRY(make_sampled(parts.run.config, parts.policy));
  TRY(parts.round_ranks.use_side_group());
  parts.progress.ahead.agree_by([&ranks = parts.round_ranks](const Result<>& own) { return ranks.finish_round(own); });
  return {};
}

// A reward that scores a whole step in one call has no time per row.
void warn_of_row_timeouts(const LoadedConfig& loaded,
                          const std::vector<std::pair<std::string, RewardFunction*>>& functions) {
  for (size_t i = 0; i < functions.size(); ++i) {
    const std::string key = fmt::format("reward.{}.row_timeout", i);
    if (functions[i].second->granularity() != Granularity::kBatch || !loaded.is_set(key)) continue;
    const Error warning{ErrorKind::kConfig,
                        "'row_timeout' has no effect: the reward scores the rows of a step in one call",
                        loaded.where(key), "set timeout, or the reward's own limit for a row if it has one"};
    log_warn(warning.to_string());
  }
}

// The ranks score each batch together.
ScoreRanks score_ranks(RoundRanks& ranks) {
  ScoreRanks out;
  out.rank = ranks.rank();
  out.size = ranks.size();
  out.exchange = [&ranks](const std::string& own) { return ranks.exchange(own, "rewards"); };
  out.share = [&ranks](std::vector<std::vector<int64_t>> lists) {
    return std::make_unique<PromptQueue>(ranks.group(), std::move(lists), "rewards");
  };
  out.hand_over = [&ranks] {
    return std::make_unique<RankHandover>(ranks.group(), "rewards", RankHandover::pause_of(ranks.size()));
  };
  return out;
}

Result<RewardRunner> load_rewards(const RunSettings& run, PluginRegistry& registry, const DataParts& data,
                                  RoundRanks& ranks, bool environment_rewards, PluginStates& states) {
  const PluginsConfig& plugins = run.config.plugins;
  Json max_steps;  // null where nothing is trained
  if (run.kind == RunKind::kTrain) max_steps = plan_total_steps(run.config, data.source->rows_per_epoch());
  const std::vector<RewardSpec> specs = TRY(reward_specs(run.loaded, registry, max_steps));
  RunKey key = run.key;
  // A step of training is ended first, with all its rewards; an evaluation has nothing to save.
  if (run.kind == RunKind::kEval) key.cancelled = &stop_flag();
  RewardRunner runner =
      TRY(RewardRunner::create(registry, specs, key, plugins.max_failed_fraction, isolation_options(plugins)));
  runner.use_columns(data.columns);
  if (environment_rewards) runner.use_environment(run.config.rollout.multi_turn.reward_weight);
  TRY(runner.use_ranks(score_ranks(ranks)));
  const std::vector<std::pair<std::string, RewardFunction*>> functions = runner.functions();
  for (const auto& [name, function] : functions) states.add(name, *function);
  warn_of_row_timeouts(run.loaded, functions);
  return runner;
}

Result<> load_advantage(const RunSettings& run, PluginRegistry& registry, AdvantageParts& advantage,
                        SavedParts& saved) {
  const AlgorithmConfig& config = run.config.algorithm;
  const PluginRef estimator = TRY(registry.find("advantage_estimator", config.adv_estimator));
  const Json params =
      offer_params(*estimator.plugin, config.adv_params, offered_params(run.config, "advantage_estimator"));
  advantage.estimator = TRY(at_place(
      run.loaded.where("algorithm.adv_estimator"),
      AdvantageRunner::create(registry, config.adv_estimator, params, run.key, advantage_workers(run.loaded))));
  if (config.replay_buffer.enable && TRY(advantage.estimator->instance().save_state())) {
    return Error{
        ErrorKind::kConfig,
        fmt::format("'algorithm.replay_buffer.enable' is true, but {} remembers the rewards of earlier steps, and "
                    "would count those of the buffer's groups again",
                    advantage.estimator->instance().label()),
        run.loaded.where("algorithm.replay_buffer.enable"),
        "set it to false, or choose another algorithm.adv_estimator"};
  }
  saved.plugins.add("advantage:" + config.adv_estimator, advantage.estimator->instance());
  log_plugin_place(advantage.estimator->instance());
  if (config.use_kl_in_reward) {
    advantage.reward_kl = TRY(at_place(
        run.loaded.where("algorithm.kl_penalty"),
        KlEstimator::create(registry, config.kl_penalty, config.kl_params, run.key, kl_penalty_workers(run.loaded))));
    saved.plugins.add("kl_penalty:" + config.kl_penalty, advantage.reward_kl->instance());
    log_plugin_place(advantage.reward_kl->instance());
  }
  advantage.kl_controller.emplace(config.kl_ctrl);
  return saved.stateful.add(*advantage.kl_controller);
}

Result<> load_objective(const RunSettings& run, PluginRegistry& registry, LearnerParts& learning, SavedParts& saved) {
  const ActorConfig& actor = run.config.actor;
  learning.objective = TRY(ActorObjective::create(registry, run.loaded, run.key));
  saved.plugins.add("policy_loss:" + actor.policy_loss.loss_mode, learning.objective->policy_loss().instance());
  log_plugin_place(learning.objective->policy_loss().instance());
  if (KlEstimator* const kl = learning.objective->kl()) {
    saved.plugins.add("kl_loss:" + actor.kl_loss_type, kl->instance());
    log_plugin_place(kl->instance());
  }
  TRY(check_state_of_losses(run, *learning.objective));
  learning.entropy_controller.emplace(actor);
  if (learning.entropy_controller->is_adaptive()) TRY(saved.stateful.add(*learning.entropy_controller));
  return {};
}

// The optimizer, which `sft` has too.
Result<> load_optimizer(const RunSettings& run, PolicyParts& policy, LearnerParts& learning) {
  const bool is_sft = run.kind == RunKind::kSft;
  const OptimConfig optim = is_sft ? optim_of_sft(run.config.actor.optim) : run.config.actor.optim;
  Communicator* const ranks = TRY(ranks_of_part(run.config, run.ranks, *policy.model));
  learning.optimizer.emplace(make_optimizer(*policy.model, optim, policy.groups, "actor.optim",
                                            zero_options(run.config, *ranks, *policy.model),
                                            {run.key.seed, RandomPurpose::kRounding}));
  learning.schedule = schedule_options(optim, run.total_steps, run.total_updates);
  return offload_optimizer(run.env, run.loaded, run.ranks.size(), "actor.optim", *policy.model, *learning.optimizer);
}

// The learner of `train`, once all that it learns with is there.
Result<> load_learner(const RunSettings& run, PolicyParts& policy, LearnerParts& learning, StatefulRegistry& stateful) {
  if (learning.objective->needs_reference() && !policy.reference) TRY(load_reference(run, /*has_moved=*/true, policy));
  if (run.config.ref.sync_steps && policy.reference) {
    policy.reference_state.emplace("ref.model", *policy.reference);
    TRY(stateful.add(*policy.reference_state));
  }
  if (!run.device.by_operators) {  // the peak of a device is not known: perf/mfu is left out
    learning.compute.peak_flops =
        measured_peak_flops(policy.model->has_rounded_matrices() ? at::kBFloat16 : policy.model->dtype());
  }
  LearnerOptions options = learner_options(run.config, run.device.by_operators, run.ranks);
  options.pass.flops = &learning.compute.flops;
  options.sampled = learning.sampled_forward;
  options.sample_again = [&config = run.config, &model = *policy.model](const StepTable& table,
                                                                        std::span<const int64_t> rows) {
    return sample_again(config, model, table, rows);
  };
  if (policy.reference) options.reference = &*policy.reference;
  policy.teacher =
      TRY(load_teacher(run.env, run.loaded, run.device, policy.model->config().vocab_size, run.ranks.size()));
  if (policy.teacher && run.config.teacher.loss_coef > 0)
    options.teacher_loss = {&*policy.teacher, run.config.teacher.loss_coef, run.config.teacher.divergence_beta};
  learning.learner.emplace(*policy.model, *learning.optimizer, *learning.objective, options);
  return {};
}

// None are made yet: libtorch computes attention until then.
Result<> load_attention_choices(const RunSettings& run, SavedParts& saved) {
  if (!chooses_attention(run.config, run.device)) return {};
  saved.attention.emplace().choose_for(attention_setting(run.config));
  use_attention_choices(&*saved.attention);
  return saved.stateful.add(*saved.attention);
}

// What learns in a step of `train`: the policy, and a critic if the advantage estimator asks for values.
Result<> load_learning(RunParts& parts) {
  offer_to_plugins(parts.run);
  const RunSettings& run = parts.run;
  TRY(load_advantage(run, *parts.registry, parts.advantage, parts.saved));
  TRY(load_objective(run, *parts.registry, parts.learning, parts.saved));
  TRY(load_learner(run, parts.policy, parts.learning, parts.saved.stateful));
  const PluginInfo& estimator = parts.advantage.estimator->info();
  TRY(check_ahead_estimator(run.loaded, estimator));
  if (!needs_critic(estimator)) return {};
  parts.critic = TRY(load_critic(run, *parts.policy.model, &parts.learning.compute.flops));
  TRY(parts.saved.stateful.add(parts.critic->state));
  TRY(parts.saved.stateful.add(parts.progress.critic_rate));
  return parts.saved.stateful.add(parts.critic->optimizer);
}

RunKey run_key(const RunConfig& config) {
  RunKey key;
  key.seed = static_cast<uint64_t>(config.trainer.seed);
  key.check_writes = config.plugins.check;
  key.call_timeout_ms = config.plugins.call_timeout.count();
  return key;
}

Result<> take_device(const PluginRegistry& registry, RunSettings& run) {
  run.device = TRY(open_run_device(run.loaded, run.ranks, run.kind, &registry));
  if (run.device.by_operators && run.kind != RunKind::kEval) predict_device_memory(run, registry);
  return {};
}

// The last of what a checkpoint holds: choices, and what the run reads, as hashes.
Result<> load_inputs(RunParts& parts) {
  TRY(load_attention_choices(parts.run, parts.saved));
  parts.saved.inputs = TRY(make_inputs(parts.run, *parts.registry, parts.policy, parts.data, parts.critic.get()));
  return parts.saved.stateful.add(parts.saved.inputs);
}

// What looks at validations.
Result<> add_judges(RunProgress& progress, StatefulRegistry& stateful) {
  TRY(stateful.add(progress.best));
  return stateful.add(progress.policy_rate);
}

}  // namespace

Result<std::unique_ptr<RunParts>> assemble(Env& env, const LoadedConfig& loaded, Communicator& ranks,
                                           PluginRegistry plugins, RunKind kind,
                                           const std::optional<Path>& weights_from) {
  auto parts = std::make_unique<RunParts>(env, loaded, ranks);
  RunSettings& run = parts->run;
  run.kind = kind;
  run.key = run_key(loaded.config);
  RunProgress& progress = parts->progress;
  progress.counters.kind = kind == RunKind::kTrain ? "train" : kind == RunKind::kSft ? "sft" : "eval";
  PluginRegistry& registry = parts->registry.emplace(std::move(plugins));
  PolicyParts& policy = parts->policy;
  DataParts& data = parts->data;
  SavedParts& saved = parts->saved;
  TRY(check_plugins(registry, loaded, kind));
  TRY(take_device(registry, run));
  TRY(load_model(run, weights_from, policy, saved.stateful));
  StartedEnvironment environment;
  if (run.config.rollout.multi_turn.enable && kind != RunKind::kSft) {
    environment = TRY(start_rewarded_environment(registry, loaded, run.key));
    policy.encoder = policy.folder->encoder(run.config, &environment.tools);
  }
  TRY(load_data(run, registry, policy, data, saved.stateful));
  if (kind == RunKind::kTrain && run.config.trainer.steps_ahead() > 0) TRY(sample_aside(*parts));
  const Sampling sampling = TRY(load_engine(*parts));
  const bool environment_rewards = environment.gives_rewards;
  std::shared_ptr<TurnParts> turns;
  if (environment.runner)
    turns = TRY(make_turn_parts(std::move(environment), loaded, *policy.folder, *policy.encoder, sampling, ranks));
  const bool sampler_validates = kind != RunKind::kSft && run.config.rollout.val_engine == ValEngine::kRollout;
  if (kind == RunKind::kTrain || sampler_validates) {
    Sampler& sampler =
        parts->sampler.emplace(TRY(load_sampler(run, registry, policy, sampling, turns, parts->round_ranks)));
    TRY(check_sent_adapter(run.loaded, *policy.model, sampler.backend(), kind == RunKind::kEval));
  }
  if (kind == RunKind::kTrain) {
    Sampler& sampler = *parts->sampler;
    TRY(check_ahead_backend(run.loaded, sampler.backend()));
    saved.plugins.add("rollout:" + run.config.rollout.name, sampler.backend().instance());
    saved.rollout_plugins.add("rollout:" + run.config.rollout.name, sampler.backend().instance());
  }
  if (!run.config.reward.empty() || environment_rewards)
    parts->reward = TRY(load_rewards(run, registry, data, parts->round_ranks, environment_rewards, saved.plugins));
  if (!data.val.empty() && parts->reward)
    parts->validator.emplace(TRY(load_validator(*parts, sampler_validates, sampling, turns)));
  TRY(saved.stateful.add(progress.counters));
  TRY(saved.stateful.add(saved.plugins));
  if (kind == RunKind::kEval) return parts;

  TRY(saved.stateful.add(*data.source));
  TRY(saved.stateful.add(progress.owed_validation));
  TRY(add_judges(progress, saved.stateful));
  run.total_steps = run.total_updates = run.config.sft.total_training_steps;
  if (kind == RunKind::kTrain) {
    TRY(saved.stateful.add(progress.step));
    TRY(saved.stateful.add(progress.limits));
    for (const auto& [name, function] : parts->reward->functions()) saved.rollout_plugins.add(name, *function);
    TRY(add_changing(data, saved.rollout_plugins, progress.ahead));
    TRY(saved.stateful.add(progress.ahead));
    run.plan = plan_batches(run.config);
    const int64_t num_prompts = data.source->rows_per_epoch();
    run.total_steps = plan_total_steps(run.config, num_prompts);
    run.total_updates = plan_total_updates(run.config, num_prompts);
    run.steps_per_epoch = steps_per_epoch(run.config, num_prompts);
    if (run.plan.carries_rows) TRY(saved.stateful.add(progress.carried));
  }
  TRY(load_optimizer(run, policy, parts->learning));
  if (kind == RunKind::kTrain) TRY(load_learning(*parts));
  TRY(saved.stateful.add(*parts->learning.optimizer));
  TRY(load_inputs(*parts));
  return parts;
}

}  // namespace mortise
