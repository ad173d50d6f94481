//! The gate of one process on one GPU: how far ahead of the GPU it may launch, and when it is through.
//!
//! The owner calls it under a lock, on the rare path only: when a stream's grant is used up, a kernel is
//! not known or the arbiter decided anew. Most launches spend from [`crate::Cells`] and never come here.

use std::collections::VecDeque;

use crate::{CHUNK_NS, Frame, Key, Mode, SILENCE_NS, Word};

/// Most events in flight that one process is measured by.
pub const MARKERS: usize = 64;
/// What a launch that was never seen is taken to take.
const UNKNOWN_NS: u64 = 2_000_000;
/// Most kernels that are measured for the first time at once.
const LEARNING: usize = 16;
/// A kernel may be launched again before its first measurement is there after so long: it may wait for
/// that second launch.
const LEARN_AT_MOST_NS: u64 = 250_000_000;
/// How far a process may be ahead of the GPU: little where a neighbour was there a moment ago, so that it
/// does not have to wait long when it comes back.
const AHEAD_NS: (u64, u64) = (4_000_000, 20_000_000);
/// With nothing on the GPU a turn is kept for so long, because most programs launch again at once.
const GRACE_NS: u64 = 300_000;

/// What the claim's page says now.
#[derive(Debug, Clone, Copy, Default)]
pub struct View {
    /// The arbiter's decision.
    pub word: Word,
    /// When the turn ends, for [`Mode::Turn`].
    pub turn_ends_ns: u64,
    /// The arbiter's last sign of life while claims take turns.
    pub beat_ns: u64,
    /// Whether the service lives, as far as can be seen without asking it.
    pub alive: bool,
    /// The claim's place when nobody decides.
    pub frame: Frame,
    /// GPU time that the claim's other processes have used.
    pub others_used_ns: u64,
}

/// May a launch go?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is held back or measured.
    Free,
    /// Yes, and the stream may use so many nanoseconds more without asking.
    Go {
        /// Nanoseconds for [`crate::Cells::grant`].
        grant_ns: u64,
    },
    /// Not now: sleep until the word changes, but not beyond this time, then ask again.
    Wait {
        /// Latest time to ask again.
        until_ns: u64,
    },
}

/// What the process's watcher has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Wait for the oldest marker.
    Marker,
    /// Ask again at this time.
    At(u64),
    /// Nothing is on the GPU: sleep until there is a marker again.
    Idle,
}

/// What a process tells the arbiter through the claim's usage page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signals {
    /// Whether a thread waits to launch.
    pub waiting: bool,
    /// Whether work is on the GPU.
    pub busy: bool,
    /// When that work is expected to be over.
    pub expected_ns: u64,
    /// GPU time used so far.
    pub used_ns: u64,
    /// Time during which some thread was held back so far.
    pub waited_ns: u64,
    /// Whether the arbiter has to look now.
    pub knock: bool,
}

#[derive(Debug, Clone, Copy)]
struct Marker {
    key: Option<Key>,
    issued_ns: u64,
    alone: bool,
}

#[derive(Debug, Clone, Copy)]
struct Alone {
    since_ns: u64,
    used_ns: u64,
}

enum Rule {
    Free,
    Until(u64),
    Wait(u64),
}

/// The gate of one process on one GPU.
#[derive(Debug)]
pub struct Member {
    word: Word,
    word_since_ns: u64,
    /// Predicted time of everything launched so far.
    issued_ns: u64,
    /// When all that is launched is expected to be over.
    end_ns: u64,
    /// Real time per predicted time, in 1/1024: below 1 where streams run side by side.
    scale: u64,
    markers: VecDeque<Marker>,
    learning: Vec<(Key, u64)>,
    queue: VecDeque<u64>,
    next_ticket: u64,
    held_since_ns: Option<u64>,
    waited_ns: u64,
    busy: bool,
    counted_ns: u64,
    used_ns: u64,
    last_done: Option<(u64, u64)>,
    activity: u64,
    quiet_since_ns: Option<u64>,
    knocked_ns: u64,
    fallback: Option<Alone>,
    told: (bool, bool),
}

impl Default for Member {
    fn default() -> Self {
        Self {
            word: Word::default(),
            word_since_ns: 0,
            issued_ns: 0,
            end_ns: 0,
            scale: 1024,
            markers: VecDeque::with_capacity(MARKERS),
            learning: Vec::with_capacity(LEARNING),
            queue: VecDeque::with_capacity(MARKERS),
            next_ticket: 1,
            held_since_ns: None,
            waited_ns: 0,
            busy: false,
            counted_ns: 0,
            used_ns: 0,
            last_done: None,
            activity: 0,
            quiet_since_ns: None,
            knocked_ns: 0,
            fallback: None,
            told: (false, false),
        }
    }
}

impl Member {
    fn scaled(&self, ns: u64) -> u64 {
        ns.saturating_mul(self.scale) / 1024
    }

    /// The arbiter's decision as of the last look.
    pub fn word(&self) -> Word {
        self.word
    }

    /// Whether threads wait.
    pub fn has_waiters(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Grants that ended without being used, in nanoseconds of prediction.
    pub fn refund(&mut self, ns: u64) {
        self.issued_ns = self.issued_ns.saturating_sub(ns);
        self.end_ns = self.end_ns.saturating_sub(self.scaled(ns));
    }

    /// Whether the arbiter has decided anew since the last look; the grants of before are void then.
    pub fn see(&mut self, now: u64, word: Word) -> bool {
        if word == self.word {
            return false;
        }
        self.word = word;
        self.word_since_ns = now;
        self.fallback = None;
        true
    }

    fn rule(&mut self, now: u64, view: &View) -> Rule {
        let sign = view.beat_ns.max(self.knocked_ns);
        let silent = !view.alive || now > sign.saturating_add(SILENCE_NS);
        let most = now.saturating_add(AHEAD_NS.1);
        if !silent {
            self.fallback = None;
        }
        match self.word.mode() {
            Mode::Free => Rule::Free,
            Mode::Open if view.alive => {
                let alone_for = now.saturating_sub(self.word_since_ns);
                let ahead = (alone_for / 50).clamp(AHEAD_NS.0, AHEAD_NS.1);
                Rule::Until(now.saturating_add(ahead))
            }
            Mode::Turn if !silent => Rule::Until(view.turn_ends_ns.min(most)),
            Mode::Closed if !silent => Rule::Wait(sign.saturating_add(SILENCE_NS)),
            _ => self.fall_back(now, view),
        }
    }

    /// Nobody decides: the claim keeps to its own place in the frame, and to its own request where a
    /// kernel took longer than that.
    fn fall_back(&mut self, now: u64, view: &View) -> Rule {
        let window = view.frame.window_ns.min(Frame::LENGTH_NS);
        if window == 0 {
            return Rule::Wait(now.saturating_add(SILENCE_NS));
        }
        let ahead = self.end_ns.saturating_sub(now);
        let used = self.used_now(now).saturating_add(view.others_used_ns);
        let total = used.saturating_add(ahead);
        let alone = self.fallback.get_or_insert(Alone {
            since_ns: now,
            used_ns: total,
        });
        let spent = total.saturating_sub(alone.used_ns);
        let time = now.saturating_sub(alone.since_ns);
        let earned = (u128::from(time) * u128::from(window) / u128::from(Frame::LENGTH_NS)) as u64;
        let earned = earned.saturating_add(window);
        if earned > spent.saturating_add(window) {
            // What was not used is not saved up.
            alone.since_ns = now;
            alone.used_ns = total;
        }
        if spent >= earned {
            let missing = u128::from(spent - earned + 1) * u128::from(Frame::LENGTH_NS);
            let until = now.saturating_add((missing / u128::from(window)) as u64);
            // Whoever has a little too much in its place loses a part of that place, not the whole.
            let inside = view.frame.end_if_inside(until).is_some();
            let next = view.frame.next_start(until);
            return Rule::Wait(if inside { until } else { next });
        }
        match view.frame.end_if_inside(now) {
            Some(end) => Rule::Until(end),
            None => Rule::Wait(view.frame.next_start(now)),
        }
    }

    /// Asks for a launch that is expected to take `expected_ns` alone on the GPU (`None`: never seen).
    /// `ticket` is the caller's place among the process's waiting threads; it begins as `None` and has to
    /// be given back by [`Self::leave`] if the caller does not ask again after a wait.
    pub fn ask(
        &mut self,
        now: u64,
        view: &View,
        key: Key,
        expected_ns: Option<u64>,
        ticket: &mut Option<u64>,
    ) -> Verdict {
        self.see(now, view.word);
        if self.queue.is_empty() && self.fallback.is_none() {
            self.knocked_ns = now;
        }
        let rule = self.rule(now, view);
        let first = match (self.queue.front(), &ticket) {
            (None, _) => true,
            (Some(front), Some(mine)) => front == mine,
            (Some(_), None) => false,
        };
        let start = self.end_ns.max(now);
        let until_ns = match rule {
            Rule::Free => {
                self.leave(now, ticket);
                return Verdict::Free;
            }
            Rule::Wait(until) => {
                self.hold(now);
                until
            }
            Rule::Until(_) if !first => now.saturating_add(SILENCE_NS),
            Rule::Until(horizon) if start >= horizon => {
                if self.word.mode() == Mode::Open {
                    start.saturating_sub(horizon - now).max(now + 1)
                } else {
                    if start >= view.turn_ends_ns {
                        self.hold(now);
                    }
                    now.saturating_add(SILENCE_NS.min(start - horizon + 1_000_000))
                }
            }
            Rule::Until(horizon) => {
                if expected_ns.is_none() && self.is_learning(now, key) {
                    now.saturating_add(LEARN_AT_MOST_NS / 4)
                } else {
                    self.leave(now, ticket);
                    return self.admit(now, start, horizon, key, expected_ns);
                }
            }
        };
        if ticket.is_none() {
            *ticket = Some(self.next_ticket);
            self.queue.push_back(self.next_ticket);
            self.next_ticket += 1;
        }
        Verdict::Wait { until_ns }
    }

    fn admit(
        &mut self,
        now: u64,
        start: u64,
        horizon: u64,
        key: Key,
        expected_ns: Option<u64>,
    ) -> Verdict {
        // Launched again before it was over: at least as long as it has lasted.
        let lasted = self.learning.iter().find(|(known, _)| *known == key);
        let lasted = lasted.map_or(0, |(_, since)| now.saturating_sub(*since));
        let own = expected_ns.unwrap_or(UNKNOWN_NS.max(lasted));
        let room = horizon.saturating_sub(start).saturating_mul(1024) / self.scale.max(1);
        let grant_ns = match expected_ns {
            Some(ns) if ns < CHUNK_NS => room.saturating_sub(ns).min(CHUNK_NS),
            Some(_) => 0,
            None => {
                if let Some(again) = self.learning.iter_mut().find(|(known, _)| *known == key) {
                    again.1 = now;
                } else {
                    if self.learning.len() >= LEARNING {
                        self.learning.remove(0);
                    }
                    self.learning.push((key, now));
                }
                0
            }
        };
        self.issued_ns = self.issued_ns.saturating_add(own + grant_ns);
        self.end_ns = start.saturating_add(self.scaled(own + grant_ns));
        if !self.busy {
            self.busy = true;
            self.counted_ns = now;
            self.last_done = None;
        }
        self.quiet_since_ns = None;
        Verdict::Go { grant_ns }
    }

    fn is_learning(&self, now: u64, key: Key) -> bool {
        let fresh = |since: u64| now.saturating_sub(since) < LEARN_AT_MOST_NS;
        let pending = self.learning.iter().find(|(known, _)| *known == key);
        match pending {
            Some((_, since)) => fresh(*since),
            None => self.learning.len() >= LEARNING && fresh(self.learning[0].1),
        }
    }

    fn hold(&mut self, now: u64) {
        self.held_since_ns.get_or_insert(now);
    }

    /// The caller does not wait any more.
    pub fn leave(&mut self, now: u64, ticket: &mut Option<u64>) {
        if let Some(mine) = ticket.take() {
            self.queue.retain(|other| *other != mine);
        }
        if self.queue.is_empty()
            && let Some(since) = self.held_since_ns.take()
        {
            self.waited_ns += now.saturating_sub(since);
        }
    }

    /// Notes an event that was recorded behind a launch; `grant_ns` is what that launch's verdict gave
    /// beyond it. `false`: there are too many, and this one is not to be waited for.
    pub fn mark(&mut self, now: u64, key: Option<Key>, grant_ns: u64) -> bool {
        if self.markers.len() >= MARKERS {
            return false;
        }
        if !self.busy {
            // What was launched while nobody shared the GPU is seen first by such an event.
            self.busy = true;
            self.counted_ns = now;
            self.last_done = None;
            self.quiet_since_ns = None;
            self.end_ns = self.end_ns.max(now);
        }
        self.markers.push_back(Marker {
            key,
            issued_ns: self.issued_ns.saturating_sub(grant_ns),
            alone: matches!(self.word.mode(), Mode::Open | Mode::Turn) && self.fallback.is_none(),
        });
        true
    }

    /// A launch could not be measured: others of its kind do not wait for that.
    pub fn unmeasured(&mut self, key: Key) {
        self.learning.retain(|(known, _)| *known != key);
    }

    /// Whether there is a marker to wait for.
    pub fn has_markers(&self) -> bool {
        !self.markers.is_empty()
    }

    /// The oldest marker's event is over. Gives what may be learnt from it: `elapsed_ns` between the
    /// events around that launch, `None` if it was not measured or failed.
    pub fn done(&mut self, now: u64, elapsed_ns: Option<u64>) -> Option<(Key, u64)> {
        let marker = self.markers.pop_front()?;
        self.count(now);
        let alone = marker.alone && self.word.mode() != Mode::Closed && self.fallback.is_none();
        if let Some((then, issued)) = self.last_done
            && alone
        {
            let (wall, predicted) = (
                now.saturating_sub(then),
                marker.issued_ns.saturating_sub(issued),
            );
            if predicted > CHUNK_NS / 8 {
                let ratio = (wall.saturating_mul(1024) / predicted).clamp(64, 4096);
                self.scale = (self.scale * 7 + ratio) / 8;
            }
        }
        self.last_done = self.has_markers().then_some((now, marker.issued_ns));
        let behind = self.issued_ns.saturating_sub(marker.issued_ns);
        self.end_ns = now.saturating_add(self.scaled(behind));
        let key = marker.key?;
        let first = self.learning.iter().position(|(known, _)| *known == key);
        if let Some(at) = first {
            self.learning.remove(at);
        }
        elapsed_ns
            .filter(|_| alone || first.is_some())
            .map(|ns| (key, ns))
    }

    fn used_now(&self, now: u64) -> u64 {
        let running = if self.busy {
            now.saturating_sub(self.counted_ns)
        } else {
            0
        };
        self.used_ns + running
    }

    fn count(&mut self, now: u64) {
        self.used_ns = self.used_now(now);
        self.counted_ns = self.counted_ns.max(now);
    }

    /// What the watcher does now. `activity` changes with every launch; `unused_ns` is what streams were
    /// granted and have not used.
    pub fn rest(&mut self, now: u64, activity: u64, unused_ns: u64) -> Rest {
        if !self.busy {
            return Rest::Idle;
        }
        if self.has_markers() {
            return Rest::Marker;
        }
        let end = self.end_ns.saturating_sub(self.scaled(unused_ns));
        if now < end {
            return Rest::At(end);
        }
        // Who waits for the next turn has launched all that it may.
        if self.queue.is_empty() {
            if self.activity != activity {
                self.activity = activity;
                self.quiet_since_ns = None;
            }
            let since = *self.quiet_since_ns.get_or_insert(now);
            if now < since + GRACE_NS {
                return Rest::At(since + GRACE_NS);
            }
        }
        self.count(now);
        self.busy = false;
        self.end_ns = now;
        self.last_done = None;
        self.quiet_since_ns = None;
        Rest::Idle
    }

    /// What the arbiter is to know now. Each call is one publication.
    pub fn signals(&mut self, now: u64) -> Signals {
        let waiting = self.has_waiters();
        let (was_waiting, was_busy) = self.told;
        let closed = self.word.mode() == Mode::Closed;
        let turns = matches!(self.word.mode(), Mode::Turn | Mode::Closed);
        let knock = turns
            && ((waiting && !was_waiting && (closed || !self.busy))
                || (was_busy && !self.busy)
                || (was_waiting && !waiting && !self.busy));
        self.told = (waiting, self.busy);
        let held = self
            .held_since_ns
            .map_or(0, |since| now.saturating_sub(since));
        Signals {
            waiting,
            busy: self.busy,
            expected_ns: self.end_ns,
            used_ns: self.used_now(now),
            waited_ns: self.waited_ns + held,
            knock,
        }
    }
}
