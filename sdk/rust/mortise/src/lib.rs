//! Plugins for Mortise in Rust: every kind over its C ABI, without dependencies.
//!
//! ```ignore
//! struct Match { hit: f64 }
//!
//! impl mortise::Reward for Match {
//!     fn new(params: &mortise::Params) -> mortise::Result<Self> {
//!         Ok(Match { hit: params.f64("hit")? })
//!     }
//!     fn score(&self, row: &mortise::Row) -> mortise::Result<Option<f64>> {
//!         // None: the reward does not apply to this row, which is not a reward of 0
//!         Ok(row.text("answer").map(|answer| if row.completion() == answer { self.hit } else { 0.0 }))
//!     }
//! }
//!
//! mortise::pack! {
//!     id: "acme.match",
//!     reward "match": Match, "1 for the right answer",
//!     params: [hit: f64 = 1.0, "score of a right answer"]
//! }
//! ```
//! A panic or an `Err` becomes the call's status and text; nothing unwinds into the host. Link the pack with
//! `-z nodelete` (the template's build.rs does). Reading order: this file, the file of your kind, `pack.rs`.

mod advantage;
mod dual;
mod environment;
mod loss;
mod pack;
mod reads;
mod reward;
mod rollout;
pub mod sys;
mod tensor;
pub mod testing;
pub mod testing_episodes;
pub mod testing_tokens;

#[doc(hidden)]
pub use advantage::advantage_estimator_vtable;
pub use advantage::{AdvantageBatch, AdvantageEstimator, Group, OutcomeEstimator};
pub use dual::Dual;
#[doc(hidden)]
pub use environment::environment_vtable;
pub use environment::{Environment, EpisodeAction, EpisodeStart, Observation};
#[doc(hidden)]
pub use loss::{kl_estimator_vtable, policy_loss_vtable, sequence_loss_vtable};
pub use loss::{KlEstimator, Meter, SequenceLoss, TokenLoss};
#[doc(hidden)]
pub use pack::{note_size, note_text, Note, Piece, Static};
#[doc(hidden)]
pub use reads::reads_extension;
pub use reads::{ReadsSink, TellsReads};
#[doc(hidden)]
pub use reward::reward_vtable;
pub use reward::{FinishReason, Reward, Row};
#[doc(hidden)]
pub use rollout::rollout_backend_vtable;
pub use rollout::{Request, RolloutBackend, Sequence, Sink, WeightShard};

use std::any::Any;
use std::collections::TryReserveError;
use std::ffi::CString;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// An error: a canonical status code (`sys::MORTISE_*`) and a text for the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub code: i32,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For a setting or an input that cannot be used.
    pub fn invalid(text: impl Into<String>) -> Self {
        Error { code: sys::MORTISE_INVALID_ARGUMENT, text: text.into() }
    }
    /// For everything else.
    pub fn internal(text: impl Into<String>) -> Self {
        Error { code: sys::MORTISE_INTERNAL, text: text.into() }
    }
}

impl<E: std::error::Error + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        if (&error as &dyn Any).is::<TryReserveError>() {
            return Error { code: sys::MORTISE_RESOURCE_EXHAUSTED, text: String::new() }; // a text would need memory
        }
        Error::internal(error.to_string())
    }
}

/// The parameters of an instance: the user's values, else the declared defaults. Valid while `new` runs.
pub struct Params<'a> {
    host: &'a sys::mortise_host,
    call: *mut sys::mortise_call,
}

impl Params<'_> {
    fn read<T>(&self, name: &str, read: impl Fn(*const c_char) -> (i32, T)) -> Result<T> {
        let c_name = CString::new(name)?;
        match read(c_name.as_ptr()) {
            (sys::MORTISE_OK, value) => Ok(value),
            (code, _) => Err(Error { code, text: format!("no parameter '{name}' of this type is declared") }),
        }
    }
    /// NaN for a parameter that is "none" (not set).
    pub fn f64(&self, name: &str) -> Result<f64> {
        self.read(name, |n| {
            let mut out = 0.0;
            ((self.host.param_f64)(self.call, n, &mut out), out)
        })
    }
    pub fn i64(&self, name: &str) -> Result<i64> {
        self.read(name, |n| {
            let mut out = 0;
            ((self.host.param_i64)(self.call, n, &mut out), out)
        })
    }
    pub fn bool(&self, name: &str) -> Result<bool> {
        self.read(name, |n| {
            let mut out = 0;
            ((self.host.param_bool)(self.call, n, &mut out), out != 0)
        })
    }
    pub fn text(&self, name: &str) -> Result<String> {
        self.read(name, |n| {
            let mut out = sys::mortise_text { data: std::ptr::null(), size: 0 };
            let code = (self.host.param_text)(self.call, n, &mut out);
            (code, String::from_utf8_lossy(unsafe { bytes_of(out) }).into_owned())
        })
    }
}

/// The call that a slot serves: the host's services in it.
pub struct Call<'a> {
    host: &'a sys::mortise_host,
    raw: *mut sys::mortise_call,
}

impl Call<'_> {
    /// True once the run is stopping or the deadline has passed: return soon.
    pub fn cancelled(&self) -> bool {
        self.host.cancelled.map_or(false, |cancelled| cancelled(self.raw) != 0)
    }
    /// Random numbers that depend on the run's seed, the step, `lane` and `counter`, and on nothing else.
    pub fn random(&self, lane: u64, counter: u64, out: &mut [u64]) {
        (self.host.random_u64)(self.raw, lane, counter, out.len() as u64, out.as_mut_ptr());
    }
    /// A line in the run's log. `level`: 0 debug, 1 info, 2 warning, 3 error.
    pub fn log(&self, level: i32, text: &str) {
        (self.host.log)(self.raw, level, text_of(text));
    }
}

/// # Safety
/// `text` must be null and empty, or point to `size` bytes that live as long as 'a.
unsafe fn bytes_of<'a>(text: sys::mortise_text) -> &'a [u8] {
    if text.data.is_null() {
        return &[];
    }
    std::slice::from_raw_parts(text.data as *const u8, text.size as usize)
}

fn text_of(text: &str) -> sys::mortise_text {
    sys::mortise_text { data: text.as_ptr() as *const c_char, size: text.len() as u64 }
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast::<&str>().map_or("a panic without a text".into(), |text| text.to_string()),
    }
}

/// Runs `work`; an `Err` or a panic becomes the Error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::internal(panic_text(panic))))
}

/// The object behind the `self` of a slot.
struct Instance<T> {
    host: &'static sys::mortise_host,
    plugin: T,
}

fn report(host: &sys::mortise_host, call: *mut sys::mortise_call, result: Result<()>) -> i32 {
    match result {
        Ok(()) => sys::MORTISE_OK,
        Err(error) => (host.fail)(call, error.code, text_of(&error.text)),
    }
}

fn create<T>(
    host: *const sys::mortise_host,
    call: *mut sys::mortise_call,
    out: *mut *mut c_void,
    new: impl FnOnce(&Params) -> Result<T>,
) -> i32 {
    let host: &'static sys::mortise_host = unsafe { &*host };
    let made = guarded(|| new(&Params { host, call })).map(|plugin| {
        let instance = Box::new(Instance { host, plugin });
        unsafe { *out = Box::into_raw(instance) as *mut c_void };
    });
    report(host, call, made)
}

/// `$function::<T>()`: the vtable of a kind for the plugins of one trait, with its `create` and `destroy` and the slots that
/// are given.
macro_rules! vtable_of {
    ($function:ident: $trait:ident, $vtable:ident { $($slot:ident: $value:expr,)+ }) => {
        #[doc(hidden)]
        pub const fn $function<T: $trait>() -> $crate::sys::$vtable {
            extern "C" fn create_slot<T: $trait>(
                host: *const $crate::sys::mortise_host,
                call: *mut $crate::sys::mortise_call,
                out: *mut *mut std::os::raw::c_void,
            ) -> i32 {
                $crate::create(host, call, out, T::new)
            }
            extern "C" fn destroy_slot<T>(this: *mut std::os::raw::c_void) {
                $crate::destroy::<T>(this);
            }
            $crate::sys::$vtable {
                struct_size: std::mem::size_of::<$crate::sys::$vtable>() as u32,
                flags: 0,
                create: create_slot::<T>,
                destroy: destroy_slot::<T>,
                get_extension: None,
                $($slot: $value,)+
            }
        }
    };
}
use vtable_of;

fn destroy<T>(this: *mut c_void) {
    if !this.is_null() {
        let _ = guarded(|| {
            drop(unsafe { Box::from_raw(this as *mut Instance<T>) });
            Ok(())
        });
    }
}

/// Runs a slot on its instance.
fn run<T>(this: *mut c_void, call: *mut sys::mortise_call, work: impl FnOnce(&T, &sys::mortise_host) -> Result<()>) -> i32 {
    let instance = unsafe { &*(this as *const Instance<T>) };
    report(instance.host, call, guarded(|| work(&instance.plugin, instance.host)))
}

/// The same for a plugin that only one thread uses at a time.
fn run_mut<T>(this: *mut c_void, raw: *mut sys::mortise_call, work: impl FnOnce(&mut T, &Call) -> Result<()>) -> i32 {
    let instance = unsafe { &mut *(this as *mut Instance<T>) };
    let call = Call { host: instance.host, raw };
    report(instance.host, raw, guarded(|| work(&mut instance.plugin, &call)))
}
