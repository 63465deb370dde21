//! A small host for an author's `cargo test`: makes an instance of the crate's own pack and calls it as a run does.

use crate::{bytes_of, sys, Error, Result, Static};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_void};

/// The state of the one instance under test, behind the ABI's opaque pointer.
struct Call {
    descriptor: &'static sys::mortise_descriptor,
    settings: BTreeMap<String, CString>,
    error: Error,
    failed_rows: Vec<(i64, String)>,
    metrics: BTreeMap<String, (f64, f64)>,
    scratch: Vec<Vec<u64>>,
}

unsafe fn state<'a>(call: *mut sys::mortise_call) -> &'a mut Call {
    &mut *(call as *mut Call)
}
unsafe fn string_of(text: sys::mortise_text) -> String {
    String::from_utf8_lossy(bytes_of(text)).into_owned()
}

/// The test's setting, else the declared default.
unsafe fn setting(call: *mut sys::mortise_call, name: *const c_char, r#type: i32) -> Option<&'static CStr> {
    let call = state(call);
    let name = CStr::from_ptr(name);
    let params = (0..call.descriptor.num_params as usize).map(|i| &**call.descriptor.params.add(i));
    let param = params.into_iter().find(|p| CStr::from_ptr(p.name) == name && p.r#type == r#type)?;
    match call.settings.get(name.to_str().unwrap_or("")) {
        Some(text) => Some(CStr::from_ptr(text.as_ptr())),
        None if param.default_text.is_null() => None,
        None => Some(CStr::from_ptr(param.default_text)),
    }
}
fn read<T>(call: *mut sys::mortise_call, name: *const c_char, r#type: i32, out: *mut T, parse: fn(&str) -> Option<T>) -> i32 {
    let text = unsafe { setting(call, name, r#type) }.and_then(|text| text.to_str().ok());
    match text.map(parse) {
        Some(Some(value)) => {
            unsafe { *out = value };
            sys::MORTISE_OK
        }
        Some(None) => sys::MORTISE_INVALID_ARGUMENT,
        None => sys::MORTISE_NOT_FOUND,
    }
}

extern "C" fn get_extension(_: *const c_char) -> *const c_void {
    std::ptr::null()
}
extern "C" fn log(_: *mut sys::mortise_call, level: i32, text: sys::mortise_text) {
    eprintln!("log {level}: {}", unsafe { string_of(text) });
}
extern "C" fn metric(call: *mut sys::mortise_call, name: sys::mortise_text, sum: f64, weight: f64, reduction: i32) {
    let entry = unsafe { state(call) }.metrics.entry(unsafe { string_of(name) });
    match reduction {
        sys::MORTISE_REDUCE_MAX => entry.and_modify(|m| m.0 = m.0.max(sum)).or_insert((sum, 0.0)),
        sys::MORTISE_REDUCE_MIN => entry.and_modify(|m| m.0 = m.0.min(sum)).or_insert((sum, 0.0)),
        _ => entry.and_modify(|m| *m = (m.0 + sum, m.1 + weight)).or_insert((sum, weight)),
    };
}
extern "C" fn fail(call: *mut sys::mortise_call, code: i32, text: sys::mortise_text) -> i32 {
    unsafe { state(call).error = Error { code, text: string_of(text) } };
    code
}
extern "C" fn fail_row(call: *mut sys::mortise_call, row: i64, code: i32, text: sys::mortise_text) -> i32 {
    unsafe { state(call).failed_rows.push((row, string_of(text))) };
    code
}
extern "C" fn cancelled(_: *mut sys::mortise_call) -> i32 {
    0
}
extern "C" fn deadline_ns(_: *mut sys::mortise_call) -> i64 {
    0
}
extern "C" fn progress(_: *mut sys::mortise_call, _: f64) {}
extern "C" fn alloc(call: *mut sys::mortise_call, size: u64, _: u64) -> *mut c_void {
    let scratch = unsafe { &mut state(call).scratch };
    scratch.push(vec![0; size as usize / 8 + 1]);
    scratch.last_mut().map_or(std::ptr::null_mut(), |memory| memory.as_mut_ptr() as *mut c_void)
}
extern "C" fn stream(_: *mut sys::mortise_call) -> *mut c_void {
    std::ptr::null_mut()
}
extern "C" fn parallel_for(_: *mut sys::mortise_call, n: i64, grain: i64, f: sys::ParallelFn, arg: *mut c_void) {
    let grain = grain.max(1);
    for piece in (0..(n + grain - 1) / grain).rev() {
        f(arg, piece * grain, n.min((piece + 1) * grain));
    }
}
extern "C" fn random_u64(_: *mut sys::mortise_call, lane: u64, counter: u64, n: u64, out: *mut u64) {
    for i in 0..n {
        let mut z = lane.wrapping_mul(0x9e3779b97f4a7c15).wrapping_add((counter + i + 1).wrapping_mul(0xbf58476d1ce4e5b9));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        unsafe { *out.add(i as usize) = z ^ (z >> 31) };
    }
}
extern "C" fn param_f64(call: *mut sys::mortise_call, name: *const c_char, out: *mut f64) -> i32 {
    read(call, name, sys::MORTISE_PARAM_F64, out, |text| if text == "none" { Some(f64::NAN) } else { text.parse().ok() })
}
extern "C" fn param_i64(call: *mut sys::mortise_call, name: *const c_char, out: *mut i64) -> i32 {
    read(call, name, sys::MORTISE_PARAM_I64, out, |text| text.parse().ok())
}
extern "C" fn param_bool(call: *mut sys::mortise_call, name: *const c_char, out: *mut i32) -> i32 {
    read(call, name, sys::MORTISE_PARAM_BOOL, out, |text| text.parse::<bool>().ok().map(i32::from))
}
extern "C" fn param_text(call: *mut sys::mortise_call, name: *const c_char, out: *mut sys::mortise_text) -> i32 {
    match unsafe { setting(call, name, sys::MORTISE_PARAM_TEXT) } {
        Some(text) => {
            unsafe { *out = sys::mortise_text { data: text.as_ptr(), size: text.to_bytes().len() as u64 } };
            sys::MORTISE_OK
        }
        None => sys::MORTISE_NOT_FOUND,
    }
}

static HOST: sys::mortise_host = sys::mortise_host {
    struct_size: std::mem::size_of::<sys::mortise_host>() as u32,
    abi_minor: sys::MORTISE_ABI_MINOR,
    get_extension,
    log,
    metric,
    fail,
    fail_row,
    cancelled: Some(cancelled),
    deadline_ns,
    progress,
    alloc,
    stream,
    parallel_for,
    random_u64,
    param_f64,
    param_i64,
    param_bool,
    param_text,
};

/// One instance under test.
pub struct Plugin {
    pub(crate) vtable: *const c_void,
    pub(crate) this: *mut c_void,
    call: Box<Call>,
}

/// One completion: prompt, completion, and the columns of its data row as (name, value). A value is a text, unless its
/// name begins with `#`: then it is a number, whole ("3") or not ("3.5"), as a data file has it; or with `$`: then it is
/// JSON (`("$tags", "[1, 2]")`). A column of numbers that are not all whole is one of floats.
pub struct Row<'a> {
    pub prompt: &'a str,
    pub completion: &'a str,
    pub columns: &'a [(&'a str, &'a str)],
}

/// The other fields of a call. An empty list means the default of every row.
#[derive(Default)]
pub struct Batch<'a> {
    /// JSON of each row's chat. Default: empty, as for a plain prompt.
    pub messages: &'a [&'a str],
    /// Default: `Stop`.
    pub finish_reason: &'a [crate::FinishReason],
    /// Rows with the same number are completions of one prompt. Default: all rows are.
    pub group_index: &'a [i64],
    /// Place of each row in its group. Default: its place in the call.
    pub sample_index: &'a [i64],
    /// Each row has the prompt ids 0, 1 ... and this many completion ids.
    pub num_prompt_ids: usize,
    pub num_completion_ids: usize,
    /// Step of the run. Default: 0, outside a run.
    pub step: i64,
    pub max_response_length: i64,
    pub is_validation: bool,
}

/// A data column of the call, with the memory that its view points into.
struct Column {
    name: String,
    r#type: i32,
    valid: Vec<u8>,
    texts: Texts,
    integers: Vec<i64>,
    floats: Vec<f64>,
}

impl Column {
    /// `marked`: the name with its `#` or `$`.
    fn new(marked: &str, cells: Vec<Option<&str>>) -> Result<Self> {
        let name = marked.trim_start_matches(|c| c == '#' || c == '$').to_string();
        let texts = Texts::join(cells.iter().map(|cell| cell.unwrap_or("")));
        let valid = cells.iter().map(|cell| cell.is_some() as u8).collect();
        let mut column = Column { name, r#type: sys::MORTISE_COLUMN_TEXT, valid, texts, integers: vec![], floats: vec![] };
        if marked.starts_with('$') {
            column.r#type = sys::MORTISE_COLUMN_JSON;
        } else if marked.starts_with('#') {
            let whole: Option<Vec<i64>> = cells.iter().map(|cell| cell.unwrap_or("0").parse().ok()).collect();
            column.r#type = if whole.is_some() { sys::MORTISE_COLUMN_I64 } else { sys::MORTISE_COLUMN_F64 };
            column.integers = whole.unwrap_or_default();
            for cell in &cells {
                let text = cell.unwrap_or("0");
                let number = text.parse().map_err(|_| Error::invalid(format!("column '{marked}': '{text}' is not a number")))?;
                column.floats.push(number);
            }
        }
        Ok(column)
    }
    fn view(&self) -> sys::mortise_column {
        sys::mortise_column {
            struct_size: std::mem::size_of::<sys::mortise_column>() as u32,
            r#type: self.r#type,
            name: crate::text_of(&self.name),
            valid: self.valid.as_ptr(),
            text: self.texts.view(),
            i64: self.integers.as_ptr(),
            f64: self.floats.as_ptr(),
        }
    }
}

/// The columns that the rows name, each with one cell per row.
fn columns_of(rows: &[Row]) -> Result<Vec<Column>> {
    let mut names: Vec<&str> = rows.iter().flat_map(|row| row.columns.iter().map(|c| c.0)).collect();
    names.sort_unstable();
    names.dedup();
    let cells = |name: &str| rows.iter().map(|row| row.columns.iter().find(|c| c.0 == name).map(|c| c.1)).collect();
    names.into_iter().map(|name| Column::new(name, cells(name))).collect()
}

/// The same `num` ids, 0, 1 ..., for each of `rows` rows.
struct Ids {
    ids: Vec<i64>,
    offsets: Vec<u64>,
}

impl Ids {
    fn new(rows: usize, num: usize) -> Self {
        Ids {
            ids: (0..rows * num).map(|i| (i % num) as i64).collect(),
            offsets: (0..=rows).map(|i| (i * num) as u64).collect(),
        }
    }
    fn view(&self) -> sys::mortise_id_column {
        sys::mortise_id_column { ids: self.ids.as_ptr(), offsets: self.offsets.as_ptr() }
    }
}

struct Texts {
    bytes: Vec<u8>,
    offsets: Vec<u64>,
}

impl Texts {
    fn join<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut out = Texts { bytes: Vec::new(), offsets: vec![0] };
        for text in texts {
            out.bytes.extend_from_slice(text.as_bytes());
            out.offsets.push(out.bytes.len() as u64);
        }
        out
    }
    fn view(&self) -> sys::mortise_text_column {
        sys::mortise_text_column { bytes: self.bytes.as_ptr() as *const c_char, offsets: self.offsets.as_ptr() }
    }
}

impl Plugin {
    /// An instance of the pack's first plugin with these settings; the Err is that of `new`.
    pub fn open(pack: &'static Static<sys::mortise_pack>, settings: &[(&str, &str)]) -> Result<Plugin> {
        Plugin::make(unsafe { &**pack.0.plugins }, settings)
    }

    /// The same of the plugin with this name.
    pub fn open_named(pack: &'static Static<sys::mortise_pack>, name: &str, settings: &[(&str, &str)]) -> Result<Plugin> {
        (0..pack.0.num_plugins as usize)
            .map(|i| unsafe { &**pack.0.plugins.add(i) })
            .find(|descriptor| unsafe { CStr::from_ptr(descriptor.name) }.to_bytes() == name.as_bytes())
            .map_or_else(|| Err(Error::invalid(format!("the pack has no plugin '{name}'"))), |found| Plugin::make(found, settings))
    }

    fn make(descriptor: &'static sys::mortise_descriptor, settings: &[(&str, &str)]) -> Result<Plugin> {
        let mut texts = BTreeMap::new();
        for (name, value) in settings {
            texts.insert(name.to_string(), CString::new(*value)?);
        }
        let call = Call {
            descriptor,
            settings: texts,
            error: Error { code: 0, text: String::new() },
            failed_rows: Vec::new(),
            metrics: BTreeMap::new(),
            scratch: Vec::new(),
        };
        let mut plugin = Plugin { vtable: descriptor.vtable, this: std::ptr::null_mut(), call: Box::new(call) };
        // Every vtable begins with the same slots.
        let create = unsafe { &*(plugin.vtable as *const sys::mortise_reward_vtable) }.create;
        let mut this = std::ptr::null_mut();
        let status = create(&HOST, plugin.raw(), &mut this);
        plugin.this = this;
        plugin.done(status).map(|()| plugin)
    }

    /// Runs `work` in a call of this instance, with the test's host, for tables that `Plugin` has no method for.
    pub fn with_call<T>(&mut self, work: impl FnOnce(*const sys::mortise_host, *mut sys::mortise_call) -> T) -> T {
        work(&HOST, self.raw())
    }
    pub(crate) fn raw(&mut self) -> *mut sys::mortise_call {
        &mut *self.call as *mut Call as *mut sys::mortise_call
    }
    pub(crate) fn done(&mut self, status: i32) -> Result<()> {
        self.call.scratch.clear();
        if status == sys::MORTISE_OK { Ok(()) } else { Err(Error { code: status, text: self.call.error.text.clone() }) }
    }

    /// Weighted mean of a mean metric, the sum or extreme of the others.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.call.metrics.get(name).map(|m| if m.1 != 0.0 { m.0 / m.1 } else { m.0 })
    }
    /// Rows that failed, with their texts.
    pub fn failed_rows(&self) -> &[(i64, String)] {
        &self.call.failed_rows
    }

    /// Calls a reward: one number per row, None if it does not apply or failed.
    pub fn score(&mut self, rows: &[Row]) -> Result<Vec<Option<f64>>> {
        self.score_tokens(rows, 0).map(|(rewards, _)| rewards)
    }

    /// The same with `num_ids` completion ids in each row (0, 1, 2 ...), and the rewards of those tokens.
    pub fn score_tokens(&mut self, rows: &[Row], num_ids: usize) -> Result<(Vec<Option<f64>>, Vec<Vec<f32>>)> {
        self.score_batch(rows, &Batch { num_completion_ids: num_ids, step: 1, ..Batch::default() })
    }

    /// The same with all that a call can say.
    pub fn score_batch(&mut self, rows: &[Row], batch: &Batch) -> Result<(Vec<Option<f64>>, Vec<Vec<f32>>)> {
        let (n, num_ids) = (rows.len(), batch.num_completion_ids);
        let prompts = Texts::join(rows.iter().map(|row| row.prompt));
        let completions = Texts::join(rows.iter().map(|row| row.completion));
        let messages = Texts::join((0..n).map(|i| batch.messages.get(i).copied().unwrap_or("")));
        let finish: Vec<i32> = (0..n).map(|i| batch.finish_reason.get(i).map_or(0, |&reason| reason as i32)).collect();
        let groups: Vec<i64> = (0..n).map(|i| batch.group_index.get(i).copied().unwrap_or(0)).collect();
        let places: Vec<i64> = (0..n as i64).collect();
        let samples: Vec<i64> = (0..n).map(|i| batch.sample_index.get(i).copied().unwrap_or(i as i64)).collect();
        let columns = columns_of(rows)?;
        let views: Vec<sys::mortise_column> = columns.iter().map(Column::view).collect();
        let pointers: Vec<*const sys::mortise_column> = views.iter().map(|c| c as *const _).collect();
        let (prompt_ids, completion_ids) = (Ids::new(n, batch.num_prompt_ids), Ids::new(n, num_ids));
        let input = sys::mortise_reward_in {
            struct_size: std::mem::size_of::<sys::mortise_reward_in>() as u32,
            flags: 0,
            num_rows: n as i64,
            prompt: prompts.view(),
            completion: completions.view(),
            messages: messages.view(),
            prompt_ids: prompt_ids.view(),
            completion_ids: completion_ids.view(),
            finish_reason: finish.as_ptr(),
            group_index: groups.as_ptr(),
            sample_index: samples.as_ptr(),
            row_id: places.as_ptr(),
            num_columns: pointers.len() as u64,
            columns: pointers.as_ptr(),
            step: batch.step,
            max_response_length: batch.max_response_length,
            is_validation: batch.is_validation as i32,
            padding: 0,
        };
        let (mut rewards, mut tokens) = (vec![f64::NAN; n], vec![0f32; n * num_ids]);
        let asks = self.call.descriptor.flags & sys::MORTISE_FLAG_TOKEN_REWARDS != 0;
        let mut output = sys::mortise_reward_out {
            struct_size: std::mem::size_of::<sys::mortise_reward_out>() as u32,
            flags: 0,
            rewards: rewards.as_mut_ptr(),
            token_rewards: if asks { tokens.as_mut_ptr() } else { std::ptr::null_mut() },
            row_value: None,
            sink: std::ptr::null_mut(),
        };
        let score = unsafe { &*(self.vtable as *const sys::mortise_reward_vtable) }.score;
        let status = score(self.this, self.raw(), &input, &mut output);
        self.done(status)?;
        let rewards = rewards.into_iter().map(|r| if r.is_nan() { None } else { Some(r) }).collect();
        let tokens = (0..n).map(|i| tokens[i * num_ids..(i + 1) * num_ids].to_vec()).collect();
        Ok((rewards, tokens))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if !self.this.is_null() {
            let destroy = unsafe { &*(self.vtable as *const sys::mortise_reward_vtable) }.destroy;
            destroy(self.this);
        }
    }
}
