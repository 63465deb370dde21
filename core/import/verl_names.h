// The names in verl's tables for an engine, a profiler or a store, as in verl's classes (August 2026 and January 2026).
// no_effect_below() takes them. Several parts of verl share most of these tables. Private to this room. Constant data.
#pragma once

#include <string_view>

namespace mortise::verl_names {

inline constexpr std::string_view kFsdp =
    "_target_ strategy wrap_policy wrap_policy.min_num_params wrap_policy.transformer_layer_cls_to_wrap "
    "wrap_policy.disable param_offload optimizer_offload offload_policy per_layer_optimizer_step "
    "optimizer_step_prefetch_layers reshard_after_forward fsdp_size forward_prefetch model_dtype dtype mixed_precision "
    "mixed_precision.param_dtype mixed_precision.reduce_dtype mixed_precision.buffer_dtype use_orig_params seed "
    "full_determinism ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_from_logits_chunk_size "
    "use_torch_compile entropy_checkpointing use_no_sync_for_gradient_accumulation pad_to_length pad_to_length_bucket "
    "forward_only turbo_config.distributed.fully_shard_parallel_size turbo_config.distributed.tensor_parallel_size "
    "turbo_config.distributed.expert_parallel_size turbo_config.distributed.expert_fully_shard_parallel_size "
    "turbo_config.distributed.ulysses_parallel_size turbo_config.distributed.fsdp_plan.param_dtype "
    "turbo_config.distributed.fsdp_plan.reduce_dtype turbo_config.distributed.fsdp_plan.output_dtype "
    "turbo_config.distributed.fsdp_plan.fsdp_implementation turbo_config.distributed.fsdp_plan.num_to_forward_prefetch "
    "turbo_config.distributed.fsdp_plan.num_to_backward_prefetch";

inline constexpr std::string_view kMegatron =
    "_target_ strategy param_offload grad_offload optimizer_offload tensor_model_parallel_size "
    "expert_model_parallel_size expert_tensor_parallel_size pipeline_model_parallel_size "
    "virtual_pipeline_model_parallel_size context_parallel_size sequence_parallel use_distributed_optimizer "
    "use_dist_checkpointing dist_checkpointing_path dist_checkpointing_prefix dist_ckpt_optim_fully_reshardable "
    "distrib_optim_fully_reshardable_mem_efficient dynamic_context_parallel max_seqlen_per_dp_cp_rank "
    "entropy_from_logits_with_chunking entropy_from_logits_chunk_size seed override_ddp_config.* "
    "override_transformer_config.* override_mcore_model_config.* use_mbridge vanilla_mbridge use_remove_padding "
    "pad_bshd_to_minibatch_max pad_to_length pad_to_length_bucket use_megatron_fsdp forward_only dtype "
    "full_determinism";

inline constexpr std::string_view kVeomni =
    "_target_ strategy wrap_policy wrap_policy.min_num_params param_offload optimizer_offload offload_policy fsdp_size "
    "ulysses_parallel_size expert_parallel_size data_parallel_size data_parallel_replicate_size "
    "data_parallel_shard_size data_parallel_mode mixed_precision seed full_determinism init_device enable_full_shard "
    "ckpt_manager load_checkpoint_path forward_prefetch reshard_after_forward use_torch_compile forward_only "
    "enable_fsdp_offload enable_reentrant attn_implementation moe_implementation force_use_huggingface "
    "activation_gpu_limit basic_modules use_orig_params entropy_from_logits_with_chunking entropy_checkpointing";

inline constexpr std::string_view kTorchtitan =
    "_target_ strategy wrap_policy wrap_policy.min_num_params param_offload optimizer_offload reshard_after_forward "
    "forward_prefetch use_orig_params mixed_precision use_torch_compile entropy_from_logits_with_chunking "
    "entropy_from_logits_chunk_size entropy_checkpointing data_parallel_size data_parallel_replicate_size "
    "data_parallel_shard_size tensor_parallel_size expert_parallel_size pipeline_parallel_size context_parallel_size "
    "attn_type spmd_backend activation_checkpoint max_seq_len offload_policy seed full_determinism forward_only dtype";

// Where an engine offloads its states.
inline constexpr std::string_view kOffload =
    "_target_ param._target_ param.target grad._target_ grad.target optimizer._target_ optimizer.target disk._target_ "
    "disk.path disk.chunk_size_mb disk.cleanup_on_exit";

inline constexpr std::string_view kProfiler =
    "_target_ tool enable all_ranks ranks discrete save_path relocate_results finish_hook_cmd finish_hook_all_ranks "
    "finish_hook_ranks tool_config tool_config.nsys._target_ tool_config.nsys.discrete tool_config.npu._target_ "
    "tool_config.npu.contents tool_config.npu.level tool_config.npu.analysis tool_config.npu.discrete "
    "tool_config.npu.profile_token_start tool_config.npu.profile_token_end tool_config.torch._target_ "
    "tool_config.torch.contents tool_config.torch.discrete tool_config.torch.step_start tool_config.torch.step_end "
    "tool_config.torch.profile_token_start tool_config.torch.profile_token_end tool_config.torch.schedule._target_ "
    "tool_config.torch.schedule.skip_first tool_config.torch.schedule.wait tool_config.torch.schedule.warmup "
    "tool_config.torch.schedule.active tool_config.torch.schedule.repeat tool_config.torch_memory._target_ "
    "tool_config.torch_memory.trace_alloc_max_entries tool_config.torch_memory.stack_depth "
    "tool_config.precision_debugger._target_ tool_config.precision_debugger.config_path "
    "tool_config.precision_debugger.data_dir tool_config.precision_debugger.steps "
    "tool_config.precision_debugger.stages tool_config.precision_debugger.strict";

inline constexpr std::string_view kGlobalProfiler =
    "_target_ tool enable all_ranks ranks steps profile_continuous_steps save_path relocate_results finish_hook_cmd "
    "finish_hook_all_ranks finish_hook_ranks global_tool_config global_tool_config.nsys._target_ "
    "global_tool_config.nsys.discrete global_tool_config.nsys.controller_nsight_options.* "
    "global_tool_config.nsys.worker_nsight_options.* global_tool_config.torch_memory.trace_alloc_max_entries "
    "global_tool_config.torch_memory.stack_depth global_tool_config.torch_memory.context "
    "global_tool_config.torch_memory.stacks global_tool_config.torch_memory.kw_args.* "
    "global_tool_config.precision_debugger._target_ global_tool_config.precision_debugger.config_path "
    "global_tool_config.precision_debugger.data_dir global_tool_config.precision_debugger.steps "
    "global_tool_config.precision_debugger.stages global_tool_config.precision_debugger.strict";

inline constexpr std::string_view kCheckpoint =
    "_target_ save_contents load_contents async_save strict mbridge_config.*";
inline constexpr std::string_view kRouterReplay = "_target_ mode record_file replay_file";
inline constexpr std::string_view kQat =
    "_target_ enable mode group_size ignore_patterns activation_observer quantization_config_path";
inline constexpr std::string_view kMtp =
    "_target_ enable enable_train enable_rollout detach_encoder mtp_loss_scaling_factor speculative_algorithm "
    "speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens method num_speculative_tokens";
inline constexpr std::string_view kLora =
    "type merge rank alpha dropout target_modules exclude_modules dropout_position lora_A_init_method "
    "lora_B_init_method a2a_experimental dtype adapter_path freeze_vision_model freeze_vision_projection "
    "freeze_language_model fully_sharded_loras";
// Settings of a critic's model that change no number.
inline constexpr std::string_view kCriticModel =
    "_target_ use_shm trust_remote_code custom_chat_template enable_gradient_checkpointing enable_activation_offload "
    "use_remove_padding use_liger use_fused_kernels "
    "fused_kernel_options.impl_backend tiled_mlp.enabled tiled_mlp.num_shards";
// Settings of a sampler that serves a reward model.
inline constexpr std::string_view kRollout =
    "_target_ name mode dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes free_cache_engine "
    "data_parallel_size expert_parallel_size tensor_model_parallel_size pipeline_model_parallel_size "
    "max_num_batched_tokens max_model_len max_num_seqs load_format layered_summon scheduling_policy full_determinism "
    "seed multi_stage_wake_up engine_kwargs.* limit_images enable_chunked_prefill enable_prefix_caching "
    "disable_log_stats skip_tokenizer_init ignore_eos temperature top_k top_p do_sample n prompt_length "
    "response_length calculate_log_probs logprobs_mode quantization quantization_config_file mtp";
inline constexpr std::string_view kDisaggregation =
    "_target_ enabled prefill_replicas decode_replicas prefill_tensor_model_parallel_size "
    "decode_tensor_model_parallel_size transfer_backend bootstrap_port ib_device";
inline constexpr std::string_view kMultiTurn =
    "_target_ enable max_assistant_turns max_user_turns max_parallel_calls max_tool_response_length "
    "tool_response_truncate_side tool_config_path function_tool_path interaction_config_path "
    "use_inference_chat_template tokenization_sanity_check_mode format num_repeat_rollouts";
inline constexpr std::string_view kAgent =
    "_target_ num_workers default_agent_loop agent_loop_config_path agent_loop_manager_class custom_async_server "
    "custom_async_server._target_ custom_async_server.path custom_async_server.name";
inline constexpr std::string_view kCheckpointEngine =
    "_target_ backend update_weights_bucket_megabytes engine_kwargs.* custom_backend_module";
inline constexpr std::string_view kV1 =
    "trainer_mode sync colocate_async.num_warmup_batches separate_async.num_warmup_batches "
    "separate_async.parameter_sync_step separate_async.hybrid_rollout._target_ "
    "separate_async.hybrid_rollout.enable_switch separate_async.hybrid_rollout.switch_threshold_ratio "
    "separate_async.hybrid_rollout.adaptive_switch_threshold separate_async.hybrid_rollout.switch_threshold_step_up "
    "separate_async.hybrid_rollout.switch_threshold_step_down "
    "separate_async.hybrid_rollout.switch_threshold_release_steps "
    "separate_async.hybrid_rollout.switch_cost_window_size sampler.max_off_policy_threshold "
    "sampler.max_off_policy_strategy sampler.sync_refill_failed_groups sampler.custom_sampler.path "
    "sampler.custom_sampler.name sampler.sampler_kwargs.*";
inline constexpr std::string_view kDistillation =
    "_target_ enabled num_workers n_gpus_per_node nnodes teacher_key teacher_model.* teacher_models.* "
    "distillation_loss._target_ distillation_loss.loss_mode distillation_loss.topk distillation_loss.use_task_rewards "
    "distillation_loss.distillation_loss_coef distillation_loss.loss_max_clamp distillation_loss.log_prob_min_clamp "
    "distillation_loss.use_policy_gradient distillation_loss.policy_loss_mode distillation_loss.clip_ratio "
    "distillation_loss.clip_ratio_low distillation_loss.clip_ratio_high";
inline constexpr std::string_view kAsyncTraining =
    "staleness_threshold trigger_parameter_sync_step require_batches partial_rollout use_rollout_log_probs "
    "compute_prox_log_prob use_trainer_do_validate compute_advantage_in_rollout checkpoint_engine.*";
inline constexpr std::string_view kSkip =
    "_target_ rollout.enable rollout.dump_dir rollout.steps rollout.action rollout_tq.enable rollout_tq.dump_dir "
    "rollout_tq.steps rollout_tq.action async_rollout.enable async_rollout.dump_dir async_rollout.steps "
    "async_rollout.action";

}  // namespace mortise::verl_names
