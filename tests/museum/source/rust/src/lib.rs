//! The museum's pack in Rust: one plugin "piece" of every kind, which compute what those of museum.c compute.
use mortise::{Call, Dual, EpisodeAction, EpisodeStart, FinishReason, Group, Meter, Observation};
use mortise::{Params, Request, Result, Row, Sequence, Sink};
use std::time::Duration;

pub struct Loss(f64);
impl mortise::TokenLoss for Loss {
    fn new(params: &Params) -> Result<Self> {
        Ok(Loss(params.f64("scale")?))
    }
    fn token(&self, log_prob: Dual, old_log_prob: f64, advantage: f64, meter: &mut Meter) -> Dual {
        let d = log_prob - old_log_prob;
        meter.add("museum/tokens", 1.0);
        -(self.0 * advantage) * (1.0 + d + d * d * 0.5)
    }
}

pub struct Kl(f64);
impl mortise::KlEstimator for Kl {
    fn new(params: &Params) -> Result<Self> {
        Ok(Kl(params.f64("scale")?))
    }
    fn token(&self, log_prob: Dual, ref_log_prob: f64, _: Option<f64>) -> Dual {
        let d = log_prob - ref_log_prob;
        self.0 * d * d * 0.5
    }
}

pub struct Advantage(i64);
impl mortise::OutcomeEstimator for Advantage {
    fn new(params: &Params) -> Result<Self> {
        Ok(Advantage(params.i64("number")?))
    }
    fn group(&self, group: &Group, advantages: &mut [f64]) {
        let mean = group.rewards.iter().sum::<f64>() / group.rewards.len() as f64;
        advantages.iter_mut().zip(&group.rewards).for_each(|(a, r)| *a = r - mean + self.0 as f64);
    }
}

pub struct Reward {
    scale: f64,
    number: i64,
    flip: bool,
    column: String,
}
impl mortise::Reward for Reward {
    fn new(params: &Params) -> Result<Self> {
        Ok(Reward {
            scale: params.f64("scale")?,
            number: params.i64("number")?,
            flip: params.bool("flip")?,
            column: params.text("column")?,
        })
    }
    fn score(&self, row: &Row) -> Result<Option<f64>> {
        let answer = match row.text(&self.column) {
            Some(answer) => answer,
            None => return Ok(None),
        };
        let hit = if answer == row.completion() { 100.0 } else { 0.0 };
        let value = row.completion().len() as f64 * self.scale + self.number as f64 + hit;
        Ok(Some(if self.flip { -value } else { value }))
    }
}

pub struct Rollout {
    number: i64,
    version: i64,
    waiting: Vec<(i64, i64, i64, i64, Vec<i64>)>,
}
impl mortise::RolloutBackend for Rollout {
    fn new(params: &Params) -> Result<Self> {
        Ok(Rollout { number: params.i64("number")?, version: 0, waiting: Vec::new() })
    }
    fn set_version(&mut self, version: i64, _: &Call) -> Result<()> {
        self.version = version;
        Ok(())
    }
    fn submit(&mut self, requests: &[Request], _: &Call) -> Result<usize> {
        for r in requests {
            let length = r.sampling().max_new_tokens;
            self.waiting.push((r.id(), r.first_row_id(), r.num_samples(), length, r.prompt_ids().to_vec()));
        }
        Ok(requests.len())
    }
    fn poll(&mut self, sink: &mut Sink, _: Duration, _: &Call) -> Result<u64> {
        for (request_id, row, samples, length, prompt) in std::mem::take(&mut self.waiting) {
            for s in 0..samples {
                let id = |j: i64| (prompt[j as usize % prompt.len()] * 7 + row + 3 * s + j) % self.number;
                let ids: Vec<i64> = (0..length).map(id).collect();
                let log_prob: Vec<f32> = (0..length).map(|j| -((j + 1) as f32) / 8.0).collect();
                sink.give(&Sequence {
                    request_id,
                    sample_index: s,
                    weight_version: self.version,
                    finish_reason: FinishReason::Length,
                    ids: &ids,
                    log_prob: Some(&log_prob),
                });
            }
        }
        Ok(0)
    }
    fn abort(&mut self, _: Option<i64>, _: &Call) -> Result<()> {
        self.waiting.clear();
        Ok(())
    }
}

pub struct Environment {
    number: i64,
}
impl mortise::Environment for Environment {
    fn new(params: &Params) -> Result<Self> {
        Ok(Environment { number: params.i64("number")? })
    }
    fn reset(&mut self, _: &EpisodeStart, _: &Call) -> Result<Observation> {
        Ok(Observation::default())
    }
    fn step(&mut self, action: &EpisodeAction, _: &Call) -> Result<Observation> {
        let done = action.turn() >= 1;
        let reward = (self.number * action.ids().len() as i64) as f64 + action.text().len() as f64 / 8.0;
        let messages = if done { "" } else { "[{\"role\":\"user\",\"content\":\"more\"}]" };
        Ok(Observation { messages: messages.into(), reward: Some(reward), done, ..Observation::default() })
    }
    const KEEPS_EPISODES: bool = false;
}

mortise::pack! {
    id: "museum.rust",
    policy_loss "piece": Loss, "a piece of the museum", params: [scale: f64 = 1.5, "factor"];
    kl_estimator "piece": Kl, "a piece of the museum", params: [scale: f64 = 1.5, "factor"];
    advantage_estimator "piece": Advantage, "a piece of the museum", params: [number: i64 = 2, "summand"];
    reward "piece": Reward, "a piece of the museum", params: [
        scale: f64 = 1.5, "factor";
        number: i64 = 2, "summand";
        flip: bool = false, "changes the sign";
        column: text = "answer", "column of the answer"];
    rollout_backend "piece": Rollout, "a piece of the museum", params: [number: i64 = 2, "size of the vocabulary"];
    environment "piece": Environment, "a piece of the museum", params: [number: i64 = 2, "factor"]
}
