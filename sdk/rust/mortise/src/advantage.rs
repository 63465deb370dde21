//! Advantage estimators: advantages and returns of the whole batch of a step.

use crate::tensor::{array, elements, mandatory};
use crate::{run_mut, sys, vtable_of, Params, Result};
use std::collections::HashMap;
use std::os::raw::c_void;

/// An estimator that looks at tokens, or at the whole batch. Most need only `OutcomeEstimator`.
pub trait AdvantageEstimator: Send + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// Fills `batch.advantages(row)` and `batch.returns(row)` for all rows; both begin as zeros. A row without a reward
    /// keeps them.
    fn compute(&mut self, batch: &mut AdvantageBatch) -> Result<()>;
    /// Set it to true if rows of a prompt are compared. The engine then warns if a run samples each prompt only once.
    const COMPARES_GROUP: bool = false;
}

/// An estimator whose advantage is the same at all tokens of a row, from the rewards of the row's group. Returns are equal
/// to advantages.
pub trait OutcomeEstimator: Send + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// Fills `advantages`, one for each of `group.rewards`. Called once for each group that has a reward.
    fn group(&self, group: &Group, advantages: &mut [f64]);
}

/// The rows of one prompt that have a reward, in the order of the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    pub rows: Vec<usize>,
    pub rewards: Vec<f64>,
    /// Rows of the prompt, with those that have no reward.
    pub num_rows: usize,
}

impl<T: OutcomeEstimator> AdvantageEstimator for T {
    fn new(params: &Params) -> Result<Self> {
        <T as OutcomeEstimator>::new(params)
    }
    fn compute(&mut self, batch: &mut AdvantageBatch) -> Result<()> {
        let mut advantages = Vec::new();
        for group in batch.groups()? {
            advantages.clear();
            advantages.try_reserve(group.rows.len())?;
            advantages.resize(group.rows.len(), 0.0);
            self.group(&group, &mut advantages);
            for (&row, &advantage) in group.rows.iter().zip(&advantages) {
                batch.broadcast(row, advantage);
            }
        }
        Ok(())
    }
    const COMPARES_GROUP: bool = true;
}

/// The rows of one step. An input that `requires` does not name gives empty slices.
pub struct AdvantageBatch<'a> {
    input: &'a sys::mortise_advantage_estimator_in,
    row_offsets: &'a [i64],
    group_index: &'a [i64],
    rewards: &'a [f32],
    mask: &'a [u8],
    valid: Option<&'a mut [u8]>,
    advantages: &'a mut [f32],
    returns: Option<&'a mut [f32]>,
}

impl<'a> AdvantageBatch<'a> {
    unsafe fn new(
        input: &'a sys::mortise_advantage_estimator_in,
        output: &'a sys::mortise_advantage_estimator_out,
    ) -> Result<Self> {
        let layout = &*input.layout;
        let (rows, tokens) = (layout.num_rows as usize, layout.num_tokens as usize);
        Ok(AdvantageBatch {
            input,
            row_offsets: array(layout.row_offsets, rows + 1),
            group_index: array(layout.group_index, rows),
            rewards: mandatory(input.token_level_rewards, tokens, "token_level_rewards")?,
            mask: mandatory(input.response_mask, tokens, "response_mask")?,
            valid: elements(input.row_valid, rows, "row_valid")?,
            advantages: mandatory(output.advantages, tokens, "advantages")?,
            returns: elements(output.returns, tokens, "returns")?,
        })
    }
    pub fn num_rows(&self) -> usize {
        self.group_index.len()
    }
    /// Step of the run, from 1.
    pub fn step(&self) -> i64 {
        self.input.step
    }
    /// Rows of one prompt share it.
    pub fn group_index(&self, row: usize) -> i64 {
        self.group_index[row]
    }
    /// The row's tokens among all tokens.
    pub fn tokens(&self, row: usize) -> std::ops::Range<usize> {
        self.row_offsets[row] as usize..self.row_offsets[row + 1] as usize
    }
    pub fn mask(&self, row: usize) -> &[u8] {
        &self.mask[self.tokens(row)]
    }
    /// An outcome reward is at the row's last response token.
    pub fn token_rewards(&self, row: usize) -> &[f32] {
        &self.rewards[self.tokens(row)]
    }
    /// Values from the critic; only if `requires` names "values".
    pub fn values(&self, row: usize) -> Result<&[f32]> {
        self.optional(self.input.values, "values", row)
    }
    /// Only if `requires` names "old_log_prob".
    pub fn old_log_prob(&self, row: usize) -> Result<&[f32]> {
        self.optional(self.input.old_log_prob, "old_log_prob", row)
    }
    /// The reward of the greedy completion of the row's prompt; only if `requires` names "reward_baselines".
    pub fn reward_baseline(&self, row: usize) -> Result<f64> {
        let all: &[f32] = unsafe { mandatory(self.input.reward_baselines, self.num_rows(), "reward_baselines")? };
        Ok(all[row] as f64)
    }
    /// The sum of the row's rewards; `None` if it has none. Such a row has no influence, and its advantages stay 0.
    pub fn score(&self, row: usize) -> Option<f64> {
        let valid = self.valid.as_ref().map_or(true, |valid| valid[row] != 0);
        Some(self.token_rewards(row).iter().map(|&r| r as f64).sum::<f64>()).filter(|sum| valid && !sum.is_nan())
    }
    /// The prompts that have a row with a reward, in the order of first appearance.
    /// Fails, and does not end the process, if there is no memory.
    pub fn groups(&self) -> Result<Vec<Group>> {
        let mut all: Vec<Group> = Vec::new();
        let mut places = HashMap::new();
        all.try_reserve(self.num_rows())?;
        places.try_reserve(self.num_rows())?;
        for row in 0..self.num_rows() {
            let place = *places.entry(self.group_index(row)).or_insert_with(|| {
                all.push(Group::default());
                all.len() - 1
            });
            let group = &mut all[place];
            group.num_rows += 1;
            if let Some(score) = self.score(row) {
                group.rows.try_reserve(1)?;
                group.rewards.try_reserve(1)?;
                group.rows.push(row);
                group.rewards.push(score);
            }
        }
        all.retain(|group| !group.rows.is_empty());
        Ok(all)
    }
    pub fn advantages(&mut self, row: usize) -> &mut [f32] {
        let tokens = self.tokens(row);
        &mut self.advantages[tokens]
    }
    /// Empty if the host asks for none.
    pub fn returns(&mut self, row: usize) -> &mut [f32] {
        let tokens = self.tokens(row);
        self.returns.as_mut().map_or(&mut [], |returns| &mut returns[tokens])
    }
    /// Sets one advantage, and the same return, for all unmasked tokens of the row.
    pub fn broadcast(&mut self, row: usize, advantage: f64) {
        let mask = self.mask;
        for t in self.tokens(row).filter(|&t| mask[t] != 0) {
            self.advantages[t] = advantage as f32;
            if let Some(returns) = self.returns.as_mut() {
                returns[t] = advantage as f32;
            }
        }
    }

    fn optional(&self, tensor: *const sys::mortise_tensor, name: &str, row: usize) -> Result<&[f32]> {
        let all: &[f32] = unsafe { mandatory(tensor, self.mask.len(), name)? };
        Ok(&all[self.tokens(row)])
    }
}

extern "C" fn compute<T: AdvantageEstimator>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_advantage_estimator_in,
    output: *mut sys::mortise_advantage_estimator_out,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, _| plugin.compute(&mut unsafe { AdvantageBatch::new(&*input, &*output) }?))
}

vtable_of!(advantage_estimator_vtable: AdvantageEstimator, mortise_advantage_estimator_vtable { compute: compute::<T>, });
