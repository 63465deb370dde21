//! A reward of single rows: `score` is called once per completion, from several threads at a time.

use crate::{bytes_of, create, destroy, guarded, run, sys, text_of, Params, Result};
use std::borrow::Cow;
use std::os::raw::c_void;

pub trait Reward: Send + Sync + Sized + 'static {
    /// Runs once, in `create`: read the parameters, compile patterns, open files.
    fn new(params: &Params) -> Result<Self>;
    /// `None` when the reward has nothing to say about the row; that is not a reward of 0. An `Err` or a panic fails this
    /// row alone: it stays without a reward, is counted, and its text is told.
    fn score(&self, row: &Row) -> Result<Option<f64>>;
    /// Set to true to give rewards of single tokens too: `row.reward_token`.
    const TOKEN_REWARDS: bool = false;
}

/// One completion with what is known about it. Texts that are not valid UTF-8 are read with replacement characters.
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
    /// Exactly what was sampled, the end token included.
    pub fn completion_ids(&self) -> &'a [i64] {
        let column = self.input.completion_ids;
        if column.offsets.is_null() || column.ids.is_null() {
            return &[];
        }
        unsafe {
            let begin = *column.offsets.add(self.index) as usize;
            let end = *column.offsets.add(self.index + 1) as usize;
            std::slice::from_raw_parts(column.ids.add(begin), end - begin)
        }
    }
    /// Rows of one prompt share it.
    pub fn group_index(&self) -> i64 {
        if self.input.group_index.is_null() { 0 } else { unsafe { *self.input.group_index.add(self.index) } }
    }
    /// A text column of the data row; `None` when there is none, it is null, or of another type.
    pub fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        let column = self.column(name)?;
        if column.r#type == sys::MORTISE_COLUMN_TEXT { Some(self.cell(column.text)) } else { None }
    }
    /// A column of whole numbers or of floats.
    pub fn number(&self, name: &str) -> Option<f64> {
        let column = self.column(name)?;
        match column.r#type {
            sys::MORTISE_COLUMN_F64 => Some(unsafe { *column.f64.add(self.index) }),
            sys::MORTISE_COLUMN_I64 => Some(unsafe { *column.i64.add(self.index) } as f64),
            _ => None,
        }
    }
    /// A column of other JSON values (lists, objects, booleans), as JSON text.
    pub fn json(&self, name: &str) -> Option<Cow<'a, str>> {
        let column = self.column(name)?;
        if column.r#type == sys::MORTISE_COLUMN_JSON { Some(self.cell(column.text)) } else { None }
    }
    /// Adds a reward at one of `completion_ids`, on top of what `score` returns, which counts at the last token. Only where
    /// `TOKEN_REWARDS` is true; panics, which fails the row, where there is no such token.
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
    /// A named number of this row, for the sample tables and the metric `reward_extra/NAME`.
    pub fn note(&self, name: &str, value: f64) {
        if let Some(row_value) = self.output.row_value {
            row_value(self.output.sink, self.index as i64, text_of(name), value);
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

extern "C" fn create_reward<T: Reward>(
    host: *const sys::mortise_host,
    call: *mut sys::mortise_call,
    out: *mut *mut c_void,
) -> i32 {
    create(host, call, out, T::new)
}
extern "C" fn destroy_reward<T: Reward>(this: *mut c_void) {
    destroy::<T>(this);
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

#[doc(hidden)]
pub const fn reward_vtable<T: Reward>() -> sys::mortise_reward_vtable {
    sys::mortise_reward_vtable {
        struct_size: std::mem::size_of::<sys::mortise_reward_vtable>() as u32,
        flags: 0,
        create: create_reward::<T>,
        destroy: destroy_reward::<T>,
        get_extension: None,
        granularity: sys::MORTISE_REWARD_ROW,
        padding: 0,
        score: score::<T>,
    }
}
