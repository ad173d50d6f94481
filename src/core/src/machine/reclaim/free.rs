//! Compares what a user could claim now with what happens to claims of that size, in every state of random histories.

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::claimable::Caller;
use super::super::*;
use super::histories::{BESIDE, Do, Play, history_of, number};
use super::tests::s;
use crate::claim::Class;
use crate::quota::{Party, Quota};

/// A caller whose parties and past use may or may not occur in the history.
fn callers() -> impl Strategy<Value = Caller> {
    let class = prop::sample::select(vec![Class::Interactive, Class::Batch, Class::Inference]);
    let lease = prop::option::weighted(0.3, 20u64..400);
    (0u32..4, class, lease, 1u32..=100, any::<bool>()).prop_map(
        |(uid, class, lease, most, entry)| {
            let mut request = Request::anybody(Share::ONE, uid);
            request.class = class;
            request.lease = lease.map(s);
            request.sm_limit = Share::from_milli(most * 10);
            let parties = match entry {
                true => vec![Party::User("entry".into())],
                false => Vec::new(),
            };
            Caller { request, parties }
        },
    )
}

const NEW: ClaimId = BESIDE;
/// Histories that once failed.
const KNOWN: [u64; 6] = [336, 651, 1319, 2606, 4624, 7257];

fn granted(p: &Play, caller: &Caller, of: &[usize], share: Share, count: u32) -> bool {
    let mut w = p.b.w.clone();
    w.send(Event::Parties {
        id: NEW,
        parties: caller.parties.clone(),
    });
    w.submit_request(NEW.0, caller.asks(of, share, count), None);
    w.granted(NEW.0).is_some()
}

fn part(hundredths: u32) -> Share {
    Share::from_milli(hundredths * 10)
}

fn agrees(p: &Play, caller: &Caller, larger: u32) -> Result<(), String> {
    let w = &p.b.w;
    let charges: Vec<_> = w.used.iter().map(|((id, g), b)| (*id, *g, *b)).collect();
    let room = w.machine.claimable_now(w.now, caller, &charges);
    let all: Vec<usize> = (0..room.by_gpu.len()).collect();
    let each = room
        .by_gpu
        .iter()
        .enumerate()
        .map(|(g, part)| (vec![g], *part));
    let model = room.models.first().map(|m| (all.clone(), m.largest));
    for (of, most) in each.chain(model) {
        if most > Share::ZERO && !granted(p, caller, &of, most, 1) {
            return Err(format!("{most:?} of {of:?} is not granted at once"));
        }
        let next = most.milli() / 10 + 1;
        for hundredths in [next, next.max(larger)].into_iter().filter(|n| *n <= 100) {
            if granted(p, caller, &of, part(hundredths), 1) {
                return Err(format!(
                    "{hundredths} % of {of:?} is granted, but {most:?} was reported free"
                ));
            }
        }
    }
    if let Some(model) = room.models.first() {
        if model.whole > 0 && !granted(p, caller, &all, Share::ONE, model.whole) {
            return Err(format!("{} GPUs are not granted at once", model.whole));
        }
        let more = model.whole + 1;
        if (more as usize) <= all.len() && granted(p, caller, &all, Share::ONE, more) {
            return Err(format!(
                "{more} GPUs are granted, but {} were reported free",
                model.whole
            ));
        }
    }
    // If room is free but not claimable, the answer names the claim it is planned for, unless a rule limits the caller.
    let mut copy = w.clone();
    copy.send(Event::Tick);
    for g in all {
        let free = copy.machine.ledger().claimable(g);
        let ruled = room.rule.is_some() || copy.machine.ledger().is_drained(g);
        if room.by_gpu[g] == Share::ZERO
            && free > Share::ZERO
            && !ruled
            && room.planned[g].is_none()
        {
            return Err(format!(
                "nobody can claim {free:?} of GPU {g}, though it is free"
            ));
        }
    }
    Ok(())
}

fn play(seed: u64) -> Result<u32, String> {
    let (steps, mut runner) = history_of(seed);
    let mut p = Play::new(seed.is_multiple_of(4));
    p.b.send(Event::Quotas(vec![Quota {
        party: Party::User("entry".into()),
        gpus: Some(part((seed % 5) as u32 * 30)),
        weight_milli: None,
        max: seed.is_multiple_of(3).then(|| part(70)),
    }]));
    let mut looked = 0;
    let mut look = |p: &Play, at: &dyn std::fmt::Debug| {
        let draw = (callers(), 1u32..=100).new_tree(&mut runner).expect("one");
        let (caller, larger) = draw.current();
        looked += 1;
        agrees(p, &caller, larger).map_err(|e| format!("history {seed}, {at:?}, {caller:?}: {e}"))
    };
    for (n, step) in steps.iter().enumerate() {
        p.step(step);
        look(&p, &(n, step))?;
        if let Do::Wait(seconds) = step {
            for _ in 0..*seconds {
                p.second();
            }
            look(&p, &(n, "later"))?;
        }
    }
    Ok(looked)
}

#[test]
fn what_is_told_to_be_claimable_is_granted_at_once_and_no_more() {
    let first = number("GSHARE_SEED", 1);
    let many = number("GSHARE_HISTORIES", 200);
    let mut looked = 0;
    let known = KNOWN
        .into_iter()
        .filter(|seed| !(first..first + many).contains(seed));
    let faults: Vec<String> = (first..first + many)
        .chain(known)
        .filter_map(|seed| play(seed).map(|n| looked += n).err())
        .collect();
    println!("histories {first} to {}: {looked} states", first + many - 1);
    assert!(
        faults.is_empty(),
        "{} of {many} histories: {}",
        faults.len(),
        faults[..faults.len().min(5)].join("\n")
    );
}
