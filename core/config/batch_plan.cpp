// See batch_plan.h.
#include "config/batch_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr double kMaxUpdates = 9007199254740992.0;  // 2^53

// As transformers rounds: any part of a step is a step.
double steps_of_run(const RunConfig& config, int64_t num_prompts) {
  const TrainerConfig& trainer = config.trainer;
  if (trainer.total_training_steps) return static_cast<double>(*trainer.total_training_steps);
  return std::ceil(trainer.total_epochs * static_cast<double>(num_prompts / config.data.train_batch_size));
}

}  // namespace

int64_t response_length(const RunConfig& config) {
  return config.rollout.response_length.value_or(config.data.max_response_length);
}

Result<> check_pass_length(const LoadedConfig& loaded, const std::string& key, const std::optional<int64_t>& tokens,
                           int64_t num_ranks) {
  const RunConfig& config = loaded.config;
  const double longest =
      static_cast<double>(config.data.max_prompt_length) + static_cast<double>(response_length(config));
  if (!tokens || longest <= static_cast<double>(*tokens) * static_cast<double>(num_ranks)) return {};
  return Error{
      ErrorKind::kConfig,
      fmt::format("one row may have {} tokens (data.max_prompt_length + the longest completion), but a pass only {}",
                  format_f64(longest), *tokens * num_ranks),
      loaded.where(key), fmt::format("raise {} or lower the lengths", key)};
}

BatchPlan plan_batches(const RunConfig& config) {
  BatchPlan plan;
  plan.prompts_per_step = config.data.train_batch_size;
  plan.rows_per_step = plan.prompts_per_step * config.rollout.n;
  plan.rows_per_update = config.actor.rows_per_update.value_or(config.actor.ppo_mini_batch_size * config.rollout.n);
  plan.updates_per_epoch_pass = plan.rows_per_step / plan.rows_per_update;
  plan.updates_per_step = plan.updates_per_epoch_pass * config.actor.ppo_epochs;
  plan.cuts_groups =
      config.actor.rows_per_update && (config.actor.shuffle || plan.rows_per_update % config.rollout.n != 0);
  return plan;
}

int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts) {
  return static_cast<int64_t>(std::min(steps_of_run(config, num_prompts), kMaxUpdates));
}

Result<> check_num_rows(const LoadedConfig& loaded, int64_t num_prompts, std::string_view key) {
  const RolloutConfig& rollout = loaded.config.rollout;
  return check_num_rows(loaded, num_prompts, key == "rollout.n" ? rollout.n : rollout.val_kwargs.n, key);
}

Result<> check_num_rows(const LoadedConfig& loaded, int64_t num_prompts, int64_t n, std::string_view key) {
  if (num_prompts <= kMaxRows / n) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("{} prompts with {} completions each ({}) are too many: at most {} at once",
                           format_count(num_prompts), format_count(n), key, format_count(kMaxRows)),
               loaded.where(key), fmt::format("lower {} or the number of prompts", key)};
}

Result<> check_run_length(const LoadedConfig& loaded, int64_t num_prompts) {
  const RunConfig& config = loaded.config;
  const double updates = steps_of_run(config, num_prompts) * static_cast<double>(plan_batches(config).updates_per_step);
  if (updates <= kMaxUpdates) return {};
  const std::string_view key =
      config.trainer.total_training_steps ? "trainer.total_training_steps" : "trainer.total_epochs";
  return Error{ErrorKind::kConfig, fmt::format("the run would have {} updates, more than 2^53", format_f64(updates)),
               loaded.where(key), "lower " + std::string(key)};
}

}  // namespace mortise
