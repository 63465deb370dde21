// RunConfig: every setting of a run, as plain structs whose member names are the keys of the TOML file.
//
// `cfg.actor.policy_loss.loss_mode` is the key `actor.policy_loss.loss_mode`. The initialisers here are the only
// defaults; fields.h lists every key once, with its range, choices and full text (what `mortise config explain`
// prints), and the loader, the overrides, the JSON schema and `config show` are made from that list. Names and meanings
// are verl's; its prefix `actor_rollout_ref.` is accepted as an alias. Words: a step is one batch of prompts sampled,
// scored and learnt from; an update is one optimizer step. `rows` are sampled completions, `prompts` are data rows.
// std::optional = nullable key ("null" in TOML and in overrides). Json = a table passed on to a plugin, always an
// object. Relative paths are relative to the working directory, except `base`, which is relative to the file that names
// it. Durations are std::chrono::milliseconds ("10s" in TOML). Thread rule: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foundation/formats/json.h"

namespace mortise {

struct ModelSection {
  std::string path;                                 // Hugging Face folder (TRL: model_name_or_path); "" = not given
  std::string dtype = "float32";                    // float32 | float64: weights, gradients, activations
  std::string layers = "fast";                      // fast | plain: what computes them in training
  bool enable_gradient_checkpointing = false;       // compute layers again in backward (TRL: gradient_checkpointing)
  std::optional<int64_t> activation_memory_mib;     // with that: layers kept as long as they fit; null = none
  std::optional<std::string> custom_chat_template;  // file with a Jinja template used in place of the model's own
  int64_t lora_rank = 0;     // of an adapter that is trained in place of the weights; 0 = none (PEFT: r)
  double lora_alpha = 16.0;  // the adapter's product counts lora_alpha / lora_rank times
  std::vector<std::string> target_modules = {"all-linear"};  // ends of names of the adapted matrices
  std::vector<std::string> exclude_modules;                  // of them, those that are not
  std::optional<std::string> lora_adapter_path;  // PEFT folder of an adapter to go on from; it says rank and modules
  bool operator==(const ModelSection&) const = default;
};

struct DataConfig {
  std::vector<std::string> train_files;  // JSONL; a single path may be written as a string
  std::vector<std::string> val_files;
  std::string prompt_key = "prompt";      // column of the prompt (text, or list of {role, content})
  std::string response_key = "response";  // `mortise sft`: column of the completion to learn
  std::string messages_key = "messages";  // `mortise sft`: column of a whole chat to learn
  int64_t max_prompt_length = 512;        // tokens
  int64_t max_response_length = 512;      // tokens (TRL: max_completion_length)
  bool filter_overlong_prompts = false;   // drop rows with prompts longer than max_prompt_length before training
  std::string truncation = "error";       // error | left | right | middle: what is done to a longer prompt
  bool shuffle = true;                    // a new order each epoch (TRL: shuffle_dataset)
  std::optional<int64_t> seed;            // of the data order; null = trainer.seed
  int64_t train_batch_size = 1024;        // prompts per step
  std::optional<int64_t> gen_batch_size;  // prompts drawn at once by algorithm.filter_groups; null = train_batch_size
  int64_t train_max_samples = -1;         // rows kept of the training files; -1 = all
  int64_t val_max_samples = -1;           // rows kept of the validation files; -1 = all
  std::optional<std::string> system_prompt;  // system message of chats that have none; null = none
  Json columns = Json::object();             // column -> text | integer | number | json, where the values leave it open
  Json apply_chat_template_kwargs = Json::object();  // extra variables of the chat template
  bool operator==(const DataConfig&) const = default;
};

struct KlControlConfig {
  std::string type = "fixed";  // fixed | adaptive
  double kl_coef = 0.001;      // coefficient, or its first value where adaptive
  double horizon = 10000.0;    // rows over which the adaptive controller acts
  double target_kl = 0.1;      // nats per token, adaptive only
  bool operator==(const KlControlConfig&) const = default;
};

struct RolloutCorrectionConfig {             // what is done where the sampler was not the policy trained (verl's names)
  std::optional<std::string> preset;         // verl's named set of the keys below
  std::optional<std::string> rollout_is;     // token | sequence | geometric: importance weights; null = none
  std::string rollout_is_threshold = "2.0";  // upper bound of a weight, or "lower_upper"
  std::string rollout_is_outside = "auto";   // truncate | mask | auto: masked only where there is a lower bound
  bool rollout_is_batch_normalize = false;   // divide by the batch's mean weight
  std::optional<std::string> rollout_rs;     // statistics that a token or row must keep, with commas between
  std::optional<std::string> rollout_rs_threshold;  // one bound, or one for each statistic
  bool bypass_mode = false;                         // the sampler's log-probs stand for the old ones
  std::string loss_type = "ppo_clip";               // of bypass mode: ppo_clip | reinforce
  bool operator==(const RolloutCorrectionConfig&) const = default;
};

struct FilterGroupsConfig {           // dynamic sampling of DAPO
  bool enable = false;                // learn only from groups whose metric differs between rows; draw until enough
  std::string metric = "seq_reward";  // or a reward's name, or a number that a reward gives
  int64_t max_num_gen_batches = 10;   // of a step; 0 = no limit
  bool operator==(const FilterGroupsConfig&) const = default;
};

struct AlgorithmConfig {
  std::string adv_estimator = "grpo";   // advantage plugin (verl's default is gae, which needs a critic)
  bool norm_adv_by_std_in_grpo = true;  // given to the plugin where its table has a parameter of this name
  double gamma = 1.0;                   // discount, given to the plugin where its table has it
  double lam = 1.0;                     // lambda of gae, the same
  Json adv_params = Json::object();     // further parameters of the advantage plugin, e.g. epsilon
  std::string multi_objective_aggregation = "sum_then_normalize";  // | normalize_then_sum: each reward in its group
  bool use_kl_in_reward = false;    // subtract kl_ctrl.kl_coef * KL(old, ref) from the token rewards
  std::string kl_penalty = "kl";    // KL plugin of the reward penalty
  Json kl_params = Json::object();  // further parameters of that plugin, e.g. max_kl
  KlControlConfig kl_ctrl;
  bool mask_truncated_completions = false;  // rows cut at the length limit carry no loss
  FilterGroupsConfig filter_groups;
  RolloutCorrectionConfig rollout_correction;
  bool operator==(const AlgorithmConfig&) const = default;
};

struct PolicyLossConfig {
  std::string loss_mode = "vanilla";  // policy loss plugin
  Json params = Json::object();       // every other key of [actor.policy_loss]: parameters of the plugin
  bool operator==(const PolicyLossConfig&) const = default;
};

struct OptimConfig {
  double lr = 1e-6;
  double weight_decay = 0.01;                // AdamW; spares parameters named *bias* or *norm*
  std::vector<double> betas = {0.9, 0.999};  // exactly two
  double eps = 1e-8;
  std::string lr_scheduler_type = "constant";  // constant | linear | cosine
  int64_t lr_warmup_steps = -1;                // in schedule_unit; negative = use lr_warmup_steps_ratio
  double lr_warmup_steps_ratio = 0.0;          // share of all steps, used where lr_warmup_steps < 0
  double min_lr_ratio = 0.0;                   // floor of the decay as a share of lr
  double num_cycles = 0.5;                     // cosine: 0.5 = once from lr down to the floor
  std::string schedule_unit = "update";        // update | step: what the schedule counts (verl: step)
  bool operator==(const OptimConfig&) const = default;
};

struct EntropyControlConfig {
  std::string type = "fixed";   // fixed: actor.entropy_coeff as it is | adaptive: it is the first value
  double target_entropy = 0.2;  // nats per token, adaptive only (TRL: entropy_target)
  double delta = 0.005;         // step of the coefficient after an update (TRL: entropy_coef_delta)
  double min_coeff = 0.0;       // TRL: entropy_coef_min
  double max_coeff = 1.0;       // TRL: entropy_coef_max
  bool operator==(const EntropyControlConfig&) const = default;
};

struct ActorConfig {
  int64_t ppo_mini_batch_size = 256;                    // prompts per update, over all ranks
  std::optional<int64_t> ppo_micro_batch_size_per_gpu;  // rows per forward; null = by ppo_max_token_len_per_gpu
  bool use_dynamic_bsz = false;                         // cut by tokens even where a row count is given
  std::optional<int64_t> ppo_max_token_len_per_gpu;     // tokens per micro-batch where it is cut by tokens; null = auto
  int64_t ppo_epochs = 1;                               // passes over the batch of a step (TRL: num_iterations)
  bool shuffle = false;                                 // new order of the mini-batches' rows in every pass
  double grad_clip = 1.0;                               // L2 norm limit (TRL: max_grad_norm); 0 = no clipping
  std::optional<double> clip_ratio;                     // null = the loss's own; given to losses that have it
  std::optional<double> clip_ratio_low;                 // null = clip_ratio (TRL: epsilon)
  std::optional<double> clip_ratio_high;                // null = clip_ratio (TRL: epsilon_high)
  std::optional<double> clip_ratio_c;                   // dual clip bound, above 1; 0 = none; null = the loss's own
  std::string loss_agg_mode = "auto";                   // token_weight aggregation; auto = the loss's own
  std::optional<double> loss_scale_factor;              // of seq-mean-token-sum-norm; null = data.max_response_length
  bool loss_scale_by_rows = true;                       // that mode also divides by rows (verl of Jan 2026: false)
  std::string loss_agg_rows = "nonempty";               // nonempty | all: rows that count in a mean over rows
  double entropy_coeff = 0.0;                           // subtracted bonus (TRL: entropy_coef)
  double top_entropy_quantile = 1.0;                    // share of an update's tokens, by entropy, in the policy term
  std::optional<double> off_policy_mask_threshold;      // stale rows with A < 0 left out above it; null = none
  bool use_kl_loss = false;                             // add kl_loss_coef * KL(policy, reference) to the loss
  double kl_loss_coef = 0.001;                          // TRL: beta
  std::string kl_loss_type = "low_var_kl";              // KL plugin
  Json kl_params = Json::object();                      // further parameters of that plugin
  EntropyControlConfig entropy_ctrl;
  PolicyLossConfig policy_loss;
  OptimConfig optim;
  bool operator==(const ActorConfig&) const = default;
};

struct RefConfig {  // the reference model; the keys of its passes change memory and speed only, null = as the actor's
  std::optional<int64_t> log_prob_micro_batch_size_per_gpu;  // rows per pass
  std::optional<bool> log_prob_use_dynamic_bsz;              // cut by tokens even where a row count is given
  std::optional<int64_t> log_prob_max_token_len_per_gpu;     // tokens per pass where it is cut by tokens
  std::optional<int64_t> sync_steps;                         // steps between refreshes; null = the initial model stays
  double mixup_alpha = 0.6;                                  // share of the policy in a refresh; 1 = a copy
  bool operator==(const RefConfig&) const = default;
};

struct ValKwargs {  // how validation samples; other filters are off
  int64_t n = 1;    // completions per prompt
  double temperature = 0.0;
  int64_t top_k = -1;
  double top_p = 1.0;
  bool do_sample = false;  // false = greedy, whatever the temperature
  bool operator==(const ValKwargs&) const = default;
};

struct RolloutConfig {
  std::string name = "native";             // rollout backend plugin: native, replay, ...
  int64_t n = 1;                           // completions per prompt (TRL: num_generations)
  double temperature = 1.0;                // also divides the logits of every log-prob; 0 = greedy
  int64_t top_k = -1;                      // -1 = off (0 is read as off too)
  double top_p = 1.0;                      // 1 = off
  double min_p = 0.0;                      // 0 = off
  double typical_p = 1.0;                  // 1 = off
  double repetition_penalty = 1.0;         // 1 = off; of tokens in prompt or completion
  double presence_penalty = 0.0;           // 0 = off; of tokens in the completion
  double frequency_penalty = 0.0;          // 0 = off; times how often they came
  std::vector<std::string> stop;           // texts that end a completion, beside the end tokens
  std::vector<int64_t> stop_token_ids;     // ids that do
  std::vector<std::string> bad_words;      // texts whose tokens never come
  int64_t top_log_probs = 0;               // of `mortise generate`: likeliest tokens written at each place
  bool ignore_eos = false;                 // go on to response_length
  int64_t min_new_tokens = 0;              // no end of sequence before this many tokens
  std::optional<int64_t> response_length;  // tokens; null = data.max_response_length
  int64_t max_num_seqs = 256;              // rows decoded at once
  int64_t kv_cache_mib = 4096;             // most memory for keys and values: rows wait where it is full
  std::string dtype = "auto";              // auto | float32 | bfloat16: matrices while decoding; auto = model.dtype
  std::string kernels = "auto";            // auto | plain | base | avx2 | avx512: what decodes
  bool deterministic = false;              // same tokens for any order of prompts, max_num_seqs and threads
  bool sleep_while_training = false;       // the backend gives its memory back between sampling and sampling
  bool calculate_log_probs = true;         // keep what the sampler gave; needed for training/rollout_probs_diff_*
  std::optional<int64_t> seed;             // of sampling; null = trainer.seed
  ValKwargs val_kwargs;
  Json params = Json::object();  // the table [rollout.NAME] of the backend in use, e.g. [rollout.replay] path = "..."
  bool operator==(const RolloutConfig&) const = default;
};

struct RewardConfig {
  std::string use;                            // reward plugin
  std::string name;                           // label in metrics and dumps; "" in the file: see decode.cpp
  double weight = 1.0;                        // of its column in the sum (TRL: reward_weights)
  std::chrono::milliseconds timeout{10'000};  // for the rows of a step: "500ms", "10s", "2m", "1h"
  std::chrono::milliseconds row_timeout{0};   // for one row (or group); 0 = a fifth of timeout
  std::vector<std::string> allow;             // network | files | programs: what its workers may use
  Json params = Json::object();               // every other key of the [[reward]] table: parameters of the plugin
  bool operator==(const RewardConfig&) const = default;
};

struct TrainerConfig {
  int64_t total_epochs = 1;  // passes over the training files (verl: 30)
  std::optional<int64_t>
      total_training_steps;  // null = from total_epochs; counts steps (TRL: max_steps counts updates)
  int64_t seed = 42;         // of everything random
  std::string default_local_dir = "runs/mortise";  // what the run writes (TRL: output_dir)
  int64_t save_freq = -1;                          // steps between checkpoints; -1 = only the last
  int64_t save_freq_updates = -1;                  // updates between checkpoints inside a step; -1 = none
  int64_t test_freq = -1;                          // steps between validations; -1 = only before and after
  bool val_before_train = true;
  bool val_only = false;                          // validate and stop
  std::optional<int64_t> max_actor_ckpt_to_keep;  // newest kept; null = all (TRL: save_total_limit)
  std::string save_dtype = "train";  // train | stored | float32 | bfloat16 | float16 | float64: of huggingface/
  std::optional<std::string> max_shard_size;    // of a weight file, "5GB"; null = one file, or as read where stored
  bool save_merged_lora = false;                // huggingface/ is the sum of base and adapter, not the adapter alone
  std::string resume_mode = "auto";             // auto | disable | resume_path
  std::optional<std::string> resume_from_path;  // with resume_path: the global_step_N folder
  std::vector<std::string> logger = {"console", "tensorboard"};  // metrics.jsonl and updates.jsonl are always written
  int64_t log_val_generations = 0;                 // validation completions kept in the log at each validation
  std::optional<std::string> validation_data_dir;  // the same for the completions of every validation
  std::optional<std::string> rollout_data_dir;  // JSONL of all completions with rewards and advantages, a file a step
  int64_t num_completions_to_print = 0;         // rows of the console table each step
  int64_t nonfinite_update_limit = 10;          // non-finite updates skipped in all before the run stops
  int64_t critic_warmup = 0;                    // the policy learns from this step on
  std::optional<double>
      rollout_probs_diff_limit;               // of training/rollout_probs_diff_mean; null = none, as the next three
  std::optional<double> kl_limit;             // of the KL to the reference, nats per token
  std::optional<double> nan_reward_limit;     // share of rows without a reward
  std::optional<double> zero_variance_limit;  // share of groups whose rewards are all equal
  int64_t limit_patience = 1;                 // steps in a row beyond one of these four before the run stops
  std::optional<int64_t> num_threads;         // null = all cores
  bool operator==(const TrainerConfig&) const = default;
};

struct CriticModelConfig {
  std::optional<std::string> path;  // folder; null = model.path, with a fresh head
  bool operator==(const CriticModelConfig&) const = default;
};

struct CriticConfig {                                   // there is one where the advantage estimator asks for values
  double cliprange_value = 0.5;                         // value clip: how far a value may move from the old one
  std::string loss_agg_mode = "token-mean";             // aggregation of the value loss
  double grad_clip = 1.0;                               // L2 norm limit; 0 = no clipping
  std::optional<int64_t> ppo_mini_batch_size;           // prompts per update; null = the actor's, as all below
  std::optional<int64_t> ppo_micro_batch_size_per_gpu;  // rows per forward
  std::optional<int64_t> ppo_max_token_len_per_gpu;     // tokens per pass where it is cut by tokens
  std::optional<int64_t> ppo_epochs;                    // passes over the batch of a step
  CriticModelConfig model;
  OptimConfig optim{.lr = 1e-5};
  bool operator==(const CriticConfig&) const = default;
};

struct SftConfig {                           // `mortise sft`; model, data, optim and trainer are those above
  int64_t total_training_steps = 100;        // updates
  int64_t train_batch_size = 128;            // rows per update
  int64_t test_freq = -1;                    // updates between validations; -1 = only after the last
  std::optional<double> stop_val_accuracy;   // stop as soon as a validation reaches it
  bool assistant_only_loss = false;          // of chats, learn only what the template marks as the assistant's
  std::optional<bool> completion_only_loss;  // null = completions alone where rows have them, else all tokens
  std::optional<int64_t> max_length;         // tokens of a chat; null = longest prompt + longest response
  bool operator==(const SftConfig&) const = default;
};

struct PluginsConfig {
  std::vector<std::string> paths;                // folders searched for packs, first wins
  std::vector<std::string> files;                // pack files loaded by name
  double max_failed_fraction = 0.1;              // share of a step's rows on which a reward may fail
  std::string isolation = "auto";                // auto | process | none: whether rewards run in worker processes
  std::optional<int64_t> num_workers;            // per reward; null = one per core, eight at most
  bool bubblewrap = true;                        // put workers into bubblewrap where the machine has it
  int64_t worker_memory_mib = 8192;              // address space of one worker; 0 = no limit
  int64_t worker_file_mib = 256;                 // longest file that a worker may write; 0 = no limit
  int64_t worker_open_files = 256;               // of one worker; 0 = no limit
  std::chrono::milliseconds worker_cpu_time{0};  // CPU time of one call of a reward; 0 = no limit
  std::optional<int64_t> worker_cpus;            // processors that the workers of a reward share; null = all
  std::vector<std::string> env;  // names of environment variables that rewards get besides harmless ones
  bool check = false;            // outputs of plugins between guard words, looked at after every call
  bool operator==(const PluginsConfig&) const = default;
};

struct RunConfig {
  ModelSection model;
  DataConfig data;
  AlgorithmConfig algorithm;
  ActorConfig actor;
  RefConfig ref;
  RolloutConfig rollout;
  std::vector<RewardConfig> reward;
  TrainerConfig trainer;
  CriticConfig critic;
  SftConfig sft;
  PluginsConfig plugins;
  std::optional<std::string> preset;  // named set of keys that lies under all explicit ones
  bool operator==(const RunConfig&) const = default;
};

}  // namespace mortise
