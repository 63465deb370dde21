// How a run is cut into steps, updates and passes, as the keys say, and the limits of these sizes. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/load.h"

namespace mortise {

// Tokens of the longest completion: rollout.response_length, else data.max_response_length.
int64_t response_length(const RunConfig& config);

// A pass must hold the longest possible row. `tokens`: those of each of `num_ranks` that share it, as the key says; null =
// large enough.
Result<> check_pass_length(const LoadedConfig& loaded, const std::string& key, const std::optional<int64_t>& tokens,
                           int64_t num_ranks);

// How a step is cut. check_config refuses sizes that do not divide, unless rows are carried.
struct BatchPlan {
  int64_t prompts_per_step = 0;        // data.train_batch_size
  int64_t rows_per_step = 0;           // prompts_per_step * rollout.n
  int64_t learnt_rows_per_step = 0;    // times actor.ppo_epochs
  int64_t rows_per_update = 0;         // actor.rows_per_update, else ppo_mini_batch_size * rollout.n
  int64_t updates_per_epoch_pass = 0;  // updates in one pass over the step's rows
  int64_t updates_per_step = 0;        // times actor.ppo_epochs
  bool cuts_groups = false;            // an update may hold a part of a prompt's rows
  // actor.carry_rows, and the sizes do not divide: updates also hold rows of two passes or of two steps. Steps then have
  // different numbers of updates, and the two numbers above are the largest possible ones.
  bool carries_rows = false;

  // On average over the steps.
  [[nodiscard]] double mean_updates_per_step() const {
    return static_cast<double>(learnt_rows_per_step) / static_cast<double>(rows_per_update);
  }
};
BatchPlan plan_batches(const RunConfig& config);

// Steps of the whole run: total_training_steps; or those that total_training_updates need; else total_epochs times the
// whole batches of an epoch, rounded up. After check_run_length, so that they are few enough.
int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts);

// How far a run has come. rows_waiting: for an update (actor.carry_rows).
struct RunPlace {
  int64_t steps = 0, updates = 0, rows_waiting = 0;
};
// The same, from there on. A run that total_training_updates ended inside a step has not learned the rest of that step. If
// the number is raised, the run needs further steps for it.
int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts, const RunPlace& done);

// Updates of the whole run. Rows that are left at the end of an epoch are an update of their own; rows that are left at
// another end of the run are not learnt.
int64_t plan_total_updates(const RunConfig& config, int64_t num_prompts);

// Steps of an epoch: its whole batches.
int64_t steps_per_epoch(const RunConfig& config, int64_t num_prompts);

// Maximum completions of a step, a validation or a `generate`: more do not fit into any memory.
inline constexpr int64_t kMaxRows = int64_t{1} << 24;
// An error if num_prompts prompts have too many completions. `key`: rollout.n or rollout.val_kwargs.n.
Result<> check_num_rows(const LoadedConfig& loaded, int64_t num_prompts, std::string_view key);
// The same for n completions each.
Result<> check_num_rows(const LoadedConfig& loaded, int64_t num_prompts, int64_t n, std::string_view key);

// The number of updates of the whole run must be at most 2^53, which a double holds exactly: schedules divide by it.
Result<> check_run_length(const LoadedConfig& loaded, int64_t num_prompts);

}  // namespace mortise
