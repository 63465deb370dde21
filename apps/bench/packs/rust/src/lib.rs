//! The plugins of ../languages.cpp in Rust: the same formulas, in the same order of operations.
use mortise::{Dual, Meter, Params, Result, Row};

pub struct Clip {
    clip_ratio: f64,
}
impl mortise::TokenLoss for Clip {
    fn new(params: &Params) -> Result<Self> {
        Ok(Clip { clip_ratio: params.f64("clip_ratio")? })
    }
    fn token(&self, log_prob: Dual, old_log_prob: f64, advantage: f64, meter: &mut Meter) -> Dual {
        let r = (log_prob - old_log_prob).clamp(-20.0, 20.0).exp();
        let plain = -advantage * r;
        let clipped = -advantage * r.clamp(1.0 - self.clip_ratio, 1.0 + self.clip_ratio);
        meter.count("actor/pg_clipfrac", clipped > plain);
        plain.max(clipped)
    }
}

pub struct Vowels;
impl mortise::Reward for Vowels {
    fn new(_: &Params) -> Result<Self> {
        Ok(Vowels)
    }
    fn score(&self, row: &Row) -> Result<Option<f64>> {
        let text = row.completion();
        if text.is_empty() {
            return Ok(None);
        }
        let vowels = text.bytes().filter(|c| b"aeiou".contains(c)).count();
        Ok(Some(vowels as f64 / text.len() as f64))
    }
}

mortise::pack! {
    id: "bench.rust",
    policy_loss "clip": Clip, "clipped surrogate",
        params: [clip_ratio: f64 = 0.2 in 0.0 ..= 1.0, "half width of the trust band of r"];
    reward "vowels": Vowels, "share of vowels in the completion", params: []
}
