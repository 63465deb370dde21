#include "config/check.h"

#include <algorithm>
#include <set>

#include "config/config_node.h"
#include "config/fields.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class Checker {
 public:
  Checker(const LoadedConfig& loaded, ConfigUse use) : loaded_(loaded), config_(loaded.config), use_(use) {}

  Result<std::vector<Error>> run() {
    const bool trains = use_ == ConfigUse::kTrain;
    if (use_ != ConfigUse::kObjective && use_ != ConfigUse::kGenerate) check_given();
    if (trains || use_ == ConfigUse::kEval) check_rewards();
    if (trains || use_ == ConfigUse::kSft) check_optimizer();
    if (trains || use_ == ConfigUse::kObjective) check_objective();
    if (trains) {
      check_batches();
      check_training();
    }
    if (use_ != ConfigUse::kObjective && use_ != ConfigUse::kSft) check_rollout();
    if (use_ != ConfigUse::kObjective && use_ != ConfigUse::kGenerate) check_validation();
    if (!problems_.empty()) return join_problems(std::move(problems_));
    return std::move(warnings_);
  }

 private:
  void error(std::string_view key, std::string what, std::string next) {
    problems_.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }
  void warn(std::string_view key, std::string what, std::string next = "") {
    warnings_.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }
  // A key that was set although, as things stand, nothing reads it.
  void warn_unused(std::string_view key, bool used, std::string_view because) {
    if (!used && loaded_.is_set(key)) warn(key, "'" + std::string(key) + "' has no effect: " + std::string(because));
  }

  void check_given() {
    if (config_.model.path.empty()) error("model.path", "'model.path' is not given", "name the model's folder");
    const bool needs_train = use_ == ConfigUse::kSft || (use_ == ConfigUse::kTrain && !config_.trainer.val_only);
    if (needs_train && config_.data.train_files.empty()) {
      error("data.train_files", "'data.train_files' is not given", "name a JSONL file");
    }
    const bool needs_val = use_ == ConfigUse::kEval || (use_ == ConfigUse::kTrain && config_.trainer.val_only);
    if (needs_val && config_.data.val_files.empty()) {
      error("data.val_files", "'data.val_files' is not given", "name a JSONL file");
    }
  }

  void check_rewards() {
    if (config_.reward.empty()) {
      error("reward", "there is no reward", "add a table: [[reward]] use = \"exact_match\"");
      return;
    }
    std::set<std::string> names;
    bool any_weight = false;
    for (size_t i = 0; i < config_.reward.size(); ++i) {
      const RewardConfig& reward = config_.reward[i];
      any_weight |= reward.weight != 0;
      if (!names.insert(reward.name).second) {
        error("reward." + std::to_string(i), "two rewards are named " + quote(reward.name),
              "give one of them another `name`");
      }
    }
    if (!any_weight) warn("reward", "all rewards have weight 0, so every score is 0");
  }

  void check_batches() {
    const DataConfig& data = config_.data;
    const ActorConfig& actor = config_.actor;
    const std::string batch = std::to_string(data.train_batch_size);
    const std::string mini = std::to_string(actor.ppo_mini_batch_size);
    const std::string_view key = "actor.ppo_mini_batch_size";
    if (actor.ppo_mini_batch_size > data.train_batch_size) {
      error(key,
            "an update of " + mini + " prompts does not fit into a step of " + batch +
                " (actor.ppo_mini_batch_size, data.train_batch_size)",
            "set actor.ppo_mini_batch_size=" + batch);
      return;
    }
    if (data.train_batch_size % actor.ppo_mini_batch_size != 0) {
      error(key, "data.train_batch_size (" + batch + ") is no multiple of actor.ppo_mini_batch_size (" + mini + ")",
            "choose a divisor of " + batch);
    }
    // Products stay far below 2^63 only where the factors are sane; a step of 2^40 rows is not.
    if (data.train_batch_size > (int64_t{1} << 40) / config_.rollout.n) {
      error("data.train_batch_size",
            "a step of " + batch + " prompts with " + std::to_string(config_.rollout.n) +
                " completions each is too large",
            "lower data.train_batch_size or rollout.n");
      return;
    }
    const int64_t rows = actor.ppo_mini_batch_size * config_.rollout.n;
    if (actor.ppo_micro_batch_size_per_gpu.value_or(0) > rows) {
      warn("actor.ppo_micro_batch_size_per_gpu", "a pass of " + std::to_string(*actor.ppo_micro_batch_size_per_gpu) +
                                                     " rows is larger than an update, which has " +
                                                     std::to_string(rows));
    }
    check_token_budget();
  }

  void check_token_budget() {
    const ActorConfig& actor = config_.actor;
    const bool by_tokens = actor.use_dynamic_bsz || !actor.ppo_micro_batch_size_per_gpu;
    warn_unused("actor.ppo_max_token_len_per_gpu", by_tokens,
                "passes are cut by actor.ppo_micro_batch_size_per_gpu (set actor.use_dynamic_bsz=true)");
    warn_unused("actor.ppo_micro_batch_size_per_gpu", !actor.use_dynamic_bsz || !actor.ppo_micro_batch_size_per_gpu,
                "actor.use_dynamic_bsz cuts passes by tokens");
    const double longest = static_cast<double>(config_.data.max_prompt_length) + static_cast<double>(response_length());
    if (by_tokens && actor.ppo_max_token_len_per_gpu &&
        longest > static_cast<double>(*actor.ppo_max_token_len_per_gpu)) {
      error("actor.ppo_max_token_len_per_gpu",
            "one row may have " + format_f64(longest) +
                " tokens (data.max_prompt_length + the longest completion), a pass "
                "only " +
                std::to_string(*actor.ppo_max_token_len_per_gpu),
            "raise actor.ppo_max_token_len_per_gpu or lower the lengths");
    }
  }

  void check_objective() {
    const ActorConfig& actor = config_.actor;
    const bool norm = actor.loss_agg_mode == "seq-mean-token-sum-norm" || actor.loss_agg_mode == "auto";
    const std::string norm_only = "actor.loss_agg_mode is " + actor.loss_agg_mode + ", not seq-mean-token-sum-norm";
    warn_unused("actor.loss_scale_factor", norm, norm_only);
    warn_unused("actor.loss_scale_by_rows", norm, norm_only);
    const bool over_tokens = actor.loss_agg_mode == "token-mean" || actor.loss_agg_mode == "token-sum";
    warn_unused("actor.loss_agg_rows", !over_tokens, "actor.loss_agg_mode counts tokens, not rows");
    for (const std::string_view key : {"actor.kl_loss_coef", "actor.kl_loss_type", "actor.kl_params"}) {
      warn_unused(key, actor.use_kl_loss, "actor.use_kl_loss is false");
    }
    if (actor.clip_ratio_c > 0 && actor.clip_ratio_c <= 1) {
      error("actor.clip_ratio_c",
            "'actor.clip_ratio_c' is " + format_f64(actor.clip_ratio_c) + ", a bound of the ratio above 1",
            "use 3.0, or 0 for none");
    }
    if (actor.use_kl_loss && actor.kl_loss_coef == 0) {
      warn("actor.kl_loss_coef", "the KL loss has coefficient 0: it is measured at the cost of a reference pass only");
    }
    for (const std::string_view side : {"actor.clip_ratio_low", "actor.clip_ratio_high"}) {
      const auto& value = side.ends_with("low") ? actor.clip_ratio_low : actor.clip_ratio_high;
      const std::string parameter(side.substr(std::string_view("actor.").size()));
      if (value && actor.policy_loss.params.contains(parameter)) {
        warn_unused(side, false, "actor.policy_loss." + parameter + " wins");
      }
    }
    warn_unused("actor.clip_ratio", !(actor.clip_ratio_low && actor.clip_ratio_high),
                "both actor.clip_ratio_low and actor.clip_ratio_high are set");
  }

  void check_optimizer() {
    const OptimConfig& optim = config_.actor.optim;
    warn_unused("actor.optim.min_lr_ratio", optim.lr_scheduler_type != "constant",
                "actor.optim.lr_scheduler_type is constant");
    warn_unused("actor.optim.num_cycles", optim.lr_scheduler_type == "cosine",
                "actor.optim.lr_scheduler_type is " + optim.lr_scheduler_type);
    warn_unused("actor.optim.lr_warmup_steps_ratio", optim.lr_warmup_steps < 0, "actor.optim.lr_warmup_steps wins");
    if (optim.lr == 0) warn("actor.optim.lr", "the learning rate is 0: nothing will be learnt");
  }

  void check_training() {
    const AlgorithmConfig& algorithm = config_.algorithm;
    const std::string estimator = plugin_bare_name(algorithm.adv_estimator);
    if ((estimator == "grpo" || estimator == "rloo") && config_.rollout.n < 2) {
      warn("rollout.n",
           "rollout.n is 1: " + estimator + " compares the completions of one prompt, and there is only one",
           "set rollout.n=8 or more");
    }
    for (const std::string_view key : {"algorithm.kl_penalty", "algorithm.kl_ctrl"}) {
      warn_unused(key, algorithm.use_kl_in_reward, "algorithm.use_kl_in_reward is false");
    }
    const bool adaptive = algorithm.kl_ctrl.type == "adaptive";
    warn_unused("algorithm.kl_ctrl.horizon", adaptive, "algorithm.kl_ctrl.type is fixed");
    warn_unused("algorithm.kl_ctrl.target_kl", adaptive, "algorithm.kl_ctrl.type is fixed");
    if (algorithm.use_kl_in_reward && config_.actor.use_kl_loss) {
      warn("actor.use_kl_loss", "the KL to the reference counts twice: in the reward and in the loss");
    }
    if (config_.rollout.temperature == 0) {
      error("rollout.temperature", "'rollout.temperature' is 0, and log-probabilities cannot be divided by it",
            "use 1.0 for training; validation is greedy unless rollout.val_kwargs.do_sample is true");
    }
    const TrainerConfig& trainer = config_.trainer;
    warn_unused("trainer.total_epochs", !trainer.total_training_steps, "trainer.total_training_steps wins");
    if (trainer.resume_mode == "resume_path" && !trainer.resume_from_path) {
      error("trainer.resume_mode", "'trainer.resume_mode' is resume_path, but no path is given",
            "set trainer.resume_from_path to a global_step_N folder");
    }
    warn_unused("trainer.resume_from_path", trainer.resume_mode == "resume_path",
                "trainer.resume_mode is " + trainer.resume_mode);
  }

  [[nodiscard]] int64_t response_length() const {
    return config_.rollout.response_length.value_or(config_.data.max_response_length);
  }

  void check_rollout() {
    const RolloutConfig& rollout = config_.rollout;
    if (rollout.min_new_tokens > response_length()) {
      error("rollout.min_new_tokens",
            "'rollout.min_new_tokens' (" + std::to_string(rollout.min_new_tokens) +
                ") is more than the longest completion (" + std::to_string(response_length()) + ")",
            "lower it");
    }
    const ValKwargs& validation = rollout.val_kwargs;
    if (use_ != ConfigUse::kGenerate && validation.n > 1 && !validation.do_sample) {
      warn("rollout.val_kwargs.n",
           "validation asks for " + std::to_string(validation.n) +
               " completions of each prompt, but greedy ones are all the same",
           "set rollout.val_kwargs.do_sample=true and rollout.val_kwargs.temperature");
    }
    for (const std::string_view key :
         {"rollout.val_kwargs.temperature", "rollout.val_kwargs.top_k", "rollout.val_kwargs.top_p"}) {
      warn_unused(key, validation.do_sample, "rollout.val_kwargs.do_sample is false, so validation is greedy");
    }
  }

  void check_validation() {
    const bool has_rows = !config_.data.val_files.empty();
    const std::string_view none = "data.val_files is not given";
    if (use_ == ConfigUse::kTrain) {
      warn_unused("trainer.test_freq", has_rows, none);
      warn_unused("trainer.val_before_train", has_rows, none);
    } else if (use_ == ConfigUse::kSft) {
      warn_unused("sft.test_freq", has_rows, none);
      if (config_.sft.stop_val_accuracy && !has_rows) {
        error("sft.stop_val_accuracy", "'sft.stop_val_accuracy' needs validation rows", "set data.val_files");
      } else if (config_.sft.stop_val_accuracy && config_.sft.test_freq < 1) {
        error("sft.stop_val_accuracy", "'sft.stop_val_accuracy' needs validations on the way", "set sft.test_freq");
      }
      if (config_.sft.stop_val_accuracy && config_.reward.empty()) {
        error("sft.stop_val_accuracy", "'sft.stop_val_accuracy' needs a reward that tells right from wrong",
              "add a table: [[reward]] use = \"exact_match\"");
      }
    }
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  ConfigUse use_;
  std::vector<Error> problems_;
  std::vector<Error> warnings_;
};

}  // namespace

Result<std::vector<Error>> check_config(const LoadedConfig& loaded, ConfigUse use) {
  return Checker(loaded, use).run();
}

BatchPlan plan_batches(const RunConfig& config) {
  BatchPlan plan;
  plan.prompts_per_step = config.data.train_batch_size;
  plan.rows_per_step = plan.prompts_per_step * config.rollout.n;
  plan.rows_per_update = config.actor.ppo_mini_batch_size * config.rollout.n;
  plan.updates_per_epoch_pass = config.data.train_batch_size / config.actor.ppo_mini_batch_size;
  plan.updates_per_step = plan.updates_per_epoch_pass * config.actor.ppo_epochs;
  return plan;
}

int64_t plan_total_steps(const RunConfig& config, int64_t num_prompts) {
  if (config.trainer.total_training_steps) return *config.trainer.total_training_steps;
  return config.trainer.total_epochs * (num_prompts / config.data.train_batch_size);
}

}  // namespace mortise
