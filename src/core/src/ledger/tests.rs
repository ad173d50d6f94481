//! The ledger's rule, in small cases.

use super::*;

fn gpu(gib: u64) -> GpuFacts {
    GpuFacts {
        uuid: "GPU-0".into(),
        model: "G".into(),
        usable: Some(Bytes::gib(gib)),
        reserve: Bytes::ZERO,
        unclaimed: Bytes::ZERO,
        healthy: true,
        sharing: Sharing::Timeslice,
    }
}

fn request(share: u32) -> Request {
    Request::from_gpus(Share::from_milli(share), Share::ONE, Class::Batch).unwrap()
}

fn ledger(gib: u64) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set_gpus(vec![gpu(gib)]);
    ledger
}

#[test]
fn two_halves_always_fit() {
    for odd in [0, 1, 4097, (2 << 20) - 1, (3 << 20) + 5] {
        let mut ledger = ledger(24);
        let mut facts = gpu(24);
        facts.unclaimed = Bytes(odd);
        ledger.set_gpus(vec![facts]);
        for id in 1..=2 {
            let slice = ledger.fit(&request(500), 0).unwrap();
            ledger.insert(ClaimId(id), vec![slice]);
        }
        assert!(ledger.fit(&request(10), 0).is_none());
    }
}

#[test]
fn a_claim_needs_both_memory_and_sms() {
    let mut ledger = ledger(24);
    let mut small = request(900);
    small.mem = Some(Bytes::gib(1));
    ledger.insert(ClaimId(1), vec![ledger.fit(&small, 0).unwrap()]);
    assert_eq!(ledger.sm_free(0), Share::from_milli(100));
    assert!(ledger.fit(&request(200), 0).is_none(), "no SMs left for it");
    assert_eq!(ledger.claimable(0), Share::from_milli(100));
}

#[test]
fn memory_alone_brings_as_large_a_part_of_the_sms() {
    let mut ledger = Ledger::default();
    ledger.set_gpus(vec![gpu(24), gpu(48)]);
    let mut alone = request(900);
    (alone.mem, alone.sm) = (Some(Bytes::gib(6)), None);
    let sm = |ledger: &Ledger, request: &Request, gpu| ledger.fit(request, gpu).unwrap().sm.milli();
    assert_eq!([0, 1].map(|gpu| sm(&ledger, &alone, gpu)), [250, 125]);
    alone.sm_limit = Share::from_milli(100);
    assert_eq!(sm(&ledger, &alone, 0), 100, "a limit holds");
    (alone.sm, alone.sm_limit) = (Some(Share::ZERO), Share::ONE);
    assert_eq!(sm(&ledger, &alone, 0), 0, "what was said holds");
    // Claims that fit by memory fit by SMs.
    (alone.mem, alone.sm) = (Some(Bytes::gib(8)), None);
    for id in 1..=3 {
        let slice = ledger.fit(&alone, 0).unwrap();
        ledger.insert(ClaimId(id), vec![slice]);
    }
    assert_eq!(ledger.sm_free(0), Share::from_milli(1));
}

#[test]
fn borrowing_stays_within_the_allocatable_and_shrinks_when_not_lent() {
    let mut ledger = ledger(24);
    for id in 1..=2 {
        let mut r = request(250);
        r.mem_limit = Some(Bytes::gib(20));
        ledger.insert(ClaimId(id), vec![ledger.fit(&r, 0).unwrap()]);
    }
    ledger.lend_caps(true);
    let caps: Bytes = ledger
        .held()
        .fold(Bytes::ZERO, |s, (_, x)| s.saturating_add(x[0].mem_cap));
    assert_eq!(caps, Bytes::gib(24));
    ledger.set_charge(ClaimId(1), 0, Bytes::gib(9));
    assert!(!ledger.lending_lowers());
    assert_eq!(ledger.freeze_caps().len(), 2);
    ledger.lend_caps(false);
    assert_eq!(ledger.slices(ClaimId(1)).unwrap()[0].mem_cap, Bytes::gib(9));
    assert_eq!(ledger.slices(ClaimId(2)).unwrap()[0].mem_cap, Bytes::gib(6));
    assert_eq!(
        ledger.mem_free(0),
        Bytes::gib(9),
        "what is borrowed is not free"
    );
}

#[test]
fn an_auto_claim_is_named_among_the_holders_if_it_holds_much() {
    let mut ledger = ledger(24);
    ledger.insert(ClaimId(1), vec![ledger.fit(&request(500), 0).unwrap()]);
    ledger.set_uncapped(vec![
        (ClaimId(2), 0, Bytes::gib(1)),
        (ClaimId(3), 0, Bytes::mib(1)),
        (ClaimId(4), 1, Bytes::gib(1)),
    ]);
    assert_eq!(ledger.holders(0), [ClaimId(1), ClaimId(2)]);
    assert_eq!(ledger.uncapped(0).count(), 2);
    assert_eq!(
        ledger.mem_free(0),
        Bytes::gib(12),
        "the facts say what is left"
    );
}

#[test]
fn an_unhealthy_or_unknown_gpu_offers_nothing() {
    let mut sick = gpu(24);
    sick.healthy = false;
    let mut unknown = gpu(24);
    unknown.usable = None;
    let mut ledger = Ledger::default();
    ledger.set_gpus(vec![sick, unknown]);
    for g in 0..2 {
        assert!(ledger.fit(&request(10), g).is_none());
        assert_eq!(ledger.claimable(g), Share::ZERO);
    }
}
