//! What a plugin will read besides its inputs, told before an instance is made (`mortise.reads/1`).

use crate::{guarded, report, sys, text_of, Params, Result};
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};

/// Name the class behind `reads:` in `pack!`. The host asks before the run, and compares the files when it is resumed.
pub trait TellsReads {
    /// Tells all files and data columns that an instance with these parameters reads, except files that a parameter
    /// itself names. It looks at files alone.
    fn reads(params: &Params, sink: &mut ReadsSink) -> Result<()>;
}

pub struct ReadsSink<'a> {
    raw: &'a sys::mortise_reads_sink,
}

impl ReadsSink<'_> {
    /// Files below `folder` that the parameter leads to; `name` tells this set from the parameter's others, and `what` is
    /// for people.
    pub fn files(&mut self, param: &str, name: &str, what: &str, folder: &str, files: &[&str]) {
        let mut sorted = files.to_vec();
        sorted.sort_unstable();
        let files: Vec<sys::mortise_text> = sorted.into_iter().map(text_of).collect();
        let set = sys::mortise_file_set {
            struct_size: std::mem::size_of::<sys::mortise_file_set>() as u32,
            flags: 0,
            param: text_of(param),
            name: text_of(name),
            what: text_of(what),
            folder: text_of(folder),
            num_files: files.len() as u64,
            files: files.as_ptr(),
        };
        (self.raw.files)(self.raw.context, &set);
    }
    /// A data column without which no row can be scored. `who` needs it; `next` is what else would help, or empty.
    pub fn column(&mut self, param: &str, name: &str, who: &str, next: &str) {
        let column = sys::mortise_needed_column {
            struct_size: std::mem::size_of::<sys::mortise_needed_column>() as u32,
            flags: 0,
            param: text_of(param),
            name: text_of(name),
            who: text_of(who),
            next: text_of(next),
        };
        (self.raw.column)(self.raw.context, &column);
    }
}

extern "C" fn tell<T: TellsReads>(
    host: *const sys::mortise_host,
    call: *mut sys::mortise_call,
    sink: *const sys::mortise_reads_sink,
) -> i32 {
    let host: &'static sys::mortise_host = unsafe { &*host };
    let told = guarded(|| T::reads(&Params { host, call }, &mut ReadsSink { raw: unsafe { &*sink } }));
    report(host, call, told)
}

struct Table<T>(std::marker::PhantomData<T>);
impl<T: TellsReads> Table<T> {
    const TABLE: &'static sys::mortise_reads =
        &sys::mortise_reads { struct_size: std::mem::size_of::<sys::mortise_reads>() as u32, flags: 0, tell: tell::<T> };
}

#[doc(hidden)]
pub extern "C" fn reads_extension<T: TellsReads>(id: *const c_char) -> *const c_void {
    let is_reads = !id.is_null() && unsafe { CStr::from_ptr(id) }.to_bytes() == b"mortise.reads/1";
    if is_reads { Table::<T>::TABLE as *const sys::mortise_reads as *const c_void } else { std::ptr::null() }
}
