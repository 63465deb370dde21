// check_config: the rules between keys, and the batch arithmetic that follows from them.
//
// Errors come all at once, like those of load_config; what is allowed but has no effect or is rarely meant is a
// warning. Pure functions. Source of the rules: verl's validate_config and TRL's GRPOConfig.__post_init__.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"

namespace mortise {

// Which command asks; it decides what must be given.
enum class ConfigUse {
  kTrain,      // model, training files, rewards
  kSft,        // model, training files
  kEval,       // model, validation files, rewards
  kGenerate,   // the model comes from the command line
  kObjective,  // algorithm and actor alone
};

// The warnings (kind kConfig; print with to_string()), or one Error with every problem.
Result<std::vector<Error>> check_config(const LoadedConfig& loaded, ConfigUse use);

// Tokens of the longest completion: rollout.response_length, else data.max_response_length.
int64_t response_length(const RunConfig& config);

// A pass of so many tokens, as the key says, must hold the longest row there may be. Null: it does.
Result<> check_pass_length(const LoadedConfig& loaded, const std::string& key, const std::optional<int64_t>& tokens);

// How a step is cut. Nothing here is rounded: check_config refuses sizes that do not divide.
struct BatchPlan {
  int64_t prompts_per_step = 0;        // data.train_batch_size
  int64_t rows_per_step = 0;           // prompts_per_step * rollout.n
  int64_t rows_per_update = 0;         // ppo_mini_batch_size * rollout.n
  int64_t updates_per_epoch_pass = 0;  // updates in one pass over the step's rows
  int64_t updates_per_step = 0;        // times actor.ppo_epochs
};
BatchPlan plan_batches(const RunConfig& config);

// Steps of the whole run: total_training_steps, else total_epochs * (num_prompts / train_batch_size), the rest dropped.
int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts);

// Completions that a step, a validation or a `generate` may make at most: more do not fit into any memory.
inline constexpr int64_t kMaxRows = int64_t{1} << 24;
// num_prompts prompts with as many completions each as the key (rollout.n, rollout.val_kwargs.n) says: are they too
// many?
Result<> check_num_rows(const LoadedConfig& loaded, int64_t num_prompts, std::string_view key);

// The updates of the whole run must be a number that a double holds exactly (2^53): schedules divide by it.
Result<> check_run_length(const LoadedConfig& loaded, int64_t num_prompts);

}  // namespace mortise
