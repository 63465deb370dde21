// See batch_plan.h.
#include "config/batch_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr double kMaxUpdates = 9007199254740992.0;  // 2^53

// floor(a * b / c) without overflow: c and the quotient are small enough (kMaxRows, kMaxUpdates).
int64_t scaled_down(int64_t a, int64_t b, int64_t c) { return a * (b / c) + a / c * (b % c) + a % c * (b % c) / c; }

// How the rows of a run's steps become updates.
struct UpdateCount {
  int64_t rows_of_step, rows_of_update, steps_of_epoch;

  UpdateCount(const RunConfig& config, int64_t num_prompts)
      : rows_of_step(plan_batches(config).learnt_rows_per_step),
        rows_of_update(plan_batches(config).rows_per_update),
        steps_of_epoch(std::max<int64_t>(1, steps_per_epoch(config, num_prompts))) {}

  // In the first so many steps of an epoch, before its last update takes what is left.
  [[nodiscard]] int64_t inside_epoch(int64_t steps) const { return scaled_down(steps, rows_of_step, rows_of_update); }
  [[nodiscard]] int64_t of_epoch() const {
    const int64_t rows_left = steps_of_epoch % rows_of_update * (rows_of_step % rows_of_update) % rows_of_update;
    return inside_epoch(steps_of_epoch) + (rows_left > 0 ? 1 : 0);
  }
  [[nodiscard]] int64_t of_steps(int64_t steps) const {
    return steps / steps_of_epoch * of_epoch() + inside_epoch(steps % steps_of_epoch);
  }
  // The fewest steps that have so many.
  [[nodiscard]] int64_t steps_for(int64_t updates) const {
    const int64_t epochs = (updates - 1) / of_epoch();
    const int64_t rows = (updates - epochs * of_epoch()) * rows_of_update;
    const int64_t steps = (rows + rows_of_step - 1) / rows_of_step;
    return epochs * steps_of_epoch + std::min(steps, steps_of_epoch);
  }
  // The same from a place of the run on.
  [[nodiscard]] int64_t steps_for(int64_t updates, const RunPlace& done) const {
    const int64_t left = updates - done.updates;
    if (left <= 0) return done.steps;
    const int64_t steps_left = steps_of_epoch - done.steps % steps_of_epoch;
    const int64_t rows_left = done.rows_waiting + steps_left * rows_of_step;  // up to the end of the epoch
    const int64_t in_epoch = rows_left / rows_of_update + (rows_left % rows_of_update > 0 ? 1 : 0);
    if (left > in_epoch) return done.steps + steps_left + steps_for(left - in_epoch);
    const int64_t rows = left * rows_of_update - done.rows_waiting;
    return done.steps + std::clamp<int64_t>((rows + rows_of_step - 1) / rows_of_step, 1, steps_left);
  }
};

// As transformers rounds: any part of a step is a step.
double steps_of_run(const RunConfig& config, int64_t num_prompts) {
  const TrainerConfig& trainer = config.trainer;
  if (trainer.total_training_steps) return static_cast<double>(*trainer.total_training_steps);
  if (trainer.total_training_updates)
    return static_cast<double>(UpdateCount(config, num_prompts).steps_for(*trainer.total_training_updates));
  return std::ceil(trainer.total_epochs * static_cast<double>(steps_per_epoch(config, num_prompts)));
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
  plan.learnt_rows_per_step = plan.rows_per_step * config.actor.ppo_epochs;
  plan.rows_per_update = config.actor.rows_per_update.value_or(config.actor.ppo_mini_batch_size * config.rollout.n);
  plan.updates_per_epoch_pass = plan.rows_per_step / plan.rows_per_update;
  plan.updates_per_step = plan.updates_per_epoch_pass * config.actor.ppo_epochs;
  plan.carries_rows = config.actor.carry_rows && plan.rows_per_step % plan.rows_per_update != 0;
  if (plan.carries_rows) {  // one more with the rows that waited, and one of what an epoch leaves
    plan.updates_per_epoch_pass += 2;
    plan.updates_per_step = plan.learnt_rows_per_step / plan.rows_per_update + 2;
  }
  plan.cuts_groups =
      config.actor.rows_per_update && (config.actor.shuffle || plan.rows_per_update % config.rollout.n != 0);
  return plan;
}

int64_t steps_per_epoch(const RunConfig& config, int64_t num_prompts) {
  return num_prompts / config.data.train_batch_size;
}

int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts) {
  return static_cast<int64_t>(std::min(steps_of_run(config, num_prompts), kMaxUpdates));
}

int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts, const RunPlace& done) {
  if (!config.trainer.total_training_updates) return plan_total_steps(config, num_prompts);
  return UpdateCount(config, num_prompts).steps_for(*config.trainer.total_training_updates, done);
}

int64_t plan_total_updates(const RunConfig& config, int64_t num_prompts) {
  if (config.trainer.total_training_updates) return *config.trainer.total_training_updates;
  return UpdateCount(config, num_prompts).of_steps(plan_total_steps(config, num_prompts));
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
  // A number of updates that is given is small, but is counted in epochs.
  const double steps = config.trainer.total_training_updates ? static_cast<double>(steps_per_epoch(config, num_prompts))
                                                             : steps_of_run(config, num_prompts);
  const double updates = steps * std::max(1.0, plan_batches(config).mean_updates_per_step());
  if (updates <= kMaxUpdates) return {};
  const std::string_view key = config.trainer.total_training_steps     ? "trainer.total_training_steps"
                               : config.trainer.total_training_updates ? "actor.ppo_epochs"
                                                                       : "trainer.total_epochs";
  return Error{ErrorKind::kConfig, fmt::format("the run would have {} updates, more than 2^53", format_f64(updates)),
               loaded.where(key), "lower " + std::string(key)};
}

}  // namespace mortise
