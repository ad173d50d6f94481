//! Whose turn it is on one GPU.
//!
//! Among those who want the GPU the one goes first that is furthest behind: each turn counts as its time
//! divided by the claim's share. A turn lasts about the claim's share of a short cycle; what it took in
//! the end, draining included, is what is counted, so a kernel longer than its turn is paid for by turns
//! of the others. Where limits leave time that nobody may use, nobody has turns too.

mod long;
mod pick;
mod shares;

use long::Usual;
use shares::divide;

use crate::{Mode, PERIOD_NS, Word};

/// Length of a cycle of turns, per claim that takes part.
const CYCLE_NS: u64 = 12_000_000;
/// Shortest turn.
const LEAST_TURN_NS: u64 = 2_000_000;
/// Longest turn.
const MOST_TURN_NS: u64 = 50_000_000;
/// A turn that nobody takes up for so long goes on.
const TAKE_NS: u64 = 10_000_000;
/// Beyond the time that it announced, work is waited for so long before its process is looked at.
const LATE_NS: u64 = 10_000_000;
/// Work that lasts so long beyond its turn runs on beside the next turn.
const DRAIN_AT_MOST_NS: u64 = 500_000_000;
/// The same for work that was queued while nobody shared the GPU, because one that wakes does not wait longer; and
/// for work of claims of several GPUs, which may wait for a turn on another one.
const BACKLOG_AT_MOST_NS: u64 = 70_000_000;
/// A turn is longer than the work in it by the time that messages take; so much of it a claim may leave
/// out of its own account.
const HAND_OVER_NS: u64 = 2_000_000;
/// With so little left a turn that is through goes on.
const REST_NS: u64 = 100_000;
/// Time, as if a claim had the whole GPU, that it may be ahead after it was away for a moment.
const CREDIT_NS: f64 = 40e6;
/// Most debt that is remembered, in the same measure.
const DEBT_NS: f64 = 10e9;

/// One process as its slot shows it: its own word, so nothing here trusts it with others' time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Number by which the arbiter's owner knows it.
    pub slot: usize,
    /// Whether a thread waits to launch.
    pub waiting: bool,
    /// Whether work is on the GPU.
    pub busy: bool,
    /// When it expects that work to be over.
    pub expected_ns: u64,
    /// GPU time that it has used so far.
    pub used_ns: u64,
    /// Changes whenever it says anything.
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
    /// Whose excess goes first; lower is earlier.
    pub tier: u8,
    /// Weight of the class in thousandths, for the excess.
    pub weight_milli: u32,
    /// Whether it takes part: it holds the GPU, and shares it in time.
    pub is_gated: bool,
    /// Whether it holds other GPUs too: its work here may wait for work there.
    pub is_spread: bool,
    /// What its page says, from which a new arbiter counts on.
    pub word: Word,
    /// Its processes.
    pub processes: &'a [Process],
}

/// What a claim's page is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The claim.
    pub id: u64,
    /// The decision.
    pub word: Word,
    /// When the turn ends, for [`Mode::Turn`].
    pub turn_ends_ns: u64,
}

#[derive(Debug)]
struct Record {
    id: u64,
    word: Word,
    turn_ends_ns: u64,
    /// Time used over share.
    ahead_ns: f64,
    wants: bool,
    /// It had the GPU to itself: nobody knows yet what it has queued.
    was_free: bool,
    /// Its work outlasted its turn and runs beside the next.
    lingers: bool,
    used_ns: u64,
    /// When its last turn ended, and what that one counted.
    last_turn: (u64, f64),
    usual: Usual,
    /// Processes that do not answer, with what they last said.
    absent: Vec<(usize, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Claim(u64),
    Nobody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// At most one claim works; it need not ask.
    Quiet { open: Option<u64>, since_ns: u64 },
    Turn {
        holder: Holder,
        began_ns: u64,
        ends_ns: u64,
        /// Since when the holder has had nothing on the GPU.
        empty_since_ns: Option<u64>,
        /// What its processes had said by then; anything new is a sign of life.
        stamps: u64,
        /// What its processes had used by then.
        used_ns: u64,
        taken: bool,
        /// It had work on the GPU when the turn began, of unknown length.
        backlog: bool,
        /// Work of others ran beside it when it began.
        crowded: bool,
    },
}

impl Phase {
    const QUIET: Phase = Phase::Quiet {
        open: None,
        since_ns: u64::MAX,
    };
}

/// Decides whose turn it is on one GPU.
#[derive(Debug)]
pub struct Arbiter {
    phase: Phase,
    records: Vec<Record>,
    nobody_ahead_ns: f64,
    hand_overs: u64,
    /// Turns so far.
    turns: u64,
    /// What a turn counts while those of all claims last about the same.
    even_ns: Option<u64>,
}

impl Default for Arbiter {
    fn default() -> Self {
        Self {
            phase: Phase::QUIET,
            records: Vec::new(),
            nobody_ahead_ns: 0.0,
            hand_overs: 0,
            turns: 0,
            even_ns: None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    waiting: bool,
    busy: bool,
    expected_ns: u64,
}

impl Arbiter {
    /// Turns that went from one claim to another so far.
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs
    }

    /// Whether claims take turns now.
    pub fn is_contended(&self) -> bool {
        matches!(self.phase, Phase::Turn { .. })
    }

    /// Nanoseconds that a claim's turns lasted so far; 0 for one that never shared.
    pub fn used_ns(&self, id: u64) -> u64 {
        self.records
            .iter()
            .find(|r| r.id == id)
            .map_or(0, |r| r.used_ns)
    }

    /// Looks at all claims of the GPU. `is_alive` says of a claim's process whether it could go on (not
    /// dead, stopped or frozen); it is asked rarely. What pages have to say is put into `orders`. Gives the
    /// time of the next look; `None`: when somebody knocks.
    pub fn step(
        &mut self,
        now: u64,
        claims: &[Claim<'_>],
        is_alive: &mut dyn FnMut(u64, usize) -> bool,
        orders: &mut Vec<Order>,
    ) -> Option<u64> {
        self.keep_records(claims);
        let gated = claims.iter().filter(|c| c.is_gated).count();
        let unlimited = claims
            .iter()
            .all(|c| !c.is_gated || c.limit_permille >= 1000);
        if gated == 0 || (gated == 1 && unlimited) {
            self.phase = Phase::QUIET;
            for claim in claims {
                if let Some(record) = self.record(claim.id).filter(|_| claim.is_gated) {
                    record.was_free = true;
                }
                self.order(claim.id, Mode::Free, 0, orders);
            }
            return None;
        }
        for claim in claims.iter().filter(|c| !c.is_gated) {
            self.order(claim.id, Mode::Free, 0, orders);
        }
        self.release(now, claims, is_alive);
        self.decide(now, claims, orders)
    }

    fn record(&mut self, id: u64) -> Option<&mut Record> {
        self.records.iter_mut().find(|r| r.id == id)
    }

    fn keep_records(&mut self, claims: &[Claim<'_>]) {
        self.records.retain(|r| claims.iter().any(|c| c.id == r.id));
        for claim in claims {
            if self.record(claim.id).is_none() {
                self.records.push(Record {
                    id: claim.id,
                    word: claim.word,
                    turn_ends_ns: 0,
                    ahead_ns: 0.0,
                    wants: false,
                    was_free: false,
                    lingers: false,
                    used_ns: 0,
                    last_turn: (0, 0.0),
                    usual: Usual::default(),
                    absent: Vec::new(),
                });
            }
        }
    }

    /// What a claim's present processes say together.
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
            if p.busy {
                state.expected_ns = state.expected_ns.max(p.expected_ns);
            }
        }
        state
    }

    /// Those processes of a claim count no more until they say something.
    fn dismiss(&mut self, claim: &Claim<'_>, which: impl Fn(&Process) -> bool) {
        if let Some(record) = self.record(claim.id) {
            for p in claim.processes.iter().filter(|p| which(p)) {
                record.absent.retain(|(slot, _)| *slot != p.slot);
                record.absent.push((p.slot, p.stamp));
            }
        }
    }

    fn order(&mut self, id: u64, mode: Mode, turn_ends_ns: u64, orders: &mut Vec<Order>) {
        let Some(record) = self.record(id) else {
            return;
        };
        if record.word.mode() == mode && record.turn_ends_ns == turn_ends_ns {
            return;
        }
        if record.word.mode() != mode || mode == Mode::Turn && record.turn_ends_ns < turn_ends_ns {
            record.word = record.word.next(mode);
        }
        record.turn_ends_ns = turn_ends_ns;
        orders.push(Order {
            id,
            word: record.word,
            turn_ends_ns,
        });
    }

    /// Ends the turn if its holder is through.
    fn release(
        &mut self,
        now: u64,
        claims: &[Claim<'_>],
        is_alive: &mut dyn FnMut(u64, usize) -> bool,
    ) {
        let Phase::Turn {
            holder,
            began_ns,
            ends_ns,
            empty_since_ns,
            stamps,
            used_ns,
            taken,
            backlog,
            crowded,
        } = self.phase
        else {
            return;
        };
        let Holder::Claim(id) = holder else {
            if now >= ends_ns {
                self.charge(now, Holder::Nobody, now - began_ns, claims);
                self.phase = Phase::QUIET;
            }
            return;
        };
        let Some(claim) = claims.iter().find(|c| c.id == id) else {
            self.phase = Phase::QUIET;
            return;
        };
        let mut state = self.state(claim);
        let mut lingers = false;
        if state.busy {
            let late = now >= state.expected_ns.max(ends_ns).saturating_add(LATE_NS);
            if late {
                let stuck = |p: &Process| p.busy && !is_alive(id, p.slot);
                let dead: Vec<usize> = filter_slots(claim, stuck);
                self.dismiss(claim, |p| dead.contains(&p.slot));
                state = self.state(claim);
            }
            let most = if backlog || claim.is_spread {
                BACKLOG_AT_MOST_NS
            } else {
                DRAIN_AT_MOST_NS
            };
            lingers = state.busy && now >= ends_ns.saturating_add(most);
        }
        let taken = taken || state.busy || stamps != stamps_of(claim);
        let empty_since = if state.busy {
            None
        } else {
            Some(empty_since_ns.unwrap_or(now))
        };
        let idle_for = empty_since.map_or(0, |since| now.saturating_sub(since));
        let over = if state.busy {
            lingers
        } else {
            let ended = taken && now + REST_NS >= ends_ns;
            !state.waiting || ended || idle_for >= TAKE_NS
        };
        if !over {
            self.phase = Phase::Turn {
                holder,
                began_ns,
                ends_ns,
                empty_since_ns: empty_since,
                stamps,
                used_ns,
                taken,
                backlog,
                crowded,
            };
            return;
        }
        if state.waiting && !state.busy && idle_for >= TAKE_NS {
            // It did not take its turn: stopped, frozen, or without a processor.
            self.dismiss(claim, |p| p.waiting);
        }
        let lasted = now.saturating_sub(began_ns);
        let told = used_by(claim).saturating_sub(used_ns);
        let cost = if taken {
            told.clamp(lasted.saturating_sub(HAND_OVER_NS), lasted)
        } else {
            0
        };
        let counted = if taken && !lingers {
            self.even_out(id, cost, crowded)
        } else {
            cost
        };
        self.charge(now, holder, counted, claims);
        if let Some(record) = self.record(id) {
            // What is shown is what was.
            record.used_ns = (record.used_ns + cost).saturating_sub(counted);
            record.lingers = lingers;
            record.was_free &= !taken;
        }
        self.see_whether_even(now);
        self.phase = Phase::Quiet {
            open: Some(id),
            since_ns: u64::MAX,
        };
    }

    /// Counts time on the GPU; with work that lingers beside it, each has its part.
    fn charge(&mut self, now: u64, holder: Holder, ns: u64, claims: &[Claim<'_>]) {
        let mut who: Vec<u64> = Vec::new();
        for claim in claims {
            let busy = self.state(claim).busy;
            if let Some(record) = self.record(claim.id) {
                record.lingers &= busy;
                if record.lingers && holder != Holder::Claim(claim.id) {
                    who.push(claim.id);
                }
            }
        }
        let part = ns / (who.len() as u64 + 1);
        match holder {
            Holder::Claim(id) => who.push(id),
            Holder::Nobody => {}
        }
        let wanting: Vec<&Claim<'_>> = claims
            .iter()
            .filter(|c| who.contains(&c.id) || self.records.iter().any(|r| r.id == c.id && r.wants))
            .collect();
        let shares = divide(&wanting);
        self.turns += 1;
        let turn = self.turns;
        for (claim, share) in wanting.iter().zip(&shares.claims) {
            if let Some(record) = self.record(claim.id) {
                record.usual.share = *share;
            }
            if let Some(record) = self.record(claim.id).filter(|r| who.contains(&r.id)) {
                record.used_ns += part;
                let counted = part as f64 / share.max(1e-3);
                record.ahead_ns += counted;
                record.last_turn = (now, counted);
                record.usual.last = turn;
            }
        }
        if holder == Holder::Nobody && shares.nobody > 0.0 {
            self.nobody_ahead_ns += ns as f64 / shares.nobody;
        }
    }

    /// Gives the next turn, or leaves the GPU to the one that works.
    fn decide(&mut self, now: u64, claims: &[Claim<'_>], orders: &mut Vec<Order>) -> Option<u64> {
        let states: Vec<State> = claims.iter().map(|c| self.state(c)).collect();
        let wanting: Vec<(&Claim<'_>, State)> = claims
            .iter()
            .zip(states)
            .filter(|(c, s)| c.is_gated && (s.waiting || s.busy))
            .collect();
        let held = match self.phase {
            Phase::Turn {
                holder: Holder::Claim(id),
                ..
            } => Some(id),
            _ => None,
        };
        let wants = |id: u64| wanting.iter().any(|(c, _)| c.id == id) || held == Some(id);
        if let Phase::Quiet { open, since_ns } = self.phase {
            // Time alone counts like any other: the debts of others fade meanwhile.
            if let Some(record) = open.and_then(|id| self.record(id)) {
                record.ahead_ns += now.saturating_sub(since_ns) as f64;
            }
            self.phase = Phase::Quiet {
                open,
                since_ns: if since_ns == u64::MAX { since_ns } else { now },
            };
        }
        let ahead_of = |which: &dyn Fn(&Record) -> bool, best: fn(f64, f64) -> f64| {
            let wanting = self.records.iter().filter(|r| which(r));
            wanting.map(|r| r.ahead_ns).reduce(best)
        };
        let floor = ahead_of(&|r| r.wants && wants(r.id), f64::min)
            .or_else(|| ahead_of(&|r| wants(r.id), f64::max))
            .unwrap_or(0.0);
        for record in &mut self.records {
            let now_wants = wants(record.id);
            if now_wants && !record.wants {
                let least = floor - CREDIT_NS;
                record.ahead_ns = record.ahead_ns.clamp(least, floor + DEBT_NS);
            }
            record.wants = now_wants;
        }
        self.nobody_ahead_ns = self.nobody_ahead_ns.max(floor - CREDIT_NS);
        let only = match wanting[..] {
            [] if held.is_none() => Some(None),
            [(claim, _)]
                if claim.limit_permille >= 1000 && held.is_none_or(|id| id == claim.id) =>
            {
                Some(Some(claim.id))
            }
            _ => None,
        };
        if let Some(only) = only {
            let (before, since) = match self.phase {
                Phase::Quiet { open, since_ns } => (open, since_ns),
                Phase::Turn { .. } => (None, u64::MAX),
            };
            let limited = |id: u64| claims.iter().any(|c| c.id == id && c.limit_permille < 1000);
            let open = only.or(before).filter(|id| !limited(*id));
            self.phase = Phase::Quiet {
                open,
                since_ns: if open == before { since.min(now) } else { now },
            };
            for claim in claims.iter().filter(|c| c.is_gated) {
                let mode = if open == Some(claim.id) {
                    Mode::Open
                } else {
                    Mode::Closed
                };
                self.order(claim.id, mode, 0, orders);
            }
            return None;
        }
        let open = match self.phase {
            Phase::Turn { .. } => None,
            Phase::Quiet { open, .. } => Some(open),
        };
        if let Some(open) = open {
            self.next_turn(now, open, &wanting);
        }
        self.shorten(now, &wanting);
        self.announce(now, claims, orders)
    }

    fn announce(&mut self, now: u64, claims: &[Claim<'_>], orders: &mut Vec<Order>) -> Option<u64> {
        let Phase::Turn {
            holder,
            ends_ns,
            empty_since_ns,
            taken,
            ..
        } = self.phase
        else {
            return None;
        };
        // First everybody else stops, then the holder begins.
        for claim in claims.iter().filter(|c| c.is_gated) {
            if holder != Holder::Claim(claim.id) {
                self.order(claim.id, Mode::Closed, 0, orders);
            }
        }
        if let Holder::Claim(id) = holder {
            self.order(id, Mode::Turn, ends_ns, orders);
        }
        let beat = now + PERIOD_NS;
        // A holder that is through knocks.
        let looks_at_end = holder == Holder::Nobody || (taken && empty_since_ns.is_some());
        let next = if looks_at_end {
            ends_ns.clamp(now + 1, beat)
        } else {
            beat
        };
        let empty = empty_since_ns.map_or(beat, |since| (since + TAKE_NS).max(now + 1));
        Some(next.min(empty))
    }
}

fn stamps_of(claim: &Claim<'_>) -> u64 {
    claim
        .processes
        .iter()
        .fold(0, |sum, p| sum.wrapping_add(p.stamp))
}

fn used_by(claim: &Claim<'_>) -> u64 {
    claim
        .processes
        .iter()
        .fold(0, |sum, p| sum.saturating_add(p.used_ns))
}

fn of_holder(holder: Holder, claims: &[&Claim<'_>], figure: fn(&Claim<'_>) -> u64) -> u64 {
    match holder {
        Holder::Claim(id) => claims.iter().find(|c| c.id == id).map_or(0, |c| figure(c)),
        Holder::Nobody => 0,
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
