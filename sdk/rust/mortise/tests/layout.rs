//! The types of `sys` against `sdk/layout.txt`, which is made from the C headers.
use mortise::sys::*;
use std::mem::{size_of, MaybeUninit};

fn size_of_pointee<T>(_: *const T) -> usize {
    size_of::<T>()
}

// Every listed field has the offset and size of the file, and the file has no other field of the struct.
macro_rules! check {
    ($text:expr, $checked:expr, $name:ident { $($field:ident),* $(,)? }) => {{
        let name = stringify!($name);
        let value = MaybeUninit::<$name>::uninit();
        let base = value.as_ptr();
        let mut expected = vec![format!("struct {name} {}", size_of::<$name>())];
        $(
            let field = unsafe { std::ptr::addr_of!((*base).$field) };
            let offset = field as usize - base as usize;
            let field_name = stringify!($field).trim_start_matches("r#");
            expected.push(format!("{name}.{field_name} {offset} {}", size_of_pointee(field)));
        )*
        let of_file: Vec<&str> = $text
            .lines()
            .filter(|line| line.starts_with(&format!("{name}.")) || line.starts_with(&format!("struct {name} ")))
            .collect();
        assert_eq!(expected, of_file);
        $checked += 1;
    }};
}

#[test]
fn layouts_are_those_of_the_c_headers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../layout.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut checked = 0;
    check!(text, checked, mortise_text { data, size });
    check!(text, checked, mortise_tensor {
        data, device_type, device_id, ndim, dtype_code, dtype_bits, dtype_lanes, shape, strides, byte_offset
    });
    check!(text, checked, mortise_layout {
        struct_size, flags, num_rows, num_tokens, row_offsets, row_id, group_index
    });
    check!(text, checked, mortise_host {
        struct_size, abi_minor, get_extension, log, metric, fail, fail_row, cancelled, deadline_ns, progress, alloc,
        stream, parallel_for, random_u64, param_f64, param_i64, param_bool, param_text
    });
    check!(text, checked, mortise_param {
        struct_size, r#type, name, default_text, doc, min, max, has_range, num_choices, choices, role, flags
    });
    check!(text, checked, mortise_descriptor {
        struct_size, flags, kind, name, summary, doc, coupling, num_params, params, requires_inputs, consumes,
        vtable, update_metrics, get_extension
    });
    check!(text, checked, mortise_pack {
        struct_size, abi_minor, min_host_minor, num_plugins, id, version, plugins, open
    });
    check!(text, checked, mortise_policy_loss_in {
        struct_size, flags, layout, log_prob, old_log_prob, advantages, response_mask, weight, ref_log_prob,
        rollout_log_prob, rollout_is_weights, entropy, step, update_index
    });
    check!(text, checked, mortise_policy_loss_out { struct_size, flags, loss, grad_log_prob, grad_entropy });
    check!(text, checked, mortise_policy_loss_vtable { struct_size, flags, create, destroy, get_extension, compute });
    check!(text, checked, mortise_text_column { bytes, offsets });
    check!(text, checked, mortise_id_column { ids, offsets });
    check!(text, checked, mortise_column { struct_size, r#type, name, valid, text, i64, f64 });
    check!(text, checked, mortise_reward_in {
        struct_size, flags, num_rows, prompt, completion, messages, prompt_ids, completion_ids, finish_reason,
        group_index, sample_index, row_id, num_columns, columns, step, max_response_length, is_validation,
        padding
    });
    check!(text, checked, mortise_reward_out { struct_size, flags, rewards, token_rewards, row_value, sink });
    check!(text, checked, mortise_reward_vtable {
        struct_size, flags, create, destroy, get_extension, granularity, padding, score
    });
    check!(text, checked, mortise_kl_estimator_in {
        struct_size, flags, layout, log_prob, ref_log_prob, response_mask, weight, old_log_prob
    });
    check!(text, checked, mortise_kl_estimator_out { struct_size, flags, kl, grad_log_prob });
    check!(text, checked, mortise_kl_estimator_vtable { struct_size, flags, create, destroy, get_extension, compute });
    check!(text, checked, mortise_advantage_estimator_in {
        struct_size, flags, layout, token_level_rewards, response_mask, rewards, reward_weights, row_valid, values,
        reward_baselines, old_log_prob, sum_pi_squared, rollout_is_weights, step
    });
    check!(text, checked, mortise_advantage_estimator_out { struct_size, flags, advantages, returns });
    check!(text, checked, mortise_advantage_estimator_vtable {
        struct_size, flags, create, destroy, get_extension, compute
    });
    check!(text, checked, mortise_sampling {
        struct_size, ignore_eos, max_new_tokens, min_new_tokens, temperature, top_p, min_p, top_k, num_stop_ids, stop_ids,
        typical_p, repetition_penalty, presence_penalty, frequency_penalty, num_stop_strings, stop_strings, num_bad_words,
        bad_word_lengths, bad_word_ids
    });
    check!(text, checked, mortise_rollout_request {
        struct_size, flags, request_id, prompt_ids, num_prompt_ids, num_samples, first_row_id, seed, step, sampling
    });
    check!(text, checked, mortise_rollout_sequence {
        struct_size, finish_reason, request_id, sample_index, weight_version, num_ids, ids, log_prob, filtered_log_prob,
        experts, num_experts
    });
    check!(text, checked, mortise_rollout_sink { struct_size, flags, context, sequence });
    check!(text, checked, mortise_rollout_backend_vtable {
        struct_size, flags, create, destroy, get_extension, set_version, begin_update, update_weight, end_update, submit,
        poll, abort, sleep, wake
    });
    check!(text, checked, mortise_device { struct_size, flags, num_device_types, device_types });
    check!(text, checked, mortise_file_set { struct_size, flags, param, name, what, folder, num_files, files });
    check!(text, checked, mortise_needed_column { struct_size, flags, param, name, who, next });
    check!(text, checked, mortise_reads_sink { struct_size, flags, context, files, column });
    check!(text, checked, mortise_reads { struct_size, flags, tell });
    check!(text, checked, mortise_episode_start {
        struct_size, is_validation, episode, step, seed, sample_index, messages, columns
    });
    check!(text, checked, mortise_episode_action {
        struct_size, finish_reason, episode, turn, is_last, padding, text, calls, num_ids, ids
    });
    check!(text, checked, mortise_observation {
        struct_size, done, episode, reward, messages, num_calls, num_failed_calls
    });
    check!(text, checked, mortise_observation_sink { struct_size, flags, context, observation, description });
    check!(text, checked, mortise_environment_vtable {
        struct_size, flags, create, destroy, get_extension, keeps_episodes, padding, describe, reset, step, close
    });
    // None is forgotten: only mortise_call, which is opaque, has no layout.
    let source = include_str!("../src/sys.rs");
    let begins = |line: &&str| line.starts_with("pub struct mortise_") || line.starts_with("vtable!(mortise_");
    assert_eq!(checked + 1, source.lines().filter(begins).count());
}
