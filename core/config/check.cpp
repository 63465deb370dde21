// The rules between keys, one function per group of rules, and the batch sizes.
#include "config/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "config/config_node.h"
#include "config/correction_rules.h"
#include "config/device_rules.h"
#include "config/fields.h"
#include "config/findings.h"
#include "config/full_kl.h"
#include "config/learning_rules.h"
#include "config/model_rules.h"
#include "config/sampling_rules.h"
#include "config/tensor_rules.h"
#include "config/unused.h"
#include "foundation/base/secrets.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class Checker : ConfigRules {
 public:
  Checker(const LoadedConfig& loaded, ConfigUse use, ConfigFindings& found) : ConfigRules(loaded, found), use_(use) {}

  Result<std::vector<Error>> run() {
    const bool trains = use_ == ConfigUse::kTrain;
    const bool learns = use_ == ConfigUse::kSft || (trains && !config_.trainer.val_only);
    if (use_ != ConfigUse::kObjective && !samples_alone(use_)) check_given();
    if (trains || use_ == ConfigUse::kEval) check_rewards();
    check_columns();
    check_rows();
    if (use_ != ConfigUse::kObjective && !samples_alone(use_)) check_rollout_tensor_rules(loaded_, learns, found_);
    if (trains || use_ == ConfigUse::kSft) check_model_rules(loaded_, found_);
    if (trains || use_ == ConfigUse::kObjective) check_objective();
    if (trains) {
      check_aggregation();
      check_batches();
      check_training();
      for (Error& problem : check_learning_rules(loaded_)) found_.problems.push_back(std::move(problem));
    }
    if (use_ == ConfigUse::kSft) {
      check_sft();
      check_validation();
    }
    if (use_ != ConfigUse::kObjective && use_ != ConfigUse::kSft) check_sampling_rules(loaded_, use_, found_);
    if (use_ != ConfigUse::kObjective)
      for (Error& problem : check_device(loaded_, use_)) found_.problems.push_back(std::move(problem));
    if (!found_.problems.empty()) return join_problems(std::move(found_.problems));
    for (Error& warning : unused_keys(loaded_, use_)) found_.warnings.push_back(std::move(warning));
    return std::move(found_.warnings);
  }

 private:
  void needs_files(const std::string& key) {
    error(key, quote(key) + (loaded_.is_set(key) ? " is an empty list" : " is not set"),
          "set it to a file of rows, such as \"train.jsonl\"");
  }

  // Both name their files after the step.
  void check_completion_folders() {
    const TrainerConfig& trainer = config_.trainer;
    if (!trainer.rollout_data_dir || !trainer.validation_data_dir) return;
    const auto place = [](const std::string& folder) {
      return (std::filesystem::absolute(folder) / "").lexically_normal();
    };
    if (place(*trainer.rollout_data_dir) != place(*trainer.validation_data_dir)) return;
    error("trainer.validation_data_dir", "this is also trainer.rollout_data_dir, whose files have the same names",
          "name another folder, so that validations do not replace the completions of training");
  }

  void check_given() {
    if (config_.model.path.empty())
      error("model.path", "'model.path' is not set", "set it to the model's folder, or to its name on the hub");
    if (use_ != ConfigUse::kEval && config_.trainer.default_local_dir.empty()) {
      error("trainer.default_local_dir", "'trainer.default_local_dir' is empty, but a run needs a folder",
            "set it, for example to \"runs/first\" (\".\" is the folder in which you start the run)");
    }
    check_completion_folders();
    const bool needs_train = use_ == ConfigUse::kSft || (use_ == ConfigUse::kTrain && !config_.trainer.val_only);
    if (needs_train && config_.data.train_files.empty()) {
      needs_files("data.train_files");
    }
    const bool needs_val = use_ == ConfigUse::kEval || (use_ == ConfigUse::kTrain && config_.trainer.val_only);
    if (needs_val && !config_.data.validates()) {
      needs_files("data.val_files");
    }
  }

  void check_rows() {
    const DataConfig& data = config_.data;
    if (!data.train_weights.empty() && data.train_weights.size() != data.train_files.size()) {
      error("data.train_weights",
            fmt::format("'data.train_weights' needs one number per entry of data.train_files, but has {} for {}",
                        data.train_weights.size(), data.train_files.size()),
            "give one weight per entry; a pattern such as data/*.parquet is one entry");
    }
    if (std::ranges::any_of(data.train_weights, [](double weight) { return !(weight > 0) || weight > 1e6; }))
      error("data.train_weights", "'data.train_weights' must be positive numbers of at most 10^6",
            "remove entries that are not to be drawn from");
    if (data.curriculum_by_reward && (data.streaming || data.curriculum_key)) {
      error("data.curriculum_by_reward",
            fmt::format("'data.curriculum_by_reward' sorts all rows, but {}",
                        data.streaming ? "data.streaming does not hold them" : "data.curriculum_key sorts them too"),
            data.streaming ? "set data.streaming=false" : "set one of the two");
    }
    if (data.streaming && data.curriculum_key) {
      error("data.curriculum_key", "'data.curriculum_key' sorts all rows, but data.streaming does not hold them",
            "sort the file itself and set data.shuffle=false, or set data.streaming=false");
    }
  }

  void check_columns() {
    for (const auto& [name, type] : config_.data.columns.items()) {
      const bool known =
          type.is_string() && (type == "text" || type == "integer" || type == "number" || type == "json");
      if (known) continue;
      const std::string key = "data.columns." + name;
      error(key, fmt::format("'{}' must be one of text, integer, number, json, but is {}", key, dump_json(type)),
            "name the type that rewards read, as in data.columns = { answer = \"text\" }");
    }
  }

  void check_rewards() {
    if (config_.reward.empty()) {
      if (config_.rollout.multi_turn.enable) return;  // the environment may reward; the run asks it
      error("reward", "there is no reward", "add a table: [[reward]] use = \"exact_match\"");
      return;
    }
    std::set<std::string> names;
    bool any_weight = false;
    check_used_in();
    for (size_t i = 0; i < config_.reward.size(); ++i) {
      const RewardConfig& reward = config_.reward[i];
      any_weight |= reward.weight != 0;
      if (!names.insert(reward.name).second) {
        error("reward." + std::to_string(i), "two rewards are named " + quote(reward.name),
              fmt::format("give one of them another name, as in name = \"{}_2\"", reward.name));
      }
      if (reward.name.find('/') != std::string::npos) {
        error(fmt::format("reward.{}.name", i),
              fmt::format("the name {} has a '/', which divides the names of metrics", quote(reward.name)),
              "write another character for it");
      }
    }
    if (!any_weight && !config_.teacher.path) warn("reward", "all rewards have weight 0, so every score is 0");
    for (const std::string& name : config_.plugins.env) {
      if (is_variable_name(name)) continue;
      const std::string shown(name.substr(0, name.find('=')));  // not a value that was given by mistake
      error("plugins.env", quote(shown) + " is not the name of an environment variable",
            "write only the name, as in \"OPENAI_API_KEY\" (the value comes from the environment of the run)");
    }
  }

  void check_used_in() {
    const auto scores = [this](RewardUse use) {
      return std::ranges::any_of(config_.reward, [&](const RewardConfig& one) {
        return one.used_in == RewardUse::kAll || one.used_in == use;
      });
    };
    if (config_.rollout.multi_turn.enable) return;  // the environment may reward
    const bool trains = use_ == ConfigUse::kTrain && !config_.trainer.val_only;
    if (trains && !scores(RewardUse::kTrain))
      error("reward", "no reward is used in training", "set used_in = \"all\" or \"train\" in a [[reward]] table");
    if ((use_ == ConfigUse::kEval || config_.data.validates()) && !scores(RewardUse::kValidation))
      error("reward", "no reward is used in validation",
            "set used_in = \"all\" or \"validation\" in a [[reward]] table");
  }

  void check_aggregation() {
    const std::string_view key = "algorithm.multi_objective_aggregation";
    const AlgorithmConfig& algorithm = config_.algorithm;
    if (algorithm.multi_objective_aggregation != RewardAggregation::kNormalizeThenSum) return;
    if (config_.rollout.n < 2) {
      error(key, "normalize_then_sum needs several completions per prompt, but rollout.n is 1",
            "set rollout.n=2 or more");
    }
  }

  bool update_fits_step() {
    const int64_t batch = config_.data.train_batch_size, mini = config_.actor.ppo_mini_batch_size;
    const std::string_view key = "actor.ppo_mini_batch_size";
    if (mini > batch) {
      error(key,
            fmt::format("an update of {} prompts does not fit into a step of {} (actor.ppo_mini_batch_size, "
                        "data.train_batch_size)",
                        mini, batch),
            fmt::format("set actor.ppo_mini_batch_size={}, or actor.carry_rows=true", batch));
    } else if (batch % mini != 0) {
      error(key,
            fmt::format("data.train_batch_size ({}) is not a multiple of actor.ppo_mini_batch_size ({})", batch, mini),
            fmt::format("choose a divisor of {}, or set actor.carry_rows=true", batch));
    }
    return mini <= batch;
  }

  bool carried_rows_fit() {
    const ActorConfig& actor = config_.actor;
    const std::string_view key = actor.rows_per_update ? "actor.rows_per_update" : "actor.ppo_mini_batch_size";
    const int64_t rows_each = actor.rows_per_update ? 1 : config_.rollout.n;
    const int64_t size = actor.rows_per_update.value_or(actor.ppo_mini_batch_size);
    const bool fits = size <= kMaxRows / rows_each;
    if (!fits) error(key, fmt::format("an update has more than {} completions", format_count(kMaxRows)), "lower it");
    return fits;
  }

  void check_length() {
    const TrainerConfig& trainer = config_.trainer;
    if (!trainer.total_training_updates) return;
    if (trainer.total_training_steps)
      error("trainer.total_training_updates",
            "'trainer.total_training_updates' and 'trainer.total_training_steps' are both set", "remove one of them");
    if (trainer.critic_warmup > 0)
      error("trainer.total_training_updates",
            "'trainer.critic_warmup' has steps without updates, so 'trainer.total_training_updates' does not give the "
            "length of the run",
            "set trainer.total_training_steps instead");
  }

  void check_batches() {
    const DataConfig& data = config_.data;
    const ActorConfig& actor = config_.actor;
    const std::string batch = std::to_string(data.train_batch_size);
    check_length();
    if (actor.carry_rows ? !carried_rows_fit() : !actor.rows_per_update && !update_fits_step()) return;
    if (const int64_t critic = config_.critic.ppo_mini_batch_size.value_or(1); data.train_batch_size % critic != 0) {
      error(
          "critic.ppo_mini_batch_size",
          fmt::format("data.train_batch_size ({}) is not a multiple of critic.ppo_mini_batch_size ({})", batch, critic),
          "choose a divisor of " + batch);
    }
    if (auto rows = check_num_rows(loaded_, data.train_batch_size, "rollout.n"); !rows.ok()) {
      found_.problems.push_back(std::move(rows).error());
      return;
    }
    const int64_t rows = plan_batches(config_).rows_per_update;
    if (const int64_t in_step = data.train_batch_size * config_.rollout.n;
        actor.rows_per_update && !actor.carry_rows && in_step % rows != 0) {
      error("actor.rows_per_update",
            fmt::format("a step has {} rows (data.train_batch_size times rollout.n), which is not a multiple of "
                        "actor.rows_per_update ({})",
                        in_step, rows),
            fmt::format("choose a divisor of {}, or set actor.carry_rows=true", in_step));
    }
    if (actor.ppo_micro_batch_size_per_gpu.value_or(0) > rows) {
      warn("actor.ppo_micro_batch_size_per_gpu", fmt::format("a pass of {} rows is larger than an update, which has {}",
                                                             *actor.ppo_micro_batch_size_per_gpu, rows));
    }
    // train/check_plugins checks those of the reference and the critic, which only some plugins need.
    if (!actor.use_dynamic_bsz && actor.ppo_micro_batch_size_per_gpu) return;
    auto good = check_pass_length(loaded_, "actor.ppo_max_token_len_per_gpu", actor.ppo_max_token_len_per_gpu,
                                  actor.ulysses_sequence_parallel_size);
    if (!good.ok()) found_.problems.push_back(std::move(good).error());
  }

  void check_correction() {
    const RolloutCorrectionConfig& correction = config_.algorithm.rollout_correction;
    if (auto rules = parse_correction_rules(correction); !rules.ok()) {
      Error problem = std::move(rules).error();
      problem.where = loaded_.where(problem.where);
      found_.problems.push_back(std::move(problem));
    }
    const std::string& loss = config_.actor.policy_loss.loss_mode;
    if (!correction.bypass_mode || correction.loss_type != BypassLoss::kReinforce ||
        plugin_bare_name(loss) == "reinforce")
      return;
    error("actor.policy_loss.loss_mode",
          "'algorithm.rollout_correction.loss_type' is reinforce, but 'actor.policy_loss.loss_mode' is " + quote(loss),
          "remove loss_mode, or set loss_type=ppo_clip");
  }

  void check_objective() {
    check_correction();
    const ActorConfig& actor = config_.actor;
    const EntropyControlConfig& entropy = actor.entropy_ctrl;
    if (entropy.min_coeff > entropy.max_coeff)
      error("actor.entropy_ctrl.min_coeff", "'actor.entropy_ctrl.min_coeff' is above max_coeff", "lower it");
    check_full_kl();
    if (const double bound = actor.clip_ratio_c.value_or(0); bound > 0 && bound <= 1) {
      error("actor.clip_ratio_c", fmt::format("'actor.clip_ratio_c' is {}, but it must be above 1", format_f64(bound)),
            "use 3.0, or 0 to switch it off");
    }
    if (actor.use_kl_loss && actor.kl_loss_coef == 0) {
      warn("actor.kl_loss_coef",
           "kl_loss_coef is 0, so the KL is only measured. This still costs a forward pass of the reference model");
    }
  }

  // The KL over the whole vocabulary is a term of the loss and has no parameters.
  void check_full_kl() {
    const ActorConfig& actor = config_.actor;
    const std::string straight_through = std::string(kFullKl) + "+";
    if (actor.use_kl_loss && actor.kl_loss_type == straight_through) {
      error("actor.kl_loss_type",
            "'actor.kl_loss_type' is full+, but the gradient of the KL over the whole vocabulary is already exact",
            "use full");
    }
    if (actor.use_kl_loss && actor.kl_loss_type == kFullKl && !actor.kl_params.empty())
      error("actor.kl_params", "'actor.kl_params' is for an estimator, but 'actor.kl_loss_type' is full", "remove it");
    const std::string& penalty = config_.algorithm.kl_penalty;
    if (config_.algorithm.use_kl_in_reward && (penalty == kFullKl || penalty == straight_through)) {
      error("algorithm.kl_penalty", "'algorithm.kl_penalty' is full, which works only in the loss",
            "use an estimator (kl, low_var_kl), or actor.use_kl_loss=true with actor.kl_loss_type=full");
    }
  }

  void check_training() {
    const AlgorithmConfig& algorithm = config_.algorithm;
    const FilterGroupsConfig& filter = algorithm.filter_groups;
    if (filter.enable && filter.metric == "seq_final_reward")
      error("algorithm.filter_groups.metric",
            "'algorithm.filter_groups.metric' is seq_final_reward, but groups are chosen "
            "before the KL is subtracted",
            "use seq_reward");
    if (algorithm.use_kl_in_reward && config_.actor.use_kl_loss) {
      warn("actor.use_kl_loss", "the KL to the reference counts twice: in the reward and in the loss");
    }
    if (config_.rollout.temperature == 0) {
      error("rollout.temperature", "'rollout.temperature' is 0, but log-probabilities are divided by it",
            "use 1.0 for training (validation is greedy unless rollout.val_kwargs.do_sample is true)");
    }
    const TrainerConfig& trainer = config_.trainer;
    if (trainer.resume_mode == ResumeMode::kResumePath && !trainer.resume_from_path) {
      error("trainer.resume_mode", "'trainer.resume_mode' is resume_path, but no path is set",
            "set trainer.resume_from_path to a global_step_N folder");
    }
    check_limits();
  }

  // Limits on metrics that this run does not measure.
  void check_limits() {
    const TrainerConfig& trainer = config_.trainer;
    if (trainer.kl_limit && !config_.actor.use_kl_loss && !config_.algorithm.use_kl_in_reward) {
      error("trainer.kl_limit", "'trainer.kl_limit' needs a KL to the reference, but the run measures none",
            "set actor.use_kl_loss=true (with actor.kl_loss_coef=0 it is only measured), or remove the limit");
    }
    if (trainer.rollout_probs_diff_limit && !config_.rollout.calculate_log_probs) {
      error("trainer.rollout_probs_diff_limit",
            "'trainer.rollout_probs_diff_limit' needs the sampler's log-probabilities",
            "set rollout.calculate_log_probs=true, or remove the limit");
    }
    if (trainer.zero_variance_limit && config_.rollout.n < 2) {
      error("trainer.zero_variance_limit",
            "'trainer.zero_variance_limit' needs several completions per prompt, but rollout.n is 1",
            "set rollout.n=2 or more, or remove the limit");
    }
  }

  void check_sft() {
    if (config_.trainer.val_only) {
      error("trainer.val_only", "'trainer.val_only' only validates, but sft trains", "use `mortise eval`");
    }
    if (config_.data.validates()) check_validation_sampling(loaded_, found_);
  }

  // sft validates if it has rows and rewards for it.
  void check_validation() {
    const bool has_rows = config_.data.validates();
    if (has_rows && config_.reward.empty()) {
      warn("data.val_files", "there is no reward, so the validation rows are not used",
           "add a table: [[reward]] use = \"exact_match\"");
    }
    const SftConfig& sft = config_.sft;
    if (sft.stop_val_accuracy && !has_rows) {
      error("sft.stop_val_accuracy", "'sft.stop_val_accuracy' needs validation rows", "set data.val_files");
    } else if (sft.stop_val_accuracy && sft.test_freq < 1) {
      error("sft.stop_val_accuracy", "'sft.stop_val_accuracy' needs validations during the run", "set sft.test_freq");
    }
    if (sft.stop_val_accuracy && config_.reward.empty()) {
      error("sft.stop_val_accuracy", "'sft.stop_val_accuracy' needs a reward that tells right from wrong",
            "add a table: [[reward]] use = \"exact_match\"");
    }
  }

  ConfigUse use_;
};

}  // namespace

Result<std::vector<Error>> check_config(const LoadedConfig& loaded, ConfigUse use) {
  ConfigFindings found;
  return Checker(loaded, use, found).run();
}

}  // namespace mortise
