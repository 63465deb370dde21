//! Environments: what a row meets between its turns.

use crate::tensor::array;
use crate::{bytes_of, guarded, run_mut, sys, text_of, vtable_of, Call, FinishReason, Params, Result};
use std::borrow::Cow;
use std::os::raw::c_void;

/// A row is an episode: `reset`, then `step` after each turn of the model, then `close`. An `Err` or a panic fails its own
/// episode: the row has no reward, which is not a reward of 0.
pub trait Environment: Send + Sized + 'static {
    /// Runs once, in `create`.
    fn new(params: &Params) -> Result<Self>;
    /// A JSON object: `"tools"` lists the tools that prompts offer, `"rewards"` says that observations have rewards.
    fn description(&self) -> String {
        r#"{"rewards": true}"#.into()
    }
    /// Begins an episode. The observation has no reward; its messages are added to the prompt.
    fn reset(&mut self, start: &EpisodeStart, call: &Call) -> Result<Observation>;
    /// Answers a turn.
    fn step(&mut self, action: &EpisodeAction, call: &Call) -> Result<Observation>;
    /// The episode is over.
    fn close(&mut self, _episode: i64, _call: &Call) {}
    /// False: an answer needs nothing but the call, so any instance may take any turn.
    const KEEPS_EPISODES: bool = true;
}

/// What begins an episode.
pub struct EpisodeStart<'a> {
    raw: &'a sys::mortise_episode_start,
}

impl<'a> EpisodeStart<'a> {
    pub fn episode(&self) -> i64 {
        self.raw.episode
    }
    /// The same for all rows of a prompt.
    pub fn seed(&self) -> u64 {
        self.raw.seed
    }
    /// Place of the row among those of its prompt.
    pub fn sample_index(&self) -> i64 {
        self.raw.sample_index
    }
    pub fn step(&self) -> i64 {
        self.raw.step
    }
    pub fn is_validation(&self) -> bool {
        self.raw.is_validation != 0
    }
    /// JSON list of the prompt's messages.
    pub fn messages(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(unsafe { bytes_of(self.raw.messages) })
    }
    /// JSON object of the data row's columns.
    pub fn columns(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(unsafe { bytes_of(self.raw.columns) })
    }
}

/// A turn of the model.
pub struct EpisodeAction<'a> {
    raw: &'a sys::mortise_episode_action,
}

impl<'a> EpisodeAction<'a> {
    pub fn episode(&self) -> i64 {
        self.raw.episode
    }
    /// From 0.
    pub fn turn(&self) -> i64 {
        self.raw.turn
    }
    /// Special tokens left out.
    pub fn text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(unsafe { bytes_of(self.raw.text) })
    }
    /// JSON list of the tool calls in the text.
    pub fn calls(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(unsafe { bytes_of(self.raw.calls) })
    }
    /// Exactly what was sampled in this turn.
    pub fn ids(&self) -> &'a [i64] {
        unsafe { array(self.raw.ids, self.raw.num_ids as usize) }
    }
    pub fn finish_reason(&self) -> FinishReason {
        match self.raw.finish_reason {
            sys::MORTISE_FINISH_STOP => FinishReason::Stop,
            sys::MORTISE_FINISH_LENGTH => FinishReason::Length,
            _ => FinishReason::Abort,
        }
    }
    /// The host takes no further observation, only the reward.
    pub fn is_last(&self) -> bool {
        self.raw.is_last != 0
    }
}

/// The answer to a reset or a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// JSON list of `role` and `content`; empty: none.
    pub messages: String,
    /// `None`: the turn has no reward.
    pub reward: Option<f64>,
    pub done: bool,
    pub num_calls: i64,
    pub num_failed_calls: i64,
}

fn give(sink: &sys::mortise_observation_sink, episode: i64, from: &Observation) {
    let raw = sys::mortise_observation {
        struct_size: std::mem::size_of::<sys::mortise_observation>() as u32,
        done: from.done as i32,
        episode,
        reward: from.reward.unwrap_or(f64::NAN),
        messages: text_of(&from.messages),
        num_calls: from.num_calls,
        num_failed_calls: from.num_failed_calls,
    };
    if let Some(observation) = sink.observation {
        observation(sink.context, &raw);
    }
}

/// `answer` for each of the episodes. One that fails, fails alone.
fn answer_each<I>(
    items: &[*const I],
    call: &Call,
    sink: &sys::mortise_observation_sink,
    mut answer: impl FnMut(&I) -> (i64, Result<Observation>),
) -> Result<()> {
    for (i, &item) in items.iter().enumerate() {
        if call.cancelled() {
            return Err(crate::Error { code: sys::MORTISE_CANCELLED, text: "cancelled".into() });
        }
        match answer(unsafe { &*item }) {
            (episode, Ok(observation)) => give(sink, episode, &observation),
            (_, Err(error)) => {
                (call.host.fail_row)(call.raw, i as i64, error.code, text_of(&error.text));
            }
        }
    }
    Ok(())
}

extern "C" fn describe<T: Environment>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    sink: *const sys::mortise_observation_sink,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, _| unsafe {
        let text = plugin.description();
        if let Some(description) = (*sink).description {
            description((*sink).context, text_of(&text));
        }
        Ok(())
    })
}
extern "C" fn reset<T: Environment>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    episodes: *const *const sys::mortise_episode_start,
    num_episodes: u64,
    sink: *const sys::mortise_observation_sink,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| unsafe {
        answer_each(array(episodes, num_episodes as usize), call, &*sink, |raw| {
            (raw.episode, guarded(|| plugin.reset(&EpisodeStart { raw }, call)))
        })
    })
}
extern "C" fn step<T: Environment>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    actions: *const *const sys::mortise_episode_action,
    num_actions: u64,
    sink: *const sys::mortise_observation_sink,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| unsafe {
        answer_each(array(actions, num_actions as usize), call, &*sink, |raw| {
            (raw.episode, guarded(|| plugin.step(&EpisodeAction { raw }, call)))
        })
    })
}
extern "C" fn close<T: Environment>(
    this: *mut c_void,
    call: *mut sys::mortise_call,
    episodes: *const i64,
    num_episodes: u64,
) -> i32 {
    run_mut(this, call, |plugin: &mut T, call| {
        for &episode in unsafe { array(episodes, num_episodes as usize) } {
            plugin.close(episode, call);
        }
        Ok(())
    })
}

vtable_of!(environment_vtable: Environment, mortise_environment_vtable {
    keeps_episodes: T::KEEPS_EPISODES as i32,
    padding: 0,
    describe: Some(describe::<T>),
    reset: Some(reset::<T>),
    step: step::<T>,
    close: Some(close::<T>),
});
