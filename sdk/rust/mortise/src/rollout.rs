//! Rollout backends: completions for prompts, from anywhere.

use crate::tensor::array;
use crate::{bytes_of, run_mut, sys, vtable_of, Call, Error, FinishReason, Params, Result};
use std::borrow::Cow;
use std::os::raw::c_void;
use std::time::Duration;

/// `submit` takes requests, `poll` works or waits and hands finished sequences to the sink until the sink says stop.
pub trait RolloutBackend: Send + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// The engine's weights now carry this version.
    fn set_version(&mut self, version: i64, call: &Call) -> Result<()>;
    /// Queues requests, which are borrowed: copy what you keep. Returns how many it took, from the first on; the host
    /// offers the others again.
    fn submit(&mut self, requests: &[Request], call: &Call) -> Result<usize>;
    /// Works or waits up to `timeout` (0: delivers what is ready). Returns how many sequences are still outstanding.
    fn poll(&mut self, sink: &mut Sink, timeout: Duration, call: &Call) -> Result<u64>;
    /// Aborts a request, or all of them. The next poll delivers what there is of them, with `FinishReason::Abort`.
    fn abort(&mut self, request_id: Option<i64>, call: &Call) -> Result<()>;
    /// Frees what training does not need. 1: caches; 2: also the weights, which the host then sends again.
    fn sleep(&mut self, _level: i32, _call: &Call) -> Result<()> {
        Ok(())
    }
    fn wake(&mut self, _call: &Call) -> Result<()> {
        Ok(())
    }
    /// Set it to true for a backend with its own copy of the weights. After each update of the policy the host calls
    /// begin_update, update_weight for every block of every weight, and end_update.
    const HOLDS_WEIGHTS: bool = false;
    fn begin_update(&mut self, _version: i64, _call: &Call) -> Result<()> {
        Err(Error::internal("HOLDS_WEIGHTS is true, and begin_update is not written"))
    }
    fn update_weight(&mut self, _shard: &WeightShard, _call: &Call) -> Result<()> {
        Err(Error::internal("HOLDS_WEIGHTS is true, and update_weight is not written"))
    }
    fn end_update(&mut self, _call: &Call) -> Result<()> {
        Err(Error::internal("HOLDS_WEIGHTS is true, and end_update is not written"))
    }
}

/// A prompt with the number of completions that it gets.
pub struct Request<'a> {
    raw: &'a sys::mortise_rollout_request,
}

impl<'a> Request<'a> {
    /// Return it with every sequence.
    pub fn id(&self) -> i64 {
        self.raw.request_id
    }
    pub fn prompt_ids(&self) -> &'a [i64] {
        unsafe { array(self.raw.prompt_ids, self.raw.num_prompt_ids as usize) }
    }
    pub fn num_samples(&self) -> i64 {
        self.raw.num_samples
    }
    /// Sample j is row `first_row_id() + j` of the step. Random numbers are a function of it.
    pub fn first_row_id(&self) -> i64 {
        self.raw.first_row_id
    }
    pub fn seed(&self) -> u64 {
        self.raw.seed
    }
    pub fn step(&self) -> i64 {
        self.raw.step
    }
    /// How to sample: temperature, top_p and so on. A completion has at most `max_new_tokens`.
    pub fn sampling(&self) -> &'a sys::mortise_sampling {
        unsafe { &*self.raw.sampling }
    }
    /// A completion ends with the first of these, which it keeps.
    pub fn stop_ids(&self) -> &'a [i64] {
        unsafe { array(self.sampling().stop_ids, self.sampling().num_stop_ids as usize) }
    }
}

/// One finished completion, or what there is of an aborted one.
pub struct Sequence<'a> {
    pub request_id: i64,
    /// From 0 to `num_samples - 1`.
    pub sample_index: i64,
    /// The version of the weights that made it.
    pub weight_version: i64,
    pub finish_reason: FinishReason,
    /// With the end token.
    pub ids: &'a [i64],
    /// At temperature, unfiltered. `None`: the engine computes them.
    pub log_prob: Option<&'a [f32]>,
}

/// Takes sequences.
pub struct Sink<'a> {
    raw: &'a sys::mortise_rollout_sink,
}

impl Sink<'_> {
    /// Takes the sequence in any case. False: keep the others for the next poll. Panics, which fails the call, if there are
    /// not as many log-probs as ids.
    pub fn give(&mut self, sequence: &Sequence) -> bool {
        let log_prob = sequence.log_prob.map_or(std::ptr::null(), |values| {
            assert_eq!(values.len(), sequence.ids.len(), "log_prob has one element for each id");
            values.as_ptr()
        });
        let raw = sys::mortise_rollout_sequence {
            struct_size: std::mem::size_of::<sys::mortise_rollout_sequence>() as u32,
            finish_reason: sequence.finish_reason as i32,
            request_id: sequence.request_id,
            sample_index: sequence.sample_index,
            weight_version: sequence.weight_version,
            num_ids: sequence.ids.len() as i64,
            ids: sequence.ids.as_ptr(),
            log_prob,
            filtered_log_prob: std::ptr::null(),
            experts: std::ptr::null(),
            num_experts: 0,
        };
        (self.raw.sequence)(self.raw.context, &raw) == 0
    }
}

/// A block of one weight. Borrowed: copy what you keep.
pub struct WeightShard<'a> {
    pub name: Cow<'a, str>,
    /// The block: contiguous, with its own shape.
    pub data: &'a sys::mortise_tensor,
    /// Shape of the whole weight.
    pub shape: &'a [i64],
    /// Where the block begins in the weight, one entry for each dimension.
    pub offset: &'a [i64],
}

extern "C" fn set_version<T: RolloutBackend>(this: *mut c_void, call: *mut sys::mortise_call, version: i64) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| plugin.set_version(version, call))
}
extern "C" fn begin_update<T: RolloutBackend>(this: *mut c_void, call: *mut sys::mortise_call, version: i64) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| plugin.begin_update(version, call))
}
extern "C" fn update_weight<T: RolloutBackend>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    name: sys::mortise_text,
    shard: *const sys::mortise_tensor,
    global_shape: *const i64,
    offset: *const i64,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| unsafe {
        let data = &*shard;
        let (shape, offset) = (array(global_shape, data.ndim as usize), array(offset, data.ndim as usize));
        plugin.update_weight(&WeightShard { name: String::from_utf8_lossy(bytes_of(name)), data, shape, offset }, call)
    })
}
extern "C" fn end_update<T: RolloutBackend>(this: *mut c_void, call: *mut sys::mortise_call) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| plugin.end_update(call))
}
extern "C" fn submit<T: RolloutBackend>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    requests: *const *const sys::mortise_rollout_request,
    num_requests: u64,
    accepted: *mut u64,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| unsafe {
        *accepted = 0;
        let given: Vec<Request> = array(requests, num_requests as usize).iter().map(|&raw| Request { raw: &*raw }).collect();
        *accepted = plugin.submit(&given, call)? as u64;
        Ok(())
    })
}
extern "C" fn poll<T: RolloutBackend>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    sink: *const sys::mortise_rollout_sink,
    timeout_ns: i64,
    outstanding: *mut u64,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| unsafe {
        let timeout = Duration::from_nanos(timeout_ns.max(0) as u64);
        *outstanding = plugin.poll(&mut Sink { raw: &*sink }, timeout, call)?;
        Ok(())
    })
}
extern "C" fn abort<T: RolloutBackend>(this: *mut c_void, call: *mut sys::mortise_call, request_id: i64) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| plugin.abort(Some(request_id).filter(|&id| id >= 0), call))
}
extern "C" fn sleep<T: RolloutBackend>(this: *mut c_void, call: *mut sys::mortise_call, level: i32) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| plugin.sleep(level, call))
}
extern "C" fn wake<T: RolloutBackend>(this: *mut c_void, call: *mut sys::mortise_call) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| plugin.wake(call))
}

vtable_of!(rollout_backend_vtable: RolloutBackend, mortise_rollout_backend_vtable {
    set_version: set_version::<T>,
    begin_update: if T::HOLDS_WEIGHTS { Some(begin_update::<T>) } else { None },
    update_weight: if T::HOLDS_WEIGHTS { Some(update_weight::<T>) } else { None },
    end_update: if T::HOLDS_WEIGHTS { Some(end_update::<T>) } else { None },
    submit: submit::<T>,
    poll: poll::<T>,
    abort: Some(abort::<T>),
    sleep: Some(sleep::<T>),
    wake: Some(wake::<T>),
});
