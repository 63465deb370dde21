//! What a parameter's text names and which metrics are written for every update: in the table and in the note.
use mortise::{Dual, Meter, Params, Result, TokenLoss};
use std::ffi::CStr;

struct Tilted;

impl TokenLoss for Tilted {
    fn new(params: &Params) -> Result<Self> {
        params.text("table")?;
        Ok(Tilted)
    }
    fn token(&self, log_prob: Dual, _old_log_prob: f64, advantage: f64, _meter: &mut Meter) -> Dual {
        log_prob * -advantage
    }
}

mortise::pack! {
    id: "test.tilted",
    policy_loss "tilted": Tilted, "log-prob weighted by the advantage",
    params: [
        slope: f64 = 0.5 in 0.0 ..= 1.0, "a number has no role";
        table: text = "" as file, "numbers by step; empty: none";
        key: text = "" as secret, "of a service";
    ],
    update_metrics: ["tilt", "reach=tilted/reach_mean"]
}

#[test]
fn table_and_note_say_them() {
    let descriptor = unsafe { &**pack().0.plugins };
    let role = |i: usize| unsafe { (**descriptor.params.add(i)).role };
    assert_eq!([role(0), role(1), role(2)], [mortise::sys::MORTISE_ROLE_PLAIN, mortise::sys::MORTISE_ROLE_FILE, mortise::sys::MORTISE_ROLE_SECRET]);
    let metric = |i: usize| unsafe { *descriptor.update_metrics.add(i) };
    assert_eq!(unsafe { CStr::from_ptr(metric(1)) }.to_str().unwrap(), "reach=tilted/reach_mean");
    assert!(metric(2).is_null());
    assert_eq!((pack().0.abi_minor, pack().0.min_host_minor), (0, 0));
    let binary = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for text in ["\"update_metrics\":[\"tilt\",\"reach=tilted/reach_mean\"]", "\"default\":\"\",\"role\":\"file\",", "\"abi_minor\":0,"] {
        assert!(binary.windows(text.len()).any(|bytes| bytes == text.as_bytes()), "the note does not say {text}");
    }
}
