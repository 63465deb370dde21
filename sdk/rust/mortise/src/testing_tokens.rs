//! The part of the test host for plugins that work on tokens: losses, KL and advantage estimators, rollout backends.

use crate::testing::Plugin;
use crate::{sys, FinishReason, Result};
use std::os::raw::c_void;

/// A tensor of one dimension over memory of the caller, with its shape.
struct View {
    shape: Box<[i64; 2]>,
    tensor: sys::mortise_tensor,
}

impl View {
    fn new<T>(data: &[T], dtype_code: u8) -> Self {
        let mut shape = Box::new([data.len() as i64, 1]);
        let tensor = sys::mortise_tensor {
            data: data.as_ptr() as *mut c_void,
            device_type: 1,
            device_id: 0,
            ndim: 1,
            dtype_code,
            dtype_bits: 8 * std::mem::size_of::<T>() as u8,
            dtype_lanes: 1,
            shape: &mut shape[0],
            strides: &mut shape[1],
            byte_offset: 0,
        };
        View { shape, tensor }
    }
    fn floats(data: &[f32]) -> Self {
        View::new(data, 2)
    }
    fn bytes(data: &[u8]) -> Self {
        View::new(data, 1)
    }
    fn raw(&self) -> *const sys::mortise_tensor {
        debug_assert!(std::ptr::eq(self.tensor.shape, &self.shape[0]));
        &self.tensor
    }
}

fn layout(row_offsets: &[i64], row_id: &[i64], group_index: &[i64]) -> sys::mortise_layout {
    sys::mortise_layout {
        struct_size: std::mem::size_of::<sys::mortise_layout>() as u32,
        flags: 0,
        num_rows: row_id.len() as i64,
        num_tokens: row_offsets[row_id.len()],
        row_offsets: row_offsets.as_ptr(),
        row_id: row_id.as_ptr(),
        group_index: group_index.as_ptr(),
    }
}

/// Values and gradients of each token.
pub type Tokens = (Vec<f32>, Vec<f32>);

/// A completion that a rollout backend delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub request_id: i64,
    pub sample_index: i64,
    pub weight_version: i64,
    pub finish_reason: FinishReason,
    pub ids: Vec<i64>,
    pub log_prob: Option<Vec<f32>>,
}

extern "C" fn take_sequence(context: *mut c_void, sequence: *const sys::mortise_rollout_sequence) -> i32 {
    let (all, s) = unsafe { (&mut *(context as *mut Vec<Completion>), &*sequence) };
    let n = s.num_ids as usize;
    let finish_reason = match s.finish_reason {
        sys::MORTISE_FINISH_STOP => FinishReason::Stop,
        sys::MORTISE_FINISH_LENGTH => FinishReason::Length,
        _ => FinishReason::Abort,
    };
    all.push(Completion {
        request_id: s.request_id,
        sample_index: s.sample_index,
        weight_version: s.weight_version,
        finish_reason,
        ids: unsafe { crate::tensor::array(s.ids, n) }.to_vec(),
        log_prob: if s.log_prob.is_null() { None } else { Some(unsafe { crate::tensor::array(s.log_prob, n) }.to_vec()) },
    });
    1 // wants no more: the backend keeps the others for the next poll
}

impl Plugin {
    /// Calls a policy loss on one row, each token with weight 1: its losses and gradients.
    pub fn loss(&mut self, log_prob: &[f32], old_log_prob: &[f32], advantages: &[f32], mask: &[u8]) -> Result<Tokens> {
        let n = log_prob.len();
        let (ones, offsets) = (vec![1.0f32; n], [0, n as i64]);
        let layout = layout(&offsets, &[0], &[0]);
        let inputs = [log_prob, old_log_prob, advantages, &ones].map(View::floats);
        let mask = View::bytes(mask);
        let (loss, grad) = (vec![0.0f32; n], vec![0.0f32; n]);
        let outputs = [View::floats(&loss), View::floats(&grad)];
        let input = sys::mortise_policy_loss_in {
            struct_size: std::mem::size_of::<sys::mortise_policy_loss_in>() as u32,
            flags: 0,
            layout: &layout,
            log_prob: inputs[0].raw(),
            old_log_prob: inputs[1].raw(),
            advantages: inputs[2].raw(),
            response_mask: mask.raw(),
            weight: inputs[3].raw(),
            ref_log_prob: std::ptr::null(),
            rollout_log_prob: std::ptr::null(),
            rollout_is_weights: std::ptr::null(),
            entropy: std::ptr::null(),
            step: 1,
            update_index: 1,
        };
        let mut output = sys::mortise_policy_loss_out {
            struct_size: std::mem::size_of::<sys::mortise_policy_loss_out>() as u32,
            flags: 0,
            loss: outputs[0].raw(),
            grad_log_prob: outputs[1].raw(),
            grad_entropy: std::ptr::null(),
        };
        let compute = unsafe { &*(self.vtable as *const sys::mortise_policy_loss_vtable) }.compute;
        let status = compute(self.this, self.raw(), &input, &mut output);
        self.done(status).map(|()| (loss, grad))
    }

    /// Calls a KL estimator on one row, each token with weight 1: its KL and gradients.
    pub fn kl(&mut self, log_prob: &[f32], ref_log_prob: &[f32], mask: &[u8]) -> Result<Tokens> {
        let n = log_prob.len();
        let (ones, offsets) = (vec![1.0f32; n], [0, n as i64]);
        let layout = layout(&offsets, &[0], &[0]);
        let inputs = [log_prob, ref_log_prob, &ones].map(View::floats);
        let mask = View::bytes(mask);
        let (kl, grad) = (vec![0.0f32; n], vec![0.0f32; n]);
        let outputs = [View::floats(&kl), View::floats(&grad)];
        let input = sys::mortise_kl_estimator_in {
            struct_size: std::mem::size_of::<sys::mortise_kl_estimator_in>() as u32,
            flags: 0,
            layout: &layout,
            log_prob: inputs[0].raw(),
            ref_log_prob: inputs[1].raw(),
            response_mask: mask.raw(),
            weight: inputs[2].raw(),
            old_log_prob: inputs[0].raw(),
        };
        let mut output = sys::mortise_kl_estimator_out {
            struct_size: std::mem::size_of::<sys::mortise_kl_estimator_out>() as u32,
            flags: 0,
            kl: outputs[0].raw(),
            grad_log_prob: outputs[1].raw(),
        };
        let compute = unsafe { &*(self.vtable as *const sys::mortise_kl_estimator_vtable) }.compute;
        let status = compute(self.this, self.raw(), &input, &mut output);
        self.done(status).map(|()| (kl, grad))
    }

    /// Calls an advantage estimator on rows of `length` tokens whose outcome reward is at the last one. `None`: the row has
    /// no reward. The advantages of each row.
    pub fn advantages(&mut self, group_index: &[i64], outcomes: &[Option<f32>], length: usize) -> Result<Vec<Vec<f32>>> {
        let rows = outcomes.len();
        let offsets: Vec<i64> = (0..=rows).map(|row| (row * length) as i64).collect();
        let row_id: Vec<i64> = (0..rows as i64).collect();
        let layout = layout(&offsets, &row_id, group_index);
        let mut rewards = vec![0.0f32; rows * length];
        for (row, outcome) in outcomes.iter().enumerate() {
            rewards[(row + 1) * length - 1] = outcome.unwrap_or(0.0);
        }
        let valid: Vec<u8> = outcomes.iter().map(|outcome| outcome.is_some() as u8).collect();
        let (ones, advantages, returns) = (vec![1u8; rows * length], vec![0.0f32; rows * length], vec![0.0f32; rows * length]);
        let (rewards, mask, valid) = (View::floats(&rewards), View::bytes(&ones), View::bytes(&valid));
        let outputs = [View::floats(&advantages), View::floats(&returns)];
        let input = sys::mortise_advantage_estimator_in {
            struct_size: std::mem::size_of::<sys::mortise_advantage_estimator_in>() as u32,
            flags: 0,
            layout: &layout,
            token_level_rewards: rewards.raw(),
            response_mask: mask.raw(),
            rewards: std::ptr::null(),
            reward_weights: std::ptr::null(),
            row_valid: valid.raw(),
            values: std::ptr::null(),
            reward_baselines: std::ptr::null(),
            old_log_prob: std::ptr::null(),
            sum_pi_squared: std::ptr::null(),
            rollout_is_weights: std::ptr::null(),
            step: 1,
        };
        let mut output = sys::mortise_advantage_estimator_out {
            struct_size: std::mem::size_of::<sys::mortise_advantage_estimator_out>() as u32,
            flags: 0,
            advantages: outputs[0].raw(),
            returns: outputs[1].raw(),
        };
        let compute = unsafe { &*(self.vtable as *const sys::mortise_advantage_estimator_vtable) }.compute;
        let status = compute(self.this, self.raw(), &input, &mut output);
        self.done(status).map(|()| (0..rows).map(|row| advantages[row * length..(row + 1) * length].to_vec()).collect())
    }

    /// Asks a rollout backend for `num_samples` completions of a prompt under weights of this version, and polls until
    /// nothing is outstanding. The sink takes one sequence per poll.
    pub fn generate(&mut self, prompt: &[i64], num_samples: i64, max_new_tokens: i64, version: i64) -> Result<Vec<Completion>> {
        let sampling = sys::mortise_sampling {
            struct_size: std::mem::size_of::<sys::mortise_sampling>() as u32,
            ignore_eos: 0,
            max_new_tokens,
            min_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            num_stop_ids: 0,
            stop_ids: std::ptr::null(),
            typical_p: 0.0,
            repetition_penalty: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            num_stop_strings: 0,
            stop_strings: std::ptr::null(),
            num_bad_words: 0,
            bad_word_lengths: std::ptr::null(),
            bad_word_ids: std::ptr::null(),
        };
        let request = sys::mortise_rollout_request {
            struct_size: std::mem::size_of::<sys::mortise_rollout_request>() as u32,
            flags: 0,
            request_id: 7,
            prompt_ids: prompt.as_ptr(),
            num_prompt_ids: prompt.len() as i64,
            num_samples,
            first_row_id: 0,
            seed: 1,
            step: 1,
            sampling: &sampling,
        };
        let requests: [*const sys::mortise_rollout_request; 1] = [&request];
        let vtable = unsafe { &*(self.vtable as *const sys::mortise_rollout_backend_vtable) };
        let status = (vtable.set_version)(self.this, self.raw(), version);
        self.done(status)?;
        let mut accepted = 0;
        let status = (vtable.submit)(self.this, self.raw(), requests.as_ptr(), 1, &mut accepted);
        self.done(status)?;
        assert_eq!(accepted, 1, "the backend did not take the request");
        let mut all: Vec<Completion> = Vec::new();
        let sink = sys::mortise_rollout_sink {
            struct_size: std::mem::size_of::<sys::mortise_rollout_sink>() as u32,
            flags: 0,
            context: &mut all as *mut Vec<Completion> as *mut c_void,
            sequence: take_sequence,
        };
        let mut outstanding = 1;
        for _ in 0..1000 {
            let status = (vtable.poll)(self.this, self.raw(), &sink, 1_000_000, &mut outstanding);
            self.done(status)?;
            if outstanding == 0 {
                break;
            }
        }
        assert_eq!(outstanding, 0, "completions are outstanding after 1000 polls");
        Ok(all)
    }

    /// The largest |gradient - central difference| of a loss, relative to 1 + |difference|. Keep away from kinks by 0.004.
    pub fn gradient_error(&mut self, log_prob: &[f32], old_log_prob: &[f32], advantages: &[f32], mask: &[u8]) -> Result<f64> {
        let call = |plugin: &mut Plugin, log_prob: &[f32]| plugin.loss(log_prob, old_log_prob, advantages, mask);
        self.difference(log_prob, call)
    }

    /// The same of a KL estimator.
    pub fn kl_gradient_error(&mut self, log_prob: &[f32], ref_log_prob: &[f32], mask: &[u8]) -> Result<f64> {
        let call = |plugin: &mut Plugin, log_prob: &[f32]| plugin.kl(log_prob, ref_log_prob, mask);
        self.difference(log_prob, call)
    }

    fn difference(&mut self, log_prob: &[f32], call: impl Fn(&mut Plugin, &[f32]) -> Result<Tokens>) -> Result<f64> {
        let step = 1.0f32 / 256.0;
        let (_, grad) = call(self, log_prob)?;
        let mut worst = 0.0f64;
        for t in 0..log_prob.len() {
            let mut total = [0.0f64; 2];
            for (side, total) in total.iter_mut().enumerate() {
                let mut moved = log_prob.to_vec();
                moved[t] += if side == 0 { -step } else { step };
                *total = call(self, &moved)?.0.iter().map(|&x| x as f64).sum();
            }
            let slope = (total[1] - total[0]) / (2.0 * step as f64);
            worst = worst.max((grad[t] as f64 - slope).abs() / (1.0 + slope.abs()));
        }
        Ok(worst)
    }
}
