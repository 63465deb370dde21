// What becomes of each setting of TRL 1.16: GRPOConfig, then what `trl grpo` adds (script and model arguments), then
// names of older versions. The rest of GRPOConfig is transformers' (hf_rules.cpp). Defaults are TRL's.
#include "import/reasons.h"
#include "import/rules.h"

namespace mortise {
namespace {

using namespace reasons;

constexpr std::string_view kLora = "only with use_peft";

constexpr PeerRule kGrpo[] = {
    // model
    compute("model_init_kwargs", "null", "model.dtype"),
    no_effect("trust_remote_code", "no code of a model's folder is ever run"),
    no_effect("disable_dropout", "models run without dropout"),
    no_effect("cast_lm_head_to_fp32", "logits are float32; of a bfloat16 model on a GPU, from bfloat16 matrices"),
    no_effect("remove_unused_columns", "rewards see every column"),
    // data and batches
    compute("num_generations", "8", "rollout.n"),
    compute("num_generations_eval", "null", "rollout.val_kwargs.n"),
    no_effect("ds3_gather_for_generation", kEngine),
    compute("shuffle_dataset", "true", "data.shuffle"),
    no_effect("pad_to_multiple_of", "rows are packed without padding"),
    compute("generation_batch_size", "null", "data.train_batch_size"),
    compute("steps_per_generation", "null", "data.train_batch_size"),
    compute("num_iterations", "1", "actor.ppo_epochs"),
    // sampling
    compute("generation_kwargs", "null", "rollout.*"),
    no_effect("cache_implementation", kEngine),
    compute("use_vllm", "false", "rollout.name, in server mode"),
    compute("vllm_mode", "\"colocate\"", "rollout.name, in server mode"),
    no_effect("vllm_model_impl", kEngine),
    compute("vllm_enable_sleep_mode", "false", "rollout.sleep_while_training"),
    compute("vllm_server_base_url", "null", "rollout.vllm.url, in server mode"),
    compute("vllm_server_host", "\"0.0.0.0\"", "rollout.vllm.url, in server mode"),
    compute("vllm_server_port", "8000", "rollout.vllm.url, in server mode"),
    compute("vllm_server_timeout", "240.0", "rollout.vllm.start_limit, in server mode"),
    no_effect("vllm_group_port", "weights go to servers by files, or over any free port (docs/servers.md)"),
    no_effect("vllm_gpu_memory_utilization", kEngine),
    no_effect("vllm_max_model_length", kRowBound),
    compute("vllm_tensor_parallel_size", "1", "rollout.tensor_model_parallel_size, with vllm_mode colocate"),
    compute("vllm_importance_sampling_correction", "true", "algorithm.rollout_correction, in server mode"),
    compute("vllm_importance_sampling_mode", "\"sequence_mask\"", "algorithm.rollout_correction, in server mode"),
    compute("vllm_importance_sampling_clip_max", "3.0", "algorithm.rollout_correction, in server mode"),
    compute("vllm_importance_sampling_clip_min", "null", "algorithm.rollout_correction, in server mode"),
    compute("vllm_importance_sampling_cap", "null", "algorithm.rollout_correction, in server mode"),
    no_effect("use_transformers_continuous_batching", kEngine),
    no_effect("transformers_continuous_batching_config", kEngine),
    no_effect("use_transformers_paged", kEngine),
    // loss
    compute("loss_type", "\"dapo\"", "actor.policy_loss.loss_mode, actor.loss_agg_mode"),
    compute("importance_sampling_level", "\"token\"", "actor.policy_loss.loss_mode"),
    compute("epsilon", "0.2", "actor.clip_ratio_low"),
    compute("epsilon_high", "null", "actor.clip_ratio_high; cispo: actor.policy_loss.cap"),
    compute("delta", "null", "actor.policy_loss.delta"),
    compute("sapo_temperature_neg", "1.05", "actor.policy_loss.tau_neg"),
    compute("sapo_temperature_pos", "1.0", "actor.policy_loss.tau_pos"),
    compute("vespo_k_pos", "2.0", "actor.policy_loss.vespo_k_pos"),
    compute("vespo_lambda_pos", "3.0", "actor.policy_loss.vespo_lambda_pos"),
    compute("vespo_k_neg", "3.0", "actor.policy_loss.vespo_k_neg"),
    compute("vespo_lambda_neg", "2.0", "actor.policy_loss.vespo_lambda_neg"),
    // KL and reference
    compute("beta", "0.0", "actor.use_kl_loss, actor.kl_loss_coef"),
    compute("use_bias_correction_kl", "true", "actor.kl_loss_type"),
    compute("sync_ref_model", "false", "ref.sync_steps"),
    compute("ref_model_mixup_alpha", "0.6", "ref.mixup_alpha"),
    compute("ref_model_sync_steps", "512", "ref.sync_steps"),
    // entropy
    compute("entropy_coef", "0.0", "actor.entropy_coeff, actor.entropy_agg_mode"),
    compute("use_adaptive_entropy", "false", "actor.entropy_ctrl.type"),
    compute("entropy_coef_min", "0.0", "actor.entropy_ctrl.min_coeff"),
    compute("entropy_coef_max", "1.0", "actor.entropy_ctrl.max_coeff"),
    compute("entropy_coef_delta", "0.005", "actor.entropy_ctrl.delta"),
    compute("entropy_target", "0.2", "actor.entropy_ctrl.target_entropy"),
    // rewards
    compute("reward_weights", "null", "reward.*.weight"),
    compute("scale_rewards", "\"group\"", "algorithm.adv_estimator, algorithm.adv_params"),
    compute("multi_objective_aggregation", "\"sum_then_normalize\"", "algorithm.adv_estimator"),
    // logging
    no_effect("logging_steps", "every step and update is always written"),
    compute("log_completions", "false", "trainer.num_completions_to_print"),
    no_effect("log_multimodal", "Mortise has no images"),
    compute("num_completions_to_print", "null", "trainer.num_completions_to_print"),
    no_effect("log_unique_prompts", "all completions of a step may be shown"),
    no_effect("log_completions_hub_repo", "nothing is sent anywhere"),
};

constexpr PeerRule kScript[] = {
    compute("model_name_or_path", "null", "model.path"),
    no_effect("model_revision", "a folder has one version"),
    compute("dtype", "\"float32\"", "model.dtype"),
    no_effect("attn_implementation",
              "attention is exact, however it is computed; on a GPU see model.attention_backend"),
    compute("use_peft", "false", "model.lora_rank, if true"),
    compute("lora_r", "16", "model.lora_rank"),
    compute("lora_alpha", "32", "model.lora_alpha"),
    compute("lora_dropout", "0.05", "model.lora_dropout"),
    compute("lora_target_modules", "null", "model.target_modules"),
    compute("lora_target_parameters", "null", "model.target_parameters"),
    compute("lora_modules_to_save", "null", "model.modules_to_save"),
    no_effect("lora_task_type", kLora),
    compute("use_rslora", "false", "model.use_rslora"),
    compute("use_dora", "false", "model.use_dora"),
    refuse("load_in_8bit", "[false]", kQuantization),
    refuse("load_in_4bit", "[false]", kFourBits),
    no_effect("bnb_4bit_quant_type", "only with load_in_4bit"),
    no_effect("use_bnb_nested_quant", "only with load_in_4bit"),
    no_effect("bnb_4bit_quant_storage", "only with load_in_4bit"),
    compute("dataset_name", "null", "data.train_files"),
    compute("dataset_config", "null", "data.train_files"),
    compute("dataset_train_split", "\"train\"", "data.train_files"),
    compute("dataset_test_split", "\"test\"", "data.val_files, with eval_strategy"),
    compute("dataset_streaming", "false", "data.streaming"),
    compute("datasets", "null", "data.train_files"),
    compute("streaming", "false", "data.streaming"),
    refuse("test_split_size", "[null]", "write the validation rows to a separate file"),
    no_effect("env", "set the environment of the program"),
    refuse("config", "[null]", "one file is read: put its settings here, or import it instead"),
    no_effect("ignore_bias_buffers", "changes where the work runs, not what is computed"),
    compute("reward_model_name_or_path", "null", kRewardModelTable),
    compute("reward_funcs", "null", "[[reward]]"),
    // the experimental GRPOWithReplayBufferConfig
    compute("replay_buffer_size", "null", "algorithm.replay_buffer.enable and .size"),
    // older names
    compute("max_prompt_length", "null", "data.max_prompt_length, data.truncation"),
    compute("torch_dtype", "null", "model.dtype"),
    no_effect("use_liger_loss", kKernels),
    no_effect("vllm_max_model_len", kRowBound),
    no_effect("vllm_device", kEngine),
    no_effect("vllm_dtype", kEngine),
    no_effect("vllm_enable_prefix_caching", kEngine),
    no_effect("wandb_log_unique_prompts", "nothing is sent anywhere"),
};

}  // namespace

const PeerRules& trl_rules() {
  static const PeerRules rules(
      {renames(Peer::kTrl), kGrpo, kScript, renames(Peer::kTransformers), training_argument_rules()});
  return rules;
}

}  // namespace mortise
