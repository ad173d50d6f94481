//! Taking back over random histories: what must hold whatever happens.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::lever::{Failure, Holding, Levers, Wish};
use super::super::*;
use super::ReclaimRules;
use super::tests::{Bench, s};
use crate::claim::Class;
use crate::place;
use crate::units::Bytes;

#[derive(Clone, Debug)]
enum Do {
    Claim {
        tenths: u32,
        gpus: u32,
        uid: u32,
        notebook: bool,
        fill: u64,
        limit: bool,
    },
    Gone(usize),
    Wait(u64),
    Wish(usize, Wish),
    Wanted(usize),
    Fail(Failure),
    Refuses(usize),
    HostRam(u64),
    Restart,
}

fn history() -> impl Strategy<Value = Vec<Do>> {
    let wish = prop::sample::select(vec![
        Wish::Detach,
        Wish::Attach,
        Wish::Suspend,
        Wish::Resume,
        Wish::Keep,
    ]);
    let failure = prop::sample::select(vec![
        Failure::Refused,
        Failure::TimedOut,
        Failure::Busy,
        Failure::HostRam,
    ]);
    let claim = (
        1u32..=10,
        1u32..=2,
        0u32..3,
        any::<bool>(),
        0u64..=10,
        any::<bool>(),
    );
    let step = prop_oneof![
        6 => claim.prop_map(|(tenths, gpus, uid, notebook, fill, limit)| Do::Claim {
            tenths, gpus, uid, notebook, fill, limit,
        }),
        3 => (0usize..12).prop_map(Do::Gone),
        6 => (1u64..70).prop_map(Do::Wait),
        2 => (0usize..12, wish).prop_map(|(i, w)| Do::Wish(i, w)),
        1 => (0usize..12).prop_map(Do::Wanted),
        1 => failure.prop_map(Do::Fail),
        1 => (0usize..12).prop_map(Do::Refuses),
        1 => (5u64..60).prop_map(Do::HostRam),
        1 => Just(Do::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

/// What is watched beside the machine's own word.
#[derive(Default)]
struct Watch {
    seen: usize,
    /// Since when a claim runs where it is.
    since: BTreeMap<ClaimId, Now>,
    /// What was told, and when.
    told: BTreeMap<ClaimId, Now>,
    /// What persons asked for themselves.
    asked: Vec<ClaimId>,
}

impl Watch {
    /// Looks at what was decided since the last time.
    fn look(&mut self, b: &Bench) -> Result<(), TestCaseError> {
        let rules = ReclaimRules::default();
        let now = b.w.now;
        for action in &b.w.log[self.seen..] {
            match action {
                Action::Grant { id, .. } | Action::Unpark { id, .. } => {
                    self.since.insert(*id, now);
                }
                Action::Announce { id, at, .. } => {
                    prop_assert!(*at >= now);
                    let long = *at - now >= rules.countdown || self.told.contains_key(id);
                    prop_assert!(long, "{id} is told at {now:?} of {at:?}");
                    self.told.insert(*id, *at);
                }
                Action::Retract { id, .. } => {
                    self.told.remove(id);
                }
                Action::Park { id, .. }
                | Action::Move { id, .. }
                | Action::Kill { id, .. }
                | Action::Requeue { id, .. }
                | Action::Share { id, .. } => {
                    if let Some(i) = self.asked.iter().position(|a| a == id) {
                        self.asked.remove(i);
                        continue;
                    }
                    // Giving back is no harm.
                    if matches!(action, Action::Share { .. }) && !self.told.contains_key(id) {
                        continue;
                    }
                    let at = self.told.remove(id);
                    prop_assert!(
                        at.is_some_and(|at| at <= now),
                        "{action:?} was not announced"
                    );
                    let ran = now - self.since.get(id).copied().unwrap_or(now);
                    prop_assert!(ran >= s(60), "{action:?} after {ran:?}");
                    if matches!(action, Action::Park { .. }) {
                        self.was_a_borrower(b, *id)?;
                    }
                }
                _ => {}
            }
        }
        self.seen = b.w.log.len();
        Ok(())
    }

    /// Nobody within his guarantee gives his GPU, unless his claim uses more than it asked for.
    fn was_a_borrower(&self, b: &Bench, id: ClaimId) -> Result<(), TestCaseError> {
        let machine = &b.w.machine;
        let slices = machine.ledger().slices(id).unwrap_or_default();
        let Some(uid) = slices.first().map(|s| s.uid) else {
            return Ok(());
        };
        let all = f64::from(u32::try_from(machine.ledger().gpus().len()).unwrap());
        let size = |s: &Slice| (s.mem.0 as f64 / Bytes::gib(24).0 as f64).max(s.sm.as_f64());
        let held = machine.ledger().held().flat_map(|(_, s)| s);
        let own: f64 = held.filter(|s| s.uid == uid).map(size).sum();
        let mut users: Vec<u32> = machine
            .ledger()
            .held()
            .flat_map(|(_, s)| s.first())
            .map(|s| s.uid)
            .chain(machine.queue().map(|(_, r)| r.uid))
            .collect();
        users.sort_unstable();
        users.dedup();
        let over = slices.iter().any(|s| s.borrowed() > Bytes::ZERO);
        // In a swap one that moves waits in the host.
        let moves = machine
            .announced(id)
            .is_some_and(|(p, _)| p.steps.iter().any(|s| s.lever == lever::Lever::Move));
        let part = all / users.len() as f64;
        prop_assert!(
            own > part - 1e-6 || over || moves,
            "{id} of {uid}, who has {own} of {part}"
        );
        Ok(())
    }
}

/// Each GPU holds what is on it.
fn fits(b: &Bench) -> Result<(), TestCaseError> {
    for g in 0..b.w.machine.ledger().gpus().len() {
        let here = b
            .bytes
            .values()
            .filter(|(_, at)| at.as_ref().is_some_and(|at| at.contains(&g)));
        let sum: u64 = here.map(|(bytes, _)| bytes.0).sum();
        prop_assert!(sum <= Bytes::gib(24).0, "GPU {g} has {sum} bytes on it");
    }
    for (id, holding) in b.w.machine.holdings() {
        let Some((_, truth)) = b.bytes.get(&id) else {
            continue;
        };
        let on_gpu = !matches!(holding, Holding::Parked(_) | Holding::Unparking { .. });
        prop_assert_eq!(truth.is_some(), on_gpu, "{}: {:?}", id, holding);
    }
    Ok(())
}

/// Nobody waits who may start.
fn conserves(b: &Bench) -> Result<(), TestCaseError> {
    let machine = &b.w.machine;
    if !machine.reclaim.plans.is_empty() || !machine.reclaim.transit.is_empty() {
        return Ok(());
    }
    let mut kept = vec![false; machine.ledger().gpus().len()];
    for waiting in &machine.queue {
        let Ask::Claim { id, request, .. } = &waiting.ask else {
            continue;
        };
        if !machine.rests(b.w.now, *id) {
            let place = place::best_fit(machine.ledger(), request, &kept);
            prop_assert!(place.is_none(), "{id} could start at {place:?}");
        }
        for g in &waiting.blocks {
            kept[*g] = true;
        }
    }
    Ok(())
}

/// The same claims at the same places, found again by a machine that was started anew.
fn restart(b: &mut Bench) -> Result<(), TestCaseError> {
    let old = std::mem::take(&mut b.w.machine);
    let gpus = old.ledger().gpus().to_vec();
    b.w.send(Event::Gpus(gpus));
    b.w.send(Event::Reclaim(old.reclaim.rules.clone()));
    b.w.send(Event::HostRam(old.reclaim.host_ram));
    let places = |m: &Machine| -> Vec<(ClaimId, String)> {
        let text = |h: &Holding| match h {
            Holding::Here(s) => format!("here {:?}", gpus_of(s)),
            Holding::Parking { slices, .. } => format!("parking {:?}", gpus_of(slices)),
            Holding::Parked(p) => format!("parked {} {}", p.host, p.frozen),
            Holding::Unparking { to, .. } => format!("unparking {:?}", gpus_of(to)),
            Holding::Moving { from, to } => format!("moving {:?} {:?}", gpus_of(from), gpus_of(to)),
        };
        m.holdings().iter().map(|(id, h)| (*id, text(h))).collect()
    };
    let before = places(&old);
    let holdings = old.holdings();
    for (id, holding) in holdings {
        // First those who hold: nobody comes back before all are known.
        let request = old.request_of(id).cloned().map(Box::new);
        let ends = None;
        b.w.machine.step(
            b.w.now,
            Event::Restore {
                id,
                request,
                holding,
                ends,
            },
        );
        if let Some(granted) = old.reclaim.granted.get(&id) {
            let levers = granted.levers.clone();
            b.w.machine.reclaim.granted.get_mut(&id).unwrap().levers = levers;
        }
    }
    prop_assert_eq!(before, places(&b.w.machine));
    let waiting: Vec<(ClaimId, Request)> = old.queue().map(|(id, r)| (id, r.clone())).collect();
    for (id, request) in waiting {
        if old.holding(id).is_none() {
            b.w.submit_request(id.0, request, None);
        }
    }
    b.send(Event::Tick);
    Ok(())
}

fn gpus_of(slices: &[Slice]) -> Vec<usize> {
    slices.iter().map(|s| s.gpu).collect()
}

fn pass(b: &mut Bench, watch: &mut Watch, time: u64) -> Result<(), TestCaseError> {
    for _ in 0..time {
        b.pass(s(1));
        watch.look(b)?;
        fits(b)?;
        conserves(b)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]
    /// Never over what there is, a claim's bytes on one side, nothing taken without a word or before its time,
    /// nobody suspended who is within his guarantee, no capacity idle that may be used, the same after a restart,
    /// and in the end everybody has had his turn.
    #[test]
    fn reclaim_keeps_its_promises(history in history()) {
        let mut b = Bench::new(3);
        let mut watch = Watch::default();
        let mut next = 1;
        for step in history {
            let ids: Vec<ClaimId> = b.w.machine.holdings().into_keys().collect();
            let nth = |i: usize| ids.get(i).copied();
            match step {
                Do::Claim { tenths, gpus, uid, notebook, fill, limit } => {
                    let class = if notebook { Class::Interactive } else { Class::Batch };
                    let of = if gpus > 1 { 2000 } else { tenths * 100 };
                    let mut r = Request::from_gpus(Share::from_milli(of), Share::ONE, class).unwrap();
                    r.uid = uid;
                    r.mem_limit = limit.then_some(Bytes::gib(24));
                    let most = if gpus > 1 { 24 } else { u64::from(tenths) * 24 / 10 };
                    b.submit(next, r, most * fill / 10);
                    next += 1;
                }
                Do::Gone(i) => if let Some(id) = nth(i) { b.send(Event::Gone { id }) },
                Do::Wait(time) => pass(&mut b, &mut watch, time)?,
                Do::Wish(i, wish) => if let Some(id) = nth(i) {
                    let here = matches!(b.w.machine.holding(id), Some(Holding::Here(_)));
                    if here && matches!(wish, Wish::Detach | Wish::Suspend) {
                        watch.look(&b)?;
                        watch.asked.push(id);
                    }
                    b.send(Event::Wish { id, wish });
                },
                Do::Wanted(i) => if let Some(id) = nth(i) { b.send(Event::Wanted { id }) },
                Do::Fail(failure) => b.failing.push(failure),
                Do::Refuses(i) => if let Some(id) = nth(i) {
                    b.send(Event::Levers { id, levers: Levers::default() });
                },
                Do::HostRam(gib) => b.send(Event::HostRam(Bytes::gib(gib))),
                Do::Restart => {
                    watch.look(&b)?;
                    restart(&mut b)?;
                    watch.told.clear();
                    let now = b.w.now;
                    watch.since.values_mut().for_each(|at| *at = now);
                    watch.seen = watch.seen.min(b.w.log.len());
                }
            }
            watch.look(&b)?;
            fits(&b)?;
        }
        // From now on claims end after a while of running, and nobody stays parked of his own will.
        b.failing.clear();
        let mut ran: BTreeMap<ClaimId, u32> = BTreeMap::new();
        for _ in 0..60 {
            let all = b.w.machine.holdings();
            if all.is_empty() && b.w.machine.queue().count() == 0 {
                break;
            }
            for (id, holding) in all {
                match holding {
                    Holding::Here(_) => {
                        let times = ran.entry(id).or_default();
                        *times += 1;
                        if *times > 3 {
                            b.send(Event::Gone { id });
                        }
                    }
                    Holding::Parked(_) => b.send(Event::Wish { id, wish: Wish::Resume }),
                    _ => {}
                }
                watch.look(&b)?;
            }
            pass(&mut b, &mut watch, 40)?;
        }
        prop_assert!(b.w.machine.holdings().is_empty(), "{:?}", b.w.machine.holdings());
        prop_assert_eq!(b.w.machine.queue().count(), 0);
    }
}
