//! A step of the core with the planner in it, on a large machine with many claims: a random history of events as the
//! service sends them, answered as the service answers.

use std::collections::VecDeque;
use std::time::Duration;

use gshare_core::machine::lever::{Failure, Holding, Levers, Wish};
use gshare_core::machine::{Action, Event, Machine, ReclaimRules};
use gshare_core::play::list::Dice;
use gshare_core::{Bytes, Change, ClaimId, Class, GpuFacts, Party, Quota, Request, Share, Sharing};
use serde_json::{Value, json};

use crate::bench::say;
use crate::bench::stats::Times;
use gshare_core::play::cases::Goal;
use gshare_core::play::figures::mean;

const USERS: usize = 12;
const SEED: u64 = 1;

/// A machine, and how long a step may take there.
#[derive(Clone, Copy)]
struct Size {
    gpus: usize,
    /// Claims at a time: they run, wait or are parked.
    claims: usize,
    rounds: usize,
    goal_us: f64,
}

const SIZES: [Size; 2] = [
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
const MEM: Bytes = Bytes::gib(80);

/// The core with somebody who answers it.
struct Desk {
    machine: Machine,
    size: Size,
    now: Duration,
    dice: Dice,
    next: u64,
    drained: Option<usize>,
    /// What is being done, and when it is answered.
    underway: Vec<(Duration, Action)>,
    /// Microseconds of each step, and of those among them that decided while somebody waited.
    steps_us: Vec<f64>,
    decisions_us: Vec<f64>,
    /// Levers that were pulled, plans that were announced.
    pulled: u32,
    announced: u32,
    /// Claims that ran, waited and were parked, after each round.
    seen: Vec<[usize; 3]>,
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
    fn new(size: Size, seed: u64) -> Self {
        let mut desk = Self {
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
        // Some have entries, the others an equal part of what is left.
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

    /// Somebody asks.
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
            gshare_core::Size {
                gpus: several[dice.below(several.len())],
                each: Share::from_milli([500, 1000][dice.below(2)]),
            }
        } else {
            gshare_core::Size {
                gpus: 1,
                each: Share::from_milli(sizes[dice.below(sizes.len())]),
            }
        };
        let mut request = Request::of_size(size, Share::ONE, class);
        let uid = dice.below(USERS);
        request.uid = u32::try_from(uid).unwrap_or_default();
        if dice.below(3) == 0 {
            // Memory and SMs apart.
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

    /// Steps of the core, with all that the service answers at once.
    fn send_all(&mut self, events: Vec<Event>) {
        let mut todo = VecDeque::from(events);
        while let Some(event) = todo.pop_front() {
            let waits = self.machine.queue().next().is_some();
            let decides = waits && matches!(event, Event::Measured(_));
            let from = super::cpu_ns();
            let actions = self.machine.step(self.now, event);
            let us = super::cpu_ns().saturating_sub(from) as f64 / 1e3;
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

    /// What the pages say: each uses a part of its own of what it may have, some more than was guaranteed.
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
            idle: able(8).is_err(),
        };
        Event::Levers { id, levers }
    }

    /// Answers what is done by now: one in twenty did not work.
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
            let host = |b: Bytes, s: &gshare_core::Slice| b.saturating_add(s.charge);
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

    /// Some time passes and something happens; who has left is followed by others.
    fn round(&mut self) {
        self.now += Duration::from_millis(100 + self.dice.below(2000) as u64);
        self.answer();
        let (mut running, mut parked) = (Vec::new(), Vec::new());
        for (id, holding) in self.machine.holdings() {
            match holding {
                Holding::Here(_) => running.push(id),
                Holding::Parked(_) => parked.push(id),
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
                let wishes = [Wish::Detach, Wish::Suspend, Wish::Keep];
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
        let lies = here.values().filter(|h| matches!(h, Holding::Parked(_)));
        let lies = lies.count();
        self.seen.push([here.len() - lies, new, lies]);
        for _ in here.len() + new..self.size.claims {
            let events = self.submission();
            self.send_all(events.into());
        }
    }
}

fn line(name: &str, times: &Times) -> String {
    let at = |q| times.quantile(q).unwrap_or_default();
    format!(
        "{name:<32} p50 {:>7.1} us, p99 {:>7.1} us, max {:>8.1} us",
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

fn figures(times: &Times, count: usize) -> Value {
    json!({
        "count": count,
        "p50_us": times.median(),
        "p99_us": times.p99(),
        "max_us": times.quantile(1.0),
    })
}

/// Plays a history on each machine; a quick look is at the smaller one.
pub(super) fn run(quick: bool) -> (Value, Vec<Goal>) {
    let sizes = &SIZES[..if quick { 1 } else { SIZES.len() }];
    let (mut measured, mut goals) = (Vec::new(), Vec::new());
    for size in sizes {
        let rounds = if quick { 100 } else { size.rounds };
        let (figures, met) = history(*size, rounds);
        measured.push(figures);
        goals.extend(met);
    }
    (json!({ "core_step": measured }), goals)
}

fn history(size: Size, rounds: usize) -> (Value, Vec<Goal>) {
    let Size {
        gpus,
        claims,
        goal_us,
        ..
    } = size;
    let mut desk = Desk::new(size, SEED);
    let began = (desk.steps_us.len(), desk.decisions_us.len());
    for _ in 0..rounds {
        desk.round();
    }
    // The first moment, in which all claims come at once, is none of the history.
    let steps = desk.steps_us.split_off(began.0);
    let decisions = desk.decisions_us.split_off(began.1);
    let (count, decided) = (steps.len(), decisions.len());
    let (steps, decisions) = (Times::new(steps), Times::new(decisions));
    let [runs, waits, lies] = [0, 1, 2].map(|i| {
        let of: Vec<f64> = desk.seen.iter().map(|seen| seen[i] as f64).collect();
        mean(&of)
    });
    say(&format!(
        "\na step of the core on {gpus} GPUs with {claims} claims of {USERS} users, seed {SEED}: {rounds} random events in {} min of\n\
         virtual time; on average {runs:.0} ran, {waits:.0} waited and {lies:.0} were parked; {} announcements, {} moves and parkings;\n\
         processor time",
        desk.now.as_secs() / 60,
        desk.announced,
        desk.pulled,
    ));
    say(&line(&format!("every step ({count})"), &steps));
    say(&line(&format!("decisions alone ({decided})"), &decisions));
    let goals = vec![
        Goal::most(
            format!("B6 {gpus} GPUs, {claims} claims: core step p99, us of processor time"),
            steps.p99().unwrap_or(f64::INFINITY),
            goal_us,
        ),
        Goal::most(
            format!(
                "B6 {gpus} GPUs, {claims} claims: p99 of the steps that decide, planner included, us"
            ),
            decisions.p99().unwrap_or(f64::INFINITY),
            goal_us,
        ),
    ];
    let measured = json!({
            "gpus": gpus,
            "claims": claims,
            "seed": SEED,
            "rounds": rounds,
            "running": runs,
            "waiting": waits,
            "parked": lies,
            "announced": desk.announced,
            "pulled": desk.pulled,
            "steps": figures(&steps, count),
            "decisions": figures(&decisions, decided),
    });
    (measured, goals)
}
