// See learning_rules.h.
#include "config/learning_rules.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "config/full_kl.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class LearningRules {
 public:
  explicit LearningRules(const LoadedConfig& loaded) : loaded_(loaded), config_(loaded.config) {}

  std::vector<Error> run() {
    if (config_.rollout.filtered_log_probs) check_filtered();
    check_mode();
    check_teacher();
    check_sft_mix();
    check_rows();
    if (config_.algorithm.replay_buffer.enable) check_replay_buffer();
    check_router_replay();
    return std::move(problems_);
  }

 private:
  void error(std::string_view key, std::string what, std::string next) {
    problems_.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }

  // What could not be exact.
  void check_filtered() {
    const std::string_view key = "rollout.filtered_log_probs";
    const RolloutConfig& rollout = config_.rollout;
    const bool filters = rollout.top_k > 0 || rollout.top_p < 1 || rollout.min_p > 0 || rollout.typical_p < 1;
    const bool edits = rollout.repetition_penalty != 1 || rollout.presence_penalty != 0 ||
                       rollout.frequency_penalty != 0 || rollout.ignore_eos || rollout.min_new_tokens > 0 ||
                       !rollout.bad_words.empty();
    if (edits && !filters) {
      error(
          key,
          "'rollout.filtered_log_probs' needs a filter: penalties, min_new_tokens, ignore_eos and bad_words alone leave "
          "the whole vocabulary at every token",
          "set rollout.top_k or rollout.top_p too, or remove one of the two");
    }
    if (edits && rollout.multi_turn.enable) {
      error(
          key,
          "'rollout.filtered_log_probs' with several turns works with filters, but not with penalties, min_new_tokens, "
          "ignore_eos or bad_words, which begin again in each turn",
          "remove one of them");
    }
    if (rollout.structured_outputs_regex) {
      error(key, "'rollout.filtered_log_probs' does not work with 'rollout.structured_outputs_regex'",
            "remove one of the two: without the first, training is over the model's own log-probs");
    }
    if (config_.actor.use_kl_loss && config_.actor.kl_loss_type == kFullKl) {
      error(key,
            "'rollout.filtered_log_probs' is true, but 'actor.kl_loss_type' is full: the KL over the whole vocabulary",
            "use an estimator");
    }
    if (config_.teacher.path && config_.teacher.loss_coef > 0) {
      error(key, "'rollout.filtered_log_probs' is true, but 'teacher.loss_coef' compares whole vocabularies",
            "remove one of the two, or use teacher.advantage_coef");
    }
    if (config_.algorithm.filter_groups.enable) {
      error(key,
            "'rollout.filtered_log_probs' computes the kept tokens with the weights of the step, but "
            "algorithm.filter_groups keeps groups of earlier weights",
            "remove one of the two");
    }
  }

  // A step of it samples rows in pieces, with the weights of several steps.
  void check_over_sampling() {
    const std::string_view key = "rollout.over_sampling";
    const std::string is_on = fmt::format("'rollout.over_sampling' is {}, so that completions are sampled in pieces",
                                          format_f64(config_.rollout.over_sampling));
    if (config_.trainer.mode != TrainMode::kSync) {
      error(key,
            fmt::format("{}, and 'trainer.mode' is {}, which samples them ahead", is_on,
                        choice_name(config_.trainer.mode)),
            "set rollout.over_sampling to 1, or trainer.mode to sync");
    }
    if (config_.data.train_batch_size == 1) {
      error(key, "'rollout.over_sampling' needs several groups per step, but data.train_batch_size is 1",
            "set data.train_batch_size=2 or more, or rollout.over_sampling to 1");
    }
    if (config_.rollout.filtered_log_probs) {
      error("rollout.filtered_log_probs",
            is_on + ", but 'rollout.filtered_log_probs' computes the kept tokens with the weights of the step",
            "remove one of the two");
    }
    check_pieces(is_on, "set rollout.over_sampling to 1, or remove this key");
  }

  void check_mode() {
    if (config_.rollout.over_sampling > 1) check_over_sampling();
    if (config_.trainer.mode == TrainMode::kSync) return;
    if (config_.trainer.steps_ahead() > 1) {
      check_pieces(fmt::format("'trainer.max_staleness' is {}, so that completions are sampled in pieces",
                               config_.trainer.max_staleness),
                   "set trainer.max_staleness to 1, or remove this key");
    }
    const std::string is_ahead =
        fmt::format("'trainer.mode' is {}, which samples during the updates, but ", choice_name(config_.trainer.mode));
    if (config_.trainer.save_freq_updates > 0) {
      error("trainer.save_freq_updates", is_ahead + "'trainer.save_freq_updates' saves between them",
            "save between steps by trainer.save_freq, or set trainer.mode to sync");
    }
    if (config_.rollout.filtered_log_probs) {
      error("rollout.filtered_log_probs",
            is_ahead + "'rollout.filtered_log_probs' computes the kept tokens with the weights of the step",
            "set one of the two back");
    }
    if (config_.rollout.sleep_while_training) {
      error("rollout.sleep_while_training", is_ahead + "'rollout.sleep_while_training' is true",
            "set it to false, or trainer.mode to sync");
    }
    if (config_.actor.optim.offload == StateOffloading::kWhileSampling)
      problems_.push_back(resting_ahead(loaded_, "actor.optim.offload"));
  }

  // Settings that need whole completions, not pieces.
  void check_pieces(const std::string& because, const std::string& next) {
    const RolloutConfig& rollout = config_.rollout;
    const std::vector<std::pair<std::string_view, bool>> uses{
        {"algorithm.filter_groups.enable", config_.algorithm.filter_groups.enable},
        {"actor.router_replay.mode", config_.actor.router_replay.mode == RouterReplay::kR3},
        {"rollout.multi_turn.enable", rollout.multi_turn.enable},
        {"rollout.stop", !rollout.stop.empty()},
        {"rollout.bad_words", !rollout.bad_words.empty()},
        {"rollout.structured_outputs_regex", rollout.structured_outputs_regex.has_value()},
        {"rollout.min_new_tokens", rollout.min_new_tokens > 0},
        {"rollout.presence_penalty", rollout.presence_penalty != 0},
        {"rollout.frequency_penalty", rollout.frequency_penalty != 0}};
    for (const auto& [key, is_used] : uses) {
      if (!is_used) continue;
      error(key, fmt::format("{}, but '{}' needs whole completions", because, key), next);
    }
  }

  void check_teacher() {
    const TeacherConfig& teacher = config_.teacher;
    if (teacher.path) return;
    if (teacher.loss_coef > 0 || teacher.advantage_coef > 0) {
      error(teacher.loss_coef > 0 ? "teacher.loss_coef" : "teacher.advantage_coef",
            "there is no teacher to learn from ('teacher.path' is null)", "set teacher.path to the teacher's folder");
    }
  }

  void check_sft_mix() {
    const SftMixConfig& mix = config_.sft_mix;
    if (!mix.is_on()) return;
    if (mix.rows_per_mean && mix.train_batch_size % *mix.rows_per_mean != 0) {
      error("sft_mix.rows_per_mean",
            fmt::format("'sft_mix.rows_per_mean' is {}, which does not divide the {} rows of an update "
                        "(sft_mix.train_batch_size)",
                        *mix.rows_per_mean, mix.train_batch_size),
            "make sft_mix.train_batch_size a multiple of it");
    }
    if (mix.mu_peak == 0 && mix.valley() == 0) {
      error("sft_mix.files", "'sft_mix.files' is set, but mu is always 0 (sft_mix.mu_peak and sft_mix.mu_valley)",
            "set sft_mix.mu_peak above 0, or remove the table");
    }
  }

  void check_rows() {
    const AlgorithmConfig& algorithm = config_.algorithm;
    const FilterGroupsConfig& filter = algorithm.filter_groups;
    if (filter.min_mean && filter.max_mean && *filter.min_mean >= *filter.max_mean) {
      error("algorithm.filter_groups.min_mean",
            "'algorithm.filter_groups.min_mean' is not below max_mean, so that no group would be kept", "lower it");
    }
    if (algorithm.use_pf_ppo && config_.trainer.rollout_data_tokens > 0) {
      error("algorithm.use_pf_ppo",
            "'algorithm.use_pf_ppo' cannot be used with trainer.rollout_data_tokens, because a row may be learned from "
            "several times or not at all",
            "remove one of the two");
    }
    if (algorithm.use_pf_ppo && algorithm.rollout_correction.bypass_mode) {
      error("algorithm.use_pf_ppo",
            "'algorithm.use_pf_ppo' cannot be used with algorithm.rollout_correction.bypass_mode, which measures the "
            "policy's log-probs in the updates",
            "remove one of the two");
    }
  }

  // What would not be right for groups of earlier steps.
  void check_replay_buffer() {
    const std::string_view key = "algorithm.replay_buffer.enable";
    const std::string is_on = "'algorithm.replay_buffer.enable' is true, but ";
    const AlgorithmConfig& algorithm = config_.algorithm;
    if (config_.rollout.n < 2)
      error(key, is_on + "rollout.n is 1, and the rewards of one completion never differ", "set rollout.n=2 or more");
    if (algorithm.filter_groups.enable)
      error(key, is_on + "algorithm.filter_groups already leaves out the groups that it replaces",
            "remove one of the two");
    if (algorithm.multi_objective_aggregation == RewardAggregation::kNormalizeThenSum) {
      error(key, is_on + "normalize_then_sum compares each reward, and the buffer only their sum",
            "remove algorithm.multi_objective_aggregation, or set it to false");
    }
    if (algorithm.use_kl_in_reward) {
      error(key, is_on + "algorithm.use_kl_in_reward gives a KL to rows whose rewards are those of an earlier step",
            "use actor.use_kl_loss, or set it to false");
    }
    if (config_.teacher.advantage_coef != 0) {
      error(key, is_on + "teacher.advantage_coef gives advantages to groups whose rewards do not differ",
            "use teacher.loss_coef, or set it to 0");
    }
    if (config_.trainer.rollout_probs_diff_limit) {
      error(key, is_on + "trainer.rollout_probs_diff_limit would stop the run for rows that an older policy sampled",
            "remove one of the two");
    }
    if (config_.rollout.filtered_log_probs) {
      error(key, is_on + "rollout.filtered_log_probs computes the kept tokens with the weights of the step",
            "remove one of the two");
    }
  }

  // Updates must take the experts of whole completions, and those of the pass that they follow.
  void check_router_replay() {
    const std::string_view key = "actor.router_replay.mode";
    const RouterReplay mode = config_.actor.router_replay.mode;
    if (mode == RouterReplay::kR3 && config_.rollout.multi_turn.enable) {
      error(key, "'actor.router_replay.mode' is R3, which works with completions of one turn only",
            "set it to R2, or rollout.multi_turn.enable to false");
    }
    if (mode == RouterReplay::kR2 && config_.algorithm.rollout_correction.bypass_mode) {
      error(
          key,
          "'actor.router_replay.mode' is R2, but with 'algorithm.rollout_correction.bypass_mode' no pass computes old "
          "log-probs",
          "set it to R3, or remove bypass_mode");
    }
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  std::vector<Error> problems_;
};

}  // namespace

Error resting_ahead(const LoadedConfig& loaded, std::string_view key) {
  return {ErrorKind::kConfig,
          fmt::format("'trainer.mode' is {}, which samples during the updates, but '{}' is while_sampling",
                      choice_name(loaded.config.trainer.mode), key),
          loaded.where(key), "set it to none or file, or trainer.mode to sync"};
}

std::vector<Error> check_learning_rules(const LoadedConfig& loaded) { return LearningRules(loaded).run(); }

Result<> check_filtered_estimator(const LoadedConfig& loaded, const std::string& estimator, bool reads_vocabulary) {
  if (!loaded.config.rollout.filtered_log_probs || !reads_vocabulary) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'rollout.filtered_log_probs' is true, but {} reads probabilities of the whole vocabulary",
                           estimator),
               loaded.where("rollout.filtered_log_probs"), "remove one of the two"};
}

Result<> check_replay_estimator(const LoadedConfig& loaded, const std::string& estimator, bool compares_sums_alone) {
  if (!loaded.config.algorithm.replay_buffer.enable || compares_sums_alone) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("'algorithm.replay_buffer.enable' is true, but the advantage estimator {} does not only "
                           "compare the summed rewards of a prompt's completions",
                           estimator),
               loaded.where("algorithm.replay_buffer.enable"),
               "choose another algorithm.adv_estimator, or set it to false"};
}

}  // namespace mortise
