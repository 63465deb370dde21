//! A policy loss of single tokens: one function on `Dual`, from which both the loss and its exact gradient come.

use crate::{create, destroy, run, sys, text_of, Dual, Error, Params, Result};
use std::os::raw::c_void;

pub trait TokenLoss: Send + Sync + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// The loss of one token. Masks, aggregation, KL and entropy are the engine's.
    fn token(&self, log_prob: Dual, old_log_prob: f64, advantage: f64, meter: &mut Meter) -> Dual;
}

/// Metrics of a loss, as sums and counts over unmasked tokens: what people see does not depend on how a batch was cut.
#[derive(Default)]
pub struct Meter {
    totals: Vec<(&'static str, f64, f64)>,
}

impl Meter {
    /// The mean of `value` over tokens.
    pub fn add(&mut self, name: &'static str, value: f64) {
        match self.totals.iter_mut().find(|total| std::ptr::eq(total.0, name) || total.0 == name) {
            Some(total) => {
                total.1 += value;
                total.2 += 1.0;
            }
            None => self.totals.push((name, value, 1.0)),
        }
    }
    /// The share of tokens for which the condition holds.
    pub fn count(&mut self, name: &'static str, condition: bool) {
        self.add(name, if condition { 1.0 } else { 0.0 });
    }
}

/// The elements of a tensor; `None` for one that is not given. Fails for a tensor that is not in host memory.
unsafe fn elements<'a, T>(tensor: *const sys::mortise_tensor, n: usize, name: &str) -> Result<Option<&'a mut [T]>> {
    let tensor = match tensor.as_ref() {
        Some(tensor) => tensor,
        None => return Ok(None),
    };
    if tensor.device_type != 1 {
        return Err(Error::invalid(format!("'{name}' is not in host memory")));
    }
    if n == 0 {
        return Ok(Some(&mut []));
    }
    let data = (tensor.data as *mut u8).add(tensor.byte_offset as usize) as *mut T;
    Ok(Some(std::slice::from_raw_parts_mut(data, n)))
}
unsafe fn mandatory<'a, T>(tensor: *const sys::mortise_tensor, n: usize, name: &str) -> Result<&'a mut [T]> {
    elements(tensor, n, name)?.ok_or_else(|| Error::invalid(format!("'{name}' is missing")))
}

extern "C" fn create_loss<T: TokenLoss>(
    host: *const sys::mortise_host,
    call: *mut sys::mortise_call,
    out: *mut *mut c_void,
) -> i32 {
    create(host, call, out, T::new)
}
extern "C" fn destroy_loss<T: TokenLoss>(this: *mut c_void) {
    destroy::<T>(this);
}
extern "C" fn compute<T: TokenLoss>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_policy_loss_in,
    output: *mut sys::mortise_policy_loss_out,
) -> i32 {
    run(this, call, |plugin: &T, host| unsafe {
        let (input, output) = (&*input, &*output);
        let n = (*input.layout).num_tokens as usize;
        let log_prob: &mut [f32] = mandatory(input.log_prob, n, "log_prob")?;
        let old_log_prob: &mut [f32] = mandatory(input.old_log_prob, n, "old_log_prob")?;
        let advantages: &mut [f32] = mandatory(input.advantages, n, "advantages")?;
        let mask: &mut [u8] = mandatory(input.response_mask, n, "response_mask")?;
        let weight: &mut [f32] = mandatory(input.weight, n, "weight")?;
        let loss: &mut [f32] = mandatory(output.loss, n, "loss")?;
        let mut grad: Option<&mut [f32]> = elements(output.grad_log_prob, n, "grad_log_prob")?;
        let mut meter = Meter::default();
        for t in (0..n).filter(|&t| mask[t] != 0) {
            let x = Dual::variable(log_prob[t] as f64);
            let y = plugin.token(x, old_log_prob[t] as f64, advantages[t] as f64, &mut meter);
            loss[t] = y.value as f32;
            if let Some(grad) = grad.as_mut().filter(|_| weight[t] != 0.0) {
                grad[t] = (weight[t] as f64 * y.slope) as f32;
            }
        }
        for (name, sum, count) in meter.totals {
            (host.metric)(call, text_of(name), sum, count, sys::MORTISE_REDUCE_MEAN);
        }
        Ok(())
    })
}

#[doc(hidden)]
pub const fn policy_loss_vtable<T: TokenLoss>() -> sys::mortise_policy_loss_vtable {
    sys::mortise_policy_loss_vtable {
        struct_size: std::mem::size_of::<sys::mortise_policy_loss_vtable>() as u32,
        flags: 0,
        create: create_loss::<T>,
        destroy: destroy_loss::<T>,
        get_extension: None,
        compute: compute::<T>,
    }
}
