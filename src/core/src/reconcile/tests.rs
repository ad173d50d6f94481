mod zoo;

use super::*;

const SEC: Duration = Duration::from_secs(1);
const CLAIM: ClaimId = ClaimId(3);

fn rules(stop: bool) -> Rules {
    Rules {
        stop,
        grace: SEC * 30,
        tolerance: Bytes::mib(512),
        time: 20.0,
    }
}

fn seen(process: u32, bytes: u64, charge: Option<u64>) -> Seen<u32> {
    Seen {
        process,
        bytes: Some(Bytes::mib(bytes)),
        charge: charge.map(Bytes::mib),
        busy: None,
        counted: Some(0.0),
    }
}

fn look(hold: Hold, seen: Vec<Seen<u32>>) -> Look<u32> {
    Look {
        claim: CLAIM,
        gpu: 1,
        hold,
        peak: Bytes::mib(1 << 20),
        overhead: Bytes::mib(300),
        guessed: false,
        turns: false,
        seen,
    }
}

fn cap(mib: u64) -> Hold {
    Hold::Cap(Bytes::mib(mib))
}

/// The actions after each of `looks`, one second apart.
fn run(rules: &Rules, looks: impl IntoIterator<Item = Option<Look<u32>>>) -> Vec<Vec<Act<u32>>> {
    let mut reconcile = Reconcile::default();
    let step = |(second, look): (u32, Option<Look<u32>>)| {
        reconcile.step(SEC * second, rules, look.as_slice())
    };
    (0..).zip(looks).map(step).collect()
}

#[test]
fn one_look_is_a_glance_and_two_are_over_use() {
    let over = look(cap(0), vec![seen(7, 4096, None)]);
    let acts = run(&rules(false), vec![Some(over.clone()); 40]);
    assert_eq!(acts[0], []);
    let excess = Bytes::mib(4096 - 300 - 512);
    let finding = Finding {
        kind: Kind::Memory { excess },
        process: 7,
    };
    assert_eq!(
        acts[1],
        [Act::Warn {
            claim: CLAIM,
            gpu: 1,
            finding
        }]
    );
    assert!(
        acts[2..].iter().all(Vec::is_empty),
        "warned once, and never stopped"
    );
    // Over-use in single looks, never two in a row, is ignored.
    let fine = look(cap(4096), vec![seen(7, 4096, Some(4096))]);
    let acts = run(
        &rules(true),
        [over, fine].into_iter().map(Some).cycle().take(100),
    );
    assert!(acts.iter().all(Vec::is_empty), "{acts:?}");
}

/// vLLM pull request 51590: 1.37 GiB above its own accounting; a stack of 16 KiB on an H100 (cms-sw pull request 51395)
/// is 132 x 2048 x 16 KiB = 4.1 GiB.
#[test]
fn what_the_driver_needs_for_an_honest_member_is_charged_and_not_held_against_it() {
    let vllm = vec![seen(1, 10_000 + 1403, Some(10_000))];
    let stack = vec![seen(1, 1000 + 4224, Some(1000)), seen(2, 300, Some(300))];
    for (honest, beyond) in [(vllm, 1403), (stack, 4224)] {
        let mut reconcile = Reconcile::default();
        let look = look(cap(12_000), honest);
        for second in 0..100 {
            let acts = reconcile.step(SEC * second, &rules(true), std::slice::from_ref(&look));
            assert_eq!(acts, [], "second {second}");
            let charged = if second + 1 < STEADY as u32 {
                0
            } else {
                beyond
            };
            assert_eq!(reconcile.driver_bytes(CLAIM, 1), Bytes::mib(charged));
        }
        assert_eq!(reconcile.driver_bytes(CLAIM, 0), Bytes::ZERO);
    }
}

#[test]
fn bytes_of_another_moment_than_the_ledger_are_charged_to_nobody() {
    let mut reconcile = Reconcile::default();
    let mut show = |bytes, charge| {
        let look = look(cap(12_000), vec![seen(1, bytes, Some(charge))]);
        assert_eq!(reconcile.step(SEC, &rules(true), &[look]), []);
        reconcile.driver_bytes(CLAIM, 1)
    };
    // A program that allocates and frees 5 GiB between the driver's figure and the ledger's.
    for second in 0..50 {
        let bytes = if second % 7 == 6 { 6000 } else { 1000 };
        assert_eq!(show(bytes + 500 * (second % 3), 1000), Bytes::ZERO);
    }
    // 200 MiB throughout, then nothing: charged only while it is there.
    for _ in 0..STEADY {
        show(1200, 1000);
    }
    assert_eq!(show(1300, 1000), Bytes::mib(200));
    assert_eq!(show(1000, 1000), Bytes::ZERO);
}

/// A program that fills its cap at once must not find it full: memory that the ledger cannot explain is charged at the
/// first look.
#[test]
fn bytes_that_the_ledger_never_had_are_charged_at_once() {
    let mut reconcile = Reconcile::default();
    let mut show = |bytes, charge, peak| {
        let look = Look {
            peak: Bytes::mib(peak),
            ..look(cap(12_000), vec![seen(1, bytes, Some(charge))])
        };
        assert_eq!(reconcile.step(SEC, &rules(true), &[look]), []);
        reconcile.driver_bytes(CLAIM, 1)
    };
    assert_eq!(show(1700, 300, 300), Bytes::mib(1400));
    // The program fills the rest, then frees some.
    assert_eq!(show(12_000, 10_600, 10_600), Bytes::mib(1400));
    assert_eq!(
        show(5000, 600, 10_600),
        Bytes::ZERO,
        "it may just have freed that"
    );
}

#[test]
fn above_the_cap_the_driver_needs_no_more_than_is_tolerated_for_each_process() {
    // Two members, and one process with a context that never registered.
    let at = |first: u64, stranger: u64| {
        vec![
            seen(1, first, Some(1000)),
            seen(2, 512, Some(0)),
            seen(3, stranger, None),
        ]
    };
    let warned = |seen| {
        let acts = run(&rules(false), vec![Some(look(cap(1000), seen)); 3]);
        let found = acts.into_iter().flatten().map(|act| match act {
            Act::Warn { finding, .. } => finding,
            other => panic!("{other:?}"),
        });
        found.collect::<Vec<_>>()
    };
    assert_eq!(warned(at(1000 + 512, 300 + 512)), []);
    let excess = Bytes::mib(1);
    let over = |process| {
        [Finding {
            kind: Kind::Memory { excess },
            process,
        }]
    };
    assert_eq!(warned(at(1000 + 513, 300 + 512)), over(1));
    // Unregistered processes may not use what members leave below the cap.
    assert_eq!(warned(at(10, 300 + 513)), over(3));
}

#[test]
fn unknown_figures_accuse_nobody_and_forget_nothing() {
    let mut silent = seen(7, 0, None);
    silent.bytes = None;
    let acts = run(&rules(true), vec![Some(look(cap(0), vec![silent])); 100]);
    assert!(acts.iter().all(Vec::is_empty), "{acts:?}");
    // A process that alone exceeds the cap is found even beside one of unknown size.
    let over = look(cap(0), vec![silent, seen(8, 9000, None)]);
    let acts = run(&rules(false), vec![Some(over.clone()); 2]);
    assert!(matches!(&acts[1][..], [Act::Warn { finding, .. }] if finding.process == 8));
    // While a GPU does not answer, a case is neither closed nor escalated.
    let mut looks = vec![Some(over.clone()); 2];
    looks.extend(vec![None; 100]);
    looks.push(Some(over));
    let acts = run(&rules(true), looks);
    assert!(acts[2..102].iter().all(Vec::is_empty));
    assert!(
        matches!(&acts[102][..], [Act::Stop { force: false, .. }]),
        "{:?}",
        acts[102]
    );
}

#[test]
fn after_the_grace_time_the_offender_is_asked_then_made_to_end() {
    let over = look(cap(100), vec![seen(7, 100, Some(100)), seen(9, 5000, None)]);
    let acts = run(&rules(true), vec![Some(over); 60]);
    let events: Vec<(usize, u32, bool)> = acts
        .iter()
        .enumerate()
        .flat_map(|(at, acts)| acts.iter().map(move |act| (at, act)))
        .filter_map(|(at, act)| match act {
            Act::Stop { finding, force, .. } => Some((at, finding.process, *force)),
            _ => None,
        })
        .collect();
    // Over-use counts from second 1: asked to end after 30 s, ended by force after 10 more.
    assert_eq!(events, [(31, 9, false), (41, 9, true)]);
}

#[test]
fn a_second_offender_gets_his_own_warning_time_to_end() {
    let first = look(cap(0), vec![seen(7, 5000, None), seen(8, 4000, None)]);
    let second = look(cap(0), vec![seen(8, 4000, None)]);
    let mut looks = vec![Some(first); 33];
    looks.extend(vec![Some(second); 30]);
    let acts = run(&rules(true), looks);
    let stops: Vec<u32> = acts
        .iter()
        .flatten()
        .filter_map(|a| match a {
            Act::Stop {
                finding,
                force: false,
                ..
            } => Some(finding.process),
            _ => None,
        })
        .collect();
    assert_eq!(stops, [7, 8]);
}

#[test]
fn over_use_that_ends_is_cured_after_two_clean_looks() {
    let over = look(cap(0), vec![seen(7, 5000, None)]);
    let fine = look(cap(0), vec![]);
    let acts = run(
        &rules(true),
        [
            over.clone(),
            over.clone(),
            fine.clone(),
            over.clone(),
            fine.clone(),
            fine.clone(),
            fine,
        ]
        .map(Some),
    );
    let kinds: Vec<usize> = acts.iter().map(Vec::len).collect();
    assert_eq!(kinds, [0, 1, 0, 0, 0, 1, 0]);
    assert_eq!(
        acts[5],
        [Act::Cured {
            claim: CLAIM,
            gpu: 1
        }]
    );
}

#[test]
fn time_that_is_not_counted_is_compared_for_all_members() {
    let member = |process, busy: f64, counted: Option<f64>| Seen {
        busy: Some(busy),
        counted,
        ..seen(process, 300, Some(300))
    };
    let warned = |seen: Vec<Seen<u32>>| {
        let acts = run(&rules(false), vec![Some(look(cap(3000), seen)); 3]);
        let found = acts.into_iter().flatten().map(|act| match act {
            Act::Warn { finding, .. } => finding,
            other => panic!("{other:?}"),
        });
        found.collect::<Vec<_>>()
    };
    let over = |excess, process| Finding {
        kind: Kind::Time { excess },
        process,
    };
    // No GPU time was counted, or only some of it.
    assert_eq!(warned(vec![member(7, 80.0, Some(0.0))]), [over(80.0, 7)]);
    assert_eq!(warned(vec![member(7, 80.0, Some(50.0))]), [over(30.0, 7)]);
    // A counted kernel may run for hours. Copies and the driver's own work take a little time.
    assert_eq!(warned(vec![member(7, 100.0, Some(100.0))]), []);
    assert_eq!(warned(vec![member(7, 19.9, Some(0.0))]), []);
    assert_eq!(warned(vec![member(7, 99.0, Some(80.0))]), []);
    // A little in each of several adds up; the process with most is named.
    let many = vec![
        member(1, 20.0, Some(10.0)),
        member(2, 25.0, Some(12.0)),
        member(3, 20.0, Some(20.0)),
    ];
    assert_eq!(warned(many), [over(23.0, 2)]);
    // A member that counts more than the driver shows does not hide another.
    let hidden = vec![member(1, 10.0, Some(90.0)), member(2, 60.0, Some(30.0))];
    assert_eq!(warned(hidden), [over(30.0, 2)]);
    // Unknown figures neither accuse a process nor hide another.
    assert_eq!(warned(vec![member(7, 80.0, None)]), []);
    let silent = Seen {
        busy: None,
        ..member(7, 0.0, Some(0.0))
    };
    assert_eq!(warned(vec![silent]), []);
    assert_eq!(
        warned(vec![
            silent,
            member(8, 100.0, None),
            member(9, 40.0, Some(0.0))
        ]),
        [over(40.0, 9)]
    );
}

/// NVML's samples name the process that is on the GPU at that moment, so beside turns of 12 to 24 ms they mean little.
#[test]
fn while_claims_take_turns_no_member_is_accused_by_time() {
    let busy = |charge| Seen {
        busy: Some(100.0),
        ..seen(7, 300, charge)
    };
    let at = |turns, charge| {
        let look = Look {
            turns,
            ..look(cap(3000), vec![busy(charge)])
        };
        run(&rules(true), vec![Some(look); 50]).concat().len()
    };
    assert_eq!(at(true, Some(300)), 0);
    assert!(at(false, Some(300)) > 0);
    // A process that never registered takes no turns, so its samples count.
    assert!(at(true, None) > 0);
}

#[test]
fn a_gpu_of_others_is_over_use_whatever_its_figures() {
    let mut silent = seen(7, 0, None);
    silent.bytes = None;
    let acts = run(
        &rules(true),
        vec![Some(look(Hold::Nothing, vec![silent])); 33],
    );
    assert!(matches!(
        &acts[1][..],
        [Act::Warn {
            finding: Finding {
                kind: Kind::NotGranted,
                process: 7
            },
            ..
        }]
    ));
    assert!(
        matches!(&acts[31][..], [Act::Stop { force: false, .. }]),
        "{acts:?}"
    );
}

#[test]
fn who_was_adopted_is_held_to_what_was_claimed_for_him() {
    let busy = |bytes| Seen {
        busy: Some(100.0),
        ..seen(7, bytes, None)
    };
    let hold = Hold::Most(Bytes::mib(4096));
    let acts = run(
        &rules(true),
        vec![Some(look(hold, vec![busy(4096 + 512)])); 50],
    );
    assert!(acts.iter().all(Vec::is_empty), "{acts:?}");
    let acts = run(
        &rules(false),
        vec![Some(look(hold, vec![busy(4096 + 514)])); 3],
    );
    assert_eq!(acts.iter().flatten().count(), 1);
}

#[test]
fn a_claim_that_has_ended_is_forgotten() {
    let mut reconcile = Reconcile::default();
    let over = [look(cap(0), vec![seen(7, 5000, None)])];
    for second in 0..2 {
        reconcile.step(SEC * second, &rules(false), &over);
    }
    assert!(reconcile.over(CLAIM, 1).is_some() && reconcile.all().count() == 1);
    reconcile.forget(CLAIM);
    assert!(reconcile.over(CLAIM, 1).is_none());
}

/// The cost of a context is learnt from members that have nothing else, once two looks agree: a figure below the known
/// one, or any figure that replaces a guess.
#[test]
fn what_a_context_costs_is_learnt_from_members_without_allocations() {
    let learns = |guessed: bool, shown: &[(u64, u64)]| {
        let looks = shown.iter().map(|(bytes, charge)| {
            let members = vec![seen(7, *bytes, Some(*charge)), seen(8, 900, Some(800))];
            Some(Look {
                guessed,
                ..look(cap(4096), members)
            })
        });
        run(&rules(false), looks.collect::<Vec<_>>())
    };
    let cost = |mib: u64| Act::Context {
        claim: CLAIM,
        gpu: 1,
        bytes: Bytes::mib(mib),
    };
    // The first look sees a context being created, the last one an allocation as well.
    let shown = [(100, 300), (250, 300), (250, 300), (260, 310)];
    assert_eq!(
        learns(false, &shown),
        [vec![], vec![], vec![cost(250)], vec![]]
    );
    // Loaded modules make a context larger than the known cost.
    let more = [(700, 300); 3];
    assert_eq!(learns(false, &more).concat(), []);
    assert_eq!(
        learns(true, &more),
        [vec![], vec![cost(700)], vec![cost(700)]]
    );
}
