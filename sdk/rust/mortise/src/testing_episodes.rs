//! The part of the test host for environments: one episode at a time.

use crate::testing::Plugin;
use crate::{bytes_of, sys, text_of, Observation, Result};
use std::os::raw::c_void;

extern "C" fn take_observation(context: *mut c_void, from: *const sys::mortise_observation) {
    let (all, from) = unsafe { (&mut *(context as *mut Vec<Observation>), &*from) };
    all.push(Observation {
        messages: String::from_utf8_lossy(unsafe { bytes_of(from.messages) }).into_owned(),
        reward: Some(from.reward).filter(|reward| !reward.is_nan()),
        done: from.done != 0,
        num_calls: from.num_calls,
        num_failed_calls: from.num_failed_calls,
    });
}

fn sink_to(all: &mut Vec<Observation>) -> sys::mortise_observation_sink {
    sys::mortise_observation_sink {
        struct_size: std::mem::size_of::<sys::mortise_observation_sink>() as u32,
        flags: 0,
        context: all as *mut Vec<Observation> as *mut c_void,
        observation: Some(take_observation),
        description: None,
    }
}

impl Plugin {
    fn environment(&self) -> &'static sys::mortise_environment_vtable {
        unsafe { &*(self.vtable as *const sys::mortise_environment_vtable) }
    }

    /// Begins an episode. `messages` and `columns` are JSON: a list and an object. `None` if the episode failed.
    pub fn reset(&mut self, episode: i64, seed: u64, messages: &str, columns: &str) -> Result<Option<Observation>> {
        let start = sys::mortise_episode_start {
            struct_size: std::mem::size_of::<sys::mortise_episode_start>() as u32,
            is_validation: 0,
            episode,
            step: 1,
            seed,
            sample_index: 0,
            messages: text_of(messages),
            columns: text_of(columns),
        };
        let starts: [*const sys::mortise_episode_start; 1] = [&start];
        let mut all = Vec::new();
        let sink = sink_to(&mut all);
        let slot = self.environment().reset.expect("the pack! macro sets it");
        let status = slot(self.this, self.raw(), starts.as_ptr(), 1, &sink);
        self.done(status).map(|()| all.pop())
    }

    /// Makes a turn; `calls` is the JSON list of its tool calls. `None` if the episode failed.
    pub fn turn(&mut self, episode: i64, turn: i64, text: &str, calls: &str) -> Result<Option<Observation>> {
        let action = sys::mortise_episode_action {
            struct_size: std::mem::size_of::<sys::mortise_episode_action>() as u32,
            finish_reason: sys::MORTISE_FINISH_STOP,
            episode,
            turn,
            is_last: 0,
            padding: 0,
            text: text_of(text),
            calls: text_of(calls),
            num_ids: 0,
            ids: std::ptr::null(),
        };
        let actions: [*const sys::mortise_episode_action; 1] = [&action];
        let mut all = Vec::new();
        let sink = sink_to(&mut all);
        let status = (self.environment().step)(self.this, self.raw(), actions.as_ptr(), 1, &sink);
        self.done(status).map(|()| all.pop())
    }

    pub fn end_episode(&mut self, episode: i64) -> Result<()> {
        let slot = self.environment().close.expect("the pack! macro sets it");
        let status = slot(self.this, self.raw(), &episode, 1);
        self.done(status)
    }
}
