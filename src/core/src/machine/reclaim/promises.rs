//! Promises that hold in all random histories of `histories`, each with a name.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::board::{Leaves, Problem};
use super::super::lever::{Holding, Lever, ParkedBy};
use super::super::plan::Who;
use super::super::*;
use super::histories::{
    BESIDE, Claim, Do, Play, admissions, come_back, history, history_of, restarted,
};
use super::tests::{Bench, s};
use crate::claim::Class;
use crate::ledger::Admission;
use crate::sched::solve::{Answer, Budget, Prefer};
use crate::units::Bytes;

type Checked = Result<(), TestCaseError>;

/// Observations that do not rely on the machine's own state.
#[derive(Default)]
struct Watch {
    seen: usize,
    /// Where a claim's bytes are, and since when.
    since: BTreeMap<ClaimId, (Option<Vec<usize>>, Now)>,
    /// Announced levers, and for when.
    told: BTreeMap<ClaimId, (Lever, Now)>,
    /// Holdings before the last decision.
    before: Held,
}

/// What each user holds, each user's guarantee, and for each claim its owner and whether it uses more memory than
/// requested.
#[derive(Default)]
struct Held {
    own: BTreeMap<u32, f64>,
    part: f64,
    claims: BTreeMap<ClaimId, (u32, bool)>,
    /// Sizes of waiting claims, and their ranks among the claims of their owners.
    waits: Vec<(Rank, u32, f64)>,
}

/// An action, and what was known about it.
struct Deed<'a> {
    action: &'a Action,
    id: ClaimId,
    /// Its own owner, or the scheduler that allocates its GPUs, wanted it.
    own: bool,
    /// What was announced for the claim, and for when.
    told: Option<(Lever, Now)>,
    /// How long the claim had run in its place.
    ran: Duration,
}

impl Watch {
    /// Checks the actions since the last call.
    fn look(
        &mut self,
        play: &mut Play,
        check: &dyn Fn(&Deed<'_>, &Self, &Play) -> Checked,
    ) -> Checked {
        let now = play.b.w.now;
        for index in self.seen..play.b.w.log.len() {
            let action = play.b.w.log[index].clone();
            match &action {
                Action::Announce { id, lever, at, .. } => {
                    let rules = &play.b.w.machine.reclaim.rules;
                    let long = *at >= now + rules.countdown || self.told.contains_key(id);
                    prop_assert!(long, "{id} is warned at {now:?} of an action at {at:?}");
                    self.told.insert(*id, (*lever, *at));
                }
                Action::Retract { id, .. } => {
                    self.told.remove(id);
                }
                Action::Park { id, .. }
                | Action::Move { id, .. }
                | Action::Kill { id, .. }
                | Action::Requeue { id, .. }
                | Action::Share { id, .. } => {
                    let own = play.own.iter().position(|a| a == id);
                    if let Some(i) = own {
                        play.own.remove(i);
                    }
                    // Giving back does no harm.
                    let gives = matches!(action, Action::Share { .. });
                    if gives && !matches!(self.told.get(id), Some((Lever::Share, _))) {
                        continue;
                    }
                    let deed = Deed {
                        action: &action,
                        id: *id,
                        own: own.is_some(),
                        told: if own.is_some() {
                            None
                        } else {
                            self.told.remove(id)
                        },
                        ran: now - self.since.get(id).map_or(now, |(_, at)| *at),
                    };
                    check(&deed, self, play)?;
                }
                _ => {}
            }
        }
        self.seen = play.b.w.log.len();
        for (id, (_, at)) in &play.b.bytes {
            if self.since.get(id).is_none_or(|(before, _)| before != at) {
                self.since.insert(*id, (at.clone(), now));
            }
        }
        self.before = held(&play.b);
        Ok(())
    }
}

/// The smaller rank of an owner's claims comes first.
type Rank = (std::cmp::Reverse<u16>, u8, ClaimId);

fn rank(machine: &Machine, id: ClaimId, r: &Request) -> Rank {
    let priority = machine.rules_of(r.class).priority;
    (std::cmp::Reverse(priority), machine.level_of(id), id)
}

/// Sizes of all claims now, from the ledger alone.
fn held(b: &Bench) -> Held {
    let machine = &b.w.machine;
    let size = |s: &Slice| (s.mem.0 as f64 / Bytes::gib(24).0 as f64).max(s.sm.as_f64());
    let queued = |g: usize| machine.ledger().admission(g) == Admission::Queue;
    let mut held = Held::default();
    for (id, slices) in machine.ledger().held() {
        let Some(uid) = slices.first().map(|s| s.uid) else {
            continue;
        };
        *held.own.entry(uid).or_default() += slices
            .iter()
            .filter(|s| queued(s.gpu))
            .map(size)
            .sum::<f64>();
        let over = slices.iter().any(|s| s.borrowed() > Bytes::ZERO);
        held.claims.insert(id, (uid, over));
    }
    let part = |r: &Request| {
        let mem = r
            .mem
            .map_or(r.share.as_f64(), |m| m.0 as f64 / Bytes::gib(24).0 as f64);
        mem.max(r.sm.map_or(0.0, Share::as_f64)) * f64::from(r.gpus)
    };
    held.waits = machine
        .queue()
        .map(|(id, r)| (rank(machine, id, r), r.uid, part(r)))
        .collect();
    let waits = machine.queue().map(|(_, r)| r.uid);
    let mut users: Vec<u32> = held.own.keys().copied().chain(waits).collect();
    users.sort_unstable();
    users.dedup();
    let gpus = (0..machine.ledger().gpus().len()).filter(|g| queued(*g));
    held.part = gpus.count() as f64 / users.len().max(1) as f64;
    held
}

/// Plays a history and checks after every step and every second.
fn play(
    steps: &[Do],
    kill: bool,
    deed: &dyn Fn(&Deed<'_>, &Watch, &Play) -> Checked,
    state: &dyn Fn(&Play) -> Checked,
) -> Checked {
    let mut play = Play::new(kill);
    let mut watch = Watch::default();
    for step in steps {
        play.step(step);
        watch.look(&mut play, deed)?;
        state(&play)?;
        if let Do::Wait(time) = step {
            for _ in 0..*time {
                play.second();
                watch.look(&mut play, deed)?;
                state(&play)?;
            }
        }
    }
    play.end(|play| {
        watch.look(play, deed)?;
        state(play)
    })
}

fn nothing(_: &Deed<'_>, _: &Watch, _: &Play) -> Checked {
    Ok(())
}

fn whatever(_: &Play) -> Checked {
    Ok(())
}

/// No GPU is overfull, in the machine's state (also checked after every event) and in truth.
fn within_the_allocatable(play: &Play) -> Checked {
    fits(&play.b)
}

pub(super) fn fits(b: &Bench) -> Checked {
    for (g, facts) in b.w.machine.ledger().gpus().iter().enumerate() {
        let on = |at: &Option<Vec<usize>>| at.as_ref().is_some_and(|at| at.contains(&g));
        let here = b.bytes.values().filter(|(_, at)| on(at));
        let sum: u64 = here.map(|(bytes, _)| bytes.0).sum();
        prop_assert!(
            sum <= facts.allocatable().unwrap().0,
            "GPU {g} has {sum} bytes on it"
        );
    }
    Ok(())
}

/// No claim within a guarantee is parked or ended for a claim that is not, whatever else the plan has. Memory used
/// above the request is borrowed, and an idle claim may be offloaded until it works again.
fn no_entitled_claim_goes(deed: &Deed<'_>, watch: &Watch, play: &Play) -> Checked {
    let gone = match deed.action {
        Action::Park { by, .. } => *by != ParkedBy::Idle && !deed.own,
        Action::Kill { .. } | Action::Requeue { .. } => true,
        _ => false,
    };
    let now = held(&play.b);
    let known = if now.claims.contains_key(&deed.id) {
        &now
    } else {
        &watch.before
    };
    let Some((uid, over)) = known.claims.get(&deed.id).copied().filter(|_| gone) else {
        return Ok(());
    };
    // The owner's claims of better rank come first in the guarantee, whether they run or wait. Other claims of the
    // owner may have ended just after the action.
    let machine = &play.b.w.machine;
    let asked = machine.request_of(deed.id);
    let own_rank = asked.map(|r| rank(machine, deed.id, r));
    let of = |held: &Held| {
        let first = held
            .waits
            .iter()
            .filter(|(rank, of, _)| *of == uid && own_rank.is_none_or(|own| *rank < own));
        let waits: f64 = first.map(|(.., size)| size).sum();
        held.own.get(&uid).copied().unwrap_or_default() + waits
    };
    let own = of(&now).max(of(&watch.before));
    // Likewise for those of others, among whom the GPUs are divided.
    let part = known.part.min(watch.before.part);
    let plans = &play.b.w.machine.reclaim.plans;
    let entitled = |p: &&Plan| p.steps.iter().any(|s| s.id == deed.id) && p.entitled;
    let for_entitled = plans.iter().any(|p| entitled(&p));
    let swap = matches!(deed.told, Some((Lever::Move, _))) && for_entitled;
    prop_assert!(
        own > part - 1e-6 || over || swap,
        "{} of {uid}, who holds {own} of a guarantee of {}, has to make room: {:?}",
        deed.id,
        part,
        deed.action
    );
    Ok(())
}

/// Levers are announced with their countdown before use, and cancelled announcements are reported.
fn announced(deed: &Deed<'_>, _: &Watch, play: &Play) -> Checked {
    if deed.own {
        return Ok(());
    }
    let now = play.b.w.now;
    let Some((lever, at)) = deed.told else {
        return Err(TestCaseError::fail(format!(
            "{:?} was not announced",
            deed.action
        )));
    };
    prop_assert!(
        at <= now,
        "{:?} at {now:?}, announced for {at:?}",
        deed.action
    );
    let as_told = match deed.action {
        // Of several claims that change places, one waits in the host.
        Action::Park { .. } => matches!(lever, Lever::Offload | Lever::Suspend | Lever::Move),
        Action::Move { .. } => lever == Lever::Move,
        Action::Kill { .. } => lever == Lever::Kill,
        Action::Requeue { .. } => lever == Lever::Requeue,
        _ => lever == Lever::Share,
    };
    prop_assert!(as_told, "{:?} was announced as {lever:?}", deed.action);
    if let Action::Move { id, from, to } = deed.action {
        let request = play.b.w.machine.request_of(*id);
        prop_assert!(request.is_none_or(|r| r.movable), "{id} may not be moved");
        prop_assert_eq!(from.len(), to.len());
    }
    Ok(())
}

/// Before anything is taken from a claim for others, it has reached the minimum run time of its class.
fn ran_for_the_minimum(deed: &Deed<'_>, _: &Watch, play: &Play) -> Checked {
    let Some(request) = play.b.w.machine.request_of(deed.id) else {
        return Ok(());
    };
    let least = play.b.w.machine.rules_of(request.class).min_run;
    prop_assert!(
        deed.own || deed.ran >= least,
        "{:?} after {:?} of {least:?}",
        deed.action,
        deed.ran
    );
    Ok(())
}

/// A claim's bytes are where the machine says, on GPUs or in the host, never both.
fn on_one_side(play: &Play) -> Checked {
    lie_where_it_says(&play.b, None)
}

/// The same, except for a claim of which the machine has not heard yet.
pub(super) fn lie_where_it_says(b: &Bench, but: Option<ClaimId>) -> Checked {
    for (id, holding) in b.w.machine.holdings() {
        let Some((_, truth)) = b.bytes.get(&id).filter(|_| Some(id) != but) else {
            continue;
        };
        let gpus = |slices: &[Slice]| Some(slices.iter().map(|s| s.gpu).collect::<Vec<_>>());
        let says = match &holding.phase {
            Phase::Offloaded(_) | Phase::Restoring(_) => None,
            _ => gpus(&holding.at),
        };
        prop_assert_eq!(truth, &says, "{}: {:?}", id, holding);
    }
    Ok(())
}

/// No claim waits that could start if none waited before it. The head of the queue waits only if no moves would make
/// room for it, by a search with its own budget.
fn no_capacity_stays_idle(play: &Play) -> Checked {
    let b = &play.b;
    let machine = &b.w.machine;
    let quiet = machine.reclaim.plans.is_empty() && machine.claims.moving().next().is_none();
    if !quiet || machine.measuring > 0 {
        return Ok(());
    }
    // Where another scheduler has promised more than exists, a claim that leaves makes no room.
    let gpus = 0..machine.ledger().gpus().len();
    let settling = settling(play);
    let mut kept: Vec<bool> = gpus
        .map(|g| place::overfull(machine.ledger(), g) || settling.contains(&g))
        .collect();
    for (place, waiting) in machine.queue.iter().enumerate() {
        let Ask::Claim { id, request, .. } = &waiting.ask else {
            for g in &waiting.blocks {
                kept[*g] = true;
            }
            continue;
        };
        if !machine.rests(b.w.now, *id) {
            let found = place::best_fit(machine.ledger(), request, &kept);
            prop_assert!(found.is_none(), "{id} could start at {found:?}");
            // The machine waits for claims that end before levers could make room.
            let soon = b.w.now + machine.reclaim.rules.countdown;
            let soon = waiting.expected.is_some_and(|at| at <= soon);
            if place == 0 && !(soon && machine.is_reserved(*id)) {
                let leaves = |id, slices: &[Slice]| movable(machine, b.w.now, id, slices);
                let mut problem = Problem::new(machine, machine.ledger(), leaves);
                problem.asked_by(&Who::last(request), &kept);
                let item = problem.item(machine.ledger(), request, &kept);
                let budget = Budget {
                    steps: 50_000,
                    moves: 4,
                    least: 0,
                    drops: 0,
                };
                if let Some(item) = item
                    && let Answer::Fits(fit) =
                        problem.board.place(&item, Prefer::Pack, |_| 0, budget)
                {
                    let alone = fit.moves.len() == 1;
                    let (index, to) = &fit.moves[0];
                    let apart = problem.board.items[*index]
                        .at
                        .iter()
                        .all(|g| !to.contains(g));
                    prop_assert!(
                        !(alone && apart),
                        "{id} could start at {:?} if {} moved to {to:?}",
                        fit.at,
                        problem.who[*index]
                    );
                }
            }
        }
        for g in &waiting.blocks {
            kept[*g] = true;
        }
    }
    Ok(())
}

/// GPUs that let everybody in, and let a claim in a moment ago: what it will allocate is not in the ledger.
fn settling(play: &Play) -> Vec<usize> {
    let machine = &play.b.w.machine;
    let mut gpus = Vec::new();
    for (id, holding) in machine.holdings() {
        let since = machine.claims.get(id).map(|c| c.run.since);
        let young = since.is_some_and(|at| play.b.w.now < at + s(60));
        if let Phase::Counted(slices) = &holding.phase
            && young
        {
            gpus.extend(slices.iter().map(|s| s.gpu));
        }
    }
    gpus.retain(|g| machine.ledger().admission(*g) == Admission::Pass);
    gpus
}

/// Cost of moving a claim, if the rules allow a move now.
fn movable(machine: &Machine, now: Now, id: ClaimId, slices: &[Slice]) -> Leaves {
    let granted = machine.claims.get(id);
    let bytes = slices
        .iter()
        .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge));
    let able = granted.is_some_and(|g| {
        let spared = g.run.spared.values().any(|until| *until > now);
        let least = machine.rules_of(g.request.class).min_run;
        let movable = g.request.movable && g.run.levers.movable.is_ok();
        let moves = movable && machine.ledger().queued(slices);
        moves && !spared && now >= g.run.since + least
    });
    let fits = machine.host_room() >= bytes;
    Leaves {
        moved: (able && fits).then_some(bytes.0.max(1)),
        ..Leaves::default()
    }
}

/// The machine's state for comparison: places, order of the queue, announcements.
fn state_of(machine: &Machine) -> String {
    let queue: Vec<_> = machine
        .queue
        .iter()
        .filter_map(|w| match &w.ask {
            Ask::Claim { id, request, .. } => Some((
                *id, request, w.seq, w.since, w.due, w.entitled, w.level, w.had, &w.blocks,
                w.expected,
            )),
            Ask::Resize { .. } => None,
        })
        .collect();
    let standing = machine.memory();
    let limits = machine.claims.iter();
    let limits = limits.map(|(id, c)| (id, c.ends, c.warn_at, c.ending, c.lowered_from));
    let limits: Vec<_> = limits.collect();
    let caps: Vec<_> = machine.ledger.held().collect();
    let holdings = machine.holdings();
    format!(
        "holdings {holdings:?}\nheld {caps:?}\nqueue {queue:?}\nplans {:?}\nclaims {:?}\npast {:?}\nlimits {limits:?}",
        standing.plans, standing.claims, standing.past,
    )
}

fn same(a: &Play, b: &Play) -> Checked {
    let (one, other) = (state_of(&a.b.w.machine), state_of(&b.b.w.machine));
    for (one, other) in one.lines().zip(other.lines()) {
        prop_assert_eq!(one, other);
    }
    Ok(())
}

/// Restarts the machine at a point of a history and continues both. Wishes to resize are dropped in both, because their
/// clients ask again.
fn restarts(steps: &[Do], at: usize) -> Checked {
    let mut one = Play::new(false);
    let mut other: Option<Play> = None;
    for (index, step) in steps.iter().enumerate() {
        if index == at.min(steps.len() - 1) {
            let tickets = one.b.w.machine.queue.iter().filter_map(|w| match w.ask {
                Ask::Resize { ticket, .. } => Some(ticket),
                Ask::Claim { .. } => None,
            });
            for ticket in tickets.collect::<Vec<_>>() {
                one.b.send(Event::Unwish { ticket });
            }
            let mut twin = one.clone();
            twin.b.w = restarted(&one.b.w);
            come_back(&mut twin.b, true);
            one.b.send(Event::Tick);
            twin.b.send(Event::Tick);
            same(&one, &twin)?;
            other = Some(twin);
        }
        one.step(step);
        if let Some(other) = &mut other {
            other.step(step);
            same(&one, other)?;
        }
        if let Do::Wait(time) = step {
            for _ in 0..*time {
                one.second();
                if let Some(other) = &mut other {
                    other.second();
                    same(&one, other)?;
                }
            }
        }
    }
    Ok(())
}

/// A part of the usual number of cases: each makes some thousand decisions.
fn some() -> ProptestConfig {
    let cases = ProptestConfig::default().cases / 8;
    ProptestConfig {
        cases,
        max_shrink_iters: 4000,
        ..ProptestConfig::default()
    }
}

/// No lever is used on claims that are only counted, or on GPUs that the queue does not decide about. No claim moves
/// there, and counted claims stay outside the ledger.
fn only_where_the_queue_decides(deed: &Deed<'_>, _: &Watch, play: &Play) -> Checked {
    let ledger = play.b.w.machine.ledger();
    let queued = |gpus: &[usize]| {
        gpus.iter()
            .all(|g| ledger.admission(*g) == Admission::Queue)
    };
    let all = play.b.w.machine.holdings();
    let counted = |h: &Holding| matches!(h.phase, Phase::Counted(_));
    prop_assert!(!all.get(&deed.id).is_some_and(counted), "{:?}", deed.action);
    let gpus = |of: &[Slice]| of.iter().map(|s| s.gpu).collect::<Vec<_>>();
    match deed.action {
        Action::Move { from, to, .. } => {
            prop_assert!(
                queued(&gpus(from)) && queued(&gpus(to)),
                "{:?}",
                deed.action
            );
        }
        Action::Park { id, by, .. } => {
            let mut at = all[id].at.iter();
            let foreign = |s: &Slice| ledger.admission(s.gpu) == Admission::Foreign;
            prop_assert!(
                match by {
                    ParkedBy::Scheduler => at.all(foreign),
                    _ => queued(&gpus(&all[id].at)) || (deed.own && !at.any(foreign)),
                },
                "{:?}",
                deed.action
            );
        }
        _ => {}
    }
    Ok(())
}

/// Counted claims stay outside the ledger, and the queue places no new claims on another scheduler's GPUs.
fn the_books_are_apart(play: &Play) -> Checked {
    let machine = &play.b.w.machine;
    for (id, holding) in machine.holdings() {
        if let Phase::Counted(_) = holding.phase {
            let known = machine
                .ledger()
                .slices(id)
                .or(machine.ledger().reserved(id));
            prop_assert_eq!(known, None);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(some())]

    #[test]
    fn nothing_is_taken_where_not_the_queue_decides(steps in admissions(), kill: bool) {
        play(&steps, kill, &only_where_the_queue_decides, &the_books_are_apart)?;
    }

    #[test]
    fn changes_of_admission_lose_nobody_and_overfill_nothing(steps in admissions(), kill: bool) {
        play(&steps, kill, &announced, &|play| {
            within_the_allocatable(play)?;
            on_one_side(play)
        })?;
    }

    #[test]
    fn the_entitled_are_safe_whatever_decides(steps in admissions(), kill: bool) {
        play(&steps, kill, &no_entitled_claim_goes, &no_capacity_stays_idle)?;
    }

    #[test]
    fn never_over_the_allocatable(steps in history(1), kill: bool) {
        play(&steps, kill, &nothing, &within_the_allocatable)?;
    }

    #[test]
    fn the_entitled_are_never_suspended_for_a_borrower(steps in history(1), kill: bool) {
        play(&steps, kill, &no_entitled_claim_goes, &whatever)?;
    }

    #[test]
    fn nobody_starves(steps in history(1), kill: bool) {
        play(&steps, kill, &nothing, &whatever)?;
    }

    #[test]
    fn no_capacity_stays_idle_while_a_pending_claim_may_legally_run_there(steps in history(1)) {
        play(&steps, false, &nothing, &no_capacity_stays_idle)?;
    }

    #[test]
    fn every_reclaim_is_announced_and_what_is_parked_comes_back(steps in history(1), kill: bool) {
        play(&steps, kill, &announced, &on_one_side)?;
    }

    #[test]
    fn the_minimum_run_time_is_kept(steps in history(1), kill: bool) {
        play(&steps, kill, &ran_for_the_minimum, &whatever)?;
    }

    #[test]
    fn a_restart_at_any_point_gives_the_same_state(steps in history(0), at in 0usize..40) {
        restarts(&steps, at)?;
    }

    #[test]
    fn a_claims_bytes_are_on_exactly_one_side(steps in history(1), kill: bool) {
        play(&steps, kill, &nothing, &on_one_side)?;
    }
}

/// Times are in seconds here.
#[test]
fn those_who_do_not_come_back_are_waited_for_only_so_long() {
    let mut b = Bench::new(1);
    b.claim(1, 1000, 1, Class::Batch, 1);
    b.claim(2, 1000, 2, Class::Batch, 1);
    b.claim(3, 1000, 3, Class::Batch, 1);
    b.w = {
        let mut new = b.w.clone();
        new.machine = Machine::default();
        new.send(Event::Gpus(b.w.machine.ledger().gpus().to_vec()));
        new.send(Event::Recall(Box::new(b.w.machine.memory())));
        new
    };
    // The first has ended meanwhile, and the second one's client too: the third keeps its place behind the second.
    let request = b.w.machine.queue().nth(1).unwrap().1.clone();
    b.send(Event::Submit {
        id: ClaimId(3),
        request,
        patience: None,
    });
    b.pass(s(9));
    assert_eq!(b.w.granted(3), None, "the second may still come back");
    b.pass(s(2));
    assert_eq!(b.w.granted(3), Some(vec![0]));
    assert_eq!(b.w.machine.queue().count(), 0);
}

/// Found by the property: a restarted service repeats which GPUs are drained, and no claim came or left by that.
#[test]
fn a_restart_does_not_put_off_that_those_who_run_are_spread_again() {
    let claim = |gpus, movable| {
        Do::Claim(Claim {
            tenths: 1,
            gpus,
            uid: 0,
            class: Class::Interactive,
            fill: 0,
            limit: false,
            movable,
            requeue: false,
            lease: None,
            patience: None,
        })
    };
    let steps = [
        claim(2, false),
        claim(1, false),
        claim(1, true),
        Do::Gone(0),
        Do::Wait(7),
        Do::Wait(53),
        Do::Wait(1),
    ];
    for at in 0..steps.len() {
        restarts(&steps, at).unwrap_or_else(|why| panic!("started anew at {at}: {why}"));
    }
    let mut play = Play::new(false);
    for step in &steps {
        play.step(step);
        if let Do::Wait(time) = step {
            (0..*time).for_each(|_| play.second());
        }
    }
    let plans = &play.b.w.machine.reclaim.plans;
    assert!(plans.iter().any(|p| p.waiter.is_none()), "{plans:?}");
}

/// The same claims come and go, once with additional claims that are only counted: the decisions are the same.
#[test]
fn those_who_are_counted_change_nothing_for_others() {
    let counted = |milli| {
        let mut r = Request::from_gpus(Share::from_milli(milli), Share::ONE, Class::Batch).unwrap();
        r.only_gpus = vec![2];
        r
    };
    for seed in 1..60 {
        let (steps, _) = history_of(seed);
        let mut plain = Play::new(false);
        let (uuid, by) = ("GPU-2".to_owned(), Admission::Pass);
        plain.b.send(Event::Admission { uuid, by });
        let mut both = plain.clone();
        let mut before = None;
        for (n, step) in steps.iter().enumerate() {
            if matches!(step, Do::Restart | Do::Drain(2, _)) {
                continue;
            }
            let id = BESIDE.0 + n as u64;
            both.b
                .w
                .submit_request(id, counted(300 + 100 * (n as u32 % 8)), None);
            let holding = both.b.w.machine.holding(ClaimId(id));
            assert!(matches!(holding.map(|h| h.phase), Some(Phase::Counted(_))));
            // Its use comes with the facts, and here it uses nothing.
            both.b.w.log.pop();
            if let Some(id) = before.replace(ClaimId(id)).filter(|_| n % 3 == 2) {
                both.b.w.send(Event::Gone { id });
            }
            for play in [&mut plain, &mut both] {
                play.step(step);
                if let Do::Wait(seconds) = step {
                    (0..*seconds).for_each(|_| play.second());
                }
            }
            assert!(plain.b.w.log == both.b.w.log, "history {seed}, step {n}");
        }
    }
}
