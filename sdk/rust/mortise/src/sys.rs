//! The C headers of the plugin ABI (`sdk/include/mortise`), type by type and in their order. The headers say what
//! each field means, when a slot is called and how long a pointer lives. Tests compare layouts with `sdk/layout.txt`.
#![allow(non_camel_case_types, missing_docs)]

use std::os::raw::{c_char, c_void};

pub const MORTISE_ABI_MAJOR: u32 = 1;
pub const MORTISE_ABI_MINOR: u32 = 0;
pub const MORTISE_TARGET_MINOR: u32 = 0;
pub const MORTISE_MIN_HOST_MINOR: u32 = 0;

pub const MORTISE_OK: i32 = 0;
pub const MORTISE_CANCELLED: i32 = 1;
pub const MORTISE_INVALID_ARGUMENT: i32 = 3;
pub const MORTISE_NOT_FOUND: i32 = 5;
pub const MORTISE_RESOURCE_EXHAUSTED: i32 = 8;
pub const MORTISE_INTERNAL: i32 = 13;

pub const MORTISE_PARAM_F64: i32 = 0;
pub const MORTISE_PARAM_I64: i32 = 1;
pub const MORTISE_PARAM_BOOL: i32 = 2;
pub const MORTISE_PARAM_TEXT: i32 = 3;

pub const MORTISE_ROLE_PLAIN: i32 = 0;
pub const MORTISE_ROLE_COLUMN: i32 = 1;
pub const MORTISE_ROLE_FILE: i32 = 2;
pub const MORTISE_ROLE_FOLDER: i32 = 3;
pub const MORTISE_ROLE_MODEL: i32 = 4;
pub const MORTISE_ROLE_SECRET: i32 = 5;

pub const MORTISE_COUPLING_TOKEN: i32 = 0;
pub const MORTISE_COUPLING_ROW: i32 = 1;
pub const MORTISE_COUPLING_UPDATE: i32 = 3;
pub const MORTISE_FLAG_CONCURRENT: u32 = 2;
pub const MORTISE_FLAG_SURROGATE_GRADIENT: u32 = 8;
pub const MORTISE_FLAG_COMPARES_GROUP: u32 = 128;
pub const MORTISE_FLAG_TOKEN_REWARDS: u32 = 256;
pub const MORTISE_FLAG_TELLS_READS: u32 = 4096;

pub const MORTISE_REDUCE_MEAN: i32 = 0;
pub const MORTISE_REDUCE_SUM: i32 = 1;
pub const MORTISE_REDUCE_MAX: i32 = 2;
pub const MORTISE_REDUCE_MIN: i32 = 3;

pub const MORTISE_COLUMN_TEXT: i32 = 0;
pub const MORTISE_COLUMN_I64: i32 = 1;
pub const MORTISE_COLUMN_F64: i32 = 2;
pub const MORTISE_COLUMN_JSON: i32 = 3;
pub const MORTISE_FINISH_STOP: i32 = 0;
pub const MORTISE_FINISH_LENGTH: i32 = 1;
pub const MORTISE_FINISH_ABORT: i32 = 2;

pub const MORTISE_REWARD_ROW: i32 = 0;

/// Opaque: one call of one slot. It belongs to the host and is valid until the slot returns. Never store it.
#[repr(C)]
pub struct mortise_call {
    _private: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct mortise_text {
    pub data: *const c_char,
    pub size: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct mortise_tensor {
    pub data: *mut c_void,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub dtype_code: u8,
    pub dtype_bits: u8,
    pub dtype_lanes: u16,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct mortise_layout {
    pub struct_size: u32,
    pub flags: u32,
    pub num_rows: i64,
    pub num_tokens: i64,
    pub row_offsets: *const i64,
    pub row_id: *const i64,
    pub group_index: *const i64,
}

pub type ParallelFn = extern "C" fn(arg: *mut c_void, begin: i64, end: i64);

#[repr(C)]
pub struct mortise_host {
    pub struct_size: u32,
    pub abi_minor: u32,
    pub get_extension: extern "C" fn(id: *const c_char) -> *const c_void,
    pub log: extern "C" fn(call: *mut mortise_call, level: i32, text: mortise_text),
    pub metric: extern "C" fn(call: *mut mortise_call, name: mortise_text, sum: f64, weight: f64, reduction: i32),
    pub fail: extern "C" fn(call: *mut mortise_call, code: i32, text: mortise_text) -> i32,
    pub fail_row: extern "C" fn(call: *mut mortise_call, row: i64, code: i32, text: mortise_text) -> i32,
    pub cancelled: Option<extern "C" fn(call: *mut mortise_call) -> i32>, // R30: may be null
    pub deadline_ns: extern "C" fn(call: *mut mortise_call) -> i64,
    pub progress: extern "C" fn(call: *mut mortise_call, fraction: f64),
    pub alloc: extern "C" fn(call: *mut mortise_call, size: u64, align: u64) -> *mut c_void,
    pub stream: extern "C" fn(call: *mut mortise_call) -> *mut c_void,
    pub parallel_for: extern "C" fn(call: *mut mortise_call, n: i64, grain: i64, f: ParallelFn, arg: *mut c_void),
    pub random_u64: extern "C" fn(call: *mut mortise_call, lane: u64, counter: u64, n: u64, out: *mut u64),
    pub param_f64: extern "C" fn(call: *mut mortise_call, name: *const c_char, out: *mut f64) -> i32,
    pub param_i64: extern "C" fn(call: *mut mortise_call, name: *const c_char, out: *mut i64) -> i32,
    pub param_bool: extern "C" fn(call: *mut mortise_call, name: *const c_char, out: *mut i32) -> i32,
    pub param_text: extern "C" fn(call: *mut mortise_call, name: *const c_char, out: *mut mortise_text) -> i32,
}

#[repr(C)]
pub struct mortise_param {
    pub struct_size: u32,
    pub r#type: i32,
    pub name: *const c_char,
    pub default_text: *const c_char,
    pub doc: *const c_char,
    pub min: f64,
    pub max: f64,
    pub has_range: i32,
    pub num_choices: u32,
    pub choices: *const *const c_char,
    pub role: i32,
    pub flags: u32,
}

#[repr(C)]
pub struct mortise_descriptor {
    pub struct_size: u32,
    pub flags: u32,
    pub kind: *const c_char,
    pub name: *const c_char,
    pub summary: *const c_char,
    pub doc: *const c_char,
    pub coupling: i32,
    pub num_params: u32,
    pub params: *const *const mortise_param,
    pub requires_inputs: *const *const c_char,
    pub consumes: *const *const c_char,
    pub vtable: *const c_void,
    pub update_metrics: *const *const c_char,
    pub get_extension: Option<extern "C" fn(id: *const c_char) -> *const c_void>,
}

#[repr(C)]
pub struct mortise_pack {
    pub struct_size: u32,
    pub abi_minor: u32,
    pub min_host_minor: u32,
    pub num_plugins: u32,
    pub id: *const c_char,
    pub version: *const c_char,
    pub plugins: *const *const mortise_descriptor,
    pub open: Option<extern "C" fn(host: *const mortise_host) -> i32>,
}

pub type CreateFn = extern "C" fn(host: *const mortise_host, call: *mut mortise_call, out: *mut *mut c_void) -> i32;
pub type DestroyFn = extern "C" fn(this: *mut c_void);
pub type ExtensionFn = extern "C" fn(this: *mut c_void, id: *const c_char) -> *const c_void;
pub type ComputeFn<In, Out> =
    extern "C" fn(this: *mut c_void, call: *mut mortise_call, input: *const In, output: *mut Out) -> i32;

/// A vtable: the slots of every kind, then its own.
macro_rules! vtable {
    ($name:ident { $($slot:ident: $type:ty,)+ }) => {
        #[repr(C)]
        pub struct $name {
            pub struct_size: u32,
            pub flags: u32,
            pub create: CreateFn,
            pub destroy: DestroyFn,
            pub get_extension: Option<ExtensionFn>,
            $(pub $slot: $type,)+
        }
    };
}

#[repr(C)]
pub struct mortise_policy_loss_in {
    pub struct_size: u32,
    pub flags: u32,
    pub layout: *const mortise_layout,
    pub log_prob: *const mortise_tensor,
    pub old_log_prob: *const mortise_tensor,
    pub advantages: *const mortise_tensor,
    pub response_mask: *const mortise_tensor,
    pub weight: *const mortise_tensor,
    pub ref_log_prob: *const mortise_tensor,
    pub rollout_log_prob: *const mortise_tensor,
    pub rollout_is_weights: *const mortise_tensor,
    pub entropy: *const mortise_tensor,
    pub step: i64,
    pub update_index: i64,
}

#[repr(C)]
pub struct mortise_policy_loss_out {
    pub struct_size: u32,
    pub flags: u32,
    pub loss: *const mortise_tensor,
    pub grad_log_prob: *const mortise_tensor,
    pub grad_entropy: *const mortise_tensor,
}

vtable!(mortise_policy_loss_vtable {
    compute: ComputeFn<mortise_policy_loss_in, mortise_policy_loss_out>,
});

#[repr(C)]
#[derive(Clone, Copy)]
pub struct mortise_text_column {
    pub bytes: *const c_char,
    pub offsets: *const u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct mortise_id_column {
    pub ids: *const i64,
    pub offsets: *const u64,
}

#[repr(C)]
pub struct mortise_column {
    pub struct_size: u32,
    pub r#type: i32,
    pub name: mortise_text,
    pub valid: *const u8,
    pub text: mortise_text_column,
    pub i64: *const i64,
    pub f64: *const f64,
}

#[repr(C)]
pub struct mortise_reward_in {
    pub struct_size: u32,
    pub flags: u32,
    pub num_rows: i64,
    pub prompt: mortise_text_column,
    pub completion: mortise_text_column,
    pub messages: mortise_text_column,
    pub prompt_ids: mortise_id_column,
    pub completion_ids: mortise_id_column,
    pub finish_reason: *const i32,
    pub group_index: *const i64,
    pub sample_index: *const i64,
    pub row_id: *const i64,
    pub num_columns: u64,
    pub columns: *const *const mortise_column,
    pub step: i64,
    pub max_response_length: i64,
    pub is_validation: i32,
    pub padding: i32,
}

#[repr(C)]
pub struct mortise_reward_out {
    pub struct_size: u32,
    pub flags: u32,
    pub rewards: *mut f64,
    pub token_rewards: *mut f32,
    pub row_value: Option<extern "C" fn(sink: *mut c_void, row: i64, name: mortise_text, value: f64)>,
    pub sink: *mut c_void,
}

vtable!(mortise_reward_vtable {
    granularity: i32,
    padding: i32,
    score: ComputeFn<mortise_reward_in, mortise_reward_out>,
});

#[repr(C)]
pub struct mortise_kl_estimator_in {
    pub struct_size: u32,
    pub flags: u32,
    pub layout: *const mortise_layout,
    pub log_prob: *const mortise_tensor,
    pub ref_log_prob: *const mortise_tensor,
    pub response_mask: *const mortise_tensor,
    pub weight: *const mortise_tensor,
    pub old_log_prob: *const mortise_tensor,
}

#[repr(C)]
pub struct mortise_kl_estimator_out {
    pub struct_size: u32,
    pub flags: u32,
    pub kl: *const mortise_tensor,
    pub grad_log_prob: *const mortise_tensor,
}

vtable!(mortise_kl_estimator_vtable {
    compute: ComputeFn<mortise_kl_estimator_in, mortise_kl_estimator_out>,
});

#[repr(C)]
pub struct mortise_advantage_estimator_in {
    pub struct_size: u32,
    pub flags: u32,
    pub layout: *const mortise_layout,
    pub token_level_rewards: *const mortise_tensor,
    pub response_mask: *const mortise_tensor,
    pub rewards: *const mortise_tensor,
    pub reward_weights: *const mortise_tensor,
    pub row_valid: *const mortise_tensor,
    pub values: *const mortise_tensor,
    pub reward_baselines: *const mortise_tensor,
    pub old_log_prob: *const mortise_tensor,
    pub sum_pi_squared: *const mortise_tensor,
    pub rollout_is_weights: *const mortise_tensor,
    pub step: i64,
}

#[repr(C)]
pub struct mortise_advantage_estimator_out {
    pub struct_size: u32,
    pub flags: u32,
    pub advantages: *const mortise_tensor,
    pub returns: *const mortise_tensor,
}

vtable!(mortise_advantage_estimator_vtable {
    compute: ComputeFn<mortise_advantage_estimator_in, mortise_advantage_estimator_out>,
});

#[repr(C)]
pub struct mortise_sampling {
    pub struct_size: u32,
    pub ignore_eos: i32,
    pub max_new_tokens: i64,
    pub min_new_tokens: i64,
    pub temperature: f64,
    pub top_p: f64,
    pub min_p: f64,
    pub top_k: i64,
    pub num_stop_ids: u64,
    pub stop_ids: *const i64,
    pub typical_p: f64,
    pub repetition_penalty: f64,
    pub presence_penalty: f64,
    pub frequency_penalty: f64,
    pub num_stop_strings: u64,
    pub stop_strings: *const mortise_text,
    pub num_bad_words: u64,
    pub bad_word_lengths: *const i64,
    pub bad_word_ids: *const i64,
}

#[repr(C)]
pub struct mortise_rollout_request {
    pub struct_size: u32,
    pub flags: u32,
    pub request_id: i64,
    pub prompt_ids: *const i64,
    pub num_prompt_ids: i64,
    pub num_samples: i64,
    pub first_row_id: i64,
    pub seed: u64,
    pub step: i64,
    pub sampling: *const mortise_sampling,
}

#[repr(C)]
pub struct mortise_rollout_sequence {
    pub struct_size: u32,
    pub finish_reason: i32,
    pub request_id: i64,
    pub sample_index: i64,
    pub weight_version: i64,
    pub num_ids: i64,
    pub ids: *const i64,
    pub log_prob: *const f32,
    pub filtered_log_prob: *const f32,
    pub experts: *const u16,
    pub num_experts: u64,
}

#[repr(C)]
pub struct mortise_rollout_sink {
    pub struct_size: u32,
    pub flags: u32,
    pub context: *mut c_void,
    pub sequence: extern "C" fn(context: *mut c_void, sequence: *const mortise_rollout_sequence) -> i32,
}

vtable!(mortise_rollout_backend_vtable {
    set_version: extern "C" fn(this: *mut c_void, call: *mut mortise_call, version: i64) -> i32,
    begin_update: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call, version: i64) -> i32>,
    update_weight: Option<
        extern "C" fn(
            this: *mut c_void,
            call: *mut mortise_call,
            name: mortise_text,
            shard: *const mortise_tensor,
            global_shape: *const i64,
            offset: *const i64,
        ) -> i32,
    >,
    end_update: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call) -> i32>,
    submit: extern "C" fn(
        this: *mut c_void,
        call: *mut mortise_call,
        requests: *const *const mortise_rollout_request,
        num_requests: u64,
        accepted: *mut u64,
    ) -> i32,
    poll: extern "C" fn(
        this: *mut c_void,
        call: *mut mortise_call,
        sink: *const mortise_rollout_sink,
        timeout_ns: i64,
        outstanding: *mut u64,
    ) -> i32,
    abort: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call, request_id: i64) -> i32>,
    sleep: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call, level: i32) -> i32>,
    wake: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call) -> i32>,
});

/// Kind `mortise.environment/1`.
#[repr(C)]
pub struct mortise_episode_start {
    pub struct_size: u32,
    pub is_validation: i32,
    pub episode: i64,
    pub step: i64,
    pub seed: u64,
    pub sample_index: i64,
    pub messages: mortise_text,
    pub columns: mortise_text,
}

#[repr(C)]
pub struct mortise_episode_action {
    pub struct_size: u32,
    pub finish_reason: i32,
    pub episode: i64,
    pub turn: i64,
    pub is_last: i32,
    pub padding: i32,
    pub text: mortise_text,
    pub calls: mortise_text,
    pub num_ids: i64,
    pub ids: *const i64,
}

#[repr(C)]
pub struct mortise_observation {
    pub struct_size: u32,
    pub done: i32,
    pub episode: i64,
    pub reward: f64,
    pub messages: mortise_text,
    pub num_calls: i64,
    pub num_failed_calls: i64,
}

#[repr(C)]
pub struct mortise_observation_sink {
    pub struct_size: u32,
    pub flags: u32,
    pub context: *mut c_void,
    pub observation: Option<extern "C" fn(context: *mut c_void, observation: *const mortise_observation)>,
    pub description: Option<extern "C" fn(context: *mut c_void, json: mortise_text)>,
}

vtable!(mortise_environment_vtable {
    keeps_episodes: i32,
    padding: i32,
    describe: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call, sink: *const mortise_observation_sink) -> i32>,
    reset: Option<
        extern "C" fn(
            this: *mut c_void,
            call: *mut mortise_call,
            episodes: *const *const mortise_episode_start,
            num_episodes: u64,
            sink: *const mortise_observation_sink,
        ) -> i32,
    >,
    step: extern "C" fn(
        this: *mut c_void,
        call: *mut mortise_call,
        actions: *const *const mortise_episode_action,
        num_actions: u64,
        sink: *const mortise_observation_sink,
    ) -> i32,
    close: Option<extern "C" fn(this: *mut c_void, call: *mut mortise_call, episodes: *const i64, num_episodes: u64) -> i32>,
});

#[repr(C)]
pub struct mortise_device {
    pub struct_size: u32,
    pub flags: u32,
    pub num_device_types: u32,
    pub device_types: *const i32,
}

#[repr(C)]
pub struct mortise_file_set {
    pub struct_size: u32,
    pub flags: u32,
    pub param: mortise_text,
    pub name: mortise_text,
    pub what: mortise_text,
    pub folder: mortise_text,
    pub num_files: u64,
    pub files: *const mortise_text,
}

#[repr(C)]
pub struct mortise_needed_column {
    pub struct_size: u32,
    pub flags: u32,
    pub param: mortise_text,
    pub name: mortise_text,
    pub who: mortise_text,
    pub next: mortise_text,
}

#[repr(C)]
pub struct mortise_reads_sink {
    pub struct_size: u32,
    pub flags: u32,
    pub context: *mut c_void,
    pub files: extern "C" fn(context: *mut c_void, set: *const mortise_file_set),
    pub column: extern "C" fn(context: *mut c_void, column: *const mortise_needed_column),
}

#[repr(C)]
pub struct mortise_reads {
    pub struct_size: u32,
    pub flags: u32,
    pub tell: extern "C" fn(host: *const mortise_host, call: *mut mortise_call, sink: *const mortise_reads_sink) -> i32,
}
