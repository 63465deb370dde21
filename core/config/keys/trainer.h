// [trainer]: the length of a run, its files and its limits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys/optim.h"
#include "foundation/base/choice.h"

namespace mortise {

// Numbers of the weights in a checkpoint's huggingface folder.
enum class SaveDtype { kTrain, kStored, kFloat32, kBfloat16, kFloat16, kFloat64 };
constexpr auto choice_names(SaveDtype) {
  return std::array<std::string_view, 6>{"train", "stored", "float32", "bfloat16", "float16", "float64"};
}

enum class ResumeMode { kAuto, kDisable, kResumePath };
constexpr auto choice_names(ResumeMode) { return std::array<std::string_view, 3>{"auto", "disable", "resume_path"}; }

// Where metrics go in addition to metrics.jsonl and updates.jsonl.
enum class LogTarget { kConsole, kTensorboard, kWandb, kMlflow, kPrometheus };
constexpr auto choice_names(LogTarget) {
  return std::array<std::string_view, 5>{"console", "tensorboard", "wandb", "mlflow", "prometheus"};
}

// When the completions of a step are sampled.
enum class TrainMode { kSync, kOneStepOff, kAsync };
constexpr auto choice_names(TrainMode) { return std::array<std::string_view, 3>{"sync", "one_step_off", "async"}; }

inline constexpr int64_t kMostStaleness = 64;  // the largest max_staleness

struct TrainerConfig {
  double total_epochs = 1.0;                      // passes over the training files (verl: 30)
  std::optional<int64_t> total_training_steps;    // null = from total_epochs
  std::optional<int64_t> total_training_updates;  // instead of them: the run ends with this update (TRL: max_steps)
  TrainMode mode = TrainMode::kSync;
  int64_t max_staleness = 2;                       // for mode async: steps by which weights that sample may be old
  int64_t seed = 42;                               // decides everything random
  std::string default_local_dir = "runs/mortise";  // what the run writes (TRL: output_dir)
  int64_t save_freq = -1;                          // steps between checkpoints; -1 = only the last
  int64_t save_freq_updates = -1;                  // updates between checkpoints inside a step; -1 = none
  int64_t test_freq = -1;                          // steps between validations; -1 = only before and after
  bool val_before_train = true;
  bool val_only = false;                             // validate and stop
  std::optional<int64_t> max_actor_ckpt_to_keep;     // newest kept; null = all (TRL: save_total_limit)
  std::optional<std::string> metric_for_best_model;  // names the best checkpoint, which is kept; null = none
  bool greater_is_better = true;
  int64_t early_stopping_patience = 0;        // validations in a row that are no better before the run ends; 0 = never
  double early_stopping_threshold = 0.0;      // a gain up to this is none, for early_stopping_patience
  SaveDtype save_dtype = SaveDtype::kTrain;   // number format in huggingface/
  std::optional<std::string> max_shard_size;  // largest weight file, "5GB"; null = one file, or as read if stored
  bool save_merged_lora = false;              // huggingface/ is the sum of base and adapter, not the adapter alone
  ResumeMode resume_mode = ResumeMode::kAuto;
  std::optional<std::string> resume_from_path;  // with resume_path: the global_step_N folder
  std::vector<LogTarget> logger = {LogTarget::kConsole,
                                   LogTarget::kTensorboard};  // metrics.jsonl and updates.jsonl are always written
  std::string project_name = "mortise";                       // the trackers' project
  std::optional<std::string> experiment_name;                 // for trackers; null = the name of default_local_dir
  int64_t log_val_generations = 0;                 // validation completions kept in the log at each validation
  std::optional<std::string> validation_data_dir;  // the same for the completions of every validation
  std::optional<std::string> rollout_data_dir;  // JSONL of all completions with rewards and advantages, a file a step
  int64_t rollout_data_tokens = 0;              // completions of each such file that have numbers of their tokens
  int64_t num_completions_to_print = 0;         // rows of the console table each step
  int64_t nonfinite_update_limit = 10;          // non-finite updates skipped in all before the run stops
  int64_t critic_warmup = 0;                    // the policy learns from this step on
  std::optional<double>
      rollout_probs_diff_limit;               // limits training/rollout_probs_diff_mean; null = none, as the next three
  std::optional<double> kl_limit;             // limit of the KL to the reference, nats per token
  std::optional<double> nan_reward_limit;     // share of rows without a reward
  std::optional<double> zero_variance_limit;  // share of groups whose rewards are all equal
  int64_t limit_patience = 1;                 // steps in a row above one of these four before the run stops
  std::optional<int64_t> num_threads;         // null = all cores
  std::optional<std::string> offload_dir;     // folder on a disk for offloaded numbers; null = next to the run's
  bool deterministic = false;                 // the bits do not depend on the number of ranks
  int64_t rank_check_freq = 20;               // steps between comparisons of the ranks' weights; -1 = never
  // How many steps before its own the rollout of a step begins. 0: trainer.mode is sync.
  [[nodiscard]] int64_t steps_ahead() const {
    if (mode == TrainMode::kSync) return 0;
    return mode == TrainMode::kAsync ? max_staleness : 1;
  }
  bool operator==(const TrainerConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Keys>
void describe_trainer_length(Keys& keys) {
  keys.length("total_epochs", &TrainerConfig::total_epochs,
              "Number of passes over the training files. A fraction is rounded up to whole steps. Ignored if "
              "total_training_steps or total_training_updates is set. (verl's default: 30.)")
      .above(0)
      .at_most(1e9)
      .trl("num_train_epochs")
      .unread_by(kInSft)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.trainer.total_training_steps.has_value(); },
          "trainer.total_training_steps wins")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.trainer.total_training_updates.has_value(); },
          "trainer.total_training_updates wins")
      .own_key_in_sft("sft.total_training_steps");
  keys.length("total_training_steps", &TrainerConfig::total_training_steps,
              "Steps (batches of prompts) of the whole run. null: total_epochs times the batches of an epoch.")
      .at_least(1)
      .as_in_verl("null")
      .unread_by(kInSft)
      .own_key_in_sft("sft.total_training_steps");
  keys.length("total_training_updates", &TrainerConfig::total_training_updates,
              "Updates (optimizer steps) of the whole run, instead of total_training_steps. The run ends with the step "
              "that makes the last of them, and learns no more of that step's rows. null: all updates of all steps.")
      .at_least(1)
      .at_most(1'000'000'000)
      .trl("max_steps")
      .unread_by(kInSft)
      .own_key_in_sft("sft.total_training_steps");
  keys.compared("mode", &TrainerConfig::mode,
                "When the completions of a step are sampled. sync: with the weights that the step before has made. "
                "one_step_off: while the step before learns, with the weights that it began with, so that sampling and "
                "updates run at the same time. async: the same for the next max_staleness steps; a long completion is "
                "sampled in pieces, each with the newest weights. algorithm.rollout_correction corrects for old "
                "completions (docs/async.md).")
      .unread_by(kInSft);
  keys.compared(
          "max_staleness", &TrainerConfig::max_staleness,
          "With trainer.mode = \"async\": by how many steps the weights that sampled a token may be older than "
          "those that learn from it. A completion gets at most 1/max_staleness of its longest length while a step "
          "learns. 1 gives the same as one_step_off.")
      .at_least(1)
      .at_most(kMostStaleness)
      .unread_by(kInSft)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.trainer.mode != TrainMode::kAsync; },
          "trainer.mode is not async");
  keys.compared("seed", &TrainerConfig::seed, "Seed of everything random that has no seed of its own.")
      .at_least(0)
      .transformers("seed", "42")
      .read_by(kInGenerate | kInEval);
  keys.free("default_local_dir", &TrainerConfig::default_local_dir,
            "Folder that the run writes: metrics, logs, checkpoints, the resolved config.")
      .place()
      .as_in_verl("")
      .transformers("output_dir", "");
}

template <class Keys>
void describe_offload_dir(Keys& keys) {
  keys.free(
          "offload_dir", &TrainerConfig::offload_dir,
          "Folder on a disk for the numbers that actor.optim.offload, critic.optim.offload and ref.offload keep out of "
          "memory. The files have no names and go with the process. null: the folder that default_local_dir is in.")
      .place()
      .no_effect(
          kLearning,
          [](const auto& k) {
            return k.config.actor.optim.offload != StateOffloading::kFile &&
                   k.config.critic.optim.offload != StateOffloading::kFile && k.config.ref.offload == Offloading::kNone;
          },
          "nothing lies in files (actor.optim.offload, critic.optim.offload and ref.offload)");
}

template <class Keys>
void describe_saving_and_testing(Keys& keys) {
  keys.free("save_freq", &TrainerConfig::save_freq,
            "Steps between checkpoints. The last step is always saved. -1 or 0: only the last.")
      .at_least(-1)
      .as_in_verl("-1")
      .trl("save_steps");
  keys.free("save_freq_updates", &TrainerConfig::save_freq_updates,
            "Updates between checkpoints within a step. The first is saved as soon as the samples are scored. Such a "
            "checkpoint (unfinished_step_N_update_U) holds the samples, and is deleted when the next one is complete. "
            "-1 or 0: none; a killed run starts its current step again.")
      .at_least(-1)
      .not_in_sft("a step of sft is one update");
  keys.free("test_freq", &TrainerConfig::test_freq,
            "Steps between validations. The last step is always validated. -1 or 0: only the last.")
      .at_least(-1)
      .trl("eval_steps")
      .no_effect(
          kInTrain, [](const auto& k) { return !k.config.data.validates(); }, "data.val_files is not given")
      .own_key_in_sft("sft.test_freq");
  keys.free("val_before_train", &TrainerConfig::val_before_train, "Validate before the first step.")
      .trl("eval_on_start")
      .no_effect(
          kInTrain, [](const auto& k) { return !k.config.data.validates() && k.config.trainer.val_before_train; },
          "data.val_files is not given")
      .no_effect(
          kInSft, [](const auto& k) { return k.config.trainer.val_before_train; },
          "sft validates every sft.test_freq updates and after the last");
  keys.free("val_only", &TrainerConfig::val_only, "Validate once and stop.").as_in_verl("false");
}

inline constexpr auto trains_adapter = [](const auto& k) { return k.config.model.trains_adapter(); };

template <class Keys>
void describe_best_model(Keys& keys) {
  constexpr auto no_metric = [](const auto& k) { return !k.config.trainer.metric_for_best_model; };
  const std::string why = "trainer.metric_for_best_model is not set";
  keys.free("metric_for_best_model", &TrainerConfig::metric_for_best_model,
            "Metric of a validation that says which checkpoint is the best, such as val-core/gsm8k/reward/mean@1 or "
            "eval_reward. A validation that is better than all before is saved at once. The file `best` in the run's "
            "folder names that checkpoint, and no save deletes it. null: no checkpoint is the best.")
      .no_effect(
          kLearning, [](const auto& k) { return !k.config.data.validates(); }, "data.val_files is not given");
  keys.free("greater_is_better", &TrainerConfig::greater_is_better,
            "Whether a larger value of metric_for_best_model is better.")
      .no_effect(kLearning, no_metric, why);
  keys.free("early_stopping_patience", &TrainerConfig::early_stopping_patience,
            "The run ends if this many validations in a row bring no better metric_for_best_model. 0: it does not.")
      .at_least(0)
      .no_effect(kLearning, no_metric, why);
  keys.free("early_stopping_threshold", &TrainerConfig::early_stopping_threshold,
            "A gain of metric_for_best_model up to this counts as none for early_stopping_patience.")
      .at_least(0)
      .no_effect(
          kLearning, [](const auto& k) { return k.config.trainer.early_stopping_patience == 0; },
          "trainer.early_stopping_patience is 0");
}

template <class Keys>
void describe_checkpoints(Keys& keys) {
  keys.free("max_actor_ckpt_to_keep", &TrainerConfig::max_actor_ckpt_to_keep,
            "Number of checkpoints to keep. When a new one is complete, the oldest ones above this number are deleted. "
            "null: all.")
      .at_least(1)
      .as_in_verl("null")
      .transformers("save_total_limit", "null");
  describe_best_model(keys);
  keys.free("save_dtype", &TrainerConfig::save_dtype,
            "Number format of the weights in a checkpoint's huggingface folder. train: that of the trained "
            "weights (float32 if model.dtype is bfloat16). stored: the format "
            "of each file of model.path, with the same bytes for weights that were not trained. If a format rounds, "
            "the checkpoint's state also holds the exact weights, so that a resume loses nothing. You may change it on "
            "a resume.");
  keys.free(
          "max_shard_size", &TrainerConfig::max_shard_size,
          "Maximum size of a weight file in that folder, as \"5GB\" or \"500MB\". More weights go into more files "
          "with an index. null: one file (with several ranks about one for each rank, of at least 64 MiB), or the files "
          "of model.path if save_dtype is stored.")
      .no_effect(
          kLearning, [](const auto& k) { return trains_adapter(k) && !k.config.trainer.save_merged_lora; },
          "an adapter is saved as one file");
  keys.free("save_merged_lora", &TrainerConfig::save_merged_lora,
            "What that folder holds with a LoRA adapter. true: a whole model, the sum of base and adapter. false: only "
            "the adapter, in PEFT's format. A resume is exact with either.")
      .no_effect(
          kLearning, [](const auto& k) { return !trains_adapter(k); }, "no adapter is trained (model.lora_rank)");
  keys.free("resume_mode", &TrainerConfig::resume_mode,
            "auto resumes the newest checkpoint in default_local_dir if there is one. disable starts over. resume_path "
            "resumes resume_from_path. The command line's --resume replaces this key.")
      .as_in_verl("\"auto\"");
  keys.free("resume_from_path", &TrainerConfig::resume_from_path,
            "The checkpoint (a global_step_N folder) that resume_mode = \"resume_path\" resumes.")
      .place()
      .trl("resume_from_checkpoint")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.trainer.resume_mode != ResumeMode::kResumePath; },
          [](const auto& k) -> std::string {
            return "trainer.resume_mode is " + std::string(choice_name(k.config.trainer.resume_mode));
          });
}

inline constexpr auto tells_no_tracker = [](const auto& k) -> bool {
  for (const LogTarget target : k.config.trainer.logger) {
    if (target != LogTarget::kConsole && target != LogTarget::kTensorboard) return false;
  }
  return true;
};

template <class Keys>
void describe_logs(Keys& keys) {
  keys.free(
          "logger", &TrainerConfig::logger,
          "Where metrics go in addition to metrics.jsonl and updates.jsonl, which are always written. wandb and mlflow: "
          "folders in their own formats, for `wandb sync` and `mlflow ui`; nothing is sent. prometheus: the text file "
          "metrics.prom.")
      .trl("report_to");
  keys.free("project_name", &TrainerConfig::project_name, "Name of the W&B project or MLflow experiment.")
      .no_effect(kLearning, tells_no_tracker, "trainer.logger has neither wandb, mlflow nor prometheus");
  keys.free("experiment_name", &TrainerConfig::experiment_name,
            "Name of the run in W&B and MLflow. null: the name of the folder default_local_dir.")
      .no_effect(kLearning, tells_no_tracker, "trainer.logger has neither wandb, mlflow nor prometheus");
  keys.free("log_val_generations", &TrainerConfig::log_val_generations,
            "Validation completions shown in the log at each validation, also by sft and eval.")
      .at_least(0)
      .as_in_verl("0")
      .read_by(kInEval)
      .no_effect(
          kLearning,
          [](const auto& k) { return !k.config.data.validates() && k.config.trainer.log_val_generations != 0; },
          "data.val_files is not given");
  keys.free("validation_data_dir", &TrainerConfig::validation_data_dir,
            "Folder for the completions of every validation with their rewards. Each validation is a JSONL file named "
            "by its step; `mortise eval` writes eval.jsonl. null: none are written.")
      .place()
      .as_in_verl("null")
      .read_by(kInEval)
      .no_effect(
          kLearning, [](const auto& k) { return !k.config.data.validates() && k.config.trainer.validation_data_dir; },
          "data.val_files is not given");
  keys.free("rollout_data_dir", &TrainerConfig::rollout_data_dir,
            "Folder for all completions of training with their rewards, their advantages and the reasons of failed "
            "rewards. Each step is a JSONL file (docs/metrics.md lists its fields). null: none are written.")
      .place()
      .as_in_verl("null")
      .not_in_sft();
  keys.free("rollout_data_tokens", &TrainerConfig::rollout_data_tokens,
            "Completions in each file of rollout_data_dir that also have the numbers of their tokens: text, advantage, "
            "log-probs, ratio, entropy, and whether the loss clipped the token. They are the first ones of the step. "
            "`mortise report` colors the tokens by them. A token takes about 60 bytes. 0: none.")
      .at_least(0)
      .at_most(1'000'000)
      .no_effect(
          kInTrain, [](const auto& k) { return !k.config.trainer.rollout_data_dir; },
          "trainer.rollout_data_dir is not set")
      .not_in_sft();
  keys.free("num_completions_to_print", &TrainerConfig::num_completions_to_print,
            "Completions shown on the console after each step, as a table with the reasons of failed rewards. 0: none.")
      .at_least(0)
      .not_in_sft();
  keys.free("nonfinite_update_limit", &TrainerConfig::nonfinite_update_limit,
            "Updates with a gradient that is not finite are skipped and counted. The run stops if there are more than "
            "this many.")
      .at_least(0);
  keys.compared("critic_warmup", &TrainerConfig::critic_warmup,
                "First step in which the policy learns too. Only the critic learns before it.")
      .at_least(0)
      .as_in_verl("0");
}

inline constexpr auto has_no_limit = [](const auto& k) {
  const TrainerConfig& t = k.config.trainer;
  return !t.kl_limit && !t.rollout_probs_diff_limit && !t.nan_reward_limit && !t.zero_variance_limit;
};

template <class Keys>
void describe_limits(Keys& keys) {
  keys.free("rollout_probs_diff_limit", &TrainerConfig::rollout_probs_diff_limit,
            "Stop the run (exit code 5) if training/rollout_probs_diff_mean is above this. It is the mean difference "
            "between the sampler's and the trainer's probabilities. null: never.")
      .at_least(0)
      .not_in_sft()
      .no_effect(
          kInTrain,
          [](const auto& k) {
            const auto& config = k.config;
            return config.model.lora_dropout > 0 && config.model.lora_rank > 0 &&
                   plan_batches(config).updates_per_step <= 1;
          },
          "a step has one update, and with model.lora_dropout its log-probs are not those of the sampler's policy");
  keys.free("kl_limit", &TrainerConfig::kl_limit,
            "Stop the run (exit code 5) if the KL to the reference (kl, else actor/reward_kl_penalty) is above this, "
            "in nats per token. null: never.")
      .above(0)
      .not_in_sft();
  keys.free("nan_reward_limit", &TrainerConfig::nan_reward_limit,
            "Stop the run (exit code 9) if frac_reward_nan is above this. It is the share of completions without a "
            "reward, because none applies or all failed. null: never.")
      .at_least(0)
      .below(1)
      .not_in_sft();
  keys.free("zero_variance_limit", &TrainerConfig::zero_variance_limit,
            "Stop the run (exit code 9) if frac_reward_zero_std is above this. It is the share of groups whose rewards "
            "are all the same. null: never.")
      .at_least(0)
      .below(1)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.algorithm.filter_groups.enable; },
          "algorithm.filter_groups drops the groups that it counts")
      .not_in_sft();
  keys.free("limit_patience", &TrainerConfig::limit_patience,
            "Steps in a row that must be above rollout_probs_diff_limit, kl_limit, nan_reward_limit or "
            "zero_variance_limit before the run stops.")
      .at_least(1)
      .no_effect(kInTrain, has_no_limit, "none of its limits is set")
      .not_in_sft();
  keys.free("num_threads", &TrainerConfig::num_threads,
            "Threads that compute. The last bits of a run depend on it. null: OMP_NUM_THREADS, else as many as the "
            "process may use by its CPU affinity and the quota of its control group (container).")
      .at_least(1)
      .at_most(4096)
      .read_by(kInGenerate | kInServe | kInEval);
}

template <class Keys>
void describe_trainer_ranks(Keys& keys) {
  keys.compared("deterministic", &TrainerConfig::deterministic,
                "Learn the same bits with any number of ranks. Gradients are added in a fixed tree over the "
                "micro-batches of an update. All ranks must compute with the same number of threads. "
                "docs/ranks.md says what it costs. false: the last bits depend on the number of ranks.");
  keys.free("rank_check_freq", &TrainerConfig::rank_check_freq,
            "Steps between comparisons of the weights that the ranks hold. The run stops (exit code 7) and names the "
            "rank if one has other weights. The last step is always compared. -1 or 0: never.")
      .at_least(-1);
}

template <class Catalog>
void describe_trainer_section(Catalog& catalog) {
  auto keys = catalog.table("trainer", "The run: its length, its files and its limits.",
                            [](auto& run) -> TrainerConfig& { return run.trainer; });
  // `eval` shares the file of a run, and reads little of [trainer]. Only keys on its command line get a warning.
  keys.none_has_effect(
      kInEval,
      [](const auto& k) { return (k.field->read_by & kInEval) == 0 && k.loaded.where(k.key).starts_with("override"); },
      "`mortise eval` validates once and does not write a run folder");
  describe_trainer_length(keys);
  describe_offload_dir(keys);
  describe_saving_and_testing(keys);
  describe_checkpoints(keys);
  describe_logs(keys);
  describe_limits(keys);
  describe_trainer_ranks(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
