//! The core with its clock: the queue of events for it, and its steps, counted. In tests all events and decisions are
//! recorded, and replayed at the end.

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gshare_core::Machine;
use gshare_core::machine::{Action, Event};
use gshare_core::play::recording::Recording;

use super::fact::Decided;
use super::world::Now;
use crate::clock::instant;

/// The core's clock begins this long before its start, so that it can be told of earlier times.
const BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// The core. It can be queried freely, and changes by [`Core::step`] alone.
#[derive(Debug)]
pub(crate) struct Core {
    machine: Machine,
    origin: Instant,
    todo: VecDeque<Event>,
    /// Its last decision is being carried out.
    busy: bool,
    /// If `GSHARE_RECORD` names a directory: all steps, and the file for the result of their replay.
    recorded: Option<(PathBuf, Recording)>,
}

impl Deref for Core {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Default for Core {
    fn default() -> Self {
        let dir = std::env::var_os("GSHARE_RECORD").map(PathBuf::from);
        let file = |dir: PathBuf| dir.join(std::process::id().to_string());
        Self {
            machine: Machine::default(),
            origin: instant(),
            todo: VecDeque::new(),
            busy: false,
            recorded: dir.map(|dir| (file(dir), Recording::default())),
        }
    }
}

impl Core {
    /// Its clock.
    pub(crate) fn now(&self) -> Duration {
        BEFORE + instant().saturating_duration_since(self.origin)
    }

    /// This moment, by all clocks.
    pub(crate) fn moment(&self) -> Now {
        Now::read(self.now())
    }

    /// When the core next needs to be told the time, which may be between two ticks.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let now = self.now();
        let at = self.machine.next_wake(now)?;
        instant().checked_add(at.saturating_sub(now))
    }

    /// Queues events. True if there are any and nothing is being carried out: then call [`Core::step`] until it
    /// returns `None`.
    pub(crate) fn begin(&mut self, events: impl IntoIterator<Item = Event>) -> bool {
        self.todo.extend(events);
        !self.todo.is_empty() && !std::mem::replace(&mut self.busy, true)
    }

    /// Queues an event behind the decision that is being carried out.
    pub(crate) fn then(&mut self, event: Event) {
        self.todo.push_back(event);
    }

    /// One step, and its decision; `None` once the queue is empty.
    pub(crate) fn step(&mut self) -> Option<(Vec<Action>, Decided)> {
        let Some(event) = self.todo.pop_front() else {
            self.busy = false;
            return None;
        };
        let now = self.now();
        let noted = self.recorded.as_ref().map(|_| event.clone());
        let started = Instant::now();
        let actions = self.machine.step(now, event);
        let took = started.elapsed();
        if let (Some((_, recording)), Some(event)) = (&mut self.recorded, noted) {
            recording.note(now, event, &actions);
        }
        let count = |which: fn(&Action) -> bool| actions.iter().filter(|a| which(a)).count() as u64;
        let decided = Decided {
            took,
            refused: count(|a| matches!(a, Action::Refuse { .. })),
            leases_over: count(|a| matches!(a, Action::LeaseOver { .. })),
            caps: count(|a| matches!(a, Action::Cap { .. })),
        };
        Some((actions, decided))
    }

    /// Writes down, if recording, whether a replay of the events leads to the same decisions.
    pub(crate) fn end(&self) {
        let Some((file, recording)) = &self.recorded else {
            return;
        };
        let text = match recording.play() {
            Ok((steps, decided)) => format!("same: {steps} steps, {decided} decisions\n"),
            Err(differs) => format!("differs: {differs:?}\n"),
        };
        if let Err(error) = std::fs::write(file, text) {
            tracing::error!(%error, "cannot write the result of the recording");
        }
    }
}
