// See unused.h.
#include "config/unused.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace mortise {
namespace {

class UnusedKeys {
 public:
  UnusedKeys(const LoadedConfig& loaded, ConfigUse use) : loaded_(loaded), config_(loaded.config), use_(use) {}

  std::vector<Error> run() {
    const bool trains = use_ == ConfigUse::kTrain, warms_up = use_ == ConfigUse::kSft;
    const bool samples = use_ != ConfigUse::kObjective && use_ != ConfigUse::kGenerate;
    if (trains || warms_up) look_at_learning();
    if (trains || use_ == ConfigUse::kObjective) {
      look_at_correction();
      look_at_loss();
    }
    if (trains) {
      look_at_passes();
      look_at_algorithm();
      look_at_trainer();
    }
    if (trains || use_ == ConfigUse::kEval) look_at_rewards();
    if (samples) look_at_rows();
    if (use_ == ConfigUse::kGenerate) look_at_greedy();
    if (trains || use_ == ConfigUse::kEval || (warms_up && has_val_rows())) look_at_validation();
    if (trains || warms_up) look_at_validation_times();
    if (use_ == ConfigUse::kEval) look_at_eval();
    if (warms_up) look_at_sft();
    return std::move(warnings_);
  }

 private:
  void tell(std::string_view key, bool used, std::string_view because) {
    if (used || !loaded_.is_set(key)) return;
    warnings_.push_back({ErrorKind::kConfig, "'" + std::string(key) + "' has no effect: " + std::string(because),
                         loaded_.where(key), ""});
  }
  void tell_all(std::initializer_list<std::string_view> keys, bool used, std::string_view because) {
    for (const std::string_view key : keys) tell(key, used, because);
  }
  // A key of the engine that a plugin's own parameter of the same name takes the place of.
  void tell_overruled(const std::string& table, const std::string& leaf, const std::string& parameters,
                      const Json& given) {
    tell(table + leaf, !given.contains(leaf), parameters + leaf + " wins");
  }

  [[nodiscard]] bool has_val_rows() const { return !config_.data.val_files.empty(); }

  // What is trained of the model, by which steps, and how it is saved.
  void look_at_learning() {
    const ModelSection& model = config_.model;
    tell("model.activation_memory_mib", model.enable_gradient_checkpointing,
         "model.enable_gradient_checkpointing is false, so all activations are kept");
    const std::string why = model.lora_adapter_path ? "the adapter of model.lora_adapter_path says it itself"
                                                    : "model.lora_rank is 0, so all weights are trained";
    tell_all({"model.lora_alpha", "model.target_modules", "model.exclude_modules"},
             model.lora_rank > 0 && !model.lora_adapter_path, why);
    tell("model.lora_rank", !model.lora_adapter_path, why);
    const TrainerConfig& trainer = config_.trainer;
    const bool has_adapter = model.lora_rank > 0 || model.lora_adapter_path;
    tell("trainer.save_merged_lora", has_adapter, "no adapter is trained (model.lora_rank)");
    tell("trainer.max_shard_size", !has_adapter || trainer.save_merged_lora, "an adapter is saved as one file");
    look_at_optimizer("actor.optim.", config_.actor.optim);
    if (use_ == ConfigUse::kTrain) look_at_optimizer("critic.optim.", config_.critic.optim);
  }

  void look_at_optimizer(const std::string& table, const OptimConfig& optim) {
    const std::string type = table + "lr_scheduler_type is " + optim.lr_scheduler_type;
    tell(table + "min_lr_ratio", optim.lr_scheduler_type != "constant", type);
    tell(table + "num_cycles", optim.lr_scheduler_type == "cosine", type);
    tell(table + "lr_warmup_steps_ratio", optim.lr_warmup_steps < 0, table + "lr_warmup_steps wins");
  }

  void look_at_correction() {
    const RolloutCorrectionConfig& correction = config_.algorithm.rollout_correction;
    const std::string table = "algorithm.rollout_correction.";
    for (const char* key : {"rollout_is_threshold", "rollout_is_outside", "rollout_is_batch_normalize"})
      tell(table + key, correction.rollout_is.has_value(), table + "rollout_is is null");
    tell(table + "rollout_rs_threshold", correction.rollout_rs.has_value(), table + "rollout_rs is null");
    tell(table + "loss_type", correction.bypass_mode, table + "bypass_mode is false");
    tell(table + "rollout_is", !correction.bypass_mode || correction.loss_type != "ppo_clip",
         "the ratio of bypass mode's loss is the correction; it is measured only");
  }

  void look_at_loss() {
    const ActorConfig& actor = config_.actor;
    for (const char* key : {"target_entropy", "delta", "min_coeff", "max_coeff"})
      tell(std::string("actor.entropy_ctrl.") + key, actor.entropy_ctrl.type == "adaptive",
           "actor.entropy_ctrl.type is fixed");
    look_at_aggregation();
    tell_all({"actor.kl_loss_coef", "actor.kl_loss_type", "actor.kl_params"}, actor.use_kl_loss,
             "actor.use_kl_loss is false");
    for (const char* leaf : {"clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"})
      tell_overruled("actor.", leaf, "actor.policy_loss.", actor.policy_loss.params);
    for (const char* leaf : {"norm_adv_by_std_in_grpo", "gamma", "lam"})
      tell_overruled("algorithm.", leaf, "algorithm.adv_params.", config_.algorithm.adv_params);
    tell("actor.clip_ratio", !(actor.clip_ratio_low && actor.clip_ratio_high),
         "both actor.clip_ratio_low and actor.clip_ratio_high are set");
  }

  // The critic's loss takes these keys from [actor]; what `auto` comes to, the loss's table says.
  void look_at_aggregation() {
    const std::string& mode = config_.actor.loss_agg_mode;
    const std::string& critic = config_.critic.loss_agg_mode;
    const auto over_tokens = [](const std::string& name) { return name == "token-mean" || name == "token-sum"; };
    const bool norm = mode == "seq-mean-token-sum-norm" || mode == "auto" || critic == "seq-mean-token-sum-norm";
    tell_all({"actor.loss_scale_factor", "actor.loss_scale_by_rows"}, norm,
             "actor.loss_agg_mode is " + mode + ", not seq-mean-token-sum-norm");
    tell("actor.loss_agg_rows", !over_tokens(mode) || !over_tokens(critic),
         "actor.loss_agg_mode counts tokens, not rows");
    tell("actor.policy_loss.loss_agg_mode", mode == "auto", "actor.loss_agg_mode is " + mode);
  }

  // How updates, the reference and the critic are cut into passes: by rows, or by tokens.
  void look_at_passes() {
    const ActorConfig& actor = config_.actor;
    const std::string rows = "actor.ppo_micro_batch_size_per_gpu", dynamic = "actor.use_dynamic_bsz";
    look_at_cut({rows, "actor.ppo_max_token_len_per_gpu", dynamic}, actor.ppo_micro_batch_size_per_gpu.has_value(),
                rows, actor.use_dynamic_bsz, dynamic);
    const RefConfig& ref = config_.ref;
    const std::string ref_rows = "ref.log_prob_micro_batch_size_per_gpu", ref_dynamic = "ref.log_prob_use_dynamic_bsz";
    look_at_cut({ref_rows, "ref.log_prob_max_token_len_per_gpu", ref_dynamic},
                ref.log_prob_micro_batch_size_per_gpu || actor.ppo_micro_batch_size_per_gpu,
                ref.log_prob_micro_batch_size_per_gpu ? ref_rows : rows,
                ref.log_prob_use_dynamic_bsz.value_or(actor.use_dynamic_bsz),
                ref.log_prob_use_dynamic_bsz ? ref_dynamic : dynamic);
    const CriticConfig& critic = config_.critic;
    const std::string critic_rows = "critic.ppo_micro_batch_size_per_gpu";
    look_at_cut({critic_rows, "critic.ppo_max_token_len_per_gpu", dynamic},
                critic.ppo_micro_batch_size_per_gpu || actor.ppo_micro_batch_size_per_gpu,
                critic.ppo_micro_batch_size_per_gpu ? critic_rows : rows, actor.use_dynamic_bsz, dynamic);
    tell("actor.shuffle", !actor.shuffle || actor.ppo_mini_batch_size < config_.data.train_batch_size,
         "an update has all rows of its step (actor.ppo_mini_batch_size is data.train_batch_size)");
  }

  struct CutKeys {
    std::string rows, tokens, dynamic;
  };
  // `rows_from` and `dynamic_from`: the keys by which it is so, where they are not set others.
  void look_at_cut(const CutKeys& keys, bool has_rows, const std::string& rows_from, bool is_dynamic,
                   const std::string& dynamic_from) {
    tell(keys.tokens, is_dynamic || !has_rows, "passes are cut by " + rows_from + " (set " + keys.dynamic + "=true)");
    tell(keys.rows, !is_dynamic, dynamic_from + " cuts passes by tokens");
  }

  void look_at_algorithm() {
    const AlgorithmConfig& algorithm = config_.algorithm;
    tell_all({"algorithm.kl_penalty", "algorithm.kl_params", "algorithm.kl_ctrl"}, algorithm.use_kl_in_reward,
             "algorithm.use_kl_in_reward is false");
    tell_all({"algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"},
             algorithm.kl_ctrl.type == "adaptive" || !algorithm.use_kl_in_reward, "algorithm.kl_ctrl.type is fixed");
    tell_all({"algorithm.filter_groups.metric", "algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size"},
             algorithm.filter_groups.enable, "algorithm.filter_groups.enable is false");
    tell("algorithm.filter_groups.enable", !algorithm.filter_groups.enable || config_.rollout.n > 1,
         "rollout.n is 1, and a group of one row is always kept");
    tell("ref.mixup_alpha", config_.ref.sync_steps.has_value(), "ref.sync_steps is null");
    // A recipe may serve both commands.
    tell_all({"data.response_key", "data.messages_key"}, loaded_.is_set("sft"), "only `mortise sft` reads it");
  }

  void look_at_trainer() {
    const TrainerConfig& trainer = config_.trainer;
    tell("trainer.total_epochs", !trainer.total_training_steps, "trainer.total_training_steps wins");
    tell("trainer.resume_from_path", trainer.resume_mode == "resume_path",
         "trainer.resume_mode is " + trainer.resume_mode);
    tell("trainer.zero_variance_limit", !config_.algorithm.filter_groups.enable,
         "algorithm.filter_groups leaves out the groups that it counts");
    const bool any =
        trainer.kl_limit || trainer.rollout_probs_diff_limit || trainer.nan_reward_limit || trainer.zero_variance_limit;
    tell("trainer.limit_patience", any, "none of the limits that it belongs to is set");
  }

  void look_at_rewards() {
    if (config_.plugins.isolation != "none") return;
    constexpr std::string_view kWhy = "plugins.isolation is none, so there are no workers";
    for (size_t i = 0; i < config_.reward.size(); ++i) {
      for (const char* leaf : {".row_timeout", ".allow"}) tell("reward." + std::to_string(i) + leaf, false, kWhy);
    }
    tell_all({"plugins.num_workers", "plugins.bubblewrap", "plugins.worker_memory_mib", "plugins.worker_file_mib",
              "plugins.worker_open_files", "plugins.worker_cpu_time", "plugins.worker_cpus", "plugins.env"},
             false, kWhy);
  }

  // Of data files, and of what is sampled.
  void look_at_rows() {
    const DataConfig& data = config_.data;
    if (use_ != ConfigUse::kEval) tell("data.seed", data.shuffle, "data.shuffle is false");
    tell("data.truncation", !data.filter_overlong_prompts || data.truncation == "error",
         "data.filter_overlong_prompts leaves such rows out");
    tell("data.val_max_samples", has_val_rows(), kNoRows);
    tell("rollout.min_new_tokens", !config_.rollout.ignore_eos,
         "rollout.ignore_eos lets no completion end before its length");
    if (use_ != ConfigUse::kSft)
      tell("rollout.top_log_probs", config_.rollout.top_log_probs == 0, "only `mortise generate` writes them");
  }

  void look_at_greedy() {
    tell_all({"rollout.top_k", "rollout.top_p", "rollout.min_p", "rollout.typical_p", "rollout.seed"},
             config_.rollout.temperature > 0, "rollout.temperature is 0, so completions are greedy");
    tell("rollout.min_new_tokens", !config_.rollout.ignore_eos,
         "rollout.ignore_eos lets no completion end before its length");
  }

  void look_at_validation() {
    const ValKwargs& validation = config_.rollout.val_kwargs;
    tell("rollout.val_kwargs", has_val_rows(), kNoRows);
    if (!has_val_rows()) return;
    tell("rollout.val_kwargs.temperature", validation.do_sample,
         "rollout.val_kwargs.do_sample is false, so validation is greedy");
    tell_all({"rollout.val_kwargs.top_k", "rollout.val_kwargs.top_p"},
             validation.do_sample && validation.temperature > 0, "validation is greedy");
  }

  void look_at_validation_times() {
    const bool has_rows = has_val_rows();
    tell("trainer.log_val_generations", has_rows || config_.trainer.log_val_generations == 0, kNoRows);
    tell("trainer.validation_data_dir", has_rows || !config_.trainer.validation_data_dir, kNoRows);
    if (use_ == ConfigUse::kSft) {
      tell("sft.test_freq", has_rows, kNoRows);
      return;
    }
    tell("trainer.test_freq", has_rows, kNoRows);
    tell("trainer.val_before_train", has_rows || !config_.trainer.val_before_train, kNoRows);
  }

  // `eval` shares the file of a run, and reads little of [trainer]; what is put on its command line is meant for it.
  void look_at_eval() {
    for (const auto& [key, place] : loaded_.positions) {
      if (!key.starts_with("trainer.") || !place.starts_with("override")) continue;
      const bool used = key == "trainer.seed" || key == "trainer.num_threads" || key == "trainer.validation_data_dir" ||
                        key == "trainer.log_val_generations";
      tell(key, used, "`mortise eval` validates once and keeps no run folder");
    }
  }

  // Keys of a training run that sft does not read: a file may serve both, so they are told and not refused.
  void look_at_sft() {
    tell("trainer.val_before_train", !config_.trainer.val_before_train,
         "sft validates every sft.test_freq updates and after the last");
    tell_all({"trainer.rollout_data_dir", "trainer.num_completions_to_print", "trainer.rollout_probs_diff_limit",
              "trainer.kl_limit", "trainer.nan_reward_limit", "trainer.zero_variance_limit", "trainer.limit_patience"},
             false, "sft samples no completions to learn from");
    tell("trainer.save_freq_updates", false, "a step of sft is one update");
    constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
        {"trainer.total_training_steps", "sft.total_training_steps"},
        {"trainer.total_epochs", "sft.total_training_steps"},
        {"trainer.test_freq", "sft.test_freq"},
        {"data.train_batch_size", "sft.train_batch_size"}};
    for (const auto& [key, own] : kOwn)
      tell(key, loaded_.is_set(own), "sft has a setting of its own, " + std::string(own));
  }

  static constexpr std::string_view kNoRows = "data.val_files is not given";
  const LoadedConfig& loaded_;
  const RunConfig& config_;
  ConfigUse use_;
  std::vector<Error> warnings_;
};

}  // namespace

std::vector<Error> unused_keys(const LoadedConfig& loaded, ConfigUse use) { return UnusedKeys(loaded, use).run(); }

}  // namespace mortise
