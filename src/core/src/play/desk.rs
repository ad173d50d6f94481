//! A large machine with many claims: plays random events as the service sends them, answers as the service does, and
//! measures the time of each step of the machine.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::list::Dice;
use crate::claim::{ClaimId, Class, Request};
use crate::ledger::{GpuFacts, Sharing, Slice};
use crate::machine::Phase;
use crate::machine::lever::{Failure, Levers, Wish};
use crate::machine::{Action, Caller, Event, Machine, ReclaimRules};
use crate::quota::{Party, Quota};
use crate::resize::Change;
use crate::units::{Bytes, Share};

/// Maximum number of waiting claims whose start is queried.
const FIRST: usize = 16;
/// Users who submit claims.
pub const USERS: usize = 12;
const MEM: Bytes = Bytes::gib(80);

/// Size of a machine, and length of the run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub gpus: usize,
    /// Claims at a time: running, waiting or parked.
    pub claims: usize,
    /// Number of events.
    pub rounds: usize,
    /// Maximum duration of a step, in microseconds.
    pub goal_us: f64,
}

/// The measured machines.
pub const SIZES: [Size; 2] = [
    Size {
        gpus: 16,
        claims: 500,
        rounds: 1500,
        goal_us: 1000.0,
    },
    Size {
        gpus: 64,
        claims: 2000,
        rounds: 150,
        goal_us: 10_000.0,
    },
];

/// The core, with an imitation of the service.
#[derive(Debug)]
pub struct Desk {
    /// Processor time in nanoseconds.
    clock: fn() -> u64,
    machine: Machine,
    size: Size,
    /// Virtual time.
    pub now: Duration,
    dice: Dice,
    next: u64,
    drained: Option<usize>,
    /// Actions in progress, and when they are answered.
    underway: Vec<(Duration, Action)>,
    /// Duration of each step, in microseconds.
    pub steps_us: Vec<f64>,
    /// The part of these in which a decision was made while claims waited.
    pub decisions_us: Vec<f64>,
    /// Number of suspensions, moves and restores.
    pub pulled: u32,
    /// Announced plans.
    pub announced: u32,
    /// Running, waiting and parked claims after each round.
    pub seen: Vec<[usize; 3]>,
}

fn party(uid: usize) -> Party {
    Party::User(format!("user{uid}"))
}

fn facts(gpus: usize) -> Vec<GpuFacts> {
    let one = |g| GpuFacts {
        uuid: format!("GPU-{g}"),
        model: "G".to_owned(),
        usable: Some(MEM),
        reserve: Bytes::ZERO,
        unclaimed: Bytes::ZERO,
        healthy: true,
        sharing: Sharing::Timeslice,
    };
    (0..gpus).map(one).collect()
}

impl Desk {
    /// A machine with all its claims.
    pub fn new(size: Size, seed: u64, clock: fn() -> u64) -> Self {
        let mut desk = Self {
            clock,
            machine: Machine::default(),
            size,
            now: Duration::ZERO,
            dice: Dice::new(seed),
            next: 1,
            drained: None,
            underway: Vec::new(),
            steps_us: Vec::new(),
            decisions_us: Vec::new(),
            pulled: 0,
            announced: 0,
            seen: Vec::new(),
        };
        desk.send(Event::Gpus(facts(size.gpus)));
        // Some users have entries, the others get equal parts of the rest.
        let quota = |uid| Quota {
            party: party(uid),
            gpus: Some(Share::from_milli(2000)),
            weight_milli: None,
            max: None,
        };
        desk.send(Event::Quotas((0..3).map(quota).collect()));
        desk.send(Event::HostRam(Bytes::gib(400)));
        desk.send(Event::Reclaim(ReclaimRules {
            spread: true,
            ..ReclaimRules::default()
        }));
        let first: Vec<Event> = (0..size.claims).flat_map(|_| desk.submission()).collect();
        desk.send_all(first);
        desk
    }

    /// A user submits a claim.
    fn submission(&mut self) -> [Event; 2] {
        let dice = &mut self.dice;
        let class = match dice.below(10) {
            0..=3 => Class::Interactive,
            4..=8 => Class::Batch,
            _ => Class::Inference,
        };
        let sizes = [30, 50, 100, 100, 200, 250, 300, 500, 750, 1000];
        let several = [2, 2, 4, 8];
        let size = if dice.below(12) == 0 {
            crate::size::Size {
                gpus: several[dice.below(several.len())],
                each: Share::from_milli([500, 1000][dice.below(2)]),
            }
        } else {
            crate::size::Size {
                gpus: 1,
                each: Share::from_milli(sizes[dice.below(sizes.len())]),
            }
        };
        let mut request = Request::of_size(size, Share::ONE, class);
        let uid = dice.below(USERS);
        request.uid = u32::try_from(uid).unwrap_or_default();
        if dice.below(3) == 0 {
            // Memory and SMs independent of each other.
            request.mem = Some(Bytes::gib(1 + dice.below(60) as u64));
        }
        if dice.below(3) == 0 {
            request.mem_limit = Some(MEM);
        }
        request.movable = dice.below(5) > 0;
        if dice.below(3) == 0 {
            request.lease = Some(Duration::from_secs(60 + dice.below(3600) as u64));
        }
        let id = ClaimId(self.next);
        self.next += 1;
        let parties = vec![party(uid)];
        let submit = Event::Submit {
            id,
            request,
            patience: None,
        };
        [Event::Parties { id, parties }, submit]
    }

    fn send(&mut self, event: Event) {
        self.send_all(vec![event]);
    }

    /// Steps of the core, with everything that the service answers immediately.
    fn send_all(&mut self, events: Vec<Event>) {
        let mut todo = VecDeque::from(events);
        while let Some(event) = todo.pop_front() {
            let waits = self.machine.queue().next().is_some();
            let decides = waits && matches!(event, Event::Measured(_));
            let from = (self.clock)();
            let actions = self.machine.step(self.now, event);
            let us = (self.clock)().saturating_sub(from) as f64 / 1e3;
            self.steps_us.push(us);
            if decides {
                self.decisions_us.push(us);
            }
            for action in actions {
                todo.extend(self.react(action));
            }
        }
    }

    fn react(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Measure => Some(Event::Measured(self.read())),
            Action::Grant { id, .. } => Some(self.levers(id)),
            Action::Kill { id, .. } | Action::Requeue { id, .. } | Action::LeaseOver { id } => {
                Some(Event::Gone { id })
            }
            Action::Park { .. } | Action::Unpark { .. } | Action::Move { .. } => {
                let time = Duration::from_secs(1 + self.dice.below(6) as u64);
                self.underway.push((self.now + time, action));
                self.pulled += 1;
                None
            }
            Action::Announce { .. } => {
                self.announced += 1;
                None
            }
            _ => None,
        }
    }

    /// Microseconds for the two queries: what one of the users could claim now, and when the first claims in the queue
    /// start.
    pub fn look(&self) -> [f64; 2] {
        let uid = self.seen.len() % USERS;
        let mut request = Request::of_size(
            crate::size::Size {
                gpus: 1,
                each: Share::ONE,
            },
            Share::ONE,
            Class::Batch,
        );
        request.uid = u32::try_from(uid).unwrap_or_default();
        let parties = vec![party(uid)];
        let caller = Caller { request, parties };
        let charges = self.read();
        let first: BTreeSet<ClaimId> = self.machine.queue().map(|(id, _)| id).take(FIRST).collect();
        let (machine, now, clock) = (&self.machine, self.now, self.clock);
        let timed = |look: &dyn Fn()| {
            let from = clock();
            look();
            clock().saturating_sub(from) as f64 / 1e3
        };
        [
            timed(&|| drop(machine.claimable_now(now, &caller, &charges))),
            timed(&|| drop(machine.expected_starts(now, &first, &charges))),
        ]
    }

    /// Simulated memory use: each claim uses a fixed part of its limit, some more than their guarantee.
    fn read(&self) -> Vec<(ClaimId, usize, Bytes)> {
        let mut read = Vec::new();
        for (id, slices) in self.machine.ledger().held() {
            for slice in slices {
                let used = match id.0 % 10 {
                    0 => slice.mem_cap,
                    part => Bytes(slice.mem.0 * part / 10),
                };
                read.push((id, slice.gpu, used));
            }
        }
        read
    }

    fn levers(&mut self, id: ClaimId) -> Event {
        let mut able = |of: usize| {
            let yes = self.dice.below(of) > 0;
            if yes {
                Ok(())
            } else {
                Err("not this one".to_owned())
            }
        };
        let levers = Levers {
            park: able(6),
            movable: able(4),
            requeue: able(5).is_err(),
            left_alone: false,
            idle: able(8).is_err(),
        };
        Event::Levers { id, levers }
    }

    /// Answers the actions that are done by now; one in twenty fails.
    fn answer(&mut self) {
        let now = self.now;
        let (done, still) = std::mem::take(&mut self.underway)
            .into_iter()
            .partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.underway = still;
        for (_, action) in done {
            let (Action::Park { id, .. } | Action::Unpark { id, .. } | Action::Move { id, .. }) =
                action
            else {
                continue;
            };
            let Some(holding) = self.machine.holding(id) else {
                continue;
            };
            let host = |b: Bytes, s: &Slice| b.saturating_add(s.charge);
            let host = holding.slices().iter().fold(Bytes::ZERO, host);
            let failures = [
                Failure::Refused,
                Failure::TimedOut,
                Failure::Busy,
                Failure::HostRam,
            ];
            if self.dice.below(20) == 0 {
                let failure = failures[self.dice.below(failures.len())];
                let why = String::new();
                self.send(Event::LeverFailed { id, failure, why });
                continue;
            }
            self.send(match action {
                Action::Park { .. } => Event::Parked { id, host },
                Action::Unpark { .. } => Event::Unparked { id },
                _ => Event::Moved { id },
            });
        }
    }

    fn one(&mut self, of: &[ClaimId]) -> Option<ClaimId> {
        (!of.is_empty()).then(|| of[self.dice.below(of.len())])
    }

    /// Some time passes and an event happens; claims that left are replaced.
    pub fn round(&mut self) {
        self.now += Duration::from_millis(100 + self.dice.below(2000) as u64);
        self.answer();
        let (mut running, mut parked) = (Vec::new(), Vec::new());
        for (id, holding) in self.machine.holdings() {
            match holding.phase {
                Phase::Granted => running.push(id),
                Phase::Offloaded(_) => parked.push(id),
                _ => {}
            }
        }
        let waiting: Vec<ClaimId> = self.machine.queue().map(|(id, _)| id).collect();
        let (runs, waits, lies) = (self.one(&running), self.one(&waiting), self.one(&parked));
        let event = match (self.dice.below(100), runs, waits, lies) {
            (0..=24, Some(id), ..) | (25..=29, _, Some(id), _) => Event::Gone { id },
            (30..=37, ..) => Event::Gpus(facts(self.size.gpus)),
            (38..=47, Some(id), ..) => self.levers(id),
            (48..=52, Some(id), ..) => {
                let wishes = [Wish::Offload, Wish::Suspend, Wish::Keep];
                let wish = wishes[self.dice.below(wishes.len())];
                Event::Wish { id, wish }
            }
            (53..=57, .., Some(id)) => Event::Wish {
                id,
                wish: Wish::Resume,
            },
            (58..=62, .., Some(id)) => Event::Wanted { id },
            (63..=66, Some(id), ..) => {
                let ticket = self.next;
                self.next += 1;
                let share = Some(Share::from_milli(50 * (1 + self.dice.below(20) as u32)));
                Event::Resize {
                    ticket,
                    id,
                    change: Change {
                        share,
                        ..Change::default()
                    },
                    patience: Some(Duration::from_secs(30)),
                }
            }
            (67..=69, Some(id), ..) => Event::MoveTo {
                id,
                gpus: vec![self.dice.below(self.size.gpus)],
            },
            (70, ..) => {
                let on = self.drained.is_none();
                let g = self
                    .drained
                    .take()
                    .unwrap_or_else(|| self.dice.below(self.size.gpus));
                if on {
                    self.drained = Some(g);
                }
                Event::Drain {
                    uuid: format!("GPU-{g}"),
                    on,
                }
            }
            _ => Event::Tick,
        };
        self.send(event);
        let here = self.machine.holdings();
        let waits = self.machine.queue();
        let new = waits.filter(|(id, _)| !here.contains_key(id)).count();
        let lies = here
            .values()
            .filter(|h| matches!(h.phase, Phase::Offloaded(_)));
        let lies = lies.count();
        self.seen.push([here.len() - lies, new, lies]);
        for _ in here.len() + new..self.size.claims {
            let events = self.submission();
            self.send_all(events.into());
        }
    }
}
