// See ahead_rules.h.
#include "train/run/ahead_rules.h"

#include <fmt/core.h>

#include "foundation/base/log.h"
#include "foundation/batch/columns.h"

namespace mortise {
namespace {

constexpr const char* kKey = "trainer.mode";

bool is_ahead(const LoadedConfig& loaded) { return loaded.config.trainer.mode == TrainMode::kOneStepOff; }

}  // namespace

// The rollout of the next step and the updates of this one would both talk to the other ranks, in any order.
Result<> check_ahead_ranks(const LoadedConfig& loaded, const Communicator& ranks) {
  if (!is_ahead(loaded) || ranks.size() == 1) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'trainer.mode' is one_step_off, which works in one process only, and the run has {} ranks",
                           ranks.size()),
               loaded.where(kKey), "set it to sync, or start one process"};
}

Result<> check_ahead_estimator(const LoadedConfig& loaded, const PluginInfo& estimator) {
  if (!is_ahead(loaded) || !estimator.requires_input(column::RewardBaselines::name)) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'trainer.mode' is one_step_off, but the advantage estimator '{}' samples again for its "
                           "baselines, with the weights of its own step",
                           loaded.config.algorithm.adv_estimator),
               loaded.where(kKey), "set trainer.mode to sync, or take another advantage estimator"};
}

void tell_ahead(const LoadedConfig& loaded, const RolloutCorrection& correction) {
  if (!is_ahead(loaded)) return;
  log_info("trainer.mode is one_step_off: completions come from the weights of one step earlier");
  if (correction.is_active() || correction.is_bypass()) return;
  const Error warning{ErrorKind::kConfig, "nothing corrects for completions that are one step old", loaded.where(kKey),
                      "set algorithm.rollout_correction.rollout_is = \"token\""};
  log_warn(warning.to_string());
}

void keep_ahead_if_it_fits(RolloutAhead& ahead, int64_t rows_per_step) {
  const int64_t rows = ahead.num_rows();
  if (rows == 0 || rows == rows_per_step) return;
  log_warn(
      fmt::format("the checkpoint holds {} completions for the next step, which now has {}: they are left out, and "
                  "their prompts come again in the next epoch",
                  rows, rows_per_step));
  ahead.forget();
}

}  // namespace mortise
