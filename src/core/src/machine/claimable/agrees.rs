//! What is told to be claimable beside what becomes of a claim of that size.

use std::time::Duration;

use proptest::prelude::*;

use super::super::lever::{Holding, Lever, Levers};
use super::super::tests::World;
use super::super::{Action, Event};
use crate::claim::{ClaimId, Class, ModeWish, Request};
use crate::ledger::Sharing;
use crate::quota::{Party, Quota};
use crate::units::{Bytes, Share};

#[derive(Clone, Debug)]
struct Runs {
    gpu: usize,
    hundredths: u32,
    /// Bytes that it uses, in hundredths of what it may.
    used: u64,
    limit: bool,
    movable: bool,
    idle: bool,
    uid: u32,
    fresh: bool,
}

#[derive(Clone, Debug)]
struct Gpu {
    gib: u64,
    unclaimed: u64,
    model: bool,
    sharing: Sharing,
}

fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    let sharing = prop::sample::select(vec![
        Sharing::Timeslice,
        Sharing::Timeslice,
        Sharing::Timeslice,
        Sharing::Exclusive,
        Sharing::Auto { mps: Some(false) },
    ]);
    let gpu = (
        prop::sample::select(vec![24u64, 24, 24, 80]),
        prop::sample::select(vec![0u64, 0, 50]),
        prop::bool::weighted(0.2),
        sharing,
    );
    let gpu = gpu.prop_map(|(gib, unclaimed, model, sharing)| Gpu {
        gib,
        unclaimed,
        model,
        sharing,
    });
    prop::collection::vec(gpu, 1..5)
}

fn runs() -> impl Strategy<Value = Vec<Runs>> {
    let one = (
        0usize..4,
        prop::sample::select(vec![5u32, 10, 20, 25, 30, 40, 50, 60, 75]),
        0u64..=100,
        any::<bool>(),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.1),
        1u32..4,
        prop::bool::weighted(0.1),
    );
    let one = one.prop_map(
        |(gpu, hundredths, used, limit, movable, idle, uid, fresh)| Runs {
            gpu,
            hundredths,
            used,
            limit,
            movable,
            idle,
            uid,
            fresh,
        },
    );
    prop::collection::vec(one, 0..9)
}

fn part(hundredths: u32) -> Share {
    Share::from_milli(hundredths * 10)
}

fn world(gpus: &[Gpu], runs: &[Runs]) -> World {
    let sizes: Vec<u64> = gpus.iter().map(|g| g.gib).collect();
    let mut w = World::new(&sizes);
    let mut facts = w.machine.ledger().gpus().to_vec();
    for ((facts, gpu), g) in facts.iter_mut().zip(gpus).zip(0..) {
        facts.uuid = format!("GPU-{g}");
        facts.unclaimed = Bytes::mib(gpu.unclaimed);
        facts.sharing = gpu.sharing;
        if gpu.model {
            facts.model = "H".to_owned();
        }
    }
    w.send(Event::Gpus(facts));
    w.send(Event::Quotas(vec![Quota {
        party: asker(),
        gpus: Some(Share::ZERO),
        weight_milli: None,
        max: None,
    }]));
    for (id, run) in (1..).zip(runs) {
        if run.fresh {
            w.now += Duration::from_secs(300);
        }
        let class = if run.uid == 1 {
            Class::Interactive
        } else {
            Class::Batch
        };
        let mut request = Request::anybody(part(run.hundredths), run.uid);
        request.class = class;
        request.only_gpus = vec![u32::try_from(run.gpu % gpus.len()).unwrap()];
        request.mem_limit = run.limit.then_some(Bytes::gib(80));
        w.submit_request(id, request.clone(), Some(Duration::ZERO));
        let Some(slices) = w.machine.ledger().slices(ClaimId(id)).map(<[_]>::to_vec) else {
            continue;
        };
        let used = Bytes(slices[0].mem_cap.0 / 100 * run.used);
        w.used.insert((ClaimId(id), slices[0].gpu), used);
        // It may go elsewhere now that it is there.
        request.only_gpus.clear();
        request.movable = run.movable;
        w.send(Event::Restore {
            id: ClaimId(id),
            request: Some(Box::new(request)),
            holding: Holding::Here(slices),
            ends: None,
        });
        let levers = Levers {
            movable: Ok(()),
            park: Ok(()),
            requeue: false,
            idle: run.idle,
        };
        w.send(Event::Levers {
            id: ClaimId(id),
            levers,
        });
    }
    if runs.last().is_none_or(|r| !r.fresh) {
        w.now += Duration::from_secs(300);
    }
    w.send(Event::Tick);
    w
}

const NEW: ClaimId = ClaimId(100);

/// He is guaranteed nothing: for others more may be done than is told.
fn asker() -> Party {
    Party::User("asker".into())
}

/// Somebody asks for so many of these GPUs.
fn ask(w: &World, of: &[usize], share: Share, count: u32) -> World {
    let mut w = w.clone();
    let mut request = Request::anybody(share, 9);
    request.gpus = count;
    request.only_gpus = of.iter().map(|g| u32::try_from(*g).unwrap()).collect();
    w.send(Event::Parties {
        id: NEW,
        parties: vec![asker()],
    });
    w.submit_request(NEW.0, request, None);
    w
}

/// By what room is made for it, where it has a plan.
fn plan(w: &World) -> Option<Vec<Lever>> {
    let plan = w.machine.plan_of(NEW)?;
    Some(plan.steps.iter().map(|s| s.lever).collect())
}

/// Everything that is decided is done, until the claim has started.
fn starts(mut w: World) -> bool {
    let mut seen = w.log.len();
    for _ in 0..60 {
        if w.granted(NEW.0).is_some() {
            return true;
        }
        w.now += Duration::from_secs(10);
        w.send(Event::Tick);
        while seen < w.log.len() {
            let action = w.log[seen].clone();
            seen += 1;
            match action {
                Action::Move { id, from, to } => {
                    for (from, to) in from.iter().zip(&to) {
                        if let Some(used) = w.used.remove(&(id, from.gpu)) {
                            w.used.insert((id, to.gpu), used);
                        }
                    }
                    w.send(Event::Moved { id });
                }
                Action::Park { id, .. } => {
                    let of: Vec<_> = w.used.keys().filter(|k| k.0 == id).copied().collect();
                    let host = of.iter().filter_map(|k| w.used.remove(k));
                    let host = host.fold(Bytes::ZERO, Bytes::saturating_add);
                    w.send(Event::Parked { id, host });
                }
                Action::Unpark { id, .. } => w.send(Event::Unparked { id }),
                _ => {}
            }
        }
    }
    false
}

/// A claim of what is told to be claimable gets it, and a larger one does not, unless something is taken from others.
fn agrees(
    w: &World,
    of: &[usize],
    share: Share,
    count: u32,
    larger: Option<(Share, u32)>,
) -> Result<(), TestCaseError> {
    if share > Share::ZERO && count > 0 {
        let asked = ask(w, of, share, count);
        let plan = plan(&asked);
        prop_assert!(
            asked.granted(NEW.0).is_some() || plan.is_some(),
            "{count} x {share:?} of {of:?} neither starts nor has a plan: {:?}",
            asked.machine.reason(NEW)
        );
        let gentle = |l: &Lever| matches!(l, Lever::Share | Lever::Detach | Lever::Move);
        prop_assert!(plan.iter().flatten().all(gentle), "{plan:?}");
        prop_assert!(
            starts(asked),
            "{count} x {share:?} of {of:?} does not start: {plan:?}"
        );
    }
    if let Some((share, count)) = larger {
        let asked = ask(w, of, share, count);
        prop_assert!(
            asked.granted(NEW.0).is_none(),
            "{count} x {share:?} of {of:?} starts"
        );
        let moves = asked.machine.plan_of(NEW).is_some_and(|p| {
            p.steps.iter().all(|s| s.lever == Lever::Move)
                && asked.machine.goes_in_turn(asked.machine.ledger(), &p.steps)
        });
        prop_assert!(
            !moves,
            "{count} x {share:?} of {of:?} starts after moves: {:?}",
            plan(&asked)
        );
    }
    Ok(())
}

fn charges(w: &World) -> Vec<(ClaimId, usize, Bytes)> {
    w.used.iter().map(|((id, g), b)| (*id, *g, *b)).collect()
}

fn more(share: Share) -> Option<(Share, u32)> {
    (share < Share::ONE).then(|| (share.saturating_add(part(1)), 1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_told_to_be_claimable_can_be_claimed_and_no_more(gpus in gpus(), runs in runs()) {
        let w = world(&gpus, &runs);
        let room = w.machine.claimable_now(charges(&w));
        for (g, now) in room.by_gpu.iter().enumerate() {
            let direct = room.direct[g];
            prop_assert!(direct <= *now);
            if direct > Share::ZERO {
                prop_assert!(ask(&w, &[g], direct, 1).granted(NEW.0).is_some(), "{direct:?} of GPU {g}");
            }
            if let Some((share, count)) = more(direct) {
                prop_assert!(ask(&w, &[g], share, count).granted(NEW.0).is_none(), "{share:?} of GPU {g}");
            }
            agrees(&w, &[g], *now, 1, more(*now))?;
        }
        for model in &room.models {
            let facts = w.machine.ledger().gpus().iter().enumerate();
            let of: Vec<usize> = facts.filter(|(_, f)| f.model == model.model).map(|(g, _)| g).collect();
            agrees(&w, &of, model.largest, 1, more(model.largest))?;
            let larger = (model.whole < u32::try_from(of.len()).unwrap()).then_some((Share::ONE, model.whole + 1));
            agrees(&w, &of, Share::ONE, model.whole, larger)?;
        }
    }

    /// While somebody waits, what is told is what whoever comes after him can have beside what is kept for him.
    #[test]
    fn beside_somebody_who_waits_what_is_told_can_be_claimed_and_no_more(
        gpus in gpus(),
        runs in runs(),
        waits in prop::collection::vec((1u32..=4, 30u32..=100), 1..4),
    ) {
        let mut w = world(&gpus, &runs);
        // Whoever asks now has had most: he comes after all who wait.
        w.send(Event::Remember(vec![(9, 1 << 40)]));
        for (id, (count, hundredths)) in (50..).zip(waits) {
            let mut request = Request::anybody(part(hundredths), 2);
            request.gpus = count.min(u32::try_from(gpus.len()).unwrap());
            request.mode = Some(ModeWish::Timeslice);
            w.submit_request(id, request, None);
        }
        let room = w.machine.claimable_now(charges(&w));
        for (g, now) in room.by_gpu.iter().enumerate() {
            if w.machine.queue().next().is_none() {
                agrees(&w, &[g], *now, 1, more(*now))?;
                continue;
            }
            prop_assert_eq!(*now, room.direct[g], "nothing is promised of moves");
            if *now > Share::ZERO {
                prop_assert!(ask(&w, &[g], *now, 1).granted(NEW.0).is_some(), "{:?} of GPU {}", now, g);
            }
            if let Some((share, count)) = more(*now) {
                let asked = ask(&w, &[g], share, count);
                prop_assert!(asked.granted(NEW.0).is_none(), "{share:?} of GPU {g} starts");
            }
        }
    }
}
