//! Every kind in one pack: values by hand, and what table and note say of each.
use mortise::testing::Plugin;
use mortise::{
    AdvantageBatch, AdvantageEstimator, Call, Dual, FinishReason, Group, KlEstimator, Meter, OutcomeEstimator, Params,
    ReadsSink, Request, Result, RolloutBackend, Row, Sequence, SequenceLoss, Sink, TellsReads, TokenLoss,
};
use std::collections::VecDeque;
use std::ffi::CStr;
use std::time::Duration;

struct Length;
impl mortise::Reward for Length {
    fn new(_: &Params) -> Result<Self> {
        Ok(Length)
    }
    fn score(&self, row: &Row) -> Result<Option<f64>> {
        Ok(Some(row.completion().len() as f64))
    }
}
impl TellsReads for Length {
    fn reads(params: &Params, sink: &mut ReadsSink) -> Result<()> {
        let folder = params.text("folder")?;
        sink.files("folder", "tables", "tables of lengths", &folder, &["b.txt", "a.txt"]);
        sink.column("folder", "level", "the lengths", "");
        Ok(())
    }
}

struct Plain;
impl TokenLoss for Plain {
    fn new(_: &Params) -> Result<Self> {
        Ok(Plain)
    }
    fn token(&self, log_prob: Dual, _old: f64, advantage: f64, _: &mut Meter) -> Dual {
        -advantage * log_prob
    }
}

/// The ratio of the row, with the true derivative, and in the token form.
struct Ratio;
impl SequenceLoss for Ratio {
    fn new(_: &Params) -> Result<Self> {
        Ok(Ratio)
    }
    fn sequence(&self, mean_log_ratio: Dual, advantage: f64, meter: &mut Meter) -> Dual {
        meter.add("test/ratio", mean_log_ratio.exp().detach());
        -advantage * mean_log_ratio.exp()
    }
}
struct OwnRatio;
impl SequenceLoss for OwnRatio {
    fn new(_: &Params) -> Result<Self> {
        Ok(OwnRatio)
    }
    fn sequence(&self, mean_log_ratio: Dual, advantage: f64, _: &mut Meter) -> Dual {
        -advantage * mean_log_ratio.exp()
    }
    const OWN_TOKEN: bool = true;
}

struct K2;
impl KlEstimator for K2 {
    fn new(_: &Params) -> Result<Self> {
        Ok(K2)
    }
    fn token(&self, log_prob: Dual, ref_log_prob: f64, _old: Option<f64>) -> Dual {
        let d = log_prob - ref_log_prob;
        0.5 * d * d
    }
}

struct Centred;
impl OutcomeEstimator for Centred {
    fn new(_: &Params) -> Result<Self> {
        Ok(Centred)
    }
    fn group(&self, group: &Group, advantages: &mut [f64]) {
        let mean = group.rewards.iter().sum::<f64>() / group.rewards.len() as f64;
        advantages.iter_mut().zip(&group.rewards).for_each(|(a, r)| *a = r - mean);
    }
}

/// Needs a critic.
struct Td;
impl AdvantageEstimator for Td {
    fn new(_: &Params) -> Result<Self> {
        Ok(Td)
    }
    fn compute(&mut self, batch: &mut AdvantageBatch) -> Result<()> {
        for row in 0..batch.num_rows() {
            let value = batch.values(row)?.to_vec();
            batch.advantages(row).iter_mut().zip(value).for_each(|(a, v)| *a = -v);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Echo {
    version: i64,
    waiting: VecDeque<(i64, i64, Vec<i64>)>,
}
impl RolloutBackend for Echo {
    fn new(_: &Params) -> Result<Self> {
        Ok(Echo::default())
    }
    fn set_version(&mut self, version: i64, _: &Call) -> Result<()> {
        self.version = version;
        Ok(())
    }
    fn submit(&mut self, requests: &[Request], _: &Call) -> Result<usize> {
        for request in requests {
            for sample in 0..request.num_samples() {
                let ids = request.prompt_ids().iter().take(request.sampling().max_new_tokens as usize).copied();
                self.waiting.push_back((request.id(), sample, ids.collect()));
            }
        }
        Ok(requests.len())
    }
    fn poll(&mut self, sink: &mut Sink, _: Duration, _: &Call) -> Result<u64> {
        let mut more = true;
        while more && !self.waiting.is_empty() {
            let (request_id, sample_index, ids) = self.waiting.pop_front().unwrap();
            let log_prob = vec![-0.5; ids.len()];
            more = sink.give(&Sequence {
                request_id,
                sample_index,
                weight_version: self.version,
                finish_reason: FinishReason::Length,
                ids: &ids,
                log_prob: Some(&log_prob),
            });
        }
        Ok(self.waiting.len() as u64)
    }
    fn abort(&mut self, _: Option<i64>, _: &Call) -> Result<()> {
        self.waiting.clear();
        Ok(())
    }
}

mortise::pack! {
    id: "test.kinds",
    reward "length": Length, "bytes of the completion", params: [folder: text = "" as folder, "of tables"], reads: Length;
    policy_loss "plain": Plain, "minus the advantage times the log-prob", params: [];
    sequence_loss "ratio": Ratio, "the row's ratio", params: [], update_metrics: ["test/ratio"];
    sequence_loss "own_ratio": OwnRatio, "the row's ratio, token by token", params: [];
    kl_estimator "k2": K2, "half of the squared difference", params: [];
    advantage_estimator "centred": Centred, "reward minus the mean of the group", params: [];
    advantage_estimator "td": Td, "minus the value", params: [], requires: ["values"];
    rollout_backend "echo": Echo, "the prompt itself", params: []
}

fn open(name: &str) -> Plugin {
    Plugin::open_named(pack(), name, &[]).unwrap()
}

#[test]
fn sequence_losses_share_the_mean() {
    let (log_prob, old, mask) = ([-1.0, -2.0, -9.0, -1.5], [-1.2, -1.8, 0.0, -2.1], [1, 1, 0, 1]);
    let mean = (0.2f64 - 0.2 + 0.6) / 3.0;
    for (name, share) in [("ratio", 1.0), ("own_ratio", 1.0)] {
        let mut plugin = open(name);
        let (loss, grad) = plugin.loss(&log_prob, &old, &[2.0; 4], &mask).unwrap();
        for t in [0, 1, 3] {
            assert!((loss[t] as f64 + 2.0 * mean.exp()).abs() < 1e-6, "{name}");
            assert!((grad[t] as f64 + share * 2.0 * mean.exp()).abs() < 1e-6, "{name}: {grad:?}");
        }
        assert_eq!((loss[2], grad[2]), (0.0, 0.0));
    }
    // The sum of the losses has the true derivative.
    assert!(open("ratio").gradient_error(&log_prob, &old, &[2.0; 4], &mask).unwrap() < 1e-3);
    assert!(open("own_ratio").gradient_error(&log_prob, &old, &[2.0, 1.0, 1.0, 3.0], &mask).unwrap() > 1e-2);
}

#[test]
fn kl_has_its_gradient() {
    let mut plugin = open("k2");
    let (kl, grad) = plugin.kl(&[-1.0, -2.0, -3.0], &[-1.0, -1.0, -9.0], &[1, 1, 0]).unwrap();
    assert_eq!((kl, grad), (vec![0.0, 0.5, 0.0], vec![0.0, -1.0, 0.0]));
    assert!(plugin.kl_gradient_error(&[-1.0, -2.0], &[-1.5, -1.0], &[1, 1]).unwrap() < 1e-3);
}

#[test]
fn groups_leave_out_rows_without_a_reward() {
    let rewards = [Some(1.0), Some(2.0), Some(0.0), None];
    let advantages = open("centred").advantages(&[5, 6, 5, 6], &rewards, 2).unwrap();
    assert_eq!(advantages, [vec![0.5, 0.5], vec![0.0, 0.0], vec![-0.5, -0.5], vec![0.0, 0.0]]);
    let error = open("td").advantages(&[0], &[Some(1.0)], 2).unwrap_err();
    assert!(error.text.contains("'values' is missing"), "{}", error.text);
}

#[test]
fn backends_deliver_under_back_pressure() {
    let all = open("echo").generate(&[4, 5, 6], 3, 2, 9).unwrap();
    assert_eq!(all.iter().map(|c| c.sample_index).collect::<Vec<_>>(), [0, 1, 2]);
    for c in &all {
        assert_eq!((c.request_id, c.weight_version, c.ids.as_slice()), (7, 9, &[4, 5][..]));
        assert_eq!((c.finish_reason, c.log_prob.as_deref()), (FinishReason::Length, Some(&[-0.5, -0.5][..])));
    }
}

#[test]
fn table_and_note_say_each_plugin() {
    use mortise::sys::*;
    let expected = [
        ("mortise.reward/1", "length", MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_TELLS_READS, MORTISE_COUPLING_TOKEN),
        ("mortise.policy_loss/1", "plain", MORTISE_FLAG_CONCURRENT, MORTISE_COUPLING_TOKEN),
        ("mortise.policy_loss/1", "ratio", MORTISE_FLAG_CONCURRENT, MORTISE_COUPLING_ROW),
        ("mortise.policy_loss/1", "own_ratio", MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT, MORTISE_COUPLING_ROW),
        ("mortise.kl_estimator/1", "k2", MORTISE_FLAG_CONCURRENT, MORTISE_COUPLING_TOKEN),
        ("mortise.advantage_estimator/1", "centred", MORTISE_FLAG_COMPARES_GROUP, MORTISE_COUPLING_UPDATE),
        ("mortise.advantage_estimator/1", "td", 0, MORTISE_COUPLING_UPDATE),
        ("mortise.rollout_backend/1", "echo", 0, MORTISE_COUPLING_TOKEN),
    ];
    assert_eq!(pack().0.num_plugins as usize, expected.len());
    let text = |data| unsafe { CStr::from_ptr(data) }.to_str().unwrap();
    for (i, (kind, name, flags, coupling)) in expected.into_iter().enumerate() {
        let d = unsafe { &**pack().0.plugins.add(i) };
        assert_eq!((text(d.kind), text(d.name), d.flags, d.coupling), (kind, name, flags, coupling));
    }
    let binary = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for text in [
        "\"name\":\"td\",\"summary\":\"minus the value\",\"doc\":null,\"flags\":0,\"coupling\":\"update\",\"requires\":[\"values\"]",
        "\"flags\":4098,\"coupling\":\"token\"",
        "]},{\"kind\":\"mortise.rollout_backend/1\",\"name\":\"echo\"",
    ] {
        assert!(binary.windows(text.len()).any(|bytes| bytes == text.as_bytes()), "the note does not say {text}");
    }
}

#[test]
fn reads_are_told() {
    use mortise::sys::*;
    use std::os::raw::c_void;
    extern "C" fn files(context: *mut c_void, set: *const mortise_file_set) {
        let out = unsafe { &mut *(context as *mut Vec<String>) };
        let set = unsafe { &*set };
        for i in 0..set.num_files as usize {
            let file = unsafe { *set.files.add(i) };
            let bytes = unsafe { std::slice::from_raw_parts(file.data as *const u8, file.size as usize) };
            out.push(String::from_utf8_lossy(bytes).into_owned());
        }
    }
    extern "C" fn column(context: *mut c_void, column: *const mortise_needed_column) {
        let name = unsafe { (*column).name };
        let bytes = unsafe { std::slice::from_raw_parts(name.data as *const u8, name.size as usize) };
        unsafe { &mut *(context as *mut Vec<String>) }.push(String::from_utf8_lossy(bytes).into_owned());
    }
    let d = unsafe { &**pack().0.plugins };
    let get = d.get_extension.unwrap();
    assert!(get(b"mortise.reads/2\0".as_ptr() as *const _).is_null());
    let table = unsafe { &*(get(b"mortise.reads/1\0".as_ptr() as *const _) as *const mortise_reads) };
    let mut out: Vec<String> = Vec::new();
    let sink = mortise_reads_sink {
        struct_size: std::mem::size_of::<mortise_reads_sink>() as u32,
        flags: 0,
        context: &mut out as *mut Vec<String> as *mut c_void,
        files,
        column,
    };
    let status = Plugin::open_named(pack(), "length", &[]).unwrap().with_call(|host, call| (table.tell)(host, call, &sink));
    assert_eq!(status, MORTISE_OK);
    assert_eq!(out, ["a.txt", "b.txt", "level"]);
}
