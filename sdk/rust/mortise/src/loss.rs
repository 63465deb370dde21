//! Policy losses and KL estimators: one function on `Dual` gives both the value and its exact gradient.

use crate::tensor::{array, elements, mandatory};
use crate::{run, sys, text_of, vtable_of, Dual, Params, Result};
use std::os::raw::c_void;

/// A policy loss of single tokens.
pub trait TokenLoss: Send + Sync + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// The loss of one token. The engine does masks, aggregation, KL and entropy.
    fn token(&self, log_prob: Dual, old_log_prob: f64, advantage: f64, meter: &mut Meter) -> Dual;
}

/// A policy loss of the row's mean log ratio: the sum over unmasked tokens of `log_prob - old_log_prob`, divided by their
/// number.
pub trait SequenceLoss: Send + Sync + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// The loss of a token of the row that has this advantage.
    fn sequence(&self, mean_log_ratio: Dual, advantage: f64, meter: &mut Meter) -> Dual;
    /// False: the true derivative, spread over the tokens of the row. True: each token has its own derivative by the
    /// mean, undivided, as GSPO's token form.
    const OWN_TOKEN: bool = false;
}

/// An estimate of KL(policy || reference) for single tokens.
pub trait KlEstimator: Send + Sync + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// The KL at one token, in nats. `old_log_prob` is `None` if the run has none.
    fn token(&self, log_prob: Dual, ref_log_prob: f64, old_log_prob: Option<f64>) -> Dual;
}

/// Metrics of a loss, as sums and counts over unmasked tokens, so that they do not depend on the split of a batch.
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
    fn report(self, host: &sys::mortise_host, call: *mut sys::mortise_call) {
        for (name, sum, count) in self.totals {
            (host.metric)(call, text_of(name), sum, count, sys::MORTISE_REDUCE_MEAN);
        }
    }
}

/// The tensors of a policy loss.
struct LossTensors<'a> {
    log_prob: &'a [f32],
    old_log_prob: &'a [f32],
    advantages: &'a [f32],
    mask: &'a [u8],
    weight: &'a [f32],
    loss: &'a mut [f32],
    grad: Option<&'a mut [f32]>,
    row_offsets: &'a [i64],
}

impl<'a> LossTensors<'a> {
    unsafe fn new(input: &'a sys::mortise_policy_loss_in, output: &'a sys::mortise_policy_loss_out) -> Result<Self> {
        let layout = &*input.layout;
        let n = layout.num_tokens as usize;
        Ok(LossTensors {
            log_prob: mandatory(input.log_prob, n, "log_prob")?,
            old_log_prob: mandatory(input.old_log_prob, n, "old_log_prob")?,
            advantages: mandatory(input.advantages, n, "advantages")?,
            mask: mandatory(input.response_mask, n, "response_mask")?,
            weight: mandatory(input.weight, n, "weight")?,
            loss: mandatory(output.loss, n, "loss")?,
            grad: elements(output.grad_log_prob, n, "grad_log_prob")?,
            row_offsets: array(layout.row_offsets, layout.num_rows as usize + 1),
        })
    }

    fn over_tokens<T: TokenLoss>(&mut self, plugin: &T, meter: &mut Meter) {
        for t in (0..self.mask.len()).filter(|&t| self.mask[t] != 0) {
            let x = Dual::variable(self.log_prob[t] as f64);
            let y = plugin.token(x, self.old_log_prob[t] as f64, self.advantages[t] as f64, meter);
            self.loss[t] = y.value as f32;
            self.set_grad(t, y.slope);
        }
    }

    fn over_rows<T: SequenceLoss>(&mut self, plugin: &T, meter: &mut Meter) {
        for row in self.row_offsets.windows(2) {
            let mask = self.mask;
            let tokens = || (row[0] as usize..row[1] as usize).filter(|&t| mask[t] != 0);
            let ratio = |t: usize| self.log_prob[t] as f64 - self.old_log_prob[t] as f64;
            let count = tokens().count().max(1) as f64;
            let mean = Dual::variable(tokens().map(ratio).sum::<f64>() / count);
            let mut slope = 0.0;
            for t in tokens() {
                let y = plugin.sequence(mean, self.advantages[t] as f64, meter);
                self.loss[t] = y.value as f32;
                slope += self.weight[t] as f64 * y.slope;
                self.set_grad(t, y.slope);
            }
            if let Some(grad) = self.grad.as_mut().filter(|_| !T::OWN_TOKEN) {
                tokens().for_each(|t| grad[t] = (slope / count) as f32);
            }
        }
    }

    fn set_grad(&mut self, t: usize, slope: f64) {
        let weight = self.weight[t];
        if let Some(grad) = self.grad.as_mut().filter(|_| weight != 0.0) {
            grad[t] = (weight as f64 * slope) as f32;
        }
    }
}

fn compute<T>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_policy_loss_in,
    output: *mut sys::mortise_policy_loss_out,
    work: impl FnOnce(&mut LossTensors, &T, &mut Meter),
) -> i32 {
    run(this, call, |plugin: &T, host| {
        let mut meter = Meter::default();
        work(&mut unsafe { LossTensors::new(&*input, &*output) }?, plugin, &mut meter);
        meter.report(host, call);
        Ok(())
    })
}

extern "C" fn compute_tokens<T: TokenLoss>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_policy_loss_in,
    output: *mut sys::mortise_policy_loss_out,
) -> i32 {
    compute(this, call, input, output, |tensors, plugin: &T, meter| tensors.over_tokens(plugin, meter))
}

extern "C" fn compute_rows<T: SequenceLoss>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_policy_loss_in,
    output: *mut sys::mortise_policy_loss_out,
) -> i32 {
    compute(this, call, input, output, |tensors, plugin: &T, meter| tensors.over_rows(plugin, meter))
}

extern "C" fn compute_kl<T: KlEstimator>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_kl_estimator_in,
    output: *mut sys::mortise_kl_estimator_out,
) -> i32 {
    run(this, call, |plugin: &T, _| unsafe {
        let (input, output) = (&*input, &*output);
        let n = (*input.layout).num_tokens as usize;
        let log_prob: &[f32] = mandatory(input.log_prob, n, "log_prob")?;
        let ref_log_prob: &[f32] = mandatory(input.ref_log_prob, n, "ref_log_prob")?;
        let old_log_prob: Option<&mut [f32]> = elements(input.old_log_prob, n, "old_log_prob")?;
        let mask: &[u8] = mandatory(input.response_mask, n, "response_mask")?;
        let weight: &[f32] = mandatory(input.weight, n, "weight")?;
        let kl: &mut [f32] = mandatory(output.kl, n, "kl")?;
        let mut grad: Option<&mut [f32]> = elements(output.grad_log_prob, n, "grad_log_prob")?;
        for t in (0..n).filter(|&t| mask[t] != 0) {
            let old = old_log_prob.as_ref().map(|old| old[t] as f64);
            let y = plugin.token(Dual::variable(log_prob[t] as f64), ref_log_prob[t] as f64, old);
            kl[t] = y.value as f32;
            if let Some(grad) = grad.as_mut().filter(|_| weight[t] != 0.0) {
                grad[t] = (weight[t] as f64 * y.slope) as f32;
            }
        }
        Ok(())
    })
}

vtable_of!(policy_loss_vtable: TokenLoss, mortise_policy_loss_vtable { compute: compute_tokens::<T>, });
vtable_of!(sequence_loss_vtable: SequenceLoss, mortise_policy_loss_vtable { compute: compute_rows::<T>, });
vtable_of!(kl_estimator_vtable: KlEstimator, mortise_kl_estimator_vtable { compute: compute_kl::<T>, });
