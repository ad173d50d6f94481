use std::time::Duration;

use super::super::tests::World;
use super::*;
use crate::claim::Class;
use crate::machine::Event;

const ID: ClaimId = ClaimId(1);

/// Two GPUs; claim 1 holds half of the first and uses 10 GiB.
fn world() -> World {
    let mut w = World::new(&[24, 24]);
    let mut half = Request::from_gpus(Share::from_milli(500), Share::ONE, Class::Batch).unwrap();
    half.mem_limit = Some(Bytes::gib(20));
    w.submit_request(1, half, None);
    w.used.insert((ID, 0), Bytes::gib(15));
    w.send(Event::Tick);
    w
}

fn wish(w: &mut World, wish: Wish) {
    w.log.clear();
    w.send(Event::Wish { id: ID, wish });
}

fn parked(w: &World) -> Parked {
    w.machine.claims.offloaded(ID).cloned().unwrap()
}

/// Offloaded to the host by its owner.
fn offloaded() -> World {
    let mut w = world();
    wish(&mut w, Wish::Offload);
    let by = ParkedBy::Person;
    let park = Action::Park {
        id: ID,
        freeze: false,
        by,
    };
    assert!(w.log.contains(&park), "{:?}", w.log);
    w.submit(2, 1000);
    w.submit(3, 1000);
    assert_eq!(
        w.granted(3),
        None,
        "the GPU is its own until that is answered"
    );
    w.used.remove(&(ID, 0));
    let host = Bytes::gib(15);
    w.send(Event::Parked { id: ID, host });
    w
}

#[test]
fn a_detached_claim_gives_its_gpu_and_comes_back_when_a_member_needs_it() {
    let mut w = offloaded();
    assert_eq!(w.granted(3), Some(vec![0]), "what it gave is used");
    let is = parked(&w);
    assert_eq!(is.slices[0].charge, Bytes::gib(15));
    assert_eq!(w.machine.host_taken(), Bytes::gib(15));
    assert!(
        !is.back && w.machine.queue().count() == 0,
        "nobody asked for it"
    );
    w.send(Event::Wanted { id: ID });
    let waiting = w.machine.queue().next().map(|(id, r)| (id, r.mem));
    assert_eq!(
        waiting,
        Some((ID, Some(Bytes::gib(15)))),
        "it needs what it has"
    );
    // Not movable: it needs the GPU that it left.
    w.send(Event::Gone { id: ClaimId(2) });
    assert!(parked(&w).back);
    w.send(Event::Gone { id: ClaimId(3) });
    let back = w.machine.holding(ID).unwrap();
    assert!(matches!(back.phase, Phase::Restoring(_)), "{back:?}");
    let to = back.at;
    assert_eq!(
        (to[0].gpu, to[0].mem, to[0].charge),
        (0, Bytes::gib(12), Bytes::gib(15))
    );
    assert_eq!(w.machine.ledger().mem_free(0), Bytes::gib(9));
    w.used.insert((ID, 0), Bytes::gib(15));
    w.send(Event::Unparked { id: ID });
    assert!(matches!(w.machine.claims.phase(ID), Some(Phase::Granted)));
    assert_eq!(w.machine.host_taken(), Bytes::ZERO);
}

#[test]
fn a_lever_that_fails_leaves_the_claim_where_it_was() {
    let mut w = world();
    wish(&mut w, Wish::Suspend);
    let failed = |w: &mut World| {
        w.send(Event::LeverFailed {
            id: ID,
            failure: Failure::TimedOut,
            why: "no answer".to_owned(),
        });
    };
    failed(&mut w);
    assert!(matches!(w.machine.claims.phase(ID), Some(Phase::Granted)));
    // The same on the way back.
    let mut w = offloaded();
    w.send(Event::Gone { id: ClaimId(3) });
    wish(&mut w, Wish::Restore);
    assert!(matches!(
        w.machine.claims.phase(ID),
        Some(Phase::Restoring(_))
    ));
    failed(&mut w);
    assert_eq!(parked(&w).host, Bytes::gib(15));
    assert_eq!(w.machine.ledger().holders(0), []);
    w.now += Duration::from_secs(600);
    w.send(Event::Tick);
    assert!(
        matches!(w.machine.claims.phase(ID), Some(Phase::Restoring(_))),
        "again later"
    );
}

#[test]
fn a_claim_that_is_on_its_way_keeps_both_sides_over_a_restart() {
    let mut w = world();
    let from = w.machine.ledger().slices(ID).unwrap().to_vec();
    let to = settled_on(&from, [1].into_iter());
    let mut restarted = World::new(&[24, 24]);
    let holding = Holding {
        phase: Phase::Moving,
        at: from.clone(),
        to: to.clone(),
    };
    restarted.send(Event::Restore {
        id: ID,
        request: w.machine.request_of(ID).cloned().map(Box::new),
        holding: holding.clone(),
        ends: None,
    });
    assert_eq!(restarted.machine.holding(ID), Some(holding));
    for gpu in 0..2 {
        assert_eq!(restarted.machine.ledger().mem_free(gpu), Bytes::gib(12));
    }
    restarted.send(Event::Moved { id: ID });
    assert_eq!(restarted.granted(1), Some(vec![to[0].gpu]));
    assert_eq!(restarted.machine.ledger().mem_free(0), Bytes::gib(24));
    w.send(Event::Gone { id: ID });
    assert!(w.machine.holdings().is_empty());
}
