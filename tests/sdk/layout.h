// The layouts of ABI minors 1 and 2: the offsets that packs built with them rely on. For C11 and C++; a change here
// breaks packs.
#pragma once

#include "mortise/mortise.h"

#ifdef __cplusplus
#define SAME(what, value) static_assert((what) == (value), #what)
#else
#define SAME(what, value) _Static_assert((what) == (value), #what)
#endif
#define AT(type, field, offset) SAME(offsetof(type, field), offset)

SAME(sizeof(mortise_text), 16);
SAME(sizeof(mortise_bytes), 16);
SAME(sizeof(mortise_tensor), 48);
AT(mortise_tensor, device_type, 8);
AT(mortise_tensor, device_id, 12);
AT(mortise_tensor, ndim, 16);
AT(mortise_tensor, dtype_code, 20);
AT(mortise_tensor, dtype_bits, 21);
AT(mortise_tensor, dtype_lanes, 22);
AT(mortise_tensor, shape, 24);
AT(mortise_tensor, strides, 32);
AT(mortise_tensor, byte_offset, 40);
SAME(sizeof(mortise_layout), 48);
AT(mortise_layout, num_rows, 8);
AT(mortise_layout, num_tokens, 16);
AT(mortise_layout, row_offsets, 24);
AT(mortise_layout, row_id, 32);
AT(mortise_layout, group_index, 40);
#if MORTISE_TARGET_MINOR >= 2
SAME(sizeof(mortise_param), 72);
AT(mortise_param, role, 64);
AT(mortise_param, flags, 68);
SAME(sizeof(mortise_descriptor), 96);
AT(mortise_descriptor, update_metrics, 80);
AT(mortise_descriptor, get_extension, 88);
#else
SAME(sizeof(mortise_param), 64);
SAME(sizeof(mortise_descriptor), 80);
#endif
AT(mortise_param, type, 4);
AT(mortise_param, name, 8);
AT(mortise_param, default_text, 16);
AT(mortise_param, doc, 24);
AT(mortise_param, min, 32);
AT(mortise_param, max, 40);
AT(mortise_param, has_range, 48);
AT(mortise_param, num_choices, 52);
AT(mortise_param, choices, 56);
AT(mortise_descriptor, flags, 4);
AT(mortise_descriptor, kind, 8);
AT(mortise_descriptor, name, 16);
AT(mortise_descriptor, summary, 24);
AT(mortise_descriptor, doc, 32);
AT(mortise_descriptor, coupling, 40);
AT(mortise_descriptor, num_params, 44);
AT(mortise_descriptor, params, 48);
AT(mortise_descriptor, requires_inputs, 56);
AT(mortise_descriptor, consumes, 64);
AT(mortise_descriptor, vtable, 72);
SAME(sizeof(mortise_pack), 48);
AT(mortise_pack, abi_minor, 4);
AT(mortise_pack, min_host_minor, 8);
AT(mortise_pack, num_plugins, 12);
AT(mortise_pack, id, 16);
AT(mortise_pack, version, 24);
AT(mortise_pack, plugins, 32);
AT(mortise_pack, open, 40);
SAME(sizeof(mortise_host), 136);
AT(mortise_host, get_extension, 8);
AT(mortise_host, log, 16);
AT(mortise_host, metric, 24);
AT(mortise_host, fail, 32);
AT(mortise_host, fail_row, 40);
AT(mortise_host, cancelled, 48);
AT(mortise_host, deadline_ns, 56);
AT(mortise_host, progress, 64);
AT(mortise_host, alloc, 72);
AT(mortise_host, stream, 80);
AT(mortise_host, parallel_for, 88);
AT(mortise_host, random_u64, 96);
AT(mortise_host, param_f64, 104);
AT(mortise_host, param_i64, 112);
AT(mortise_host, param_bool, 120);
AT(mortise_host, param_text, 128);
SAME(sizeof(mortise_policy_loss_in), 104);
AT(mortise_policy_loss_in, layout, 8);
AT(mortise_policy_loss_in, log_prob, 16);
AT(mortise_policy_loss_in, weight, 48);
AT(mortise_policy_loss_in, ref_log_prob, 56);
AT(mortise_policy_loss_in, entropy, 80);
AT(mortise_policy_loss_in, update_index, 96);
SAME(sizeof(mortise_policy_loss_out), 32);
AT(mortise_policy_loss_out, grad_entropy, 24);
SAME(sizeof(mortise_policy_loss_vtable), 40);
AT(mortise_policy_loss_vtable, create, 8);
AT(mortise_policy_loss_vtable, destroy, 16);
AT(mortise_policy_loss_vtable, get_extension, 24);
AT(mortise_policy_loss_vtable, compute, 32);
SAME(sizeof(mortise_kl_estimator_in), 56);
AT(mortise_kl_estimator_in, old_log_prob, 48);
SAME(sizeof(mortise_kl_estimator_out), 24);
AT(mortise_kl_estimator_out, grad_log_prob, 16);
SAME(sizeof(mortise_kl_estimator_vtable), 40);
SAME(sizeof(mortise_advantage_estimator_in), 104);
AT(mortise_advantage_estimator_in, token_level_rewards, 16);
AT(mortise_advantage_estimator_in, row_valid, 48);
AT(mortise_advantage_estimator_in, values, 56);
AT(mortise_advantage_estimator_in, step, 96);
SAME(sizeof(mortise_advantage_estimator_out), 24);
AT(mortise_advantage_estimator_out, returns, 16);
SAME(sizeof(mortise_column), 64);
AT(mortise_column, valid, 24);
AT(mortise_column, text, 32);
AT(mortise_column, i64, 48);
AT(mortise_column, f64, 56);
SAME(sizeof(mortise_reward_in), 168);
AT(mortise_reward_in, prompt, 16);
AT(mortise_reward_in, completion_ids, 80);
AT(mortise_reward_in, finish_reason, 96);
AT(mortise_reward_in, columns, 136);
AT(mortise_reward_in, is_validation, 160);
SAME(sizeof(mortise_reward_out), 40);
AT(mortise_reward_out, row_value, 24);
SAME(sizeof(mortise_reward_vtable), 48);
AT(mortise_reward_vtable, granularity, 32);
AT(mortise_reward_vtable, score, 40);
SAME(sizeof(mortise_sampling), 144);
AT(mortise_sampling, temperature, 24);
AT(mortise_sampling, stop_ids, 64);
AT(mortise_sampling, typical_p, 72);
AT(mortise_sampling, stop_strings, 112);
AT(mortise_sampling, bad_word_ids, 136);
SAME(sizeof(mortise_rollout_request), 72);
AT(mortise_rollout_request, prompt_ids, 16);
AT(mortise_rollout_request, sampling, 64);
#if MORTISE_TARGET_MINOR >= 2
SAME(sizeof(mortise_rollout_sequence), 80);
AT(mortise_rollout_sequence, experts, 64);
AT(mortise_rollout_sequence, num_experts, 72);
#else
SAME(sizeof(mortise_rollout_sequence), 64);
#endif
AT(mortise_rollout_sequence, ids, 40);
AT(mortise_rollout_sequence, filtered_log_prob, 56);
SAME(sizeof(mortise_rollout_sink), 24);
AT(mortise_rollout_sink, sequence, 16);
SAME(sizeof(mortise_rollout_backend_vtable), 104);
AT(mortise_rollout_backend_vtable, set_version, 32);
AT(mortise_rollout_backend_vtable, submit, 64);
AT(mortise_rollout_backend_vtable, poll, 72);
AT(mortise_rollout_backend_vtable, wake, 96);
SAME(sizeof(mortise_state), 24);
AT(mortise_state, save, 8);
AT(mortise_state, load, 16);
SAME(sizeof(mortise_state_sink), 24);
AT(mortise_state_sink, write, 16);
SAME(sizeof(mortise_file_set), 88);
AT(mortise_file_set, param, 8);
AT(mortise_file_set, folder, 56);
AT(mortise_file_set, files, 80);
SAME(sizeof(mortise_needed_column), 72);
AT(mortise_needed_column, next, 56);
SAME(sizeof(mortise_reads_sink), 32);
AT(mortise_reads_sink, column, 24);
SAME(sizeof(mortise_reads), 16);
AT(mortise_reads, tell, 8);
#if MORTISE_TARGET_MINOR >= 2
SAME(sizeof(mortise_device), 24);
AT(mortise_device, num_device_types, 8);
AT(mortise_device, device_types, 16);
#endif
