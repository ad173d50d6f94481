//! Every action of the service, with every way in which it can fail. The service is killed before the action is
//! journaled, before it is carried out, before that is reported, and after: nothing is lost.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::lever::{Failure, Levers, ParkedBy, Wish};
use super::super::*;
use super::histories::restarted_with;
use super::promises::{fits, lie_where_it_says};
use super::tests::{Bench, s, subject};
use crate::units::Bytes;

type Checked = Result<(), TestCaseError>;

/// How one action comes about.
struct Scene {
    name: &'static str,
    /// The state before.
    start: fn() -> Bench,
    /// What triggers the action; `None` if time does.
    cause: Option<fn(&mut Bench)>,
    is: fn(&Action) -> bool,
}

/// When the service is killed, and whether its saved state is from before (`stale`) or after the machine's decision.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Never,
    BeforeItIsWritten,
    BeforeItIsDone { stale: bool },
    BeforeItIsTold { stale: bool },
    Afterwards { stale: bool },
}

const KILLED: [Killed; 8] = [
    Killed::Never,
    Killed::BeforeItIsWritten,
    Killed::BeforeItIsDone { stale: true },
    Killed::BeforeItIsDone { stale: false },
    Killed::BeforeItIsTold { stale: true },
    Killed::BeforeItIsTold { stale: false },
    Killed::Afterwards { stale: true },
    Killed::Afterwards { stale: false },
];

pub(super) const OUTCOMES: [Option<Failure>; 6] = [
    None,
    Some(Failure::Refused),
    Some(Failure::TimedOut),
    Some(Failure::Busy),
    Some(Failure::HostRam),
    Some(Failure::Lost),
];

/// The moments before and after a decision.
struct Moment {
    before: Bench,
    after: Bench,
    action: Action,
    id: ClaimId,
    asked: BTreeMap<ClaimId, Request>,
}

fn whose(action: &Action) -> ClaimId {
    match action {
        Action::Grant { id, .. } | Action::Share { id, .. } | Action::Resize { id, .. } => *id,
        _ => subject(action).expect("an action on a claim"),
    }
}

/// Plays a scene up to its action, which is not carried out yet.
fn moment(scene: &Scene) -> Moment {
    let mut after = (scene.start)();
    after.slow = true;
    for round in 0..300 {
        let mut before = after.clone();
        let seen = after.w.log.len();
        match scene.cause {
            Some(cause) if round == 0 => cause(&mut after),
            _ => after.pass(s(1)),
        }
        let mut new = after.w.log[seen..].iter();
        let Some(action) = new.find(|a| (scene.is)(a)).cloned() else {
            continue;
        };
        let id = whose(&action);
        after.underway.retain(|(_, a)| *a != action);
        if matches!(action, Action::Grant { .. }) {
            after.bytes.get_mut(&id).expect("it lives").1 = None;
            after.w.used.retain(|(c, _), _| *c != id);
        }
        before.w.now = after.w.now;
        let machine = &after.w.machine;
        let asked = after.bytes.keys().filter_map(|id| {
            let mut queue = machine.queue();
            let waits = || queue.find(|(i, _)| i == id).map(|(_, r)| r);
            let request = machine.request_of(*id).or_else(waits)?;
            Some((*id, request.clone()))
        });
        let asked = asked.collect();
        return Moment {
            before,
            after,
            action,
            id,
            asked,
        };
    }
    panic!("{}: the expected action never came", scene.name);
}

struct Trial<'a> {
    m: &'a Moment,
    b: Bench,
    outcome: Option<Failure>,
    asked: BTreeMap<ClaimId, Request>,
    /// A claim whose place the machine does not know yet.
    hidden: Option<ClaimId>,
    /// Claims that the fault itself ended.
    over: BTreeSet<ClaimId>,
    ran: BTreeSet<ClaimId>,
    /// Number of claims that were ended to be queued again.
    again: usize,
}

impl Trial<'_> {
    /// Carries out the action, or fails to.
    fn carry(&mut self) {
        self.hidden = Some(self.m.id);
        let id = self.m.id;
        match (&self.m.action, self.outcome) {
            (_, Some(Failure::Lost)) => self.b.w.used.retain(|(c, _), _| *c != id),
            (Action::Park { .. }, None) => {
                self.b.bytes.get_mut(&id).expect("it lives").1 = None;
                self.b.w.used.retain(|(c, _), _| *c != id);
            }
            (
                Action::Unpark { to: on, .. }
                | Action::Move { to: on, .. }
                | Action::Grant { slices: on, .. },
                None,
            ) => self.b.place(id, on.iter().map(|s| s.gpu).collect()),
            _ => {}
        }
    }

    /// Reports the result to the machine.
    fn tell(&mut self) {
        let id = self.m.id;
        self.hidden = None;
        let action = self.m.action.clone();
        let event = match (&action, self.outcome) {
            (Action::Grant { .. }, None) => {
                let levers = Levers {
                    park: Ok(()),
                    movable: Ok(()),
                    ..Levers::default()
                };
                Event::Levers { id, levers }
            }
            // The caller learns that it failed.
            (Action::Grant { .. }, Some(_)) => {
                self.over.insert(id);
                Event::Gone { id }
            }
            (Action::Park { .. }, None) => {
                let host = self.b.bytes[&id].0;
                Event::Parked { id, host }
            }
            (Action::Unpark { .. }, None) => Event::Unparked { id },
            (Action::Move { .. }, None) => Event::Moved { id },
            (Action::Kill { .. } | Action::Requeue { .. }, None) => return self.b.end(&action),
            (_, None) => Event::Tick,
            (_, Some(failure)) => {
                if matches!(action, Action::Kill { .. } | Action::Requeue { .. }) {
                    // Its processes do not end yet.
                    let later = self.b.w.now + s(10);
                    self.b.underway.push((later, action));
                }
                let why = String::new();
                Event::LeverFailed { id, failure, why }
            }
        };
        if self.outcome == Some(Failure::Lost) {
            self.hidden = Some(id);
        }
        self.b.send(event);
    }

    /// Restarts the service; waiting clients ask again.
    fn restart(&mut self, memory: Memory) {
        self.b.w = restarted_with(&self.b.w, memory);
        for (id, request) in self.asked.iter().rev() {
            let held = self.b.w.machine.holding(*id).is_some();
            if !held && self.b.bytes.contains_key(id) {
                self.b.send(Event::Submit {
                    id: *id,
                    request: request.clone(),
                    patience: None,
                });
            }
        }
    }

    /// A dead process is found gone.
    fn see_the_dead(&mut self) {
        if self.outcome == Some(Failure::Lost) {
            self.over.insert(self.m.id);
            self.b.send(Event::Gone { id: self.m.id });
        }
        self.hidden = None;
    }

    fn pass(&mut self, seconds: u64) -> Checked {
        self.b.w.now += s(seconds - 1);
        self.b.pass(s(1));
        while let Some((id, again)) = self.b.ended.get(self.again).copied() {
            self.again += 1;
            self.over.insert(id);
            if let (true, Some(request)) = (again, self.asked.get(&id).cloned()) {
                let new = ClaimId(id.0 + 100);
                self.asked.insert(new, request.clone());
                self.b.submit(new.0, request, 1);
            }
        }
        self.look()
    }

    /// Checks what must hold at any time.
    fn look(&self) -> Checked {
        let b = &self.b;
        let machine = &b.w.machine;
        fits(b)?;
        lie_where_it_says(b, self.hidden)?;
        let holdings = machine.holdings();
        let waits = |id: &ClaimId| machine.queue().any(|(i, _)| i == *id);
        for id in b.bytes.keys() {
            prop_assert!(holdings.contains_key(id) || waits(id), "{id} is lost");
        }
        let gpus = machine.ledger().gpus().len();
        let (mut taken, mut host) = (vec![Bytes::ZERO; gpus], Bytes::ZERO);
        let mut quiet = self.hidden.is_none();
        for (id, holding) in &holdings {
            match &holding.phase {
                Phase::Offloaded(parked) => {
                    prop_assert!(!parked.back || waits(id), "{id} does not wait to come back");
                    host = host.saturating_add(b.bytes.get(id).map_or(parked.host, |(b, _)| *b));
                    continue;
                }
                phase => quiet &= *phase == Phase::Granted,
            }
            for slice in holding.at.iter().chain(&holding.to) {
                taken[slice.gpu] = taken[slice.gpu].saturating_add(slice.mem);
            }
        }
        for (g, taken) in taken.into_iter().enumerate() {
            prop_assert_eq!(machine.ledger().mem_requested(g), taken, "GPU {}", g);
        }
        if quiet {
            prop_assert_eq!(machine.host_taken(), host, "host memory");
        }
        Ok(())
    }

    /// Completes what was begun: each claim runs or waits, and all get their turn.
    fn end(&mut self) -> Checked {
        for _ in 0..25 {
            self.pass(1)?;
        }
        self.b.failing.clear();
        for (id, holding) in self.b.w.machine.holdings() {
            let settled = matches!(holding.phase, Phase::Granted | Phase::Offloaded(_));
            prop_assert!(settled, "{id} is still between two places: {holding:?}");
        }
        for _ in 0..60 {
            let all = self.b.w.machine.holdings();
            if all.is_empty() && self.b.w.machine.queue().count() == 0 {
                break;
            }
            for (id, holding) in all {
                let wanted = match holding.phase {
                    Phase::Granted => {
                        self.ran.insert(id);
                        Event::Gone { id }
                    }
                    Phase::Offloaded(p) if p.by == ParkedBy::Person => Event::Wish {
                        id,
                        wish: Wish::Resume,
                    },
                    Phase::Offloaded(p) if p.by == ParkedBy::Idle => Event::Wanted { id },
                    _ => continue,
                };
                self.b.send(wanted);
                self.look()?;
            }
            for _ in 0..4 {
                self.pass(5)?;
            }
        }
        let left = self.b.w.machine.holdings();
        prop_assert!(left.is_empty(), "{left:?}");
        for id in self.asked.keys() {
            let died = self.over.contains(id) || self.b.lost.contains(id);
            let had_its_turn = self.ran.contains(id) || died;
            prop_assert!(had_its_turn, "{id} never ran again");
        }
        prop_assert_eq!(self.b.w.machine.host_taken(), Bytes::ZERO);
        Ok(())
    }
}

fn trial(scene: &Scene, m: &Moment, outcome: Option<Failure>, killed: Killed) -> Checked {
    let mut t = Trial {
        m,
        b: m.after.clone(),
        outcome,
        asked: m.asked.clone(),
        hidden: matches!(m.action, Action::Grant { .. }).then_some(m.id),
        over: BTreeSet::new(),
        ran: BTreeSet::new(),
        again: 0,
    };
    let known = |b: &Bench| b.w.machine.memory();
    let before_or_after = |stale| known(if stale { &m.before } else { &m.after });
    // A resize needs only to be journaled: else it is undone before the next decision.
    if let (Action::Resize { .. }, Some(cause)) = (&m.action, scene.cause)
        && outcome.is_some_and(|f| f != Failure::Lost)
    {
        t.b = m.before.clone();
        t.b.w.full_disk = true;
        cause(&mut t.b);
        t.b.w.full_disk = false;
        match killed {
            Killed::Never => {}
            Killed::Afterwards { stale: false } => t.restart(known(&t.b)),
            _ => t.restart(known(&m.before)),
        }
        return t.end();
    }
    match killed {
        Killed::Never => {
            t.carry();
            t.tell();
        }
        Killed::BeforeItIsWritten => {
            t.b = m.before.clone();
            t.hidden = None;
            t.restart(known(&m.before));
            // The user asks again; then the same may fail.
            t.b.failing.extend(outcome);
            if let Some(cause) = scene.cause {
                cause(&mut t.b);
            }
            return t.end();
        }
        Killed::BeforeItIsDone { stale } => {
            t.restart(before_or_after(stale));
            t.pass(1)?;
            t.carry();
            t.tell();
        }
        Killed::BeforeItIsTold { stale } => {
            t.carry();
            t.restart(before_or_after(stale));
            t.pass(1)?;
            t.tell();
        }
        Killed::Afterwards { stale } => {
            let before = known(&t.b);
            t.carry();
            t.tell();
            let after = known(&t.b);
            t.restart(if stale { before } else { after });
            t.pass(1)?;
        }
    }
    t.see_the_dead();
    t.end()
}

/// Plays every scene with every outcome, killed at every point.
fn nothing_is_lost(scenes: &[Scene]) {
    let mut wrong = Vec::new();
    for scene in scenes {
        let m = moment(scene);
        for outcome in OUTCOMES {
            for killed in KILLED {
                if let Err(error) = trial(scene, &m, outcome, killed) {
                    wrong.push(format!("{}, {outcome:?}, {killed:?}: {error}", scene.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

mod scenes;
