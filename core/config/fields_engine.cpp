// The keys of [rollout], [[reward]], [trainer], [sft] and [plugins]: sampling, scoring and running.
#include "config/field_builder.h"
#include "foundation/batch/sampling.h"

namespace mortise {
namespace {

void add_penalties(FieldTable<RunConfig, RolloutConfig>& table) {
  table
      .add("repetition_penalty", &RolloutConfig::repetition_penalty,
           "Logits of tokens that the prompt or the completion has are divided by it where they are positive, and "
           "multiplied where they are negative, before the temperature. 1: off. Log-probabilities that are trained on "
           "are the model's own, without any penalty.")
      .at_least(kLeastPenalty)
      .at_most(kMostPenalty);
  table
      .add("presence_penalty", &RolloutConfig::presence_penalty,
           "Taken off the logit of each token that the completion has, before the temperature; may be negative. "
           "0: off.")
      .at_least(-kMostPenalty)
      .at_most(kMostPenalty);
  table
      .add("frequency_penalty", &RolloutConfig::frequency_penalty,
           "Taken off the logit of each token as often as the completion has it; may be negative. 0: off.")
      .at_least(-kMostPenalty)
      .at_most(kMostPenalty);
}

void add_ends(FieldTable<RunConfig, RolloutConfig>& table) {
  table.add("stop", &RolloutConfig::stop,
            "Texts that end a completion, with the token that completes one of them; that token stays, and the finish "
            "reason is stop. Special tokens count with their text.");
  table
      .add("stop_token_ids", &RolloutConfig::stop_token_ids,
           "Token ids that end a completion, in addition to the model's end-of-sequence tokens.")
      .at_least(0);
  table.add("bad_words", &RolloutConfig::bad_words,
            "Texts that are never sampled: their tokens, as the tokenizer cuts the text alone and after a space. The "
            "same text in other tokens is not found.");
  table
      .add("top_log_probs", &RolloutConfig::top_log_probs,
           "`mortise generate` writes this many of the likeliest tokens at each place with their log-probabilities, at "
           "temperature and unfiltered. Training has no use for them.")
      .at_least(0)
      .at_most(1024);
}

void add_sampling(FieldTable<RunConfig, RolloutConfig>& table) {
  table
      .add("temperature", &RolloutConfig::temperature,
           "The logits are divided by it when sampling and in every log-probability that is trained on. 0: greedy, "
           "allowed for `mortise generate` and `mortise eval` only; else at least 1e-6.")
      .at_least(0)
      .at_most(kMostTemperature);
  table.add("top_k", &RolloutConfig::top_k, "Sample from the k likeliest tokens. -1 or 0: from all.").at_least(-1);
  table
      .add("top_p", &RolloutConfig::top_p,
           "Sample from the smallest set of likeliest tokens with at least this probability. 1: from all.")
      .above(0)
      .at_most(1);
  table
      .add("min_p", &RolloutConfig::min_p,
           "Leave out tokens with less than this share of the likeliest token's probability. 0: none.")
      .at_least(0)
      .at_most(1);
  table
      .add("typical_p", &RolloutConfig::typical_p,
           "Sample from the tokens whose information is nearest to the entropy of the distribution, up to this "
           "probability (locally typical sampling). 1: from all. Filters apply in the order top_k, top_p, min_p, "
           "typical_p.")
      .above(0)
      .at_most(1);
  add_penalties(table);
  table.add("ignore_eos", &RolloutConfig::ignore_eos,
            "Go on to response_length: end-of-sequence tokens and stop_token_ids are never sampled.");
  table
      .add("min_new_tokens", &RolloutConfig::min_new_tokens,
           "End-of-sequence tokens and stop_token_ids are not sampled before this many tokens, and no stop text is "
           "looked for.")
      .at_least(0);
  add_ends(table);
  table
      .add("response_length", &RolloutConfig::response_length,
           "Longest completion in tokens. null: data.max_response_length.")
      .at_least(1)
      .at_most(1 << 24)
      .trl("max_completion_length");
}

void add_engine(FieldTable<RunConfig, RolloutConfig>& table) {
  table.add("max_num_seqs", &RolloutConfig::max_num_seqs, "Rows decoded at the same time; changes memory and speed.")
      .at_least(1);
  table
      .add(
          "kv_cache_mib", &RolloutConfig::kv_cache_mib,
          "Most memory for keys and values, in MiB. A row waits until its longest completion fits next to those of the "
          "running rows. A row that can never fit is an error.")
      .at_least(1)
      .at_most(int64_t{1} << 30);
  table
      .add("dtype", &RolloutConfig::dtype,
           "Numbers that the matrices have while decoding; auto: those of model.dtype. bfloat16 (with model.dtype "
           "float32) rounds a copy of them, validation included: half the bytes a token, so up to twice as fast where "
           "few rows decode a large model. Products are summed in float32; trained weights stay as they are. The "
           "sampler's log-probabilities then differ from the trainer's by the rounding, about 1e-2, which "
           "training/rollout_probs_diff_* shows.")
      .one_of({"auto", "float32", "bfloat16"});
  table
      .add("kernels", &RolloutConfig::kernels,
           "What decodes. auto: the fast path by the widest instruction set that this CPU has (avx512, avx2, else "
           "base), which can be chosen by name too; with model.dtype float64 the plain path. plain: the model's own "
           "layers in plain operations over each whole sequence at every token, which judge the fast path; slow, to "
           "find out whether a number is the fast path's doing.")
      .one_of({"auto", "plain", "base", "avx2", "avx512"});
  table.add("deterministic", &RolloutConfig::deterministic,
            "The same tokens from the same weights for any order of requests, max_num_seqs and number of threads, on "
            "one kind of CPU. On the fast path (model.dtype float32) this holds at no cost, whatever the key says; on "
            "the plain one (float64, or rollout.kernels plain) it computes every row alone on one thread.");
  table.add("sleep_while_training", &RolloutConfig::sleep_while_training,
            "The backend frees memory while the run trains: what it does not need then, and copies of weights that the "
            "next step replaces. native: its keys and values. Costs the time to make them again.");
}

void add_rollout(FieldCatalog& catalog) {
  FieldTable<RunConfig, RolloutConfig> table(catalog, "rollout", "How completions are sampled.",
                                             [](RunConfig& config) -> RolloutConfig& { return config.rollout; });
  table
      .add("name", &RolloutConfig::name,
           "Rollout backend, by plugin name: native samples in this process on the trained weights, replay reads "
           "recorded completions.")
      .plugin("rollout_backend");
  table.add("n", &RolloutConfig::n, "Completions per prompt: the size of a group.")
      .at_least(1)
      .at_most(1 << 16)
      .trl("num_generations");
  add_sampling(table);
  add_engine(table);
  table.add("calculate_log_probs", &RolloutConfig::calculate_log_probs,
            "Keep the sampler's own log-probabilities, so that training/rollout_probs_diff_* can be told each step.");
  table.add("seed", &RolloutConfig::seed, "Seed of the sampling. null: trainer.seed.").at_least(0);
  table
      .add("params", &RolloutConfig::params,
           "The table [rollout.NAME], NAME being the backend in use, holds its parameters: rollout.replay.path.")
      .inline_table();
  FieldTable<RunConfig, ValKwargs> validation(
      catalog, "rollout.val_kwargs",
      "How validation samples: up to response_length, with rollout.stop and rollout.stop_token_ids; the other "
      "options of [rollout] are off.",
      [](RunConfig& config) -> ValKwargs& { return config.rollout.val_kwargs; });
  validation.add("n", &ValKwargs::n, "Completions per validation prompt.")
      .at_least(1)
      .at_most(1 << 16)
      .trl("num_generations_eval");
  validation.add("temperature", &ValKwargs::temperature, "Temperature where do_sample is true; 0: greedy.")
      .at_least(0)
      .at_most(kMostTemperature);
  validation.add("top_k", &ValKwargs::top_k, "As rollout.top_k.").at_least(-1);
  validation.add("top_p", &ValKwargs::top_p, "As rollout.top_p.").above(0).at_most(1);
  validation.add("do_sample", &ValKwargs::do_sample,
                 "Sample; false takes the likeliest token, whatever the temperature.");
}

void add_reward(FieldCatalog& catalog) {
  FieldTable<RewardConfig, RewardConfig> table(
      catalog, "reward.*", "One [[reward]] table for each reward function; their weighted sum is the score of a row.",
      [](RewardConfig& reward) -> RewardConfig& { return reward; });
  table.add("use", &RewardConfig::use, "Reward, by plugin name: exact_match, regex, length, column, ... Must be given.")
      .plugin("reward")
      .verl("custom_reward_function.name")
      .trl("reward_funcs");
  table.add(
      "name", &RewardConfig::name,
      "Label in metrics and dumps. Not given: the plugin's bare name. If several rewards use one plugin that calls "
      "a function (python), each is named by its `function`. No two rewards may share a name.");
  table.add("weight", &RewardConfig::weight, "Factor of this reward in the sum; may be negative.")
      .trl("reward_weights");
  table
      .add("timeout", &RewardConfig::timeout,
           "Longest time for the rows of a step: \"500ms\", \"10s\", \"2m\", \"1h\". Rows that have no score by then "
           "get none from this reward and are counted.")
      .at_least(1);
  table
      .add(
          "row_timeout", &RewardConfig::row_timeout,
          "Longest time for one row, or for one group where the reward scores whole groups. A worker that takes longer "
          "is killed and replaced, and the row has no score. Without workers (plugins.isolation), and for a reward "
          "that "
          "scores a whole step in one call (python, http), only timeout holds. "
          "0s: a fifth of timeout.")
      .at_least(0);
  table
      .add(
          "allow", &RewardConfig::allow,
          "What this reward's workers may use: network, files (to write them), programs (to start them). Reading files "
          "is always allowed, and so is what the plugin declares to need (python: programs, files; http: network). "
          "Has no effect without workers.")
      .one_of({"network", "files", "programs"});
  table
      .add("params", &RewardConfig::params,
           "Every other key of the table is a parameter of the reward, checked against its table.")
      .inline_table();
}

void add_trainer_length(FieldTable<RunConfig, TrainerConfig>& table) {
  table
      .add("total_epochs", &TrainerConfig::total_epochs,
           "Passes over the training files (verl's default is 30). total_training_steps wins where it is given.")
      .at_least(1)
      .at_most(1'000'000'000)
      .trl("num_train_epochs");
  table
      .add("total_training_steps", &TrainerConfig::total_training_steps,
           "Steps (batches of prompts) of the whole run. null: total_epochs times the batches of an epoch.")
      .at_least(1)
      .trl("max_steps (there in updates)");
  table.add("seed", &TrainerConfig::seed, "Seed of everything random that has no seed of its own.").at_least(0);
  table
      .add("default_local_dir", &TrainerConfig::default_local_dir,
           "Folder that the run writes: metrics, logs, checkpoints, the resolved config.")
      .trl("output_dir");
  table
      .add("save_freq", &TrainerConfig::save_freq,
           "Steps from checkpoint to checkpoint; the last step is always saved. -1 or 0: only the last.")
      .at_least(-1)
      .trl("save_steps");
  table
      .add(
          "save_freq_updates", &TrainerConfig::save_freq_updates,
          "Updates from checkpoint to checkpoint inside a step, the first as soon as its samples are scored. Such a "
          "checkpoint (unfinished_step_N_update_U) holds the samples and goes when the next one stands. -1 or 0: none; "
          "what was done of a step when the run is killed is done again.")
      .at_least(-1);
  table
      .add("test_freq", &TrainerConfig::test_freq,
           "Steps from validation to validation; the last step is always validated. -1 or 0: only the last.")
      .at_least(-1)
      .trl("eval_steps");
  table.add("val_before_train", &TrainerConfig::val_before_train, "Validate before the first step.")
      .trl("eval_on_start");
  table.add("val_only", &TrainerConfig::val_only, "Validate once and stop.");
}

void add_limits(FieldTable<RunConfig, TrainerConfig>& table) {
  table
      .add("rollout_probs_diff_limit", &TrainerConfig::rollout_probs_diff_limit,
           "Stops the run (exit code 5) where the mean difference between the sampler's and the trainer's "
           "probabilities, training/rollout_probs_diff_mean, is above this. null: never.")
      .at_least(0);
  table
      .add("kl_limit", &TrainerConfig::kl_limit,
           "Stops the run (exit code 5) where the KL to the reference (kl, else actor/reward_kl_penalty), in nats per "
           "token, is above this. null: never.")
      .above(0);
  table
      .add("nan_reward_limit", &TrainerConfig::nan_reward_limit,
           "Stops the run (exit code 9) where the share of completions without a reward (none applies, or all failed), "
           "frac_reward_nan, is above this. null: never.")
      .at_least(0)
      .below(1);
  table
      .add(
          "zero_variance_limit", &TrainerConfig::zero_variance_limit,
          "Stops the run (exit code 9) where the share of groups whose rewards are all the same, frac_reward_zero_std, "
          "is above this. null: never.")
      .at_least(0)
      .below(1);
  table
      .add("limit_patience", &TrainerConfig::limit_patience,
           "Steps in a row that must be beyond rollout_probs_diff_limit, kl_limit, nan_reward_limit or "
           "zero_variance_limit before it stops the run.")
      .at_least(1);
}

void add_trainer_files(FieldTable<RunConfig, TrainerConfig>& table) {
  table
      .add("max_actor_ckpt_to_keep", &TrainerConfig::max_actor_ckpt_to_keep,
           "Checkpoints kept; when a new one is complete the oldest above this number is removed. null: all.")
      .at_least(1)
      .trl("save_total_limit");
  table
      .add(
          "save_dtype", &TrainerConfig::save_dtype,
          "Number format of the weights in a checkpoint's huggingface folder. train: model.dtype. stored: file by file "
          "as in model.path, the same bytes where nothing was trained. Where a format rounds, the exact weights are in "
          "the checkpoint's state too, so that a resume loses nothing. It may be another on a resume.")
      .one_of({"train", "stored", "float32", "bfloat16", "float16", "float64"});
  table.add("max_shard_size", &TrainerConfig::max_shard_size,
            "Longest weight file of that folder, as \"5GB\" or \"500MB\"; more are written where needed, with their "
            "index. null: one file, or the files of model.path where save_dtype is stored.");
  table.add("save_merged_lora", &TrainerConfig::save_merged_lora,
            "With a LoRA adapter: true writes the sum of base and adapter into that folder, a whole model; false the "
            "adapter alone, in PEFT's form. A resume is exact with either.");
  table
      .add("resume_mode", &TrainerConfig::resume_mode,
           "auto resumes the latest checkpoint in default_local_dir if there is one, disable starts over, resume_path "
           "resumes resume_from_path. The command line's --resume wins.")
      .one_of({"auto", "disable", "resume_path"});
  table
      .add("resume_from_path", &TrainerConfig::resume_from_path,
           "The checkpoint (a global_step_N folder) that resume_mode = \"resume_path\" resumes.")
      .trl("resume_from_checkpoint");
  table
      .add("logger", &TrainerConfig::logger,
           "Where metrics go in addition to metrics.jsonl and updates.jsonl, which are always written.")
      .one_of({"console", "tensorboard"})
      .trl("report_to");
  table
      .add("log_val_generations", &TrainerConfig::log_val_generations,
           "Validation completions shown in the log at each validation, also by sft and eval.")
      .at_least(0);
  table.add("validation_data_dir", &TrainerConfig::validation_data_dir,
            "Folder for the completions of every validation with their rewards, a JSONL file for each, named by the "
            "step; that of `mortise eval` is eval.jsonl. null: none are written.");
  table.add(
      "rollout_data_dir", &TrainerConfig::rollout_data_dir,
      "Folder for all completions of training with their rewards, their advantages and why rewards failed on them, "
      "a JSONL file for each step (docs/metrics.md has its fields). null: none are written.");
  table
      .add("num_completions_to_print", &TrainerConfig::num_completions_to_print,
           "Completions shown on the console, as a table, after each step, with why rewards failed on them. 0: none.")
      .at_least(0);
  table
      .add("nonfinite_update_limit", &TrainerConfig::nonfinite_update_limit,
           "An update with a gradient that is not finite is skipped and counted; more than this many stop the run.")
      .at_least(0);
  table
      .add("critic_warmup", &TrainerConfig::critic_warmup,
           "Step from which on the policy learns too; before it only the critic does.")
      .at_least(0);
  add_limits(table);
  table
      .add("num_threads", &TrainerConfig::num_threads,
           "Threads that compute. The last bits of a run depend on it. null: OMP_NUM_THREADS, else as many as the "
           "process "
           "may use by its CPU affinity and the quota of its control group (container).")
      .at_least(1)
      .at_most(4096);
}

void add_sft(FieldCatalog& catalog) {
  FieldTable<RunConfig, SftConfig> table(
      catalog, "sft",
      "`mortise sft`: supervised learning of data.response_key, or of whole chats. Model, data, optimizer as for "
      "training.",
      [](RunConfig& config) -> SftConfig& { return config.sft; });
  table.add("total_training_steps", &SftConfig::total_training_steps, "Updates.").at_least(1).trl("max_steps");
  table.add("train_batch_size", &SftConfig::train_batch_size, "Rows per update.").at_least(1);
  table
      .add("test_freq", &SftConfig::test_freq,
           "Updates from validation to validation; the last is always validated. -1 or 0: only the last.")
      .at_least(-1);
  table
      .add("stop_val_accuracy", &SftConfig::stop_val_accuracy,
           "Stop as soon as a validation (mean reward of greedy completions) reaches this value. null: never.")
      .at_least(0)
      .at_most(1);
  table
      .add("assistant_only_loss", &SftConfig::assistant_only_loss,
           "Learn of each chat only what its chat template marks as the assistant's with {% generation %} ... "
           "{% endgeneration %}. A template without these marks, and a row that is no chat, are errors.")
      .trl("assistant_only_loss");
  table
      .add("completion_only_loss", &SftConfig::completion_only_loss,
           "true: learn completions (data.response_key) and not their prompts; false: learn both. null: true for rows "
           "that have a completion, all tokens of whole chats (data.messages_key).")
      .trl("completion_only_loss");
  table
      .add("max_length", &SftConfig::max_length,
           "Longest chat in tokens; data.truncation says what is done to longer ones. null: data.max_prompt_length + "
           "data.max_response_length.")
      .at_least(2)
      .at_most(1 << 24)
      .trl("max_length");
}

void add_plugins(FieldCatalog& catalog) {
  FieldTable<RunConfig, PluginsConfig> table(catalog, "plugins", "Where plugins are looked for, and their failures.",
                                             [](RunConfig& config) -> PluginsConfig& { return config.plugins; });
  table.add("paths", &PluginsConfig::paths,
            "Folders searched for packs, before MORTISE_PLUGIN_PATH, the user's folder and the built-in packs.");
  table.add("files", &PluginsConfig::files, "Pack files (.so) to load in addition to those found in folders.");
  table
      .add("max_failed_fraction", &PluginsConfig::max_failed_fraction,
           "Share of a step's rows that one reward may fail on (crash, time-out, error); above it the run stops. Such "
           "rows "
           "have no score from it.")
      .at_least(0)
      .at_most(1);
  table
      .add("isolation", &PluginsConfig::isolation,
           "Where rewards run. process: in worker processes, so that a crash or a hang costs one row; a machine that "
           "cannot is an error. none: in the trainer's own process. auto: process where the machine can, else none, "
           "which the log then tells.")
      .one_of({"auto", "process", "none"});
  table
      .add("num_workers", &PluginsConfig::num_workers,
           "Worker processes of each reward that score at once; a spare stands by. Results do not depend on it. null: "
           "one for each processor that the run may use, eight at most.")
      .at_least(1)
      .at_most(1024);
  table.add("bubblewrap", &PluginsConfig::bubblewrap,
            "Start workers inside bubblewrap (bwrap) where the machine has it: own process list; and without "
            "`allow` in the reward's table read-only files, no network, no devices. The filter of system calls holds "
            "with and without it.");
  table
      .add("worker_memory_mib", &PluginsConfig::worker_memory_mib,
           "Address space of one worker in MiB; a row that needs more fails. 0: no limit.")
      .at_least(0);
  table
      .add("worker_file_mib", &PluginsConfig::worker_file_mib,
           "Longest file in MiB that a worker may write, where its reward may write files. 0: no limit.")
      .at_least(0);
  table.add("worker_open_files", &PluginsConfig::worker_open_files, "Files that a worker may have open. 0: no limit.")
      .at_least(0);
  table
      .add(
          "worker_cpu_time", &PluginsConfig::worker_cpu_time,
          "Longest CPU time, all threads together, of one row (or of one group or batch, where the reward scores "
          "these): \"500ms\", \"10s\". Unlike row_timeout it does not depend on how busy the machine is. Programs that "
          "a reward starts are not counted. 0s: no limit.")
      .at_least(0);
  table
      .add("worker_cpus", &PluginsConfig::worker_cpus,
           "Processors that the workers of a reward, and what they start, share; the others stay free for the trainer. "
           "null: all.")
      .at_least(1)
      .at_most(1024);
  table.add(
      "env", &PluginsConfig::env,
      "Names of environment variables that rewards get in addition: [\"OPENAI_API_KEY\"]. By default they get only "
      "harmless ones (PATH, HOME, locale, Python, threads, caches), so that no token of the trainer reaches a "
      "reward. A parameter \"env:NAME\", and a parameter whose name ends in _env, adds its variable by itself.");
  table.add(
      "check", &PluginsConfig::check,
      "Put what plugins write between guard words and look at these after every call: a plugin that writes past its "
      "outputs stops the run with its name, instead of damaging memory. Costs a copy of the outputs.");
}

}  // namespace

void add_engine_fields(FieldCatalog& catalog) {
  add_rollout(catalog);
  add_reward(catalog);
  FieldTable<RunConfig, TrainerConfig> trainer(catalog, "trainer", "The run: its length, its files, its guards.",
                                               [](RunConfig& config) -> TrainerConfig& { return config.trainer; });
  add_trainer_length(trainer);
  add_trainer_files(trainer);
  add_sft(catalog);
  add_plugins(catalog);
}

}  // namespace mortise
