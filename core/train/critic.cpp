#include "train/critic.h"

#include <ATen/core/grad_mode.h>

#include <numeric>

#include "foundation/base/log.h"
#include "train/run_parts.h"
#include "train/stage_timer.h"
#include "train/step_metrics.h"

namespace mortise {

namespace {

CriticOptions options_of(const RunConfig& config, FlopCount* flops) {
  const CriticConfig& critic = config.critic;
  CriticOptions options;
  options.cliprange_value = critic.cliprange_value;
  // Checked with the config.
  options.aggregation.mode = parse_loss_agg_mode(critic.loss_agg_mode).value();
  options.aggregation.rows = parse_loss_agg_rows(config.actor.loss_agg_rows).value();
  options.aggregation.loss_scale_factor =
      config.actor.loss_scale_factor.value_or(static_cast<double>(config.data.max_response_length));
  options.aggregation.loss_scale_by_rows = config.actor.loss_scale_by_rows;
  options.learner = learner_options(config);
  options.learner.micro_batch = critic_pass_options(config);
  options.learner.grad_clip = critic.grad_clip;
  options.learner.pass.flops = flops;
  return options;
}

int64_t prompts_per_update(const RunConfig& config) {
  return config.critic.ppo_mini_batch_size.value_or(config.actor.ppo_mini_batch_size);
}

int64_t num_epochs_of(const RunConfig& config) { return config.critic.ppo_epochs.value_or(config.actor.ppo_epochs); }

// What the learner needs of the step; no row is left out for having no advantage.
TrainBatch batch_of(const Experience& experience, const AdvantageBatch& layout) {
  TrainBatch batch = make_train_batch(experience.prompts, experience.samples, layout);
  batch.advantages.clear();
  return batch;
}

}  // namespace

Critic::Critic(Model model_in, const RunConfig& config, int64_t total_steps, FlopCount* flops)
    : model(std::move(model_in)),
      state("critic.model", model),
      optimizer(optimized_parameters(model), adamw_options(config.critic.optim), "critic.optim"),
      schedule(schedule_options(config.critic.optim, total_steps,
                                config.data.train_batch_size / prompts_per_update(config) * num_epochs_of(config))),
      learner(model, optimizer, options_of(config, flops)),
      rows_per_update(prompts_per_update(config) * config.rollout.n),
      num_epochs(num_epochs_of(config)) {}

MicroBatchOptions critic_pass_options(const RunConfig& config) {
  const CriticConfig& critic = config.critic;
  RunConfig passes = config;
  if (critic.ppo_micro_batch_size_per_gpu)
    passes.actor.ppo_micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu;
  if (critic.ppo_max_token_len_per_gpu) passes.actor.ppo_max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu;
  return micro_batch_options(passes);
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

Result<Model> load_critic_model(Env& env, const Path& folder, const std::string& dtype, uint64_t seed) {
  ModelConfig config = TRY(critic_config(env, folder));
  Model base = TRY(Model::load(env, folder, dtype));
  if (base.config().is_classifier) return base;
  Model critic = TRY(Model::random(std::move(config), seed, dtype));
  const at::NoGradGuard no_grad;
  for (NamedParameter& parameter : critic.parameters()) {
    const NamedParameter* trained = base.find_parameter(parameter.name);
    if (trained != nullptr) parameter.tensor.copy_(trained->tensor.detach());
  }
  return critic;
}

Result<> load_critic(RunParts& parts) {
  const RunConfig& config = parts.config;
  const Path folder = config.critic.model.path.value_or(config.model.path);
  Model model = TRY(load_critic_model(parts.env, folder, config.model.dtype, parts.key.seed));
  if (model.config().vocab_size != parts.model->config().vocab_size) {
    return Error{ErrorKind::kData,
                 "the critic's vocabulary has " + std::to_string(model.config().vocab_size) + " tokens, the policy's " +
                     std::to_string(parts.model->config().vocab_size),
                 parts.loaded.where("critic.model.path"), "take a critic with the policy's tokenizer"};
  }
  if (model.config().rope_switch() > 0) model.set_rope_length(parts.model->config().rope_length);
  parts.critic = std::make_unique<Critic>(std::move(model), config, parts.total_steps, &parts.compute.flops);
  TRY(parts.stateful.add(parts.critic->state));
  return parts.stateful.add(parts.critic->optimizer);
}

Result<std::vector<float>> value_stage(RunParts& parts, const Experience& experience, MetricSet& metrics) {
  if (!parts.critic) return std::vector<float>{};
  const StageTimer timer(metrics, "timing_s/values");
  return parts.critic->learner.values(batch_of(experience, make_layout(experience.samples)));
}

Result<> critic_stage(RunParts& parts, const Experience& experience, const AdvantageBatch& advantages,
                      const std::vector<float>& values, int64_t step, MetricSet& metrics) {
  if (!parts.critic) return {};
  const ComputeTimer timer(metrics, "timing_s/update_critic", "perf/mfu/critic", parts.compute);
  Critic& critic = *parts.critic;
  const TrainBatch batch = batch_of(experience, advantages);
  std::vector<int64_t> rows(static_cast<size_t>(batch.num_rows()));
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t pass = 0; pass < critic.num_epochs; ++pass) {
    for (int64_t begin = 0; begin < batch.num_rows(); begin += critic.rows_per_update) {
      const auto part =
          std::span(rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(critic.rows_per_update));
      const int64_t unit =
          parts.config.critic.optim.schedule_unit == "step" ? step - 1 : critic.optimizer.num_updates();
      const double lr = learning_rate(critic.schedule, unit);
      const CriticReport report = TRY(critic.learner.update(batch, part, values, advantages.returns, lr));
      TRY(metrics.merge(report.metrics));
      metrics.add_mean("critic/grad_norm", report.grad_norm, 1.0);
      metrics.add("critic/lr", lr);
      if (!report.skipped) continue;
      ++parts.counters.num_skipped;  // towards trainer.nonfinite_update_limit, as the policy's
      log_warn("an update of the critic was skipped: its gradient is not finite");
    }
  }
  add_critic_metrics(values, advantages.returns, advantages.response_mask, metrics);
  return {};
}

}  // namespace mortise
