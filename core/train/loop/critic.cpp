// Loads the critic, and runs its value and update stages.
#include "train/loop/critic.h"

#include <fmt/core.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "model/adapters/trained_lora.h"
#include "model/weights/parameters.h"
#include "train/report/stage_timer.h"
#include "train/report/step_metrics.h"
#include "train/run/offloading.h"
#include "train/run/run_options.h"
#include "train/run/sequence_rules.h"

namespace mortise {

namespace {

constexpr const char* kAdapterKey = "critic.model.lora_adapter_path";

CriticOptions options_of(const RunSettings& run, FlopCount* flops) {
  const RunConfig& config = run.config;
  const bool by_operators = run.device.by_operators;
  const CriticConfig& critic = config.critic;
  CriticOptions options;
  options.cliprange_value = critic.cliprange_value;
  options.aggregation.mode = critic.loss_agg_mode;
  options.aggregation.rows = config.actor.loss_agg_rows;
  options.aggregation.loss_scale_factor =
      config.actor.loss_scale_factor.value_or(static_cast<double>(config.data.max_response_length));
  options.aggregation.loss_scale_by_rows = config.actor.loss_scale_by_rows;
  options.learner = learner_options(config, by_operators, run.ranks);
  options.learner.pass.noise_alpha = 0.0;
  options.learner.share_tokens(sequence_group(run.ranks, critic.ulysses_sequence_parallel_size));
  options.learner.ranks.tensor_size = 1;  // the critic has whole layers
  options.learner.micro_batch = critic_pass_options(config, by_operators);
  options.learner.grad_clip = critic.grad_clip;
  options.learner.pass.flops = flops;
  return options;
}

int64_t num_epochs_of(const RunConfig& config) { return config.critic.ppo_epochs.value_or(config.actor.ppo_epochs); }

}  // namespace

Critic::Critic(Model model_in, const ParameterGroups& groups, const RunSettings& run, FlopCount* flops)
    : model(std::move(model_in)),
      state("critic.model", model),
      optimizer(make_optimizer(model, run.config.critic.optim, groups, "critic.optim", spread_model(run),
                               {run.key.seed, RandomPurpose::kCriticRounding})),
      schedule(schedule_options(run.config.critic.optim, run.total_steps,
                                run.total_steps * critic_updates_per_step(run.config, run.plan))),
      learner(model, optimizer, options_of(run, flops)),
      rows_per_update(critic_rows_per_update(run.config, run.plan)),
      num_epochs(num_epochs_of(run.config)) {}

ZeroOptions Critic::spread_model(const RunSettings& run) {
  spread = spread_weights(run.config, run.ranks, run.config.critic.optim, model);
  return zero_options(run.config, run.ranks, model);
}

LoraChoice critic_lora_choice(const CriticModelConfig& model) {
  LoraChoice choice = plain_lora_choice(model);
  choice.modules_to_save = {"score"};
  return choice;
}

bool shares_policy_base(const RunConfig& config) {
  if (!config.model.trains_adapter() || !config.critic.model.trains_adapter()) return false;
  // Ranks then have that base in parts.
  if (config.ranks.zero_stage >= 3 || config.actor.tensor_model_parallel_size > 1) return false;
  if (!config.critic.model.path) return true;
  std::error_code failed;  // such a folder is refused where it is read
  return std::filesystem::equivalent(config.model.path, *config.critic.model.path, failed);
}

std::string critic_lora_place(const LoadedConfig& loaded, const Error& error) {
  const bool is_key =
      error.where == "target_modules" || error.where == "exclude_modules" || error.where == "target_parameters";
  return loaded.where("critic.model." + (is_key ? error.where : std::string("lora_rank")));
}

Result<> check_critic_plan(const LoadedConfig& loaded, const LoraPlan& plan) {
  if (plan.config.dropout > 0) {
    return Error{ErrorKind::kConfig, "the critic's adapter was trained with lora_dropout, which a critic does not have",
                 loaded.where(kAdapterKey), "set lora_dropout to 0 in its adapter_config.json"};
  }
  if (std::ranges::find(plan.whole, kScoreHead) != plan.whole.end()) return {};
  return Error{ErrorKind::kConfig, "the critic's adapter holds no value head (score), so the head would not be trained",
               loaded.where(kAdapterKey),
               "name it as critic.model.path, and set critic.model.lora_rank for a new adapter"};
}

bool needs_critic(const PluginInfo& estimator) { return estimator.requires_input(column::Values::name); }

MicroBatchOptions critic_pass_options(const RunConfig& config, bool by_operators) {
  const CriticConfig& critic = config.critic;
  RunConfig passes = config;
  if (critic.ppo_micro_batch_size_per_gpu)
    passes.actor.ppo_micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu;
  if (critic.ppo_max_token_len_per_gpu) passes.actor.ppo_max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu;
  passes.actor.ulysses_sequence_parallel_size = critic.ulysses_sequence_parallel_size;
  return micro_batch_options(passes, by_operators);
}

int64_t critic_rows_per_update(const RunConfig& config, const BatchPlan& plan) {
  const std::optional<int64_t>& prompts = config.critic.ppo_mini_batch_size;
  return prompts ? *prompts * config.rollout.n : plan.rows_per_update;
}

int64_t critic_updates_per_step(const RunConfig& config, const BatchPlan& plan) {
  return plan.rows_per_step / critic_rows_per_update(config, plan) * num_epochs_of(config);
}

Result<ModelConfig> critic_config(Env& env, const Path& folder) {
  ModelConfig config = TRY(read_model_folder_config(env, folder));
  const Path base = TRY(find_model_folder(env, folder));
  TRY(check_trainable(config, base));
  if (!config.is_classifier) return as_classifier(std::move(config), 1);
  if (config.num_labels == 1) return config;
  return Error{ErrorKind::kData, "a critic has one label, and this model has " + std::to_string(config.num_labels),
               folder.string(), "name a language model or a classifier of one label in critic.model.path"};
}

Result<Model> open_critic_model(Env& env, const Path& folder, const std::string& dtype, uint64_t seed) {
  ModelConfig config = TRY(critic_config(env, folder));
  return Model::open(env, folder, dtype, Model::NewHead{std::move(config), seed});
}

namespace {

Result<Model> load_start(const RunSettings& run, const Model& policy, const Path& folder) {
  if (shares_policy_base(run.config))
    return policy.base_as_classifier(TRY(critic_config(run.env, folder)), run.key.seed);
  Model opened =
      TRY(open_critic_model(run.env, folder, std::string(choice_name(run.config.model.dtype)), run.key.seed));
  if (!spreads_weights(run.config, run.ranks)) TRY(opened.read_parts());
  return opened;
}

Result<> continue_adapter(const RunSettings& run, const std::string& folder, Model& critic) {
  const LoraPlan plan = TRY(plan_lora_of_folder(run.env, folder, critic.parameters()));
  TRY(check_critic_plan(run.loaded, plan));
  auto loaded = critic.train_lora(run.env, folder);
  if (!loaded.ok() && loaded.error().where.empty()) loaded.error().where = run.loaded.where(kAdapterKey);
  return loaded;
}

Result<> add_adapter(const RunSettings& run, Model& critic) {
  const CriticModelConfig& model = run.config.critic.model;
  if (model.lora_adapter_path) return continue_adapter(run, *model.lora_adapter_path, critic);
  if (model.lora_rank == 0) return {};
  auto made = critic.train_lora(critic_lora_choice(model), run.key.seed, RandomPurpose::kCriticAdapterInit);
  if (!made.ok()) made.error().where = critic_lora_place(run.loaded, made.error());
  return made;
}

}  // namespace

Result<std::unique_ptr<Critic>> load_critic(const RunSettings& run, const Model& policy, FlopCount* flops) {
  const RunConfig& config = run.config;
  const Path folder = config.critic.model.path.value_or(config.model.path);
  const ModelConfig shape = TRY(critic_config(run.env, folder));
  TRY(check_sequence_parallel(run.loaded, "critic.ulysses_sequence_parallel_size",
                              config.critic.ulysses_sequence_parallel_size, shape, "the critic", run.ranks.size()));
  Model model = TRY(load_start(run, policy, folder));
  if (model.config().vocab_size != policy.config().vocab_size) {
    return Error{ErrorKind::kData,
                 fmt::format("the critic's vocabulary has {} tokens, the policy's {}", model.config().vocab_size,
                             policy.config().vocab_size),
                 run.loaded.where("critic.model.path"), "take a critic with the policy's tokenizer"};
  }
  if (model.config().rope_switch() > 0) model.set_rope_length(policy.config().rope_length);
  TRY(model.move_to(run.device));
  TRY(add_adapter(run, model));
  const ParameterGroups groups = TRY(group_and_freeze(run.loaded, "critic.optim", model));
  auto critic = std::make_unique<Critic>(std::move(model), groups, run, flops);
  TRY(critic->spread);
  TRY(offload_optimizer(run.env, run.loaded, run.ranks.size(), "critic.optim", critic->model, critic->optimizer));
  return critic;
}

Result<> value_stage(const Critic* critic, StepTable& table, MetricSet& metrics) {
  if (critic == nullptr) return {};
  const StageTimer timer(metrics, "timing_s/values");
  std::vector<float> values = TRY(critic->learner.values(table));
  // Overflowing weights show here first; the estimator must not get the blame for them.
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    return Error{ErrorKind::kNumerics, "the critic gave a value that is not finite: its weights have diverged",
                 "values of the critic", "lower critic.optim.lr, and resume from the last checkpoint or start over"};
  table.put<column::Values>(std::move(values));
  return {};
}

Result<> critic_stage(const RunConfig& config, Critic* critic, const ComputeUse& compute, const StepTable& table,
                      int64_t step, RunProgress& progress, MetricSet& metrics) {
  if (critic == nullptr) return {};
  ComputeTimer timer(metrics, "timing_s/update_critic", "perf/mfu/critic", compute);
  TRY(fetch_state(critic->optimizer, critic->model));
  const std::vector<int64_t> rows = all_rows(table);
  std::optional<FiniteStep> open_step;  // the last update: the device may still compute its norm
  const auto settle = [&] {
    if (!open_step) return;
    metrics.add_mean("critic/grad_norm", open_step->grad_norm.wait(), 1.0);
    if (std::exchange(open_step, std::nullopt)->skipped()) {
      ++progress.counters.num_skipped;
      log_warn("an update of the critic was skipped: its gradient is not finite");
    }
  };
  const auto rate = [&] {
    const bool counts_steps = config.critic.optim.schedule_unit == ScheduleUnit::kStep;
    return progress.critic_rate.rate(critic->schedule, counts_steps ? step - 1 : critic->optimizer.num_updates());
  };
  for (int64_t pass = 0; pass < critic->num_epochs; ++pass) {
    for (int64_t begin = 0; begin < table.num_rows(); begin += critic->rows_per_update) {
      const auto part =
          std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(critic->rows_per_update));
      FiniteStep done;
      const CriticReport report = TRY(critic->learner.update(table, part, {rate, done}));
      settle();
      open_step = done;
      TRY(metrics.merge(report.metrics));
      metrics.add("critic/lr", report.lr);
    }
  }
  settle();
  add_critic_metrics(table, metrics);
  const Stopwatch leaving;
  TRY(rest_state(critic->optimizer, critic->model, metrics));
  timer.leave_out(leaving.elapsed_s());
  return {};
}

}  // namespace mortise
