//! A reward of single rows: `score` is called once per completion, from several threads at a time.

use crate::{bytes_of, guarded, run, sys, text_of, vtable_of, Params, Result};
use std::borrow::Cow;
use std::os::raw::c_void;

pub trait Reward: Send + Sync + Sized + 'static {
    /// Runs once, in `create`: read the parameters, compile patterns, open files.
    fn new(params: &Params) -> Result<Self>;
    /// `None` if the reward does not apply to the row; that is not a reward of 0. An `Err` or a panic fails only this
    /// row: it has no reward, it is counted, and the log shows its text.
    fn score(&self, row: &Row) -> Result<Option<f64>>;
    /// Set it to true to give rewards per token too: `row.reward_token`.
    const TOKEN_REWARDS: bool = false;
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, which is the completion's last id, or a stop string.
    Stop,
    /// Cut at the longest allowed length.
    Length,
    /// Aborted by the rollout backend; partial.
    Abort,
}

/// One completion with all its data. Texts that are not valid UTF-8 are read with replacement characters.
pub struct Row<'a> {
    input: &'a sys::mortise_reward_in,
    output: &'a sys::mortise_reward_out,
    index: usize,
}

impl<'a> Row<'a> {
    /// As rendered for the model, special tokens included.
    pub fn prompt(&self) -> Cow<'a, str> {
        self.cell(self.input.prompt)
    }
    /// Special tokens left out.
    pub fn completion(&self) -> Cow<'a, str> {
        self.cell(self.input.completion)
    }
    /// JSON of the chat: a list of objects with `role` and `content`. Empty if the data row has a plain prompt.
    pub fn messages(&self) -> Cow<'a, str> {
        self.cell(self.input.messages)
    }
    /// The prompt's tokens, as the model read them.
    pub fn prompt_ids(&self) -> &'a [i64] {
        self.ids(self.input.prompt_ids)
    }
    /// Exactly what was sampled, the end token included.
    pub fn completion_ids(&self) -> &'a [i64] {
        self.ids(self.input.completion_ids)
    }
    /// Why the completion ended. `None` if the host does not say.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        match self.at(self.input.finish_reason)? {
            sys::MORTISE_FINISH_STOP => Some(FinishReason::Stop),
            sys::MORTISE_FINISH_LENGTH => Some(FinishReason::Length),
            sys::MORTISE_FINISH_ABORT => Some(FinishReason::Abort),
            _ => None,
        }
    }
    /// Rows of one prompt share it.
    pub fn group_index(&self) -> i64 {
        self.at(self.input.group_index).unwrap_or(0)
    }
    /// Place of the row in its group, from 0.
    pub fn sample_index(&self) -> i64 {
        self.at(self.input.sample_index).unwrap_or(0)
    }
    /// Place of the row in the step, from 0.
    pub fn row_id(&self) -> i64 {
        self.at(self.input.row_id).unwrap_or(self.index as i64)
    }
    /// Step of the run, from 1. It is 0 outside a run.
    pub fn step(&self) -> i64 {
        self.input.step
    }
    /// Longest allowed completion in tokens. It is 0 if the host does not say.
    pub fn max_response_length(&self) -> i64 {
        self.input.max_response_length
    }
    /// True while the run validates.
    pub fn is_validation(&self) -> bool {
        self.input.is_validation != 0
    }
    /// Names of the data columns; the same for every row of a call.
    pub fn column_names(&self) -> Vec<Cow<'a, str>> {
        (0..self.input.num_columns as usize)
            .map(|k| unsafe { String::from_utf8_lossy(bytes_of((**self.input.columns.add(k)).name)) })
            .collect()
    }
    /// A column of the data row as text: texts, and numbers as the shortest decimal that reads back the same ("42", and
    /// "99" for 99.0). `None` when there is no such column, it is null, or it holds lists, objects or booleans.
    pub fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        let column = self.column(name)?;
        match column.r#type {
            sys::MORTISE_COLUMN_TEXT => Some(self.cell(column.text)),
            sys::MORTISE_COLUMN_F64 => Some(Cow::Owned(unsafe { *column.f64.add(self.index) }.to_string())),
            sys::MORTISE_COLUMN_I64 => Some(Cow::Owned(unsafe { *column.i64.add(self.index) }.to_string())),
            _ => None,
        }
    }
    /// A column of floats, or of whole numbers; `None` for a whole number that an f64 does not hold exactly. A text is
    /// not a number, whatever it says.
    pub fn number(&self, name: &str) -> Option<f64> {
        let column = self.column(name)?;
        match column.r#type {
            sys::MORTISE_COLUMN_F64 => Some(unsafe { *column.f64.add(self.index) }),
            sys::MORTISE_COLUMN_I64 => {
                let value = unsafe { *column.i64.add(self.index) };
                Some(value as f64).filter(|number| *number as i128 == i128::from(value))
            }
            _ => None,
        }
    }
    /// A column of whole numbers, or of floats: 99 for 99.0, `None` for 99.5.
    pub fn integer(&self, name: &str) -> Option<i64> {
        let column = self.column(name)?;
        match column.r#type {
            sys::MORTISE_COLUMN_I64 => Some(unsafe { *column.i64.add(self.index) }),
            sys::MORTISE_COLUMN_F64 => {
                let value = unsafe { *column.f64.add(self.index) };
                let limit = 9_223_372_036_854_775_808.0;
                if value >= -limit && value < limit && value.floor() == value { Some(value as i64) } else { None }
            }
            _ => None,
        }
    }
    /// A column of other JSON values (lists, objects, booleans), or that `data.columns` declares as json, as JSON text.
    pub fn json(&self, name: &str) -> Option<Cow<'a, str>> {
        let column = self.column(name)?;
        if column.r#type == sys::MORTISE_COLUMN_JSON { Some(self.cell(column.text)) } else { None }
    }
    /// Adds a reward at one of `completion_ids`, in addition to what `score` returns, which counts at the last token.
    /// Only if `TOKEN_REWARDS` is true. Panics, which fails the row, if there is no such token.
    pub fn reward_token(&self, token: usize, reward: f32) {
        if self.output.token_rewards.is_null() {
            return; // a host that does not ask
        }
        assert!(token < self.completion_ids().len(), "token {token} of {}", self.completion_ids().len());
        unsafe {
            let begin = *self.input.completion_ids.offsets.add(self.index) as usize;
            *self.output.token_rewards.add(begin + token) += reward;
        }
    }
    /// Adds a named number to this row, for the completion files and the metric `reward_extra/NAME`.
    pub fn note(&self, name: &str, value: f64) {
        if let Some(row_value) = self.output.row_value {
            row_value(self.output.sink, self.index as i64, text_of(name), value);
        }
    }

    /// The row's element of an array with one element per row; `None` if the host gave no array.
    fn at<T: Copy>(&self, array: *const T) -> Option<T> {
        if array.is_null() { None } else { Some(unsafe { *array.add(self.index) }) }
    }
    fn ids(&self, column: sys::mortise_id_column) -> &'a [i64] {
        if column.offsets.is_null() || column.ids.is_null() {
            return &[];
        }
        unsafe {
            let begin = *column.offsets.add(self.index) as usize;
            let end = *column.offsets.add(self.index + 1) as usize;
            std::slice::from_raw_parts(column.ids.add(begin), end - begin)
        }
    }
    fn cell(&self, column: sys::mortise_text_column) -> Cow<'a, str> {
        if column.offsets.is_null() {
            return Cow::Borrowed("");
        }
        let bytes = unsafe {
            let begin = *column.offsets.add(self.index);
            let size = *column.offsets.add(self.index + 1) - begin;
            bytes_of(sys::mortise_text { data: column.bytes.wrapping_add(begin as usize), size })
        };
        String::from_utf8_lossy(bytes)
    }
    fn column(&self, name: &str) -> Option<&'a sys::mortise_column> {
        (0..self.input.num_columns as usize)
            .map(|k| unsafe { &**self.input.columns.add(k) })
            .find(|column| unsafe { bytes_of(column.name) } == name.as_bytes())
            .filter(|column| column.valid.is_null() || unsafe { *column.valid.add(self.index) } != 0)
    }
}

extern "C" fn score<T: Reward>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    input: *const sys::mortise_reward_in,
    output: *mut sys::mortise_reward_out,
) -> i32 {
    run(this, call, |plugin: &T, host| {
        let (input, output) = unsafe { (&*input, &*output) };
        for index in 0..input.num_rows as usize {
            if host.cancelled.map_or(false, |cancelled| cancelled(call) != 0) {
                return Err(crate::Error { code: sys::MORTISE_CANCELLED, text: "cancelled".into() });
            }
            match guarded(|| plugin.score(&Row { input, output, index })) {
                Ok(Some(reward)) => unsafe { *output.rewards.add(index) = reward },
                Ok(None) => {}
                Err(error) => {
                    (host.fail_row)(call, index as i64, error.code, text_of(&error.text));
                }
            }
        }
        Ok(())
    })
}

vtable_of!(reward_vtable: Reward, mortise_reward_vtable {
    granularity: sys::MORTISE_REWARD_ROW,
    padding: 0,
    score: score::<T>,
});
