// See ahead_rules.h.
#include "train/run/ahead_rules.h"

#include <fmt/core.h>

#include <mortise/mortise.h>

#include <algorithm>

#include "config/check.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/batch/columns.h"
#include "train/sampling/over_sampling.h"

namespace mortise {
namespace {

bool over_samples(const LoadedConfig& loaded) { return loaded.config.rollout.over_sampling > 1; }

// Completions may come from weights of an earlier step.
bool is_ahead(const LoadedConfig& loaded) { return loaded.config.trainer.steps_ahead() > 0 || over_samples(loaded); }

std::string ahead_key(const LoadedConfig& loaded) {
  return over_samples(loaded) ? "rollout.over_sampling" : "trainer.mode";
}

std::string mode_text(const LoadedConfig& loaded) {
  if (over_samples(loaded))
    return fmt::format("'rollout.over_sampling' is {}", format_f64(loaded.config.rollout.over_sampling));
  return fmt::format("'trainer.mode' is {}", choice_name(loaded.config.trainer.mode));
}

// The setting that goes with everything.
const char* switched_off(const LoadedConfig& loaded) {
  return over_samples(loaded) ? "set rollout.over_sampling to 1" : "set trainer.mode to sync";
}

}  // namespace

Result<> check_ahead_estimator(const LoadedConfig& loaded, const PluginInfo& estimator) {
  if (!is_ahead(loaded) || !estimator.requires_input(column::RewardBaselines::name)) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("{}, but the advantage estimator '{}' samples again for its baselines, with the weights of "
                           "its own step",
                           mode_text(loaded), loaded.config.algorithm.adv_estimator),
               loaded.where(ahead_key(loaded)),
               fmt::format("{}, or take another advantage estimator", switched_off(loaded))};
}

Result<> check_ahead_backend(const LoadedConfig& loaded, const RolloutBackend& backend) {
  if (loaded.config.trainer.steps_ahead() < 2 && !over_samples(loaded)) return {};
  if ((backend.info().flags & MORTISE_FLAG_NEEDS_ENGINE) != 0 || backend.holds_weights()) return {};
  return Error{
      ErrorKind::kConfig,
      fmt::format("{}, which continues completions with newer weights, but the rollout backend '{}' never gets "
                  "any",
                  mode_text(loaded), loaded.config.rollout.name),
      loaded.where(ahead_key(loaded)),
      fmt::format("set {} to 1, or take another backend",
                  over_samples(loaded) ? "rollout.over_sampling" : "trainer.max_staleness")};
}

void tell_ahead(const LoadedConfig& loaded, ActorObjective& objective) {
  if (!is_ahead(loaded)) return;
  const int64_t steps = over_samples(loaded) ? OverSampling::kRounds : loaded.config.trainer.steps_ahead();
  const std::string_view what = over_samples(loaded) ? "the first tokens of a completion" : "completions";
  log_info(
      fmt::format("{}: {} come from weights that are up to {} old", mode_text(loaded), what, counted(steps, "step")));
  const RolloutCorrection& correction = objective.correction();
  const bool loss_corrects = objective.policy_loss().info().requires_input(column::RolloutLogProb::name);
  if (correction.is_active() || correction.is_bypass() || loss_corrects) return;
  const Error warning{ErrorKind::kConfig, "nothing corrects for completions from older weights",
                      loaded.where(ahead_key(loaded)), "set algorithm.rollout_correction.rollout_is = \"token\""};
  log_warn(warning.to_string());
}

void keep_ahead_if_it_fits(RolloutAhead& ahead, const RunConfig& config, int64_t rows_per_step) {
  const TrainerConfig& trainer = config.trainer;
  int64_t num_rows = 0;
  bool fits = true;
  for (const AheadRollout& rollout : ahead.rollouts()) {
    const auto rows = static_cast<int64_t>(rollout.experience.samples.rows.size());
    num_rows += rows;
    const bool is_new_enough = rollout.step - rollout.first_round <= std::max(trainer.steps_ahead(), int64_t{1});
    const bool is_finished = rollout.is_whole || trainer.steps_ahead() > 0;
    fits = fits && rows == rows_per_step && is_new_enough && is_finished && has_room(rollout, response_length(config));
  }
  if (fits) return;
  log_warn(
      fmt::format("the checkpoint holds {} completions for the next steps, which do not fit the new settings. The run "
                  "leaves them out, and their prompts come again in the next epoch",
                  num_rows));
  ahead.forget();
}

}  // namespace mortise
