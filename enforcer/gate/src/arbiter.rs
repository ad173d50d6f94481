//! Which claims may launch on one GPU, and when.
//!
//! While all claims together need less than the GPU gives, all of them launch at once. When the GPU becomes scarce, a
//! claim that needs less than its guarantee (a *light* claim) still launches at any time, and reports it. The others
//! (*heavy* claims) take turns in the rest, and stop as soon as a light claim has work; one whose light neighbour comes back
//! at each launch leaves space between its launches instead. The heavy claim that is
//! furthest behind goes first: each turn counts as its time divided by the claim's share. The actual time counts,
//! draining included, so a kernel longer than its turn is paid for by turns of the others. If limits leave time that no
//! claim may use, the idle rest gets turns too.

mod demand;
mod long;
mod pause;
mod pick;
mod plan;
mod shares;
mod spaced;

use demand::Demand;
use long::Usual;
use pause::Pauses;
use plan::Plan;
use shares::divide;
use spaced::Spaced;

use crate::{Flags, Mode, PERIOD_NS, QUEUED_NS, SILENCE_NS, Word};

/// Length of a cycle of turns, per participating claim.
const CYCLE_NS: u64 = 14_000_000;
/// The same where a claim has several GPUs: each turn of it begins and ends on all of them.
const CYCLE_OF_SETS_NS: u64 = 2 * CYCLE_NS;
const LEAST_TURN_NS: u64 = 2_000_000;
const MOST_TURN_NS: u64 = 50_000_000;
/// A turn that is not used for this long passes on.
const TAKE_NS: u64 = 10_000_000;
/// Work that is this late is still waited for before its process is checked.
const LATE_NS: u64 = 10_000_000;
/// Work that lasts this much longer than its turn runs on beside the next turn.
const DRAIN_AT_MOST_NS: u64 = 500_000_000;
/// The same for work queued while the GPU was not shared, because a claim that wakes does not wait longer; and, less so
/// after a long turn, for work that may wait for a turn on another GPU.
const BACKLOG_AT_MOST_NS: u64 = 70_000_000;
/// A turn is longer than its work by the time of the messages; a claim may leave this much of it out of its account.
const HAND_OVER_NS: u64 = 2_000_000;
/// Work on one GPU that is this late waits for the claim's work on another.
const TORN_NS: u64 = 300_000;
/// While work waits for a launch, or soon may, the arbiter looks this often: work also ends earlier than expected.
const TEAR_NS: u64 = 2_000_000;
/// A finished turn with this little time left passes on.
const REST_NS: u64 = 100_000;
/// Lead of a claim after a short absence, as time with the whole GPU.
const CREDIT_NS: f64 = 40e6;
/// GPU time by which a claim may lead the next and still go first because it has the turn on another GPU: for a turn
/// beside that one; and for the launch that its work there waits for.
const MEET_AHEAD_NS: f64 = 40e6;
const TORN_AHEAD_NS: f64 = 100e6;
/// Maximum remembered debt, in the same measure.
const DEBT_NS: f64 = 10e9;
/// A claim that was silent for this long has no work.
const ACTIVE_NS: u64 = 500_000_000;
/// How far a claim may run ahead of the GPU while all launch at once; and in its turn while light claims may want the
/// GPU at any moment: just enough to launch the next kernel before the last one is over.
const AHEAD_OPEN_NS: u64 = 4_000_000;
const AHEAD_LIGHT_NS: u64 = 150_000;
/// Assumed delay of messages until it is measured.
const LATE_AT_FIRST_NS: u64 = 50_000;
const LATE_AT_MOST_NS: u64 = 150_000;
/// A kernel that has run for this long prevents sharing.
const STUCK_NS: u64 = 5_000_000_000;

/// One process as its slot shows it. Untrusted, so it is never given others' time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The owner's number for it.
    pub slot: usize,
    /// Index of the GPU among those that are shared together.
    pub gpu: usize,
    /// Whether a thread waits to launch.
    pub waiting: bool,
    /// Whether work is on the GPU.
    pub busy: bool,
    /// Expected end of that work; without any, of the waiting work.
    pub expected_ns: u64,
    /// Time with work on the GPU so far.
    pub used_ns: u64,
    /// The same, plus the time until its work began and until it saw the end.
    pub held_ns: u64,
    /// Sum of the times that its launches take alone on the GPU.
    pub demand_ns: u64,
    /// Time held back so far.
    pub waited_ns: u64,
    /// Time of this report.
    pub said_ns: u64,
    /// Since when the oldest of its work is on the GPU; 0 without work.
    pub since_ns: u64,
    /// Launches so far.
    pub launches: u64,
    /// Changes with every report.
    pub stamp: u64,
}

/// One claim with its processes.
#[derive(Debug, Clone)]
pub struct Claim<'a> {
    /// Number of the claim.
    pub id: u64,
    /// Guaranteed share of the GPU's time in thousandths.
    pub request_permille: u32,
    /// Largest share in thousandths.
    pub limit_permille: u32,
    /// Order of the excess between tiers; lower is earlier.
    pub tier: u8,
    /// Weight of the class for the excess, in thousandths.
    pub weight_milli: u32,
    /// Whether it takes part: it has the GPU, and shares it in time.
    pub is_gated: bool,
    /// Whether it has GPUs outside this set: its work here may wait for work there.
    pub is_spread: bool,
    /// Its processes there, with other GPU indices.
    pub elsewhere: &'a [Process],
    /// End of its turn there, while it has one.
    pub elsewhere_ns: Option<u64>,
    /// The word in its page, from which a new arbiter continues.
    pub word: Word,
    /// Its processes.
    pub processes: &'a [Process],
}

impl<'a> Claim<'a> {
    /// Whether it has several GPUs.
    fn has_many(&self) -> bool {
        self.is_spread || self.processes.iter().any(|p| p.gpu > 0)
    }

    fn everywhere(&self) -> impl Iterator<Item = &'a Process> {
        self.processes.iter().chain(self.elsewhere)
    }
}

/// New content of a claim's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The claim.
    pub id: u64,
    /// The decision.
    pub word: Word,
    /// Start of the turn, for [`Mode::Turn`]; 0: at once.
    pub turn_begins_ns: u64,
    /// End of the turn, for [`Mode::Turn`].
    pub turn_ends_ns: u64,
    /// How far the claim may run ahead of the GPU; 0: as the mode allows.
    pub ahead_ns: u64,
    /// Further conditions of the mode.
    pub flags: Flags,
}

#[derive(Debug, Clone)]
struct Record {
    id: u64,
    word: Word,
    turn_begins_ns: u64,
    turn_ends_ns: u64,
    ahead_of_gpu_ns: u64,
    flags: Flags,
    demand: Demand,
    /// Time and content of its last report.
    active_ns: u64,
    stamps: u64,
    /// Time used over share.
    ahead_ns: f64,
    wants: bool,
    /// It used its last turn.
    has_taken: bool,
    /// It had the GPU to itself: its queued work is unknown.
    was_free: bool,
    /// Its work outlasted its turn and runs beside the next.
    lingers: bool,
    used_ns: u64,
    /// Usual part of a turn before its work is on the GPU, and until its end is reported.
    lost_ns: u64,
    /// End of its last turn, and the time counted for it.
    last_turn: (u64, f64),
    usual: Usual,
    pauses: Pauses,
    /// Processes that do not answer, with their last report.
    absent: Vec<(usize, u64)>,
}

impl Record {
    fn new(id: u64, word: Word) -> Record {
        Record {
            id,
            word,
            turn_begins_ns: 0,
            turn_ends_ns: 0,
            ahead_of_gpu_ns: 0,
            flags: Flags::NONE,
            demand: Demand::default(),
            active_ns: 0,
            stamps: 0,
            ahead_ns: 0.0,
            wants: false,
            has_taken: false,
            was_free: false,
            lingers: false,
            used_ns: 0,
            lost_ns: 0,
            last_turn: (0, 0.0),
            usual: Usual::default(),
            pauses: Pauses::default(),
            absent: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Claim(u64),
    /// All light claims together.
    Light,
    Nobody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// At most one claim works, without asking.
    Quiet { open: Option<u64>, since_ns: u64 },
    /// Several work, and there is enough for all.
    Plenty,
    Turn {
        holder: Holder,
        began_ns: u64,
        ends_ns: u64,
        /// Its first planned end: a turn that is torn between GPUs goes on for a bounded time.
        due_ns: u64,
        /// Since when the holder has no work on the GPU.
        empty_since_ns: Option<u64>,
        /// Its processes' stamps at the last look; any change is a sign of life.
        stamps: u64,
        /// GPU time used by its processes at the start of the turn.
        used_ns: u64,
        taken: bool,
        /// It had work of unknown length on the GPU when the turn began.
        backlog: bool,
        /// Others' work ran beside it when it began.
        crowded: bool,
        /// No other claim wanted a turn when it began.
        is_only: bool,
    },
}

impl Phase {
    const QUIET: Phase = Phase::Quiet {
        open: None,
        since_ns: u64::MAX,
    };
}

/// Decides the turns on one GPU.
#[derive(Debug, Clone)]
pub struct Arbiter {
    phase: Phase,
    records: Vec<Record>,
    nobody_ahead_ns: f64,
    hand_overs: u64,
    /// The claims need more than the GPU gives.
    is_scarce: bool,
    /// When demand was last measured, and since when it has been low.
    looked_ns: u64,
    low_since_ns: u64,
    /// Demand was low at the last measurement.
    is_far: bool,
    /// Usual delay of messages.
    late_ns: u64,
    /// Beginning of the last turn of a heavy claim, and the end of its work: light claims' work since then waits for it.
    clear_ns: (u64, u64),
    /// Claims whose work has run beside the turn from its beginning.
    beside: Vec<u64>,
    /// Light claims with work at the last update.
    lit: Vec<u64>,
    /// Turns so far.
    turns: u64,
    /// Counted length of a turn while all claims' turns last about the same.
    even_ns: Option<u64>,
    /// What follows the light claims' work, if no process calls before its end.
    plan: Option<Plan>,
    /// Whether a light claim's work goes between a heavy one's launches.
    spaced: Spaced,
}

impl Default for Arbiter {
    fn default() -> Self {
        Self {
            phase: Phase::QUIET,
            records: Vec::new(),
            nobody_ahead_ns: 0.0,
            hand_overs: 0,
            is_scarce: false,
            looked_ns: 0,
            low_since_ns: 0,
            is_far: false,
            lit: Vec::new(),
            late_ns: LATE_AT_FIRST_NS,
            clear_ns: (0, 0),
            beside: Vec::new(),
            turns: 0,
            even_ns: None,
            plan: None,
            spaced: Spaced::default(),
        }
    }
}

/// A message to a claim.
#[derive(Debug, Clone, Copy)]
struct Says {
    mode: Mode,
    turn_begins_ns: u64,
    turn_ends_ns: u64,
    ahead_ns: u64,
    flags: Flags,
}

impl Says {
    const FREE: Says = Says::just(Mode::Free);
    const CLOSED: Says = Says::just(Mode::Closed);
    /// The only active claim.
    const ALONE: Says = Says::just(Mode::Open);
    /// One of several claims, with enough for all.
    const OPEN: Says = Says {
        ahead_ns: AHEAD_OPEN_NS,
        flags: Flags::CROWD,
        ..Says::just(Mode::Open)
    };
    /// Idle, or light on a scarce GPU: it launches at once and reports the beginning and end of its work.
    const LIGHT: Says = Says {
        ahead_ns: AHEAD_OPEN_NS,
        flags: Flags::CROWD.and(Flags::RINGS),
        ..Says::just(Mode::Open)
    };

    /// The same for one whose short work runs between the launches of another.
    const SHORT: Says = Says {
        flags: Says::LIGHT.flags.and(Flags::LONG),
        ..Says::LIGHT
    };

    const fn just(mode: Mode) -> Says {
        Says {
            mode,
            turn_begins_ns: 0,
            turn_ends_ns: 0,
            ahead_ns: 0,
            flags: Flags::NONE,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    waiting: bool,
    busy: bool,
    expected_ns: u64,
    /// For waiting work while none is on the GPU: the end of the first if it began now.
    next_ns: u64,
}

impl Arbiter {
    /// Hand-overs between claims so far.
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs
    }

    /// Whether claims take turns now.
    pub fn is_contended(&self) -> bool {
        matches!(self.phase, Phase::Turn { .. })
    }

    /// Whether that claim has the turn.
    pub fn has_turn(&self, id: u64) -> bool {
        self.turn().is_some_and(|(holder, _)| holder == id)
    }

    /// The claim that has the turn, and the turn's end.
    pub fn turn(&self) -> Option<(u64, u64)> {
        match self.phase {
            Phase::Turn {
                holder: Holder::Claim(id),
                ends_ns,
                ..
            } => Some((id, ends_ns)),
            _ => None,
        }
    }

    /// A claim whose work has been on a GPU for too long, and since when; of the processes on it, each with its claim and
    /// the start of its oldest work, 0 without one.
    pub fn stuck(now: u64, since: impl IntoIterator<Item = (u64, u64)>) -> Option<(u64, u64)> {
        since
            .into_iter()
            .filter(|(_, since)| *since > 0 && now.saturating_sub(*since) >= STUCK_NS)
            .min_by_key(|(_, since)| *since)
    }

    /// Nanoseconds of a claim's turns so far; 0 for a claim that never shared.
    pub fn used_ns(&self, id: u64) -> u64 {
        self.find(id).map_or(0, |r| r.used_ns)
    }

    /// An arbiter for GPUs that each had another arbiter, in that place, or none: it keeps the debts between claims.
    /// `word` gives the word in a claim's page; claims without a page are left out.
    #[must_use]
    pub fn regrouped(
        before: &[Option<(&Arbiter, usize)>],
        word: impl Fn(u64) -> Option<Word>,
    ) -> Arbiter {
        let there = || before.iter().flatten().map(|(arbiter, _)| *arbiter);
        let Some(first) = there().next() else {
            return Arbiter::default();
        };
        let mut records: Vec<Record> = Vec::new();
        for (arbiter, r) in there().flat_map(|a| a.records.iter().map(move |r| (a, r))) {
            if let Some(word) = word(r.id).filter(|_| records.iter().all(|it| it.id != r.id)) {
                records.push(Record {
                    demand: Demand::regrouped(r.id, before),
                    // Each arbiter counts from another zero.
                    ahead_ns: r.ahead_ns - arbiter.middle() + first.middle(),
                    wants: r.wants,
                    usual: r.usual,
                    last_turn: r.last_turn,
                    ..Record::new(r.id, word)
                });
            }
        }
        Arbiter {
            records,
            nobody_ahead_ns: first.nobody_ahead_ns,
            is_scarce: there().any(|arbiter| arbiter.is_scarce),
            looked_ns: first.looked_ns,
            low_since_ns: first.low_since_ns,
            late_ns: first.late_ns,
            turns: first.turns,
            ..Arbiter::default()
        }
    }

    /// Updates all claims of the GPU. `is_alive` tells whether a claim's process could go on (not dead, stopped or
    /// frozen); it is called rarely. New page contents go to `orders`. Returns the time of the next update; `None`:
    /// when a process calls.
    pub fn step(
        &mut self,
        now: u64,
        claims: &[Claim<'_>],
        is_alive: &mut dyn FnMut(u64, usize) -> bool,
        orders: &mut Vec<Order>,
    ) -> Option<u64> {
        self.adopt_plan(now, claims);
        self.keep_records(now, claims);
        let gated = claims.iter().filter(|c| c.is_gated).count();
        let unlimited = claims
            .iter()
            .all(|c| !c.is_gated || c.limit_permille >= 1000);
        if gated == 0 || (gated == 1 && unlimited) {
            self.phase = Phase::QUIET;
            self.is_scarce = false;
            self.level(&|_| false);
            for claim in claims {
                if let Some(record) = self.record(claim.id).filter(|_| claim.is_gated) {
                    record.was_free = true;
                }
                self.order(claim.id, Says::FREE, orders);
            }
            return None;
        }
        for claim in claims.iter().filter(|c| !c.is_gated) {
            self.order(claim.id, Says::FREE, orders);
        }
        self.charge_spaced(now, claims);
        self.look_at_demand(now, claims);
        self.release(now, claims, is_alive);
        self.decide(now, claims, orders)
    }

    fn find(&self, id: u64) -> Option<&Record> {
        self.records.iter().find(|r| r.id == id)
    }

    fn record(&mut self, id: u64) -> Option<&mut Record> {
        self.records.iter_mut().find(|r| r.id == id)
    }

    fn keep_records(&mut self, now: u64, claims: &[Claim<'_>]) {
        self.records.retain(|r| claims.iter().any(|c| c.id == r.id));
        for claim in claims {
            if self.record(claim.id).is_none() {
                self.records.push(Record::new(claim.id, claim.word));
            }
            let stamps = stamps_of(claim);
            let state = self.state(claim);
            if let Some(record) = self.record(claim.id)
                && (stamps != record.stamps || state.busy || state.waiting)
            {
                (record.stamps, record.active_ns) = (stamps, now);
            }
        }
    }

    fn is_heavy(&self, id: u64) -> bool {
        self.find(id).is_some_and(|r| r.demand.heavy)
    }

    fn is_active(&self, now: u64, id: u64) -> bool {
        let active = |r: &Record| r.active_ns > 0 && now.saturating_sub(r.active_ns) < ACTIVE_NS;
        self.find(id).is_some_and(active)
    }

    /// The state of a claim's present processes together.
    fn state(&mut self, claim: &Claim<'_>) -> State {
        let mut state = State::default();
        let Some(record) = self.record(claim.id).filter(|_| claim.is_gated) else {
            return state;
        };
        record.absent.retain(|(slot, stamp)| {
            let same = |p: &Process| p.slot == *slot && p.stamp == *stamp;
            claim.processes.iter().any(same)
        });
        for p in claim.processes {
            if record.absent.iter().any(|(slot, _)| *slot == p.slot) {
                continue;
            }
            state.waiting |= p.waiting;
            state.busy |= p.busy;
            if p.waiting && !p.busy {
                let next = p.expected_ns.max(1);
                state.next_ns = match state.next_ns {
                    0 => next,
                    other => other.min(next),
                };
            }
            if p.busy {
                state.expected_ns = state.expected_ns.max(p.expected_ns);
            }
        }
        state
    }

    /// Ignores these processes of a claim until they report again.
    fn dismiss(&mut self, claim: &Claim<'_>, which: impl Fn(&Process) -> bool) {
        if let Some(record) = self.record(claim.id) {
            for p in claim.processes.iter().filter(|p| which(p)) {
                record.absent.retain(|(slot, _)| *slot != p.slot);
                record.absent.push((p.slot, p.stamp));
            }
        }
    }

    fn order(&mut self, id: u64, says: Says, orders: &mut Vec<Order>) {
        let Some(record) = self.record(id) else {
            return;
        };
        let Says {
            mode,
            turn_begins_ns,
            turn_ends_ns,
            ahead_ns,
            flags,
        } = says;
        let is_new = record.word.mode() != mode
            || record.flags != flags
            || record.turn_begins_ns != turn_begins_ns;
        if !is_new && record.turn_ends_ns == turn_ends_ns && record.ahead_of_gpu_ns == ahead_ns {
            return;
        }
        if is_new || mode == Mode::Turn && record.turn_ends_ns < turn_ends_ns {
            record.word = record.word.next(mode);
        }
        record.turn_begins_ns = turn_begins_ns;
        record.turn_ends_ns = turn_ends_ns;
        record.ahead_of_gpu_ns = ahead_ns;
        record.flags = flags;
        orders.push(Order {
            id,
            word: record.word,
            turn_begins_ns,
            turn_ends_ns,
            ahead_ns,
            flags,
        });
    }

    /// Ends the turn if its holder has finished.
    fn release(
        &mut self,
        now: u64,
        claims: &[Claim<'_>],
        is_alive: &mut dyn FnMut(u64, usize) -> bool,
    ) {
        let Phase::Turn {
            holder,
            began_ns,
            mut ends_ns,
            due_ns,
            empty_since_ns,
            stamps,
            used_ns,
            taken,
            backlog,
            crowded,
            is_only,
        } = self.phase
        else {
            return;
        };
        let id = match holder {
            Holder::Claim(id) => id,
            Holder::Light => return self.release_light(now, began_ns, claims, is_alive),
            Holder::Nobody => {
                if now >= ends_ns {
                    self.charge(now, Holder::Nobody, now - began_ns, None, claims);
                    self.phase = Phase::QUIET;
                }
                return;
            }
        };
        let Some(claim) = claims.iter().find(|c| c.id == id) else {
            self.phase = Phase::QUIET;
            return;
        };
        let mut state = self.state(claim);
        let mut lingers = false;
        if state.busy {
            let late = now >= state.expected_ns.max(due_ns).saturating_add(LATE_NS);
            if late {
                let stuck = |p: &Process| p.busy && !is_alive(id, p.slot);
                let dead: Vec<usize> = filter_slots(claim, stuck);
                self.dismiss(claim, |p| dead.contains(&p.slot));
                state = self.state(claim);
            }
            // Its work from before the turn delays claims that are due, but not claims that have had more.
            let is_due = || self.is_behind(now, id, began_ns, claims);
            let until_ns = if claim.is_spread {
                together_until_ns(began_ns, due_ns)
            } else if backlog && is_due() {
                began_ns.saturating_add(BACKLOG_AT_MOST_NS)
            } else {
                let from_ns = if backlog { began_ns } else { due_ns };
                from_ns.saturating_add(DRAIN_AT_MOST_NS)
            };
            lingers = state.busy && now >= due_ns.max(until_ns);
        }
        if (ends_ns..together_until_ns(began_ns, due_ns)).contains(&now) && is_torn(now, claim) {
            ends_ns = now + REST_NS;
        }
        let stirs = stamps != stamps_of(claim);
        let taken = taken || state.busy || stirs;
        // A claim that waits for each of its launches has no work whenever it rings.
        let empty_since = if state.busy {
            None
        } else {
            Some(empty_since_ns.filter(|_| !stirs).unwrap_or(now))
        };
        let idle_for = empty_since.map_or(0, |since| now.saturating_sub(since));
        let over = if state.busy {
            lingers
        } else {
            // Work that would be late by more than it is early now belongs to the next turn.
            let next = u64::midpoint(now, state.next_ns.max(now));
            let ended = taken && next.max(now + REST_NS) >= ends_ns;
            // Its work elsewhere may wait for a launch that is held here: that shows soon.
            let meets = now < due_ns.saturating_add(2 * TORN_NS)
                && claim.elsewhere_ns.is_some()
                && claim.elsewhere.iter().any(|p| p.busy);
            !state.waiting || ended && !meets || idle_for >= TAKE_NS
        };
        if !over {
            self.phase = Phase::Turn {
                holder,
                began_ns,
                ends_ns,
                due_ns,
                empty_since_ns: empty_since,
                stamps: stamps_of(claim),
                used_ns,
                taken,
                backlog,
                crowded,
                is_only,
            };
            return;
        }
        if state.waiting && !state.busy && idle_for >= TAKE_NS {
            // It did not use its turn: stopped, frozen, or without a processor.
            self.dismiss(claim, |p| p.waiting);
        }
        let lasted = now.saturating_sub(began_ns);
        let told = used_by(claim).saturating_sub(used_ns);
        let cost = if taken {
            told.clamp(lasted.saturating_sub(HAND_OVER_NS), lasted)
        } else {
            0
        };
        // Work from before the turn says nothing about the claim's usual turns.
        let counted = if taken && !lingers && !backlog {
            self.even_out(id, cost, crowded)
        } else {
            cost
        };
        self.charge(now, holder, cost, Some(counted), claims);
        if let Some(record) = self.record(id) {
            record.lingers = lingers;
            record.has_taken = taken;
            record.was_free &= !taken;
            if taken && !backlog && !crowded {
                record.lost_ns = record.lost_ns - record.lost_ns / 8 + (lasted - cost) / 8;
            }
        }
        if !backlog {
            self.see_whether_even(now);
        }
        self.phase = Phase::Quiet {
            open: Some(id),
            since_ns: u64::MAX,
        };
    }

    /// Whether a waiting claim has had less, relative to its share, than the claim whose turn began at `began_ns`.
    fn is_behind(&self, now: u64, id: u64, began_ns: u64, claims: &[Claim<'_>]) -> bool {
        let ahead = |id: u64| self.find(id).map_or(0.0, |r| r.ahead_ns);
        let share = self.find(id).map_or(0.0, |r| r.usual.share).max(1e-3);
        let mine = ahead(id) + now.saturating_sub(began_ns) as f64 / share;
        let others = claims.iter().filter(|c| c.is_gated && c.id != id);
        let waits = |c: &&Claim<'_>| c.processes.iter().any(|p| p.waiting);
        others.filter(waits).any(|c| ahead(c.id) < mine)
    }

    /// Charges time on the GPU, or `counted` instead of the actual time; lingering work beside it gets its part.
    fn charge(
        &mut self,
        now: u64,
        holder: Holder,
        ns: u64,
        counted: Option<u64>,
        claims: &[Claim<'_>],
    ) {
        let mut who: Vec<u64> = Vec::new();
        for claim in claims {
            let busy = self.state(claim).busy;
            if let Some(record) = self.record(claim.id) {
                record.lingers &= busy;
                // Work that it queued while it had the GPU to itself also runs beside others' turns.
                let is_beside = record.lingers || record.was_free && busy;
                if is_beside && holder != Holder::Claim(claim.id) {
                    who.push(claim.id);
                }
            }
        }
        if let Holder::Claim(id) = holder
            && !self.lit.contains(&id)
        {
            for id in std::mem::take(&mut self.beside) {
                if !who.contains(&id) {
                    who.push(id);
                }
            }
        }
        let parts = who.len() as u64 + 1;
        match holder {
            Holder::Claim(id) => who.push(id),
            Holder::Light | Holder::Nobody => {}
        }
        let wanting: Vec<&Claim<'_>> = claims
            .iter()
            .filter(|c| who.contains(&c.id) || self.find(c.id).is_some_and(|r| r.wants))
            .collect();
        let shares = divide(&wanting);
        self.turns += 1;
        let turn = self.turns;
        for (claim, share) in wanting.iter().zip(&shares.claims) {
            if let Some(record) = self.record(claim.id) {
                record.usual.share = *share;
            }
            if let Some(record) = self.record(claim.id).filter(|r| who.contains(&r.id)) {
                record.used_ns += ns / parts;
                let counted = (counted.unwrap_or(ns) / parts) as f64 / share.max(1e-3);
                record.ahead_ns += counted;
                record.last_turn = (now, counted);
                record.usual.last = turn;
            }
        }
        if holder == Holder::Nobody && shares.nobody > 0.0 {
            self.nobody_ahead_ns += ns as f64 / shares.nobody;
        }
    }

    /// Charges the time in which light claims had the GPU, and ends it when they have finished.
    fn release_light(
        &mut self,
        now: u64,
        began_ns: u64,
        claims: &[Claim<'_>],
        is_alive: &mut dyn FnMut(u64, usize) -> bool,
    ) {
        let lit = std::mem::take(&mut self.lit);
        let lasted = now.saturating_sub(began_ns);
        let late_ns = self.late_ns;
        let lost_ns = self.lost_ns(now, claims);
        for id in &lit {
            let each = lasted / lit.len() as u64;
            self.charge(now, Holder::Claim(*id), each, None, claims);
            let claim = claims.iter().find(|c| c.id == *id);
            if let Some((claim, record)) = claim.zip(self.record(*id)) {
                // The change back to another context takes as long as the one to its own.
                let back_ns = record.pauses.late_ns().saturating_sub(late_ns);
                let demand = &mut record.demand;
                demand.had_way(each, back_ns, lost_ns, claim.request_permille);
                self.spaced.made_way(*id, each + back_ns);
            }
        }
        for claim in claims.iter().filter(|c| c.is_gated) {
            let state = self.state(claim);
            if state.busy && now >= state.expected_ns.saturating_add(LATE_NS) {
                let stuck = |p: &Process| p.busy && !is_alive(claim.id, p.slot);
                let dead: Vec<usize> = filter_slots(claim, stuck);
                self.dismiss(claim, |p| dead.contains(&p.slot));
            }
        }
        self.light_up(now, claims, &lit);
        if self.lit.is_empty() {
            self.phase = Phase::QUIET;
        } else if let Phase::Turn { began_ns, .. } = &mut self.phase {
            *began_ns = now.max(*began_ns);
        }
    }

    /// Light claims with work. Work that is nearly over does not count: it ends before the next claim can launch.
    fn light_at_work(&mut self, now: u64, claims: &[Claim<'_>], before: &[u64]) -> Vec<u64> {
        let soon = now + self.late_ns;
        let mut lit = Vec::new();
        for claim in claims.iter().filter(|c| c.is_gated) {
            let state = self.state(claim);
            // A claim that is not seen at its beginnings would not be known at all.
            let over_ns = |p: &Process| match before.contains(&claim.id) {
                true => self.over_ns(claim.id, p),
                false => self.over_ns(claim.id, p).max(self.behind_ns(p)),
            };
            let over = claim.processes.iter().filter(|p| p.busy).map(over_ns).max();
            let busy = state.busy && over > Some(soon);
            if (busy || state.waiting) && !self.is_heavy(claim.id) {
                lit.push(claim.id);
            }
        }
        lit
    }

    /// End of a light claim's work, from what its last ones took.
    fn over_ns(&self, id: u64, p: &Process) -> u64 {
        let behind_ns = self.behind_ns(p);
        let seen_ns = self.find(id).and_then(|r| r.pauses.seen_ns(behind_ns));
        // The end is seen as late as others hear of it.
        seen_ns.map_or(behind_ns, |ns| ns.saturating_sub(self.late_ns))
    }

    /// The same from what it told alone; it waits for the work on the GPU.
    fn behind_ns(&self, p: &Process) -> u64 {
        let (from_ns, until_ns) = self.clear_ns;
        let is_since = p.said_ns >= from_ns;
        let waits_ns = until_ns.saturating_sub(p.said_ns);
        p.expected_ns
            .saturating_add(if is_since { waits_ns } else { 0 })
    }

    /// What a light claim is told.
    fn light(&self, id: u64, is_set: bool) -> Says {
        let more = match self.find(id).map(|r| &r.pauses) {
            Some(pauses) if is_set && pauses.goes_on() => Flags::ENDS,
            Some(pauses) if !is_set && pauses.is_as_told() => Flags::LATER,
            _ => Flags::NONE,
        };
        Says {
            flags: Says::LIGHT.flags.and(more),
            ..Says::LIGHT
        }
    }

    /// When the work of the light claims at work is nearly over.
    fn light_until_ns(&self, claims: &[Claim<'_>]) -> Option<u64> {
        let lit = claims.iter().filter(|c| self.lit.contains(&c.id));
        let all = lit.flat_map(|c| c.processes.iter().map(|p| (c.id, p)));
        let busy = all.filter(|(_, p)| p.busy);
        let over = busy.map(|(id, p)| self.over_ns(id, p)).max()?;
        Some(over.saturating_sub(self.late_ns))
    }

    /// Light claims have work: the heavy claim in turn stops, and is charged for its work that is still on the GPU.
    fn give_way(&mut self, now: u64, claims: &[Claim<'_>]) {
        let (mut from_ns, mut clear_ns, mut is_light) = (now, now, false);
        if let Phase::Turn {
            holder, began_ns, ..
        } = self.phase
        {
            is_light = holder == Holder::Light;
            from_ns = began_ns;
            let heavy = |c: &&Claim<'_>| holder == Holder::Claim(c.id) && self.is_heavy(c.id);
            let heavy = claims.iter().find(heavy);
            if let Some(state) = heavy.map(|c| self.state(c)).filter(|s| s.busy) {
                clear_ns = state.expected_ns.clamp(now, now + MOST_TURN_NS);
            }
        }
        if !is_light {
            self.clear_ns = (from_ns, clear_ns);
        }
        let lit = std::mem::take(&mut self.lit);
        self.light_up(now, claims, &lit);
        if self.lit.is_empty() || is_light {
            return;
        }
        if let Phase::Turn {
            holder,
            began_ns,
            taken,
            ..
        } = self.phase
        {
            if let Holder::Claim(id) = holder {
                if let Some(record) = self.record(id) {
                    record.was_free &= !taken;
                }
                if self.is_spaced_from(now, id, clear_ns.saturating_sub(began_ns), claims) {
                    self.lit.clear();
                    return;
                }
            }
            self.charge(now, holder, clear_ns.saturating_sub(began_ns), None, claims);
            self.even_ns = None;
        }
        for claim in claims.iter().filter(|c| self.lit.contains(&c.id)) {
            let said = claim.processes.iter().map(|p| p.said_ns).max();
            let late = now.saturating_sub(said.unwrap_or(now)).min(LATE_AT_MOST_NS);
            self.late_ns = self.late_ns - self.late_ns / 8 + late / 8;
        }
        self.hand_overs += 1;
        self.phase = Phase::Turn {
            holder: Holder::Light,
            began_ns: clear_ns,
            ends_ns: u64::MAX,
            due_ns: u64::MAX,
            empty_since_ns: None,
            stamps: 0,
            used_ns: 0,
            taken: true,
            backlog: false,
            crowded: false,
            is_only: false,
        };
    }

    /// Gives the next turn, or leaves the GPU to the active claims.
    fn decide(&mut self, now: u64, claims: &[Claim<'_>], orders: &mut Vec<Order>) -> Option<u64> {
        let mut contenders = Vec::with_capacity(claims.len());
        for claim in claims.iter().filter(|c| c.is_gated) {
            if self.is_active(now, claim.id) {
                contenders.push((claim, self.state(claim)));
            }
        }
        let only = match contenders[..] {
            [] => Some(None),
            [(claim, _)] if claim.limit_permille >= 1000 => Some(Some(claim.id)),
            _ => None,
        };
        if let Some(only) = only {
            return self.leave_to(now, only, claims, orders);
        }
        if let Phase::Quiet { open, since_ns } = self.phase
            && since_ns != u64::MAX
        {
            // Time alone counts like any other; meanwhile the others' debts fade.
            if let Some(record) = open.and_then(|id| self.record(id)) {
                record.ahead_ns += now.saturating_sub(since_ns) as f64;
            }
            self.see_newcomer(now, open, claims);
            self.phase = Phase::Quiet {
                open,
                since_ns: u64::MAX,
            };
        }
        let spared = self.spared(now, &contenders);
        if !self.is_scarce || spared.is_some() {
            self.phase = Phase::Plenty;
            let there = |id: u64| contenders.iter().any(|(c, _)| c.id == id);
            self.level(&there);
            // All have all that they want: no debts.
            let middle = self.middle();
            for record in self.records.iter_mut().filter(|r| there(r.id)) {
                record.ahead_ns = middle;
            }
            for claim in claims.iter().filter(|c| c.is_gated) {
                let says = match spared {
                    None => Says::OPEN,
                    Some(id) if claim.id == id => Says {
                        ahead_ns: QUEUED_NS,
                        ..Says::OPEN
                    },
                    Some(_) => Says::SHORT,
                };
                self.order(claim.id, says, orders);
            }
            return Some(self.next_look_ns(claims));
        }
        let wanting: Vec<(&Claim<'_>, State)> = contenders
            .iter()
            .copied()
            .filter(|(c, s)| self.is_heavy(c.id) && (s.waiting || s.busy))
            .collect();
        let held = match self.phase {
            Phase::Turn {
                holder: Holder::Claim(id),
                ..
            } => Some(id),
            _ => None,
        };
        self.level(&|id| contenders.iter().any(|(c, _)| c.id == id) || held == Some(id));
        if !self.stays_spaced(now, claims) {
            self.give_way(now, claims);
        }
        match self.phase {
            Phase::Turn { .. } => {}
            Phase::Quiet { open, .. } => self.next_turn(now, open, &wanting),
            Phase::Plenty => self.next_turn(now, None, &wanting),
        }
        self.shorten(now, &wanting);
        self.announce(now, claims, orders)
    }

    /// The only heavy claim, if it has several GPUs: a pause for a light claim here is a pause on all of them. So
    /// bursts of light claims that end within the time that it may have queued run between its slices.
    fn spared(&self, now: u64, contenders: &[(&Claim<'_>, State)]) -> Option<u64> {
        let mut heavy = contenders.iter().filter(|(c, _)| self.is_heavy(c.id));
        let (claim, _) = heavy.next()?;
        let is_one = heavy.next().is_none() && claim.limit_permille >= 1000;
        let long = |(c, s): &(&Claim<'_>, State)| {
            c.id != claim.id && s.busy && s.expected_ns > now + QUEUED_NS
        };
        let is_spared = is_one && claim.has_many() && !contenders.iter().any(long);
        is_spared.then_some(claim.id)
    }

    /// At most one claim works: it need not ask, and the others report when they begin.
    fn leave_to(
        &mut self,
        now: u64,
        only: Option<u64>,
        claims: &[Claim<'_>],
        orders: &mut Vec<Order>,
    ) -> Option<u64> {
        let (before, since) = match self.phase {
            Phase::Quiet { open, since_ns } => (open, since_ns),
            Phase::Plenty | Phase::Turn { .. } => (None, u64::MAX),
        };
        let limited = |id: u64| claims.iter().any(|c| c.id == id && c.limit_permille < 1000);
        let open = only.or(before).filter(|id| !limited(*id));
        let is_same = open == before && since != u64::MAX;
        self.phase = Phase::Quiet {
            open,
            since_ns: if is_same { since } else { now },
        };
        self.is_scarce = false;
        self.level(&|id| only == Some(id));
        if !is_same {
            self.count_demand_from(now, claims);
        }
        for claim in claims.iter().filter(|c| c.is_gated) {
            let says = if open == Some(claim.id) {
                Says::ALONE
            } else {
                Says::LIGHT
            };
            self.order(claim.id, says, orders);
        }
        None
    }

    /// Limits the lead and the debt of claims that arrive or come back.
    fn level(&mut self, wants: &dyn Fn(u64) -> bool) {
        let ahead_of = |which: &dyn Fn(&Record) -> bool, best: fn(f64, f64) -> f64| {
            let wanting = self.records.iter().filter(|r| which(r));
            wanting.map(|r| r.ahead_ns).reduce(best)
        };
        let floor = ahead_of(&|r| r.wants && wants(r.id), f64::min)
            .or_else(|| ahead_of(&|r| wants(r.id), f64::max))
            .unwrap_or(0.0);
        for record in &mut self.records {
            let now_wants = wants(record.id);
            // A light claim never uses all of its share; the rest is not saved up.
            if now_wants && (!record.wants || !record.demand.heavy) {
                let least = floor - CREDIT_NS;
                record.ahead_ns = record.ahead_ns.clamp(least, floor + DEBT_NS);
            }
            record.wants = now_wants;
        }
        self.nobody_ahead_ns = self.nobody_ahead_ns.max(floor - CREDIT_NS);
    }

    fn announce(&mut self, now: u64, claims: &[Claim<'_>], orders: &mut Vec<Order>) -> Option<u64> {
        let Phase::Turn {
            holder,
            began_ns,
            ends_ns,
            due_ns,
            empty_since_ns,
            taken,
            backlog,
            crowded,
            ..
        } = self.phase
        else {
            return None;
        };
        let gated = || claims.iter().filter(|c| c.is_gated);
        let has_light = gated().any(|c| !self.is_heavy(c.id) && self.is_active(now, c.id));
        let is_set = claims.iter().any(Claim::has_many);
        let plan = match holder {
            Holder::Light if !is_set => self.foresee(now, claims),
            Holder::Light | Holder::Claim(_) | Holder::Nobody => None,
        };
        let lit = self.records.iter().filter(|r| self.lit.contains(&r.id));
        let rings_at_end = { lit }.all(|r| r.flags.has(Flags::ENDS));
        let spaced = self.spaced.told();
        // All others stop before the holder begins.
        for claim in gated().filter(|c| holder != Holder::Claim(c.id)) {
            let says = match &plan {
                Some(plan) if plan.id == claim.id => plan.says,
                _ if self.is_heavy(claim.id) => Says::CLOSED,
                _ if spaced.is_some_and(|(id, _)| id == claim.id) => Says {
                    flags: Says::SHORT.flags.and(Flags::SPACED),
                    ..Says::SHORT
                },
                _ => self.light(claim.id, is_set),
            };
            self.order(claim.id, says, orders);
        }
        if let Some(plan) = plan {
            let next_ns = plan.next_ns;
            self.keep_plan(plan);
            return Some(next_ns);
        }
        // Work that would delay a light claim that is due goes after it.
        let back = self.expected_back(now, holder);
        let back = back.filter(|_| has_light && spaced.is_none());
        let due = back.map(|(from, _)| from).filter(|from| *from <= ends_ns);
        if let Holder::Claim(id) = holder {
            let crowd = if crowded { Flags::CROWD } else { Flags::NONE };
            let usual_ns = if has_light { AHEAD_LIGHT_NS } else { QUEUED_NS };
            let says = Says {
                turn_ends_ns: due.unwrap_or(ends_ns),
                ahead_ns: spaced.map_or(usual_ns, |(_, ns)| ns),
                flags: match due {
                    Some(_) => crowd.and(Flags::DUE),
                    None if spaced.is_some() => crowd.and(Flags::SPACED),
                    None => crowd,
                },
                ..Says::just(Mode::Turn)
            };
            self.order(id, says, orders);
        }
        // With one heavy claim, or while the holder's work is in time, there is nothing to decide until a process calls.
        let heavy = gated().filter(|c| self.is_heavy(c.id) && self.is_active(now, c.id));
        let is_only = heavy.count() < 2;
        let mut beat = now + if is_only { SILENCE_NS / 2 } else { PERIOD_NS };
        // Work elsewhere of a claim with a turn there may wait for a launch here, or soon will.
        let others =
            || gated().filter(|c| c.elsewhere_ns.is_some() && holder != Holder::Claim(c.id));
        let is_met = others().any(|c| c.processes.iter().any(|p| p.waiting));
        // A claim that used its last turn reports the end of this one, unless a light claim is due then.
        let used_last = |id| self.find(id).is_some_and(|r| r.has_taken);
        let reports = matches!(holder, Holder::Claim(id) if used_last(id)) && due.is_none();
        let trusted_ns = began_ns + SILENCE_NS / 2;
        let is_trusted = reports && !taken && !backlog && !is_met && now < trusted_ns;
        if is_trusted {
            beat = (ends_ns + LEAST_TURN_NS).clamp(trusted_ns, trusted_ns + SILENCE_NS / 10);
        }
        if let Some(claim) = gated().find(|c| holder == Holder::Claim(c.id)) {
            let state = self.state(claim);
            let late = state.expected_ns.max(due_ns).saturating_add(LATE_NS);
            let most = together_until_ns(began_ns, due_ns);
            if state.busy && !backlog && !is_met && late > now {
                beat = late.min(now + SILENCE_NS / 2);
            }
            if state.busy && claim.is_spread && most > now {
                beat = beat.min(most);
            }
        }
        if holder == Holder::Light {
            // Processes whose work is over or waits call by themselves.
            let until = self.light_until_ns(claims);
            let until = until.filter(|until| *until > now && !rings_at_end);
            return Some(until.map_or(beat, |until| until.min(beat)));
        }
        // A holder that has finished calls.
        let looks_at_end = holder == Holder::Nobody || (taken && empty_since_ns.is_some());
        let next = if looks_at_end {
            ends_ns.max(now + REST_NS).min(beat)
        } else {
            beat
        };
        let empty = empty_since_ns.filter(|_| !is_trusted);
        let empty = empty.map_or(beat, |since| (since + TAKE_NS).max(now + 1));
        let of_holder = claims.iter().find(|c| holder == Holder::Claim(c.id));
        let torn = of_holder.and_then(|c| torn_at_ns(now, c, true));
        let torn = torn.map_or(beat, |at| match at > now {
            true => (at.max(ends_ns).max(now + REST_NS)).min(ends_ns.max(now) + TEAR_NS),
            false => ends_ns.max(now) + TORN_NS,
        });
        let back = back.map_or(beat, |(_, until)| until.max(now + 1));
        // A holder whose turn is over by then calls at the end of its work.
        let drains = of_holder.is_some_and(|c| c.processes.iter().any(|p| p.busy));
        let until_ns = if drains { ends_ns } else { u64::MAX };
        let late = others().filter_map(|c| torn_at_ns(now, c, false));
        let late = late.filter(|at| *at > now && *at < until_ns).min();
        let late = late.map_or(beat, |at| at.max(now + REST_NS));
        Some(next.min(empty).min(torn).min(back).min(late))
    }
}

/// Until when others wait for the end of a turn of a claim with several GPUs: its work may wait for a launch on another.
fn together_until_ns(began_ns: u64, due_ns: u64) -> u64 {
    let least = began_ns.saturating_add(BACKLOG_AT_MOST_NS + CYCLE_NS);
    least.max(due_ns.saturating_add(BACKLOG_AT_MOST_NS - CYCLE_NS))
}

/// Its work on one GPU waits for launches that its turn forbids on another of these.
fn is_torn(now: u64, claim: &Claim<'_>) -> bool {
    let idle = |gpu| claim.processes.iter().all(|p| p.gpu != gpu || !p.busy);
    let late = |p: &Process| p.busy && now >= p.expected_ns.saturating_add(TORN_NS);
    let waits = |p: &Process| p.waiting && idle(p.gpu);
    claim.everywhere().any(late) && claim.processes.iter().any(waits)
}

/// When that begins, if none of its work begins or ends until then. A claim that has the turn reports the end of its
/// work where a thread waits.
fn torn_at_ns(now: u64, claim: &Claim<'_>, has_turn: bool) -> Option<u64> {
    let late = claim.everywhere().filter(|p| p.busy);
    let late = late.map(|p| p.expected_ns.saturating_add(TORN_NS)).min()?;
    let over = |gpu| {
        let busy = claim.processes.iter().filter(|p| p.gpu == gpu && p.busy);
        busy.map(|p| p.expected_ns.max(now + TEAR_NS)).max()
    };
    let waits = claim.processes.iter().filter(|p| p.waiting);
    let over = waits.map(|p| over(p.gpu).unwrap_or(0)).min()?;
    (!has_turn || over == 0).then_some(late.max(over))
}

fn stamps_of(claim: &Claim<'_>) -> u64 {
    claim
        .processes
        .iter()
        .fold(0, |sum, p| sum.wrapping_add(p.stamp))
}

/// Sum of a figure of the claim's processes.
fn sum_of(claim: &Claim<'_>, figure: impl Fn(&Process) -> u64) -> u64 {
    claim
        .processes
        .iter()
        .map(figure)
        .fold(0, u64::saturating_add)
}

fn used_by(claim: &Claim<'_>) -> u64 {
    sum_of(claim, |p| p.used_ns)
}

fn of_holder(holder: Holder, claims: &[&Claim<'_>], figure: fn(&Claim<'_>) -> u64) -> u64 {
    match holder {
        Holder::Claim(id) => claims.iter().find(|c| c.id == id).map_or(0, |c| figure(c)),
        Holder::Light | Holder::Nobody => 0,
    }
}

fn filter_slots(claim: &Claim<'_>, mut which: impl FnMut(&Process) -> bool) -> Vec<usize> {
    claim
        .processes
        .iter()
        .filter(|p| which(p))
        .map(|p| p.slot)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn process(gpu: usize, waiting: bool, expected_ns: u64) -> Process {
        Process {
            slot: gpu,
            gpu,
            waiting,
            busy: expected_ns > 0,
            expected_ns,
            used_ns: 0,
            held_ns: 0,
            demand_ns: 0,
            waited_ns: 0,
            said_ns: 0,
            since_ns: 0,
            launches: 0,
            stamp: 1,
        }
    }

    fn claim(id: u64, processes: &[Process]) -> Claim<'_> {
        Claim {
            id,
            request_permille: 500,
            limit_permille: 1000,
            tier: 0,
            weight_milli: 1000,
            is_gated: true,
            is_spread: false,
            elsewhere: &[],
            elsewhere_ns: None,
            word: Word::default(),
            processes,
        }
    }

    /// Two heavy claims with these processes each.
    fn of_two(began: u64, waits: &[Process]) -> Arbiter {
        let mut arbiter = Arbiter::default();
        arbiter.keep_records(began, &[claim(0, waits), claim(1, waits)]);
        (arbiter.looked_ns, arbiter.low_since_ns) = (began, began);
        arbiter.is_scarce = true;
        for record in &mut arbiter.records {
            record.demand.heavy = true;
        }
        arbiter
    }

    /// What the first of two claims is told, if that is new.
    fn order_of_first(
        arbiter: &mut Arbiter,
        now: u64,
        mine: &[Process],
        others: &[Process],
    ) -> Option<(Mode, u64)> {
        let own = order_by_part(arbiter, now, 500, mine, others);
        own.map(|order| (order.word.mode(), order.turn_ends_ns))
    }

    /// The same, where the first has this many thousandths and the other the rest.
    fn order_by_part(
        arbiter: &mut Arbiter,
        now: u64,
        part: u32,
        mine: &[Process],
        others: &[Process],
    ) -> Option<Order> {
        let mut orders = Vec::new();
        let mut claims = [claim(0, mine), claim(1, others)];
        claims[0].request_permille = part;
        claims[1].request_permille = 1000 - part;
        arbiter.step(now, &claims, &mut |_, _| true, &mut orders);
        orders.into_iter().find(|order| order.id == 0)
    }

    /// Two claims on two GPUs, each of which mostly needs another one, also after a change of the set of GPUs, of their
    /// arbiters, or without an earlier one.
    #[test]
    fn what_a_claim_needs_of_one_gpu_it_does_not_need_of_the_next() {
        let word = |_| Some(Word::default());
        let need = |gpu: usize, now: u64, permille: u64| Process {
            demand_ns: now / 1000 * permille,
            said_ns: now,
            stamp: now,
            ..process(gpu, false, 0)
        };
        let look = |arbiter: &mut Arbiter, look: u64, gpus: &[usize]| {
            let now = 1000 * MS + look * 25 * MS;
            let of = |needs: [u64; 2]| -> Vec<Process> {
                let places = gpus.iter().enumerate();
                places.map(|(at, gpu)| need(at, now, needs[*gpu])).collect()
            };
            let (mine, other) = (of([700, 100]), of([100, 700]));
            let claims = [claim(0, &mine), claim(1, &other)];
            arbiter.step(now, &claims, &mut |_, _| true, &mut Vec::new());
            assert!(!arbiter.is_scarce, "800 thousandths of each, look {look}");
        };
        let [mut both, mut first, mut second] = [(); 3].map(|()| Arbiter::default());
        for at in 0..40 {
            look(&mut both, at, &[0, 1]);
            look(&mut first, at, &[0]);
            look(&mut second, at, &[1]);
        }
        let cases = [
            [Some((&both, 0)), Some((&both, 1))],
            [Some((&first, 0)), Some((&second, 0))],
            [Some((&first, 0)), None],
        ];
        for before in cases {
            let mut arbiter = Arbiter::regrouped(&before, word);
            let needs: Vec<Vec<f64>> = arbiter
                .records
                .iter()
                .map(|r| r.demand.ran.clone())
                .collect();
            let near = |needs: &[f64], of: [f64; 2]| {
                let of = [of[0], if before[1].is_some() { of[1] } else { 0.0 }];
                needs
                    .iter()
                    .zip(of)
                    .all(|(got, wanted)| (got - wanted).abs() < 0.01)
            };
            assert!(near(&needs[0], [0.7, 0.1]), "{needs:?}");
            assert!(near(&needs[1], [0.1, 0.7]), "{needs:?}");
            for at in 40..80 {
                look(&mut arbiter, at, &[0, 1]);
            }
        }
    }

    /// A claim that needs much more than before, and another, until the GPU is scarce.
    #[test]
    fn what_claims_took_while_all_launched_is_counted_once() {
        let (mut arbiter, mut now, mut ran_ns) = (Arbiter::default(), 1000 * MS, [0, 0]);
        for at in 0.. {
            assert!(at < 80, "it becomes scarce");
            now += 25 * MS;
            ran_ns[0] += if at < 40 { 5 * MS } else { 25 * MS };
            ran_ns[1] += 12 * MS;
            let both = ran_ns.map(|demand_ns| {
                [Process {
                    demand_ns,
                    said_ns: now,
                    stamp: now,
                    ..process(0, false, 0)
                }]
            });
            let claims = [claim(0, &both[0]), claim(1, &both[1])];
            let looked_ns = arbiter.looked_ns;
            arbiter.step(now, &claims, &mut |_, _| true, &mut Vec::new());
            if arbiter.is_scarce {
                let counted: f64 = arbiter.records.iter().map(|r| r.ahead_ns / 2.0).sum();
                let window_ns = (now - looked_ns) as f64;
                assert!((counted / window_ns - 1.0).abs() < 0.01, "{counted}");
                break;
            }
        }
    }

    /// A light claim that works for 0.1 ms of each millisecond, whose end is seen 0.14 ms late, and a flood whose work has
    /// run this long by then: the time, and what both say, in a millisecond when that work begins, and when it ends.
    fn beside_a_flood(ms: u64, busy: bool, ran_us: u64) -> (u64, [Process; 2]) {
        const WORK_NS: u64 = 100_000;
        const SEEN_NS: u64 = 240_000;
        let begins = 1000 * MS + ms * MS;
        let now = begins + if busy { 0 } else { SEEN_NS };
        let said = |busy, waiting, expected_ns| Process {
            busy,
            said_ns: now,
            stamp: now,
            ..process(0, waiting, expected_ns)
        };
        let steps = if busy { ms } else { ms + 1 };
        let light = Process {
            held_ns: steps * SEEN_NS,
            demand_ns: (ms + 1) * WORK_NS,
            ..said(busy, false, begins + WORK_NS)
        };
        let used_ns = (ms + 1) * ran_us * 1000;
        let flood = Process {
            used_ns,
            held_ns: used_ns,
            ..said(busy, true, begins)
        };
        (now, [light, flood])
    }

    /// These as claims 0, with a quarter of the GPU, and 1, of which one is known to be heavy.
    fn light_and_flood() -> Arbiter {
        let now = 1000 * MS;
        let mut arbiter = of_two(now, &[]);
        let [light, flood] = [[process(0, false, 0)], [process(0, true, 0)]];
        arbiter.count_demand_from(now, &[claim(0, &light), claim(1, &flood)]);
        (arbiter.low_since_ns, arbiter.is_scarce) = (now, true);
        arbiter.records[1].demand.heavy = true;
        arbiter
    }

    fn quarter(id: u64, processes: &[Process]) -> Claim<'_> {
        Claim {
            request_permille: 250,
            ..claim(id, processes)
        }
    }

    /// The time that a light claim's hand-overs take is no more than the flood's work lost.
    #[test]
    fn a_light_claim_has_taken_no_more_than_the_others_lost() {
        for (ran_us, is_heavy) in [(760, false), (700, true)] {
            let mut arbiter = light_and_flood();
            for (ms, busy) in (0..95).flat_map(|ms| [(ms, true), (ms, false)]) {
                let (now, [light, flood]) = beside_a_flood(ms, busy, ran_us);
                let (light, flood) = ([light], [flood]);
                let claims = [quarter(0, &light), claim(1, &flood)];
                arbiter.step(now, &claims, &mut |_, _| true, &mut Vec::new());
                assert!(is_heavy || !arbiter.is_heavy(0), "after {ms} ms");
            }
            assert_eq!(arbiter.is_heavy(0), is_heavy, "{ran_us} us");
        }
    }

    /// A turn is planned, and claims go or come before it begins.
    #[test]
    fn a_planned_turn_begins_or_not_with_the_claims_that_are_left() {
        let mut planned = light_and_flood();
        let mut ms = 0;
        while planned.plan.is_none() {
            assert!(ms < 50, "there is a plan");
            for busy in [false, true] {
                let (now, [light, flood]) = beside_a_flood(ms + u64::from(busy), busy, 760);
                let (light, flood) = ([light], [flood]);
                let claims = [quarter(0, &light), claim(1, &flood)];
                planned.step(now, &claims, &mut |_, _| true, &mut Vec::new());
            }
            ms += 1;
        }
        let (_, [light, flood]) = beside_a_flood(ms, true, 760);
        let (light, flood, other) = (
            [light],
            [Process {
                busy: false,
                ..flood
            }],
            [],
        );
        let of = |id: usize| match id {
            0 => quarter(0, &light),
            1 => claim(1, &flood),
            id => claim(id as u64, &other),
        };
        // Whose turn it is, none where one claim alone works, and which claims may launch.
        for (left, turn, open) in [
            (&[0, 1][..], Some(1), &[0, 1][..]),
            (&[0], None, &[0]),
            (&[1], None, &[1]),
            (&[0, 1, 2], Some(1), &[0, 1, 2]),
            (&[2, 1], None, &[1, 2]),
        ] {
            let mut arbiter = planned.clone();
            let claims: Vec<Claim<'_>> = left.iter().map(|id| of(*id)).collect();
            let at = planned.find(1).expect("known").turn_begins_ns + 1;
            let mut orders = Vec::new();
            arbiter.step(at, &claims, &mut |_, _| true, &mut orders);
            assert_eq!(arbiter.turn().map(|(id, _)| id), turn, "{left:?}");
            // It knows already.
            let told = orders.iter().any(|order| order.id == 1);
            assert!(!told || turn.is_none(), "{left:?}: {orders:?}");
            let may = |id: &u64| {
                let mode = arbiter.find(*id).map(|r| r.word.mode());
                mode.is_some_and(|mode| mode != Mode::Closed)
            };
            let may: Vec<u64> = (0..3).filter(may).collect();
            assert_eq!(may, open, "{left:?}");
        }
    }

    /// A light claim's work of 1 ms, each 10 ms, whose end is seen 0.1 ms late; then work that goes on when it should end.
    #[test]
    fn work_that_goes_on_did_not_end_as_told() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        arbiter.records[0].demand.heavy = false;
        let mut step = |now: u64, said_ns: u64, held_ns: u64, expected_ns: u64| {
            let lit = [Process {
                stamp: said_ns,
                said_ns,
                held_ns,
                demand_ns: held_ns / 11 * 10 + if expected_ns > 0 { MS } else { 0 },
                ..process(0, false, expected_ns)
            }];
            let claims = [claim(0, &lit), claim(1, &waits)];
            arbiter.step(now, &claims, &mut |_, _| true, &mut Vec::new());
            arbiter.records[0].pauses.is_as_told()
        };
        let work_ns = MS + MS / 10;
        for at in 0..8 {
            let begins_ns = began + at * 10 * MS;
            let ends_ns = begins_ns + work_ns;
            let is_as_told = step(begins_ns, begins_ns, at * work_ns, begins_ns + MS);
            assert_eq!(is_as_told, at > 4, "step {at}");
            step(ends_ns, ends_ns, (at + 1) * work_ns, 0);
        }
        let begins_ns = began + 80 * MS;
        assert!(step(begins_ns, begins_ns, 8 * work_ns, begins_ns + MS));
        assert!(step(begins_ns + MS, begins_ns, 8 * work_ns, begins_ns + MS));
        let more_ns = begins_ns + work_ns;
        assert!(!step(more_ns, more_ns, 9 * work_ns, more_ns + MS));
    }

    /// A light claim launches more before its work is over, again and again.
    #[test]
    fn work_that_goes_on_is_not_looked_at_whenever_it_should_end_where_claims_have_several_gpus() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        for is_spread in [false, true] {
            let mut arbiter = of_two(began, &waits);
            arbiter.records[0].demand.heavy = false;
            let (mut now, mut orders) = (began, Vec::new());
            let looks = [(); 6].map(|()| {
                let lit = [Process {
                    stamp: now,
                    said_ns: now,
                    ..process(0, false, now + 2 * MS)
                }];
                let mut claims = [claim(0, &lit), claim(1, &waits)];
                claims[0].is_spread = is_spread;
                let next = arbiter.step(now, &claims, &mut |_, _| true, &mut orders);
                let ends_ns = now + 2 * MS;
                let next = next.expect("a look");
                now = next.min(ends_ns);
                next <= ends_ns
            });
            let rings = orders.iter().any(|o| o.id == 0 && o.flags.has(Flags::ENDS));
            let few = [true, true, true, true, true, false];
            assert_eq!(looks, if is_spread { few } else { [true; 6] });
            assert_eq!(rings, is_spread);
        }
    }

    /// A claim with the turn on another GPU, whose work there will wait for a launch here, beside a turn that ends sooner.
    #[test]
    fn a_turn_that_ends_before_others_work_is_torn_is_not_looked_at_then() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        // Another claim is behind: the turn ends after the shortest time.
        for (work_ns, looks) in [(MS, true), (LEAST_TURN_NS, false)] {
            let mut arbiter = of_two(began, &waits);
            let mut step = |now, mine: &[Process], there: &[Process]| {
                let mut claims = [claim(0, mine), claim(1, &waits)];
                if !there.is_empty() {
                    claims[1].elsewhere = there;
                    claims[1].elsewhere_ns = Some(began + 90 * MS);
                }
                arbiter.step(now, &claims, &mut |_, _| true, &mut Vec::new())
            };
            step(began, &waits, &[]);
            let mine = [Process {
                stamp: 2,
                ..process(0, true, began + 50 * MS)
            }];
            let there = [process(1, false, began + work_ns)];
            let next = step(began + MS, &mine, &there).expect("a look");
            let torn_ns = began + work_ns + TORN_NS;
            assert_eq!(next == torn_ns, looks, "{} us", (next - began) / 1000);
        }
    }

    /// A turn that counts as three, with another claim's kernel on the GPU all the time.
    #[test]
    fn what_is_shown_of_a_turn_is_the_time_that_it_took() {
        let (began, busy) = (1000 * MS, [process(0, false, 9000 * MS)]);
        let mut arbiter = of_two(began, &busy);
        for record in &mut arbiter.records {
            (record.wants, record.usual.share) = (true, 0.5);
        }
        arbiter.records[0].lingers = true;
        arbiter.records[1].usual.owed_ns = 300e6;
        arbiter.even_ns = Some(100 * MS);
        arbiter.phase = Phase::Turn {
            holder: Holder::Claim(1),
            began_ns: began,
            ends_ns: began + 100 * MS,
            due_ns: began + 100 * MS,
            empty_since_ns: None,
            stamps: 1,
            used_ns: 0,
            taken: true,
            backlog: false,
            crowded: false,
            is_only: false,
        };
        let through = [Process {
            used_ns: 100 * MS,
            ..process(0, false, 0)
        }];
        let claims = [claim(0, &busy), claim(1, &through)];
        arbiter.step(began + 100 * MS, &claims, &mut |_, _| true, &mut Vec::new());
        let shown = [0, 1].map(|id| arbiter.used_ns(id) / MS);
        assert_eq!(shown, [50, 50]);
        assert!(arbiter.records[1].ahead_ns > 2.0 * arbiter.records[1].used_ns as f64);
    }

    /// A claim on two GPUs that gets another neighbour on one of them.
    #[test]
    fn what_claims_owe_each_other_outlives_another_set_of_gpus() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        for behind in [0, 1] {
            let mut before = of_two(began, &waits);
            for record in &mut before.records {
                record.wants = true;
                record.ahead_ns = if record.id == behind { 0.0 } else { 30e6 };
            }
            let mut arbiter = Arbiter::regrouped(&[Some((&before, 0))], |_| Some(Word::default()));
            let claims = [claim(0, &waits), claim(1, &waits)];
            let mut orders = Vec::new();
            arbiter.step(began + MS, &claims, &mut |_, _| true, &mut orders);
            let turn = orders.iter().find(|o| o.word.mode() == Mode::Turn);
            assert_eq!(turn.map(|order| order.id), Some(behind), "{orders:?}");
        }
    }

    /// A kernel on one GPU waits for its twin, held back on the other GPU by the end of the turn.
    #[test]
    fn what_a_claims_own_work_waits_for_goes_at_the_end_of_its_turn() {
        let (began, waits) = (1000 * MS, [process(0, true, 0), process(1, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        let mut step = |now, mine: &[Process]| order_of_first(&mut arbiter, now, mine, &waits);
        let turn = step(began, &waits);
        let (mode, ends_ns) = turn.expect("a turn");
        assert_eq!(mode, Mode::Turn);
        let over = ends_ns + MS / 10;
        let torn = [process(0, false, ends_ns), process(1, true, 0)];
        assert_eq!(step(over, &torn), None, "it may be over soon");
        let late = ends_ns + TORN_NS;
        assert_eq!(step(late, &torn), Some((Mode::Turn, late + REST_NS)));
        let through = [process(0, true, 0), process(1, true, 0)];
        let mode = step(late + MS, &through).map(|(mode, _)| mode);
        assert_eq!(mode, Some(Mode::Closed));
    }

    /// The same claim's turns one after the other, the second with an earlier end.
    #[test]
    fn each_turn_is_a_new_decision() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        arbiter.records[1].ahead_ns = 9e9;
        let mut turn = |now, mine: &[Process], part| {
            order_by_part(&mut arbiter, now, part, mine, &waits).expect("a turn")
        };
        let first = turn(began, &waits, 900);
        let through = [Process {
            stamp: 2,
            expected_ns: first.turn_ends_ns + 90 * MS,
            ..waits[0]
        }];
        let second = turn(began + MS, &through, 500);
        assert!(second.turn_ends_ns < first.turn_ends_ns);
        assert_ne!(first.word, second.word);
    }

    /// The process is stopped after a turn that it used.
    #[test]
    fn a_turn_that_is_not_used_passes_on_soon_also_after_one_that_was() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        for (has_taken, most) in [(false, 20 * MS), (true, 40 * MS)] {
            let mut arbiter = of_two(began, &waits);
            arbiter.records[1].ahead_ns = 9e9;
            arbiter.records[0].has_taken = has_taken;
            let claims = [claim(0, &waits), claim(1, &waits)];
            let mut now = began;
            while !arbiter.has_turn(1) {
                let next = arbiter.step(now, &claims, &mut |_, _| true, &mut Vec::new());
                assert!(now <= began + most, "{} ms", (now - began) / MS);
                now = next.expect("a look");
            }
        }
    }

    /// A claim that waits for each launch rings whenever its work ends, so no look finds work of it on the GPU.
    #[test]
    fn a_turn_of_short_launches_lasts_until_its_end() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        arbiter.records[1].ahead_ns = 9e9;
        let mut step = |now, mine: &[Process]| {
            let own = order_by_part(&mut arbiter, now, 750, mine, &waits);
            own.map(|order| order.turn_ends_ns)
        };
        let ends_ns = step(began, &waits).expect("a turn");
        assert!(ends_ns > began + 17 * MS);
        assert!(
            ends_ns <= began + 2 * CYCLE_NS,
            "not until it is as far ahead"
        );
        for at in 1..17 {
            let said = Process {
                stamp: 1 + at,
                ..waits[0]
            };
            assert_eq!(step(began + at * MS, &[said]), None, "{at} ms");
        }
        let said = Process {
            stamp: 99,
            ..waits[0]
        };
        assert!(step(ends_ns, &[said]).is_some(), "another turn");
    }

    /// A claim that is not behind begins to wait in a turn that began when nobody else wanted one.
    #[test]
    fn a_turn_is_no_longer_than_the_share_of_all_that_want_one_now() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        let mut step = |now, others: &[Process]| order_of_first(&mut arbiter, now, &waits, others);
        let idle = [process(0, false, 0)];
        assert_eq!(step(began, &idle), Some((Mode::Turn, began + 2 * CYCLE_NS)));
        let shorter = step(began + MS, &waits);
        assert_eq!(shorter, Some((Mode::Turn, began + CYCLE_NS)));
    }

    /// A holder that has finished, with a turn that ends early because another claim is behind.
    #[test]
    fn a_turn_that_is_cut_short_passes_on_at_once() {
        let (began, waits) = (1000 * MS, [process(0, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        let mut orders = Vec::new();
        let idle = [process(0, false, 0)];
        arbiter.step(
            began,
            &[claim(0, &waits), claim(1, &idle)],
            &mut |_, _| true,
            &mut orders,
        );
        arbiter.records[0].ahead_ns = 50e6;
        let through = [Process {
            stamp: 2,
            expected_ns: began + 5 * MS,
            ..waits[0]
        }];
        let claims = [claim(0, &through), claim(1, &waits)];
        let mut next = |now| arbiter.step(now, &claims, &mut |_, _| true, &mut orders);
        assert_eq!(next(began + 5 * MS), Some(began + 5 * MS + REST_NS));
    }

    /// A kernel that never ends beside a launch on the other GPU: a stopped program, or one that tries to keep both.
    #[test]
    fn a_turn_that_is_torn_for_ever_ends_all_the_same() {
        let (began, waits) = (1000 * MS, [process(0, true, 0), process(1, true, 0)]);
        let mut arbiter = of_two(began, &waits);
        let mut orders = Vec::new();
        let torn = [process(0, false, began + 1), process(1, true, 0)];
        let (mut now, mut due, mut ends) = (began, None, began);
        while now < began + 400 * MS {
            orders.clear();
            let mine = if due.is_some() { &torn } else { &waits };
            let claims = [claim(0, mine), claim(1, &waits)];
            arbiter.step(now, &claims, &mut |_, _| true, &mut orders);
            let own = orders.iter().filter(|order| order.id == 0);
            for order in own.filter(|order| order.word.mode() == Mode::Turn) {
                ends = order.turn_ends_ns;
                due.get_or_insert(ends);
            }
            now += MS / 10;
        }
        let beyond = ends - due.expect("a turn");
        assert!(beyond <= BACKLOG_AT_MOST_NS + MS, "{} ms", beyond / MS);
        assert!(beyond > 10 * MS, "it goes on for a while: {beyond} ns");
    }
}
