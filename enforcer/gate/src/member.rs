//! The gate of one process on one GPU: how far ahead of the GPU it may launch, and when its work is over.
//!
//! The owner calls it under a lock, on the rare path only: when a stream's grant is used up, a kernel is unknown or the
//! arbiter has decided again. Most launches spend what [`crate::Tally`] has for their stream
//! and never come here.

use std::{collections::VecDeque, ops::Range};

use crate::rhythm::Rhythm;
use crate::{CHUNK_NS, Expected, Flags, Frame, Key, Mode, QUEUED_NS, SILENCE_NS, Tally, Word};

/// Maximum number of events in flight that measure a process.
pub const MARKERS: usize = 64;
/// Maximum of these on one stream, and on a stream that is blocked: the others need room.
const OF_STREAM: (usize, usize) = (MARKERS / 2, 4);
/// A stream whose next launch is this late to begin waits for something other than the GPU: while other streams of the
/// process have work there, and with nothing before it. The times exceed the 2 ms slice of a program outside claims,
/// which nobody reports.
const BLOCKED_NS: (u64, u64) = (5_000_000, 3_000_000);
/// Assumed duration of a launch before anything was measured in this process.
const PRIOR_NS: u64 = 20_000;
/// Maximum number of kernels that are measured for the first time at once.
const LEARNING: usize = 16;
/// A kernel may be launched again before its first measurement after this time: it may wait for that second launch.
const LEARN_AT_MOST_NS: u64 = 250_000_000;
/// Below this scale streams run side by side. What follows a stream's last marker may then take longer than predicted, so
/// less of it goes without one.
const SIDE_BY_SIDE: u64 = 1024 * 7 / 8;
/// Maximum number of launches on one grant while their duration is known only roughly: it may be far more, and a marker
/// after that many tells.
const LAUNCHES: u64 = 128;
/// How far a process may run ahead of the GPU: little if a neighbour was there a moment ago, so that the neighbour
/// waits only briefly when it comes back.
const AHEAD_NS: (u64, u64) = (4_000_000, 20_000_000);
/// A turn without work on the GPU is kept for this long, because most programs launch again at once; a program whose
/// gaps are longer on average loses it as soon as it waits for its launches.
const GRACE_NS: u64 = 300_000;
/// The same in a turn after longer work: this part of it, and no longer than two hand-overs take, 0.5 to 1 ms.
const GRACE_PART: u64 = 4;
const KEPT_NS: u64 = 600_000;
/// The arbiter is told that work lasts longer than announced if the difference is this large, and the arbiter is about
/// to check; before that no call is needed.
pub(crate) const LATER_NS: u64 = 50_000;
const SOON_NS: u64 = 250_000;
/// How long a launch is awaited while the program is still in its call, loading a module or without a processor.
const CALL_NS: u64 = 10_000_000;
/// Part of a turn that may be left before a light claim that is due without telling the arbiter: a turn that is unused
/// for longer passes on.
const LEFT_NS: u64 = 10_000_000;
/// Longer gaps count as one of this length.
const GAP_NS: u64 = 2_000_000;

/// The present content of the claim's page.
#[derive(Debug, Clone, Copy, Default)]
pub struct View {
    /// The arbiter's decision.
    pub word: Word,
    /// Start of the turn, for [`Mode::Turn`]; until then the claim waits as in another's turn.
    pub turn_begins_ns: u64,
    /// End of the turn, for [`Mode::Turn`].
    pub turn_ends_ns: u64,
    /// How far the process may run ahead of the GPU; 0: as the mode allows.
    pub ahead_ns: u64,
    /// The arbiter's further conditions.
    pub flags: Flags,
    /// The arbiter's last sign of life while claims take turns.
    pub beat_ns: u64,
    /// Whether the service seems to live, without asking it.
    pub alive: bool,
    /// The claim's window when no arbiter decides.
    pub frame: Frame,
    /// GPU time that the claim's other processes have used.
    pub others_used_ns: u64,
}

/// Whether a launch may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is held back or measured.
    Free,
    /// Yes, and the stream may use this many further nanoseconds without asking.
    Go {
        /// Nanoseconds for [`crate::Tally::grant`].
        grant_ns: u64,
    },
    /// Not now: sleep until the word changes, or until this time, then ask again.
    Wait {
        /// Latest time to ask again.
        until_ns: u64,
    },
}

/// Next step of the process's watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Wait for the oldest marker.
    Marker,
    /// Ask again at this time.
    At(u64),
    /// Nothing is on the GPU: sleep until there is a marker again.
    Idle,
}

/// Figures that a process publishes to the arbiter in the claim's usage page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signals {
    /// Whether a thread waits to launch.
    pub waiting: bool,
    /// Whether work is on the GPU.
    pub busy: bool,
    /// Expected end of that work; without any, of the waiting work.
    pub expected_ns: u64,
    /// Time in which work was on the GPU so far.
    pub used_ns: u64,
    /// The same, plus the time until that work began, and until its end was seen.
    pub held_ns: u64,
    /// Sum of the times that all launches take alone on the GPU.
    pub demand_ns: u64,
    /// Time of these figures.
    pub said_ns: u64,
    /// Since when the oldest work is on the GPU; 0 without work.
    pub since_ns: u64,
    /// Time during which some thread was held back so far.
    pub waited_ns: u64,
    /// Whether to call the arbiter now.
    pub knock: bool,
}

#[derive(Debug, Clone, Copy)]
struct Marker {
    stream: u64,
    key: Option<Key>,
    /// Predicted time of the launches since the previous marker.
    own_ns: u64,
    /// When it was made, and the expected end of the launches up to it.
    made_ns: u64,
    begins_ns: u64,
    alone: bool,
    /// Assumed duration, if it was unknown.
    assumed_ns: Option<u64>,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learnt {
    /// The measured launch.
    pub key: Key,
    /// Nanoseconds between the events around it.
    pub ns: u64,
    /// No other process was on the GPU.
    pub alone: bool,
}

/// Launches of a kind that was never measured.
#[derive(Debug, Clone, Copy)]
struct Learning {
    key: Key,
    /// Time of the last launch.
    since_ns: u64,
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
    turn_begins_ns: u64,
    flags: Flags,
    /// Median of the measurements.
    prior_ns: u64,
    /// Kinds of launches that could not be measured once.
    refused: Vec<Key>,
    demand_ns: u64,
    /// Sums of its bursts from first work to none, and the sum of all earlier work.
    burst: Rhythm,
    before_burst_ns: u64,
    /// The same before the launches since its last gap.
    before_gap_ns: u64,
    /// The oldest work began no earlier.
    head_since_ns: u64,
    /// Usual time between the end of all work and the next launch.
    gap_ns: u64,
    idle_since_ns: Option<u64>,
    /// Predicted time of all launches so far.
    issued_ns: u64,
    /// The part launched before the last marker.
    marked_ns: u64,
    /// Number of launches whose calls have not returned, and the time of the last one.
    in_call: (u32, u64),
    /// Expected end of all launches.
    end_ns: u64,
    /// Actual time per predicted time, in 1/1024: below 1 while streams run side by side.
    scale: u64,
    markers: VecDeque<Marker>,
    /// Streams that wait for something other than the GPU.
    blocked: Vec<u64>,
    learning: Vec<Learning>,
    queue: VecDeque<u64>,
    next_ticket: u64,
    held_since_ns: Option<u64>,
    waited_ns: u64,
    busy: bool,
    counted_ns: u64,
    /// No end was seen since work began, which was after this time: the actual beginning is unknown.
    fresh_since_ns: Option<u64>,
    used_ns: u64,
    /// When work was launched to an idle GPU, and how long it was seen there.
    busy_since_ns: u64,
    held_ns: u64,
    /// Something was launched in this turn; and the duration of the first waiting launch.
    is_turn_used: bool,
    next_ns: u64,
    /// Beginning of the launches that go together, for [`Flags::SPACED`].
    round_ns: u64,
    /// End of the last marker's launch, while there are others.
    last_done: Option<u64>,
    activity: u64,
    quiet_since_ns: Option<u64>,
    knocked_ns: u64,
    fallback: Option<Alone>,
    /// Time of the first unanswered ring; 0 for none.
    rung_ns: u64,
    told: (bool, bool),
    /// Whether the arbiter was told of long work.
    told_long: bool,
    /// The decision under which the arbiter was called because a launch was held back while all launch.
    full_word: Option<Word>,
    /// The end of all work that the arbiter was last told.
    told_end_ns: u64,
}

impl Default for Member {
    fn default() -> Self {
        Self {
            word: Word::default(),
            word_since_ns: 0,
            turn_begins_ns: 0,
            flags: Flags::NONE,
            prior_ns: PRIOR_NS,
            refused: Vec::new(),
            demand_ns: 0,
            burst: Rhythm::default(),
            before_burst_ns: 0,
            before_gap_ns: 0,
            head_since_ns: 0,
            gap_ns: 0,
            idle_since_ns: None,
            issued_ns: 0,
            marked_ns: 0,
            in_call: (0, 0),
            end_ns: 0,
            scale: 1024,
            markers: VecDeque::with_capacity(MARKERS),
            blocked: Vec::with_capacity(MARKERS),
            learning: Vec::with_capacity(LEARNING),
            queue: VecDeque::with_capacity(MARKERS),
            next_ticket: 1,
            held_since_ns: None,
            waited_ns: 0,
            busy: false,
            counted_ns: 0,
            fresh_since_ns: None,
            used_ns: 0,
            busy_since_ns: 0,
            held_ns: 0,
            is_turn_used: false,
            next_ns: 0,
            round_ns: 0,
            last_done: None,
            activity: 0,
            quiet_since_ns: None,
            knocked_ns: 0,
            fallback: None,
            rung_ns: 0,
            told: (false, false),
            told_long: false,
            full_word: None,
            told_end_ns: 0,
        }
    }
}

impl Member {
    fn scaled(&self, ns: u64) -> u64 {
        ns.saturating_mul(self.scale) / 1024
    }

    /// The decision at the last check.
    pub fn word(&self) -> Word {
        self.word
    }

    /// Whether more is expected to be on the GPU than a stream may launch without asking.
    pub fn is_ahead(&self, now: u64) -> bool {
        self.end_ns > now.saturating_add(CHUNK_NS)
    }

    /// Whether threads wait.
    pub fn has_waiters(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Unused nanoseconds of grants that ended.
    pub fn refund(&mut self, ns: u64) {
        self.issued_ns = self.issued_ns.saturating_sub(ns);
        self.demand_ns = self.demand_ns.saturating_sub(self.scaled(ns));
        self.end_ns = self.end_ns.saturating_sub(self.scaled(ns));
    }

    /// Adopts the arbiter's decision. Grants end with the last one, and with the turn: a program that thinks between its
    /// launches would spend them long after.
    pub fn adopt(
        &mut self,
        now: u64,
        word: Word,
        turn_ns: Range<u64>,
        flags: Flags,
        tally: &Tally,
    ) {
        let last = self.word;
        let is_new = self.see(now, word, turn_ns.start, flags);
        // Where the GPU is not shared, launches need no grant.
        if is_new && !word.is_shared_since(last) {
            tally.unmark();
        }
        if is_new || word.mode() == Mode::Turn && now >= turn_ns.end {
            self.refund(tally.take_grants());
        }
    }

    /// Whether the arbiter has decided again since the last check.
    fn see(&mut self, now: u64, word: Word, begins_ns: u64, flags: Flags) -> bool {
        self.flags = flags;
        self.turn_begins_ns = begins_ns;
        if word == self.word {
            return false;
        }
        self.word = word;
        self.word_since_ns = now;
        self.is_turn_used = false;
        self.fallback = None;
        self.rung_ns = 0;
        true
    }

    /// The mode, also before a turn begins.
    fn mode(&self, now: u64) -> Mode {
        match self.word.mode() {
            Mode::Turn if now < self.turn_begins_ns => Mode::Closed,
            mode => mode,
        }
    }

    fn rule(&mut self, now: u64, view: &View) -> Rule {
        let sign = view.beat_ns.max(self.knocked_ns);
        let silent = !view.alive || now > sign.saturating_add(SILENCE_NS);
        let ahead = |usual| match view.ahead_ns {
            0 => usual,
            told => told,
        };
        let most = now.saturating_add(ahead(AHEAD_NS.1));
        if !silent {
            self.fallback = None;
        }
        match self.word.mode() {
            Mode::Free => Rule::Free,
            Mode::Open if view.alive && !self.is_unheard(now, view) => {
                let alone_for = now.saturating_sub(self.word_since_ns);
                let usual = (alone_for / 50).clamp(AHEAD_NS.0, AHEAD_NS.1);
                Rule::Until(now.saturating_add(ahead(usual)))
            }
            Mode::Turn if !silent && now < view.turn_begins_ns => Rule::Wait(view.turn_begins_ns),
            Mode::Turn if !silent && self.is_spaced() => {
                let most = self.round(now).saturating_add(ahead(AHEAD_NS.1));
                Rule::Until(view.turn_ends_ns.min(most))
            }
            Mode::Turn if !silent => Rule::Until(view.turn_ends_ns.min(most)),
            Mode::Closed if !silent => Rule::Wait(sign.saturating_add(SILENCE_NS)),
            _ => self.fall_back(now, view),
        }
    }

    fn is_spaced(&self) -> bool {
        let is_told = self.word.mode() == Mode::Turn && self.flags.has(Flags::SPACED);
        is_told && self.fallback.is_none()
    }

    /// Beginning of the launches that go together. Work that is late may wait for the next ones.
    fn round(&mut self, now: u64) -> u64 {
        let over_ns = match self.has_markers() {
            true => self.end_ns.saturating_add(QUEUED_NS),
            false => self.end_ns,
        };
        if over_ns <= now {
            self.round_ns = now;
        }
        self.round_ns
    }

    /// The arbiter has not answered a ring in time.
    fn is_unheard(&mut self, now: u64, view: &View) -> bool {
        if view.beat_ns >= self.rung_ns {
            self.rung_ns = 0;
        }
        // Between another's launches it does not ring.
        let heard_ns = match self.flags.has(Flags::SPACED) {
            true => view.beat_ns,
            false if self.rung_ns == 0 => return false,
            false => self.rung_ns,
        };
        now > heard_ns.saturating_add(SILENCE_NS)
    }

    /// Without an arbiter the claim keeps to its own window in the frame, and to its own request if a kernel took
    /// longer than the window.
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
            // Unused time is not saved up.
            alone.since_ns = now;
            alone.used_ns = total;
        }
        if spent >= earned {
            let missing = u128::from(spent - earned + 1) * u128::from(Frame::LENGTH_NS);
            let until = now.saturating_add((missing / u128::from(window)) as u64);
            // A claim that overran its window a little loses a part of the next one, not the whole.
            let inside = view.frame.end_if_inside(until).is_some();
            let next = view.frame.next_start(until);
            return Rule::Wait(if inside { until } else { next });
        }
        match view.frame.end_if_inside(now) {
            Some(end) => Rule::Until(end),
            None => Rule::Wait(view.frame.next_start(now)),
        }
    }

    /// Asks for a launch of known or unknown (`None`) duration. `ticket` is the caller's place among the process's
    /// waiting threads: it begins as `None`, and must be returned with [`Self::leave`] if the caller does not ask again
    /// after a wait.
    pub fn ask(
        &mut self,
        now: u64,
        view: &View,
        key: Key,
        expected: Option<Expected>,
        ticket: &mut Option<u64>,
    ) -> Verdict {
        self.see(now, view.word, view.turn_begins_ns, view.flags);
        if self.queue.is_empty() && self.fallback.is_none() {
            self.knocked_ns = now;
        }
        if let Some(since) = self.idle_since_ns.take() {
            self.see_gap(now, since);
        }
        let rule = self.rule(now, view);
        let first = match (self.queue.front(), &ticket) {
            (None, _) => true,
            (Some(front), Some(mine)) => front == mine,
            (Some(_), None) => false,
        };
        let start = self.end_ns.max(now);
        // A turn ends early rather than with a launch of which less than half fits, or not all if a light claim is due;
        // one launch always goes.
        let next_ns = expected.map_or(0, |it| self.scaled(it.ns));
        let least_ns = match (self.is_turn_used, view.flags.has(Flags::DUE)) {
            (false, _) => 0,
            (true, false) => next_ns / 2,
            (true, true) => next_ns,
        };
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
            Rule::Until(_)
                if self.fallback.is_none()
                    && self.word.mode() == Mode::Turn
                    && start + least_ns >= view.turn_ends_ns =>
            {
                self.next_ns = next_ns;
                // That is news: it waited for its own work before.
                self.told.0 &= self.held_since_ns.is_some() || !self.is_spaced();
                self.hold(now);
                now.saturating_add(SILENCE_NS)
            }
            Rule::Until(horizon) if start >= horizon && self.is_spaced() => {
                // The end of a launch that is measured wakes it, too.
                let late_ns = if start > now { LATER_NS } else { QUEUED_NS };
                start.saturating_add(late_ns)
            }
            Rule::Until(horizon) if start >= horizon => {
                // With room for one launch only, every launch would have to ask.
                let ahead = horizon - now;
                let wakes_at = if ahead > CHUNK_NS { ahead / 2 } else { ahead };
                start.saturating_sub(wakes_at).max(now + 1)
            }
            Rule::Until(horizon) => {
                if expected.is_none() && self.is_learning(now, key) {
                    now.saturating_add(LEARN_AT_MOST_NS / 4)
                } else {
                    self.leave(now, ticket);
                    return self.admit(now, start, horizon, key, expected);
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
        expected: Option<Expected>,
    ) -> Verdict {
        // Launched again before its end: it takes at least as long as until now.
        let lasted = self.learning.iter().find(|it| it.key == key);
        let lasted = lasted.map_or(0, |it| now.saturating_sub(it.since_ns));
        let own = expected.map_or(self.prior_ns.max(lasted), |it| it.ns);
        let room = horizon.saturating_sub(start).saturating_mul(1024) / self.scale.max(1);
        let most_ns = if self.scale < SIDE_BY_SIDE && self.has_streams() {
            CHUNK_NS / 4
        } else {
            CHUNK_NS
        };
        let grant_ns = match expected {
            Some(Expected { ns, is_sure }) if ns < most_ns => {
                let launches = if is_sure { u64::MAX } else { LAUNCHES };
                let most = ns.saturating_mul(launches).min(most_ns);
                room.saturating_sub(ns).min(most)
            }
            Some(_) => 0,
            None => {
                if let Some(again) = self.learning.iter_mut().find(|it| it.key == key) {
                    again.since_ns = now;
                } else {
                    if self.learning.len() >= LEARNING {
                        self.learning.remove(0);
                    }
                    self.learning.push(Learning { key, since_ns: now });
                }
                0
            }
        };
        let kept = self.quiet_since_ns.take();
        if let Some(since) = kept.filter(|since| now.saturating_sub(*since) >= LATER_NS) {
            self.before_gap_ns = self.demand_ns;
            self.see_gap(now, since);
        }
        if !self.busy {
            self.begin(now);
        }
        // Beyond its usual launches it asks again: so the arbiter learns the end of those, and not of all that may be
        // launched.
        let launched_ns = self.demand_ns.saturating_sub(self.before_burst_ns) + self.scaled(own);
        let grant_ns = match self.told_burst_ns() {
            Some(usual) => grant_ns.min(usual.saturating_sub(launched_ns)),
            None => grant_ns,
        };
        self.issued_ns = self.issued_ns.saturating_add(own + grant_ns);
        self.demand_ns = self.demand_ns.saturating_add(self.scaled(own + grant_ns));
        self.end_ns = start.saturating_add(self.scaled(own + grant_ns));
        self.is_turn_used = true;
        self.in_call = (self.in_call.0 + 1, now);
        Verdict::Go { grant_ns }
    }

    /// The call of an admitted launch has returned; a marker follows it, if possible.
    pub fn returned(&mut self) {
        self.in_call.0 = self.in_call.0.saturating_sub(1);
    }

    fn see_gap(&mut self, now: u64, since: u64) {
        let gap = now.saturating_sub(since).min(GAP_NS);
        self.gap_ns = self.gap_ns - self.gap_ns / 8 + gap / 8;
    }

    /// Usual sum of a light claim's launches until it pauses, if it is about the same each time. A shorter burst than
    /// messages take is reported at its end.
    fn usual_burst_ns(&self) -> Option<u64> {
        let mean_ns = self.burst.mean_ns;
        let counts = mean_ns >= LATER_NS || self.flags.has(Flags::LONG);
        (counts && self.is_told_of() && self.burst.is_known(mean_ns)).then_some(mean_ns)
    }

    /// What it may launch before it asks again: a shorter burst may be this long without a word.
    fn told_burst_ns(&self) -> Option<u64> {
        let is_short = self.is_told_of() && self.burst.is_seen() && self.burst.mean_ns < LATER_NS;
        self.usual_burst_ns()
            .or_else(|| is_short.then_some(LATER_NS))
    }

    /// Work comes to a GPU that has none of this process.
    fn begin(&mut self, now: u64) {
        self.before_burst_ns = self.demand_ns;
        self.busy = true;
        self.counted_ns = now;
        self.fresh_since_ns = Some(now);
        self.busy_since_ns = now;
        self.head_since_ns = now;
        self.last_done = None;
    }

    fn is_learning(&self, now: u64, key: Key) -> bool {
        let fresh = |it: &Learning| now.saturating_sub(it.since_ns) < LEARN_AT_MOST_NS;
        match self.learning.iter().find(|it| it.key == key) {
            Some(it) => fresh(it),
            None => self.learning.len() >= LEARNING && fresh(&self.learning[0]),
        }
    }

    fn hold(&mut self, now: u64) {
        self.held_since_ns.get_or_insert(now);
    }

    /// The caller stops waiting.
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

    /// Notes an event behind a launch on a stream; `grant_ns` is the grant beyond that launch. `false`: too many
    /// events, this one is not followed.
    pub fn mark(&mut self, now: u64, stream: u64, key: Option<Key>, grant_ns: u64) -> bool {
        let learns = |key: Key| self.learning.iter().any(|it| it.key == key);
        let assumed_ns = key.filter(|key| learns(*key)).map(|_| self.prior_ns);
        let of_stream = self.markers.iter().filter(|m| m.stream == stream).count();
        let is_blocked = self.is_blocked(stream);
        let most = if is_blocked { OF_STREAM.1 } else { OF_STREAM.0 };
        if self.markers.len() >= MARKERS || of_stream >= most {
            return false;
        }
        if !self.busy {
            // Such an event is the first sight of work that was launched while the GPU was not shared.
            self.begin(now);
            self.quiet_since_ns = None;
            self.end_ns = self.end_ns.max(now);
        }
        let issued_ns = self.issued_ns.saturating_sub(grant_ns);
        self.markers.push_back(Marker {
            stream,
            key,
            own_ns: issued_ns.saturating_sub(self.marked_ns),
            made_ns: now,
            begins_ns: self.end_ns.saturating_sub(self.scaled(grant_ns)).max(now),
            alone: self.is_alone(now),
            assumed_ns,
        });
        self.marked_ns = self.marked_ns.max(issued_ns);
        if is_blocked {
            self.end_ns = now.saturating_add(self.scaled(self.left_ns()));
        }
        true
    }

    fn is_alone(&self, now: u64) -> bool {
        matches!(self.mode(now), Mode::Open | Mode::Turn)
            && !self.flags.has(Flags::CROWD)
            && self.fallback.is_none()
    }

    /// A launch could not be measured; others of its kind do not wait for that. From the second time on, returns their
    /// assumed duration.
    pub fn unmeasured(&mut self, key: Key) -> Option<u64> {
        self.learning.retain(|it| it.key != key);
        if self.refused.contains(&key) {
            return Some(self.prior_ns);
        }
        if self.refused.len() >= LEARNING {
            self.refused.remove(0);
        }
        self.refused.push(key);
        None
    }

    /// Whether a marker will show the end of work on the GPU.
    fn has_markers(&self) -> bool {
        self.markers.iter().any(|m| !self.is_blocked(m.stream))
    }

    /// Whether several streams have markers.
    fn has_streams(&self) -> bool {
        let first = self.markers.front().map(|m| m.stream);
        self.markers.iter().any(|m| Some(m.stream) != first)
    }

    fn is_blocked(&self, stream: u64) -> bool {
        self.blocked.contains(&stream)
    }

    /// Predicted time of launches whose end was not seen, without those in blocked streams.
    fn left_ns(&self) -> u64 {
        let there = self.markers.iter().filter(|m| !self.is_blocked(m.stream));
        let marked: u64 = there.map(|m| m.own_ns).sum();
        marked.saturating_add(self.issued_ns.saturating_sub(self.marked_ns))
    }

    /// The oldest event of a stream was polled and is not over. `started`: whether its launch has begun, if known. Work
    /// in a blocked stream is not on the GPU until it begins. Returns whether the stream is blocked.
    pub fn look(&mut self, now: u64, stream: u64, started: Option<bool>) -> bool {
        let Some(head) = self.markers.iter().find(|m| m.stream == stream) else {
            return false;
        };
        let was_blocked = self.is_blocked(stream);
        if started == Some(true) {
            if was_blocked {
                self.blocked.retain(|other| *other != stream);
                if !self.busy {
                    // It may have begun long before the poll.
                    let counted_ns = self.counted_ns;
                    self.begin(now);
                    self.fresh_since_ns = Some(counted_ns);
                }
                self.quiet_since_ns = None;
                self.end_ns = now.saturating_add(self.scaled(self.left_ns()));
            }
            return false;
        }
        // Without an event before it, a launch that lasts longer than usual looks like a blocked one; so does a launch
        // between neighbours' slices.
        let own = if started.is_none() {
            4 * head.own_ns
        } else {
            0
        };
        let due = head.begins_ns + (head.begins_ns - head.made_ns) + self.scaled(own);
        let patience_ns = match self.mode(now) {
            Mode::Closed => return was_blocked,
            _ if self.flags.has(Flags::CROWD) => 4 * BLOCKED_NS.0,
            _ if self
                .markers
                .iter()
                .all(|m| m.stream == stream || self.is_blocked(m.stream)) =>
            {
                BLOCKED_NS.1
            }
            Mode::Free | Mode::Open | Mode::Turn => BLOCKED_NS.0,
        };
        let since_ns = self.word_since_ns.max(self.turn_begins_ns);
        let due = due.max(since_ns).saturating_add(patience_ns);
        if was_blocked || now < due {
            return was_blocked;
        }
        self.blocked.push(stream);
        let waits: Vec<Key> = self.of_stream(stream).filter_map(|m| m.key).collect();
        self.learning.retain(|it| !waits.contains(&it.key));
        self.last_done = None;
        self.end_ns = now.saturating_add(self.scaled(self.left_ns()));
        true
    }

    fn of_stream(&self, stream: u64) -> impl Iterator<Item = &Marker> {
        self.markers.iter().filter(move |m| m.stream == stream)
    }

    /// The oldest event of a stream is over. `ran` tells when its launch ran, if known. Returns what can be learnt:
    /// `elapsed_ns` between the events around that launch, `None` if it was not measured or failed.
    pub fn done(
        &mut self,
        now: u64,
        stream: u64,
        ran: Option<(u64, u64)>,
        elapsed_ns: Option<u64>,
    ) -> Option<Learnt> {
        let at = self.markers.iter().position(|m| m.stream == stream)?;
        let marker = self.markers.remove(at)?;
        let was_blocked = self.is_blocked(stream);
        self.blocked.retain(|other| *other != stream);
        let scale = self.scale;
        if let Some(next) = self.markers.iter_mut().find(|m| m.stream == stream) {
            let before = next.own_ns.saturating_mul(scale) / 1024;
            next.begins_ns = next.begins_ns.max(now + before);
        }
        let end = ran.map_or(now, |(_, end)| end.min(now));
        if self.busy {
            // It was not on the GPU before it began, nor after its end: turns and wake-ups take neither.
            if let Some(since) = self.fresh_since_ns
                && let Some((start, _)) = ran.filter(|(start, end)| start < end)
            {
                self.counted_ns = since.max(start.min(end));
            }
            self.count(end);
        } else {
            self.used_ns += elapsed_ns
                .unwrap_or(0)
                .min(now.saturating_sub(self.counted_ns));
            self.begin(now);
            self.counted_ns = end;
        }
        self.fresh_since_ns = None;
        self.head_since_ns = now;
        let alone = marker.alone && self.is_alone(now);
        if let Some(then) = self.last_done.filter(|_| alone && !was_blocked) {
            let wall = end.saturating_sub(then);
            if marker.own_ns > CHUNK_NS / 8 {
                let ratio = (wall.saturating_mul(1024) / marker.own_ns).clamp(64, 4096);
                self.scale = (self.scale * 7 + ratio) / 8;
            }
        }
        self.last_done = self.has_markers().then_some(end);
        self.end_ns = end.saturating_add(self.scaled(self.left_ns()));
        let key = marker.key?;
        self.learning.retain(|it| it.key != key);
        let ns = elapsed_ns?;
        if let Some(assumed) = marker.assumed_ns {
            self.demand_ns = self.demand_ns.saturating_add(ns).saturating_sub(assumed);
        }
        if alone {
            let step = (self.prior_ns / 16).max(1);
            self.prior_ns = if ns > self.prior_ns {
                self.prior_ns + step
            } else {
                self.prior_ns - step
            };
        }
        Some(Learnt { key, ns, alone })
    }

    /// Start of the oldest work on the GPU.
    fn since_ns(&self) -> u64 {
        let there = self.markers.iter().filter(|m| !self.is_blocked(m.stream));
        let oldest = there.map(|m| m.begins_ns).min();
        oldest.unwrap_or(self.head_since_ns)
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

    /// Next step of the watcher. `activity` changes with every launch; `unused_ns` are unused grants of streams.
    /// `awaited`: nothing was launched since the program began to wait for its work. Until then it is in the middle of
    /// a burst, however short its launches are and however slowly they come.
    pub fn rest(&mut self, now: u64, activity: u64, unused_ns: u64, awaited: bool) -> Rest {
        if !self.busy {
            return Rest::Idle;
        }
        if self.has_markers() {
            return Rest::Marker;
        }
        let end = self.end_ns.saturating_sub(self.scaled(unused_ns));
        let called = match self.in_call {
            (0, _) => 0,
            (_, since) => since.saturating_add(CALL_NS),
        };
        if now < end.max(called) {
            return Rest::At(end.max(called));
        }
        // A member that waits for the next turn has used all that it may launch.
        let since = if self.queue.is_empty() {
            if self.activity != activity {
                self.activity = activity;
                self.quiet_since_ns = None;
            }
            let since = *self.quiet_since_ns.get_or_insert(now);
            let grace_ns = if awaited { self.grace_ns() } else { GRACE_NS };
            if now < since + grace_ns {
                return Rest::At(since + grace_ns);
            }
            since
        } else {
            now
        };
        // Work that was seen to be over ended then, the rest at its expected end.
        self.count(since.min(end.max(self.counted_ns)));
        self.held_ns += since.saturating_sub(self.busy_since_ns);
        let launched_ns = self.demand_ns.saturating_sub(self.before_burst_ns);
        let unused_ns = self.scaled(unused_ns);
        self.burst.saw(launched_ns.saturating_sub(unused_ns));
        if self.queue.is_empty() {
            self.before_gap_ns = self.demand_ns;
        }
        self.busy = false;
        self.end_ns = now;
        self.idle_since_ns = Some(since);
        self.last_done = None;
        self.quiet_since_ns = None;
        Rest::Idle
    }

    /// How long it does not take the end of all work for a pause.
    fn grace_ns(&self) -> u64 {
        let most_ns = match self.word.mode() {
            Mode::Turn => {
                let worked_ns = self.demand_ns.saturating_sub(self.before_gap_ns);
                (worked_ns / GRACE_PART).clamp(GRACE_NS, KEPT_NS)
            }
            Mode::Free | Mode::Open | Mode::Closed => GRACE_NS,
        };
        if self.gap_ns > most_ns { 0 } else { most_ns }
    }

    /// Whether the arbiter must be told when work begins: then no launch goes without asking on an idle GPU.
    pub fn is_told_of(&self) -> bool {
        !matches!(self.word.mode(), Mode::Free) && self.flags.has(Flags::RINGS)
    }

    /// Present figures for the arbiter. Each call is one publication.
    pub fn signals(&mut self, now: u64) -> Signals {
        let waiting = self.has_waiters();
        let (was_waiting, was_busy) = self.told;
        let closed = self.mode(now) == Mode::Closed;
        let turns = matches!(self.word.mode(), Mode::Turn | Mode::Closed);
        let rings = self.word.mode() == Mode::Open && self.flags.has(Flags::RINGS);
        let expected_ns = if rings {
            let usual_ns = self.usual_burst_ns().filter(|_| self.busy);
            let burst_ns = self.busy_since_ns.saturating_add(usual_ns.unwrap_or(0));
            self.end_ns.max(burst_ns).saturating_add(self.grace_ns())
        } else if waiting && !self.busy {
            now.saturating_add(self.next_ns)
        } else {
            self.end_ns
        };
        // Work whose end was seen late is over.
        let left_ns = self.told_end_ns.saturating_sub(now);
        let is_planned = self.flags.has(Flags::LATER);
        let rings_at_end = self.flags.has(Flags::ENDS);
        let is_soon = is_planned || left_ns <= SOON_NS && !rings_at_end;
        let later = self.busy
            && is_soon
            && expected_ns > now.max(self.told_end_ns.saturating_add(LATER_NS));
        // A claim that is held back while all launch takes whatever it can get.
        let full = self.word.mode() == Mode::Open
            && self.flags.has(Flags::CROWD)
            && waiting
            && self.busy
            && self.full_word != Some(self.word);
        if full {
            self.full_word = Some(self.word);
        }
        // The arbiter checks by itself at the expected end of all work, or has told the others to begin then.
        let as_told = was_busy
            && !self.busy
            && !rings_at_end
            && waiting == was_waiting
            && now.saturating_add(LATER_NS) >= self.told_end_ns;
        let changed = (waiting, self.busy) != self.told;
        let long = self.busy && expected_ns > self.busy_since_ns + QUEUED_NS;
        let news = if self.flags.has(Flags::LONG) {
            long != self.told_long
        } else {
            changed && !as_told || later
        };
        self.told_long = long;
        // It goes on by itself once its own work is over.
        let is_between = self.is_spaced() && waiting && self.held_since_ns.is_none();
        // The rest of a turn before a light claim that is due is shorter than its next launch.
        let makes_way = self.flags.has(Flags::DUE) && waiting && self.next_ns <= LEFT_NS;
        // It begins its turn by itself.
        let begins = closed && self.word.mode() == Mode::Turn;
        let knock = rings && news
            || full
            || turns
                && !makes_way
                && ((waiting && !was_waiting && !begins && (closed || !self.busy))
                    || (was_busy && !self.busy && !closed && !is_between)
                    || (was_waiting && !waiting && !self.busy));
        if knock && rings && self.rung_ns == 0 {
            self.rung_ns = now;
        }
        // The arbiter reads news that arrive well before its own check.
        let in_time = rings && !is_soon;
        if knock || !self.busy || in_time {
            self.told_end_ns = expected_ns;
        }
        self.told = (waiting, self.busy);
        let held = self
            .held_since_ns
            .map_or(0, |since| now.saturating_sub(since));
        Signals {
            waiting,
            busy: self.busy,
            expected_ns,
            used_ns: self.used_now(now),
            held_ns: self.held_ns
                + if self.busy {
                    now.saturating_sub(self.busy_since_ns)
                } else {
                    0
                },
            demand_ns: self.demand_ns,
            said_ns: now,
            since_ns: if self.busy { self.since_ns() } else { 0 },
            waited_ns: self.waited_ns + held,
            knock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sure(ns: u64) -> Option<Expected> {
        let is_sure = true;
        Some(Expected { ns, is_sure })
    }

    /// A turn that has begun.
    fn turn(turn_ends_ns: u64) -> View {
        View {
            word: Word::default().next(Mode::Turn),
            turn_ends_ns,
            beat_ns: 10 * MS,
            alive: true,
            ..View::default()
        }
    }

    /// The same where half a millisecond goes together.
    fn spaced(turn_ends_ns: u64) -> View {
        View {
            flags: Flags::SPACED,
            ahead_ns: MS / 2,
            ..turn(turn_ends_ns)
        }
    }

    /// A process whose first launch is marked and whose second is still in its call.
    fn in_second_call() -> (Member, Key) {
        let view = turn(100 * MS);
        let key = Key::kernel(0x5000, 768, 256);
        let mut member = Member::default();
        let mut go = |now| {
            let verdict = member.ask(now, &view, key, sure(3 * MS), &mut None);
            assert_eq!(verdict, Verdict::Go { grant_ns: 0 });
        };
        go(10 * MS);
        go(10 * MS + 1);
        member.returned();
        assert!(member.mark(10 * MS + 2, 1, Some(key), 0));
        // The second launch's thread has lost its processor; the first one's end is seen late.
        let ran = Some((10 * MS, 13 * MS));
        member.done(17 * MS, 1, ran, Some(3 * MS));
        (member, key)
    }

    /// A light claim's burst whose end is seen 100 us late, after the arbiter has looked if it does.
    #[test]
    fn what_is_over_is_not_reported_as_later_and_its_end_where_nobody_looks() {
        for more in [Flags::NONE, Flags::LATER, Flags::ENDS] {
            ends_late(more);
        }
    }

    fn ends_late(more: Flags) {
        let view = View {
            word: Word::default().next(Mode::Open),
            flags: Flags::CROWD.and(Flags::RINGS).and(more),
            alive: true,
            ..View::default()
        };
        let (mut member, key) = (Member::default(), Key::kernel(0x5000, 768, 256));
        member.gap_ns = GAP_NS;
        let verdict = member.ask(10 * MS, &view, key, sure(MS), &mut None);
        assert_eq!(verdict, Verdict::Go { grant_ns: 0 });
        member.returned();
        assert!(member.mark(10 * MS, 1, Some(key), 0));
        assert!(member.signals(10 * MS).knock, "its beginning");
        let over = 11 * MS + 200_000;
        member.done(over + 100_000, 1, Some((10 * MS + 200_000, over)), Some(MS));
        assert!(!member.signals(over + 100_000).knock);
        let idle = member.rest(over + 100_001, 0, 0, true);
        assert_eq!(idle, Rest::Idle);
        let knock = member.signals(over + 100_001).knock;
        assert_eq!(knock, more == Flags::ENDS);
    }

    /// Light claims have the GPU until then.
    #[test]
    fn a_turn_that_begins_later_is_begun_without_the_arbiter() {
        let turn = View {
            turn_begins_ns: 11 * MS,
            ..turn(30 * MS)
        };
        let closed = View {
            word: Word::default().next(Mode::Closed),
            ..turn
        };
        let key = Key::kernel(0x5000, 768, 256);
        for (view, knocks) in [(closed, true), (turn, false)] {
            let (mut member, mut ticket) = (Member::default(), None);
            let mut ask = |now| {
                let verdict = member.ask(now, &view, key, sure(MS), &mut ticket);
                (verdict, member.signals(now).knock)
            };
            let (verdict, knock) = ask(10 * MS);
            assert!(matches!(verdict, Verdict::Wait { .. }));
            assert_eq!(knock, knocks, "{view:?}");
            if !knocks {
                let until_ns = view.turn_begins_ns;
                assert_eq!(verdict, Verdict::Wait { until_ns });
                let (verdict, knock) = ask(until_ns);
                assert!(matches!(verdict, Verdict::Go { .. }) && !knock);
            }
        }
    }

    /// Half a millisecond may go together: two launches of that, or one of twice as much.
    #[test]
    fn launches_that_are_spaced_wait_for_the_end_of_the_last_and_call_nobody() {
        let view = spaced(13 * MS);
        let (mut member, key) = (Member::default(), Key::kernel(0x5000, 768, 256));
        let mut ticket = None;
        for begins in [10 * MS, 11 * MS + 200_000] {
            let now = begins;
            let verdict = member.ask(now, &view, key, sure(MS), &mut ticket);
            assert_eq!(verdict, Verdict::Go { grant_ns: 0 });
            member.returned();
            assert!(member.mark(now, 1, Some(key), 0));
            member.signals(now);
            // It takes a little longer than expected.
            for now in [begins + 1, begins + MS + 50_000] {
                let verdict = member.ask(now, &view, key, sure(MS), &mut ticket);
                assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
                assert!(!member.signals(now).knock);
            }
            let over = begins + MS + 100_000;
            member.done(over, 1, Some((begins, over)), Some(MS));
            assert_eq!(member.rest(over, 0, 0, false), Rest::Idle);
            assert!(!member.signals(over).knock, "it goes on by itself");
        }
        // The turn is over.
        let verdict = member.ask(12 * MS + 600_000, &view, key, sure(MS), &mut ticket);
        assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
        assert!(member.signals(12 * MS + 600_000).knock);
    }

    /// A kernel spins until the next one of its process runs.
    #[test]
    fn launches_that_are_spaced_do_not_wait_long_for_one_that_is_late() {
        let view = spaced(30 * MS);
        let (mut member, key, mut ticket) =
            (Member::default(), Key::kernel(0x5000, 768, 256), None);
        let mut go = |now| {
            let verdict = member.ask(now, &view, key, sure(MS), &mut ticket);
            let goes = matches!(verdict, Verdict::Go { .. });
            if goes {
                member.returned();
                assert!(member.mark(now, 1, Some(key), 0));
            }
            goes
        };
        assert!(go(10 * MS));
        assert!(!go(11 * MS + MS / 2));
        assert!(go(13 * MS));
    }

    #[test]
    fn what_a_stream_may_launch_ends_with_the_turn() {
        let turn = turn(12 * MS);
        let (mut member, tally) = (Member::default(), Tally::default());
        let (key, place) = (Key::kernel(0x5000, 768, 256), crate::place(1, 1 << 8));
        member.adopt(10 * MS, turn.word, 0..12 * MS, turn.flags, &tally);
        let verdict = member.ask(10 * MS, &turn, key, sure(10_000), &mut None);
        let Verdict::Go { grant_ns } = verdict else {
            panic!("{verdict:?}");
        };
        tally.grant(turn.word, place, grant_ns);
        for (now, left_ns) in [(11 * MS, grant_ns), (12 * MS, 0)] {
            member.adopt(now, turn.word, 0..12 * MS, turn.flags, &tally);
            assert_eq!(tally.unused_ns(), left_ns);
        }
    }

    /// Another kernel is launched behind one that is far from its end.
    #[test]
    fn work_that_goes_on_is_reported_at_once_where_the_arbiter_does_not_look_at_its_end() {
        for is_planned in [false, true] {
            let rings = Flags::CROWD.and(Flags::RINGS);
            let view = View {
                word: Word::default().next(Mode::Open),
                flags: if is_planned {
                    rings.and(Flags::LATER)
                } else {
                    rings
                },
                ahead_ns: 50 * MS,
                alive: true,
                ..View::default()
            };
            let (mut member, key) = (Member::default(), Key::kernel(0x5000, 768, 256));
            let mut launch = |now, ns| {
                member.ask(now, &view, key, sure(ns), &mut None);
                member.returned();
                member.mark(now, 1, Some(key), 0);
                member.signals(now).knock
            };
            assert!(launch(10 * MS, 16 * MS), "its beginning");
            assert_eq!(launch(10 * MS + 2, 4 * MS), is_planned);
        }
    }

    #[test]
    fn a_turn_does_not_go_on_while_a_launch_is_in_its_call() {
        let (mut member, key) = in_second_call();
        let until = 10 * MS + 1 + CALL_NS;
        assert_eq!(member.rest(17 * MS, 2, 0, true), Rest::At(until));
        assert!(member.signals(17 * MS).busy);
        member.returned();
        assert!(member.mark(18 * MS, 1, Some(key), 0));
        assert_eq!(member.rest(18 * MS, 2, 0, true), Rest::Marker);
    }

    #[test]
    fn a_call_that_does_not_return_keeps_no_turn() {
        let (mut member, _) = in_second_call();
        let late = 10 * MS + 2 + CALL_NS;
        assert_eq!(member.rest(late, 2, 0, true), Rest::At(late + KEPT_NS));
        assert_eq!(member.rest(late + KEPT_NS, 2, 0, true), Rest::Idle);
    }

    /// Launches of 3 ms with pauses of 0.3 ms, and one of 2 ms in 16.
    #[test]
    fn pauses_that_a_turn_outlasts_count_as_well() {
        let (mut member, key) = (Member::default(), Key::kernel(0x5000, 768, 256));
        let mut now = 10 * MS;
        for step in 0..64 {
            let view = View {
                word: Word::default().next(Mode::Turn),
                turn_ends_ns: now + 50 * MS,
                beat_ns: now,
                alive: true,
                ..View::default()
            };
            member.ask(now, &view, key, sure(3 * MS), &mut None);
            member.returned();
            assert!(member.mark(now, 1, Some(key), 0));
            let over = now + 3 * MS;
            member.done(over, 1, Some((now, over)), Some(3 * MS));
            let kept = Rest::At(over + KEPT_NS);
            assert_eq!(member.rest(over, step, 0, true), kept, "step {step}");
            now = over + 3 * MS / 10;
            if step % 16 == 15 {
                now = over + 2 * MS;
                assert_eq!(member.rest(over + KEPT_NS, step, 0, true), Rest::Idle);
            }
        }
    }

    #[test]
    fn work_that_is_seen_late_behind_a_wait_is_counted_from_its_beginning() {
        let (mut member, key) = in_second_call();
        member.returned();
        assert!(member.mark(18 * MS, 1, Some(key), 0));
        assert!(member.look(400 * MS, 1, Some(false)), "it waits");
        assert_eq!(
            member.rest(400 * MS, 2, 0, true),
            Rest::At(400 * MS + KEPT_NS)
        );
        assert_eq!(member.rest(401 * MS, 2, 0, true), Rest::Idle);
        let before = member.signals(401 * MS).used_ns;
        // It ran from 500 to 503 ms; the watcher had no processor until 502.
        assert!(!member.look(502 * MS, 1, Some(true)));
        member.done(504 * MS, 1, Some((500 * MS, 503 * MS)), Some(3 * MS));
        assert_eq!(member.signals(504 * MS).used_ns - before - MS, 3 * MS);
    }

    /// LLM decoding: bursts of short kernels with long pauses. The launching thread is slower than the GPU for a
    /// moment.
    #[test]
    fn a_turn_is_kept_until_the_program_waits_for_its_burst() {
        let view = |now| View {
            word: Word::default().next(Mode::Turn),
            turn_ends_ns: now + 50 * MS,
            beat_ns: now,
            alive: true,
            ..View::default()
        };
        let key = Key::kernel(0x5000, 768, 256);
        let mut member = Member::default();
        let mut now = 10 * MS;
        let mut launch = |now: u64, awaited| {
            let asked = member.ask(now, &view(now), key, sure(30_000), &mut None);
            let Verdict::Go { grant_ns } = asked else {
                panic!("{asked:?}");
            };
            assert!(member.mark(now, 1, Some(key), grant_ns));
            member.returned();
            let over = now + 30_000;
            member.done(over + 40_000, 1, Some((now, over)), Some(30_000));
            let rest = member.rest(over + 40_000, now, grant_ns, awaited);
            member.rest(over + 5 * MS, now, grant_ns, awaited);
            rest
        };
        // It has learnt that its pauses are long.
        for _ in 0..40 {
            launch(now, true);
            now += 15 * MS;
        }
        assert_eq!(launch(now, true), Rest::Idle, "the burst is over");
        now += 15 * MS;
        let goes_on = launch(now, false);
        assert!(matches!(goes_on, Rest::At(_)), "it launches: {goes_on:?}");
    }

    /// A kernel of 30 us that was first measured as half a microsecond, and one that really takes that.
    #[test]
    fn what_is_known_roughly_is_launched_a_few_times_by_one_grant() {
        let view = View {
            word: Word::default().next(Mode::Open),
            beat_ns: MS,
            alive: true,
            ..View::default()
        };
        let granted = |is_sure| {
            let expected = Some(Expected { ns: 500, is_sure });
            let key = Key::kernel(0x5000, 768, 256);
            let verdict = Member::default().ask(MS, &view, key, expected, &mut None);
            let Verdict::Go { grant_ns } = verdict else {
                panic!("{verdict:?}");
            };
            grant_ns
        };
        let roughly = granted(false);
        assert!(roughly / 500 * 30_000 < 4 * MS, "{roughly}");
        assert_eq!(granted(true), CHUNK_NS, "nobody has to look so soon");
    }

    /// Kernels of 900 us on two streams at once, each behind a copy: the end of each is seen, also of the last of a stream
    /// whose thread waits for its next launch on the other one.
    #[test]
    fn where_streams_run_side_by_side_no_long_kernel_goes_without_a_marker() {
        let view = turn(100 * MS);
        let (kernel, copy) = (
            Key::kernel(0x5000, 768, 256),
            Key::kernel(0x6000, 1, u64::MAX),
        );
        let (takes, half) = (900_000, 450_000);
        let mut member = Member::default();
        let mut now = 10 * MS;
        for step in 0..40 {
            let stream = step % 2 + 1;
            if step >= 2 {
                member.done(now, stream, Some((now - takes, now)), Some(takes));
            }
            let verdict = member.ask(now, &view, kernel, sure(takes), &mut None);
            assert!(matches!(verdict, Verdict::Go { .. }), "{verdict:?}");
            member.returned();
            assert!(member.mark(now, stream, Some(kernel), 0));
            now += half;
        }
        let verdict = member.ask(now, &view, copy, sure(80_000), &mut None);
        let Verdict::Go { grant_ns } = verdict else {
            panic!("{verdict:?}");
        };
        assert!((1..takes).contains(&grant_ns), "{grant_ns}");
    }

    /// A program outside claims has its slices between those of a claim that seems to have the GPU to itself.
    #[test]
    fn a_launch_that_waits_for_a_slice_of_another_program_keeps_its_turn() {
        let (mut member, key) = in_second_call();
        member.returned();
        assert!(member.mark(18 * MS, 1, Some(key), 0));
        assert_eq!(member.rest(18 * MS, 2, 0, true), Rest::Marker);
        // Nothing is before it; the other program's slice, with context switches, is over at 20.2 ms.
        assert!(!member.look(20 * MS + MS / 5, 1, Some(false)));
        assert_eq!(member.rest(20 * MS + MS / 5, 2, 0, true), Rest::Marker);
        assert!(member.look(22 * MS, 1, Some(false)), "a host function");
    }

    #[test]
    fn a_call_that_could_not_be_marked_keeps_no_turn_once_it_returned() {
        let (mut member, _) = in_second_call();
        member.returned();
        assert_eq!(
            member.rest(17 * MS, 2, 0, true),
            Rest::At(17 * MS + KEPT_NS)
        );
    }
}
