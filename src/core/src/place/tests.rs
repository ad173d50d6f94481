//! Modes of GPUs in placement: which claims may share, and which stay apart.

use super::*;
use crate::claim::ClaimId;
use crate::ledger::GpuFacts;
use crate::reason::Reason;
use crate::units::Bytes;

fn gpu(gib: u64, sharing: Sharing) -> GpuFacts {
    GpuFacts {
        uuid: format!("GPU-{gib}"),
        model: "G".into(),
        usable: Some(Bytes::gib(gib)),
        reserve: Bytes::ZERO,
        unclaimed: Bytes::ZERO,
        healthy: true,
        sharing,
    }
}

fn ledger(sharings: &[Sharing]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set_gpus(sharings.iter().map(|s| gpu(80, *s)).collect());
    ledger
}

fn ask(milli: u32, class: Class, uid: u32) -> Request {
    let mut request = Request::from_gpus(Share::from_milli(milli), Share::ONE, class).unwrap();
    request.uid = uid;
    request
}

/// Places a claim; returns its GPU and how it holds it.
fn place(ledger: &mut Ledger, id: u64, request: &Request) -> Option<(usize, Held)> {
    let slices = best_fit(ledger, request, &[])?;
    let first = (slices[0].gpu, slices[0].held);
    ledger.insert(ClaimId(id), slices);
    Some(first)
}

#[test]
fn an_exclusive_gpu_has_one_claim_and_gives_it_everything() {
    let mut ledger = ledger(&[Sharing::Exclusive, Sharing::Timeslice]);
    let part = ask(250, Class::Batch, 1);
    assert_eq!(place(&mut ledger, 1, &part), Some((1, Held::Timeslice)));
    let whole = ask(1000, Class::Batch, 1);
    assert_eq!(place(&mut ledger, 2, &whole), Some((0, Held::Whole)));
    assert_eq!(ledger.claimable(0), Share::ZERO);
    // If nothing else is left, a partial claim gets a whole GPU alone.
    ledger.remove(ClaimId(2));
    ledger.remove(ClaimId(1));
    let mut only = ask(100, Class::Batch, 1);
    only.only_gpus = vec![0];
    assert_eq!(place(&mut ledger, 3, &only), Some((0, Held::Whole)));
    let slice = &ledger.slices(ClaimId(3)).unwrap()[0];
    assert_eq!((slice.mem, slice.sm), (Bytes::gib(80), Share::ONE));
    assert_eq!(place(&mut ledger, 4, &only), None);
}

#[test]
fn mps_serves_one_user_at_a_time_unless_several_are_accepted() {
    let mut one = ledger(&[Sharing::Mps { multi_user: false }]);
    assert_eq!(
        place(&mut one, 1, &ask(250, Class::Batch, 1)),
        Some((0, Held::Mps))
    );
    assert_eq!(place(&mut one, 2, &ask(250, Class::Batch, 2)), None);
    assert_eq!(
        place(&mut one, 3, &ask(250, Class::Batch, 1)),
        Some((0, Held::Mps))
    );
    let mut many = ledger(&[Sharing::Mps { multi_user: true }]);
    for (id, uid) in [(1, 1), (2, 2)] {
        assert_eq!(
            place(&mut many, id, &ask(500, Class::Batch, uid)),
            Some((0, Held::Mps))
        );
    }
}

#[test]
fn auto_runs_batch_of_one_owner_side_by_side_and_keeps_the_kinds_apart() {
    let auto = Sharing::Auto { mps: Some(false) };
    let mut ledger = ledger(&[auto, auto]);
    assert_eq!(
        place(&mut ledger, 1, &ask(250, Class::Batch, 1)),
        Some((0, Held::Mps))
    );
    // A notebook and another user avoid the first GPU although it would be the better fit.
    let notebook = ask(250, Class::Interactive, 1);
    assert_eq!(place(&mut ledger, 2, &notebook), Some((1, Held::Timeslice)));
    assert_eq!(
        place(&mut ledger, 3, &ask(250, Class::Inference, 1)),
        Some((0, Held::Mps))
    );
    let stranger = ask(250, Class::Batch, 2);
    assert_eq!(place(&mut ledger, 4, &stranger), Some((1, Held::Timeslice)));
    // Without a free GPU they share.
    assert_eq!(
        place(&mut ledger, 6, &ask(500, Class::Batch, 2)),
        Some((1, Held::Timeslice))
    );
    assert_eq!(
        place(&mut ledger, 5, &ask(500, Class::Batch, 2)),
        Some((0, Held::Timeslice))
    );
    let none = Sharing::Auto { mps: None };
    let mut without = self::ledger(&[none]);
    assert_eq!(
        place(&mut without, 1, &ask(250, Class::Batch, 1)),
        Some((0, Held::Timeslice))
    );
}

#[test]
fn claims_of_several_gpus_take_turns_with_others_only_where_nothing_else_is_left() {
    let mut ledger = ledger(&[Sharing::Timeslice; 3]);
    let part = |milli| ask(milli, Class::Batch, 1);
    let both = Request {
        gpus: 2,
        ..part(500)
    };
    let mut gpus = |id, request: &Request| -> Option<Vec<usize>> {
        place(&mut ledger, id, request)?;
        let slices = ledger.slices(ClaimId(id))?;
        Some(slices.iter().map(|s| s.gpu).collect())
    };
    assert_eq!(gpus(1, &part(250)), Some(vec![0]));
    assert_eq!(gpus(2, &both), Some(vec![1, 2]), "not where one is");
    assert_eq!(gpus(3, &part(250)), Some(vec![0]), "nor another beside it");
    assert_eq!(gpus(4, &part(750)), None);
    assert_eq!(gpus(5, &both), Some(vec![0, 1]), "rather than wait");
}

#[test]
fn the_smallest_instance_that_is_large_enough_in_memory_and_sms() {
    // An A100-80GB cut into 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb: part of memory, part of 98 SMs, GiB.
    let cut = [
        (125, 142, 9),
        (250, 142, 19),
        (250, 285, 19),
        (500, 428, 39),
    ];
    let mut ledger = Ledger::default();
    let instances = cut.iter().map(|(mem, sm, gib)| {
        gpu(
            *gib,
            Sharing::Instance {
                mem: Share::from_milli(*mem),
                sm: Share::from_milli(*sm),
            },
        )
    });
    ledger.set_gpus(instances.collect());
    let claimable = |ledger: &Ledger| [0, 1, 2, 3].map(|g| ledger.claimable(g).milli());
    assert_eq!(claimable(&ledger), [125, 142, 250, 428]);
    ledger.set_drained("GPU-9", true);
    assert_eq!(claimable(&ledger), [0, 142, 250, 428], "it takes nobody");
    ledger.set_drained("GPU-9", false);
    let quarter = ask(250, Class::Batch, 1);
    assert_eq!(place(&mut ledger, 1, &quarter), Some((2, Held::Whole)));
    assert_eq!(claimable(&ledger), [125, 142, 0, 428]);
    assert_eq!(place(&mut ledger, 2, &quarter), Some((3, Held::Whole)));
    assert_eq!(place(&mut ledger, 3, &quarter), None);
    let mut bytes = ask(100, Class::Batch, 1);
    bytes.mem = Some(Bytes::gib(10));
    assert_eq!(place(&mut ledger, 4, &bytes), Some((1, Held::Whole)));
    assert_eq!(
        place(&mut ledger, 5, &ask(100, Class::Batch, 1)),
        Some((0, Held::Whole))
    );
    assert_eq!(place(&mut ledger, 6, &ask(2000, Class::Batch, 1)), None);
    // A request that no instance can ever hold is refused, naming what is missing: half the memory exists, half the SMs
    // do not.
    let refused = |request: &Request| crate::reason::never(&ledger, request).map(|r| r.to_string());
    assert_eq!(
        refused(&ask(500, Class::Batch, 1)).as_deref(),
        Some(
            "needs 50 % of a GPU's memory and 50 % of its SMs; the largest MIG instance has 50 % and 42.8 %"
        )
    );
    bytes.mem = Some(Bytes::gib(39));
    bytes.sm = None;
    assert_eq!(
        refused(&bytes),
        None,
        "an instance's SMs come with its memory"
    );
    bytes.mem = Some(Bytes::gib(10));
    bytes.sm = Some(Share::from_milli(500));
    assert_eq!(
        refused(&bytes).as_deref(),
        Some("needs 50 % of a GPU's SMs; the largest MIG instance with this memory has 42.8 %")
    );
    bytes.mem = Some(Bytes::gib(64));
    assert_eq!(
        refused(&bytes).as_deref(),
        Some("needs 64.0 GiB on one GPU; the largest share of a GPU here is 39.0 GiB")
    );
}

#[test]
fn a_claim_that_fits_is_not_told_that_too_few_gpus_do() {
    let free = ledger(&[Sharing::Timeslice]);
    let request = ask(500, Class::Batch, 1);
    let told = |ahead| crate::reason::waits(&free, &request, &[], ahead);
    assert_eq!(told(None), Reason::Planned);
    let ahead = ClaimId(7);
    assert_eq!(told(Some(ahead)), Reason::Behind { ahead });
}

#[test]
fn room_in_an_instance_that_is_too_small_is_no_room() {
    let eighth = Share::from_milli(125);
    let instance = Sharing::Instance {
        mem: eighth,
        sm: eighth,
    };
    let mut ledger = ledger(&[instance, Sharing::Timeslice]);
    let whole = ask(1000, Class::Batch, 1);
    assert_eq!(place(&mut ledger, 1, &whole), Some((1, Held::Timeslice)));
    let told = crate::reason::waits(&ledger, &ask(250, Class::Batch, 1), &[], None);
    let full = matches!(told, Reason::Memory { gpu: 1, wanted, .. } if wanted == Bytes::gib(20));
    assert!(full, "{told:?}");
}

#[test]
fn the_gpu_with_the_least_use_without_a_claim_goes_first() {
    let mut ledger = ledger(&[Sharing::Timeslice; 3]);
    // A desktop on the second one takes less than counts.
    let unclaimed = [30, 1, 60].map(Bytes::gib);
    let gpus = unclaimed.map(|unclaimed| GpuFacts {
        unclaimed,
        ..gpu(80, Sharing::Timeslice)
    });
    ledger.set_gpus(gpus.to_vec());
    let half = ask(500, Class::Batch, 1);
    let mut next = |id, request| place(&mut ledger, id, request).map(|(gpu, _)| gpu);
    assert_eq!(next(1, &half), Some(1));
    let whole = ask(1000, Class::Batch, 1);
    assert_eq!(next(2, &whole), Some(0));
    assert_eq!(next(3, &half), Some(1));
    assert_eq!(next(4, &half), Some(2));
}
