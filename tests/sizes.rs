//! Sizes from experience: what is suggested after some runs, what `-g auto` claims, and requests that follow need.

use crate::support;

use std::time::Instant;

use gshare::station::Station;
use gshare_proto::ClaimGpu;
use support::runs::{
    GIB, SOON, alloc, free, looked, ok, recorded, records, runs, sized, sized_on, suggestion,
};
use support::{Raw, claim_of, example, looks, until};

/// A run that needs so much, and its end.
fn run(station: &Station, flags: &[&str], gib: u64) {
    let mut raw = Raw::claim(station, flags);
    let _ = alloc(&mut raw, gib);
    looked(station, 4);
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_is_suggested_is_what_runs_needed_and_auto_claims_it() {
    let station = sized("");
    let client = example("raw_client").display().to_string();
    let guess = &suggestion(&station, &["--", &client]).suggestions[0];
    assert_eq!(
        (guess.level.as_str(), guess.confidence.as_str()),
        ("prior", "guess")
    );
    assert!(
        guess.reasons[0].starts_with("a guess: no earlier run of raw_client used a GPU"),
        "{guess:?}"
    );
    for n in 0..3 {
        run(&station, &["-q", "-g", "0.5"], 5);
        recorded(&station, n + 1);
    }
    let all = records(&station);
    assert!(
        all.iter()
            .all(|r| r["script"] == "raw_client" && r["end"] == "command exited"),
        "{all:?}"
    );
    assert!(
        all.iter().all(|r| r["peak"]
            .as_u64()
            .is_some_and(|p| (5 * GIB..6 * GIB).contains(&p))),
        "{all:?}"
    );
    let said = &suggestion(&station, &["--", &client]).suggestions[0];
    assert_eq!(
        (said.level.as_str(), said.confidence.as_str()),
        ("repeats", "good"),
        "{said:?}"
    );
    assert!((5 * GIB..8 * GIB).contains(&said.mem), "{said:?}");
    assert!(said.frees_mem.is_some_and(|b| b > 3 << 30), "{said:?}");
    let peak = all[0]["peak"].as_f64().expect("a peak") / GIB as f64;
    assert!(
        said.reasons[0].starts_with(&format!("3 earlier runs of raw_client: peak {peak:.1}")),
        "{said:?}"
    );
    let text = ok(&station, &["suggest", "--", &client]);
    assert!(
        text.contains("confidence: good") && text.contains("frees "),
        "{text}"
    );
    assert!(
        ok(&station, &["suggest"]).contains("raw_client"),
        "what was run last"
    );

    // The records as a list: the same runs with other sizes.
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("runs.jsonl");
    std::fs::write(&list, ok(&station, &["suggest", "--records"])).expect("written");
    let replayed = ok(
        &station,
        &[
            "replay",
            "--json",
            "--gpus",
            "1",
            &list.display().to_string(),
        ],
    );
    let replayed: serde_json::Value = serde_json::from_str(&replayed).expect("JSON");
    let used = |row: usize| {
        replayed["sizes"][row]["used_of_allocated"]
            .as_f64()
            .expect("a part")
    };
    assert_eq!(
        (&replayed["runs"], &replayed["sizes"][1]["sizes"]),
        (&3.into(), &"learnt".into())
    );
    assert!(used(0) < 0.6 && used(2) > 0.8, "{replayed}");

    let raw = Raw::claim(&station, &["-q", "-g", "auto"]);
    let view = claim_of(&station.snapshot().expect("served"), raw.pid())
        .expect("listed")
        .clone();
    assert_eq!(
        view.gpus[0].mem_request, said.mem,
        "what was suggested is claimed"
    );
    assert!(
        view.gpus[0].mem_limit > 20 * GIB && (view.gpus[0].sm_limit - 1.0).abs() < 1e-9,
        "{view:?}"
    );
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn running_claims_get_the_size_that_they_need_when_asked() {
    let station = sized("");
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.9"]);
    let _ = alloc(&mut raw, 3);
    let view = until("its first second is over", SOON, || {
        let said = suggestion(&station, &["--running"]).suggestions.pop()?;
        said.reasons[0]
            .starts_with("a guess: it has run for")
            .then_some(said)
    });
    assert!((3 * GIB..5 * GIB).contains(&view.mem), "{view:?}");
    assert!(view.next_mem.is_some_and(|n| n >= 3 * GIB), "{view:?}");
    let text = ok(&station, &["suggest", "--running", "--apply"]);
    assert!(text.contains("was"), "{text}");
    let now = claim_of(&station.snapshot().expect("served"), raw.pid())
        .expect("listed")
        .clone();
    assert!(
        (3 * GIB..5 * GIB).contains(&now.gpus[0].mem_request),
        "{now:?}"
    );
    assert_eq!(raw.finish(), Some(0));
}

/// Load, train, evaluate: each kept for so many looks. Gives the blocks that it still has.
fn load_and_train(station: &Station, raw: &mut Raw, kept: u64) -> (String, String) {
    let load = alloc(raw, 2);
    looked(station, kept);
    let (rest, train) = (alloc(raw, 4), alloc(raw, 8));
    looked(station, kept);
    let _ = rest;
    (load, train)
}

#[test]
fn a_run_in_phases_is_tracked_and_a_queued_claim_starts_in_the_gap() {
    let station = sized("auto-shrink = \"request\"\n");
    let auto = ["-q", "-g", "auto"];
    for n in 0..1 {
        let mut raw = Raw::claim(&station, &auto);
        let (_, train) = load_and_train(&station, &mut raw, 20);
        free(&mut raw, &train);
        looked(&station, 20);
        assert_eq!(raw.finish(), Some(0));
        recorded(&station, n + 1);
    }
    let mut raw = Raw::claim(&station, &auto);
    let pid = raw.pid();
    let request = || {
        let snapshot = station.snapshot().expect("served");
        claim_of(&snapshot, pid).expect("listed").gpus[0].mem_request
    };
    assert!(
        request() >= 14 * GIB,
        "its training is known before it begins"
    );
    let (_, train) = load_and_train(&station, &mut raw, 20);
    assert!(request() >= 14 * GIB, "{}", request());
    let mut command = station.command();
    command
        .args(["claim", "-q", "--gpu-mem", "12G", "--sm", "20%", "--"])
        .arg(example("raw_client"));
    let mut other = Raw::spawn(&mut command);
    until("it waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
    looked(&station, 5);
    assert_eq!(
        station.snapshot().expect("served").queue.len(),
        1,
        "there is no room beside the training"
    );
    free(&mut raw, &train);
    let freed = Instant::now();
    until("the request follows", SOON, || {
        (request() < 9 * GIB).then_some(())
    });
    // 30 s at twenty times the speed, and what a busy machine takes for its looks.
    println!(
        "tracked after {:.2} s, 1.5 s are 30 s",
        freed.elapsed().as_secs_f64()
    );
    assert!(request() >= 6 * GIB, "never below what it uses");
    assert_eq!(
        other.line(),
        "ok ready",
        "the queued claim starts in the gap"
    );
    let _ = alloc(&mut other, 11);
    looked(&station, 10);
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot.claims.iter().all(|c| c.refusals == 0),
        "no allocation was refused"
    );
    assert_eq!((raw.finish(), other.finish()), (Some(0), Some(0)));
}

/// The claim's part of its GPU.
fn part(station: &Station, pid: u32) -> ClaimGpu {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, pid).expect("listed").gpus[0].clone()
}

#[test]
fn with_burst_the_limit_falls_to_what_runs_needed_and_never_below_the_request() {
    let station = sized("auto-shrink = \"burst\"\n");
    let flags = |mem: &'static str| {
        [
            "-q",
            "--gpu-mem",
            mem,
            "--gpu-mem-limit",
            "20G",
            "--sm",
            "20%",
        ]
    };
    runs(&station, &flags("6G"), 5, 3, 4);
    let mut raw = Raw::claim(&station, &flags("6G"));
    let lowered = until("the limit falls", SOON, || {
        let now = part(&station, raw.pid());
        (now.mem_limit < 19 * GIB).then_some(now)
    });
    assert!(
        (6 * GIB..9 * GIB).contains(&lowered.mem_limit),
        "{lowered:?}"
    );
    assert_eq!(lowered.mem_request, 6 * GIB, "a request of its own stays");
    let _ = alloc(&mut raw, 5);
    assert!(
        raw.ask(&format!("alloc {}", 5 * GIB)).starts_with("error"),
        "above the limit"
    );
    // Others are above what it needed: their limit is their request.
    let other = Raw::claim(&station, &flags("12G"));
    let lowered = until("the limit falls", SOON, || {
        let now = part(&station, other.pid());
        (now.mem_limit < 19 * GIB).then_some(now)
    });
    assert_eq!(
        (lowered.mem_request, lowered.mem_limit),
        (12 * GIB, 12 * GIB)
    );
    assert_eq!((raw.finish(), other.finish()), (Some(0), Some(0)));
}

#[test]
fn advise_only_says_it_and_off_not_even_that() {
    let words = "it used at most";
    let mut took = 0;
    for policy in ["advise", "off"] {
        let more = format!("auto-shrink = {policy:?}\n[advice]\nover-asked-after = \"1s\"\n");
        let station = sized(&more);
        runs(&station, &["-q", "--gpu-mem", "6G", "--sm", "20%"], 1, 3, 4);
        let flags = [
            "-q",
            "--gpu-mem",
            "16G",
            "--gpu-mem-limit",
            "20G",
            "--sm",
            "80%",
        ];
        let mut raw = Raw::claim(&station, &flags);
        let before = part(&station, raw.pid());
        let _ = alloc(&mut raw, 1);
        let from = looks(&station);
        let mut works = || {
            assert!(raw.ask("launch 1").starts_with("ok"));
            let said = station.snapshot().expect("served").advice;
            (
                said.iter().any(|a| a.text.contains(words)),
                looks(&station) - from,
            )
        };
        if policy == "advise" {
            took = until("it is said", SOON, || {
                let (said, looks) = works();
                said.then_some(looks)
            });
        } else {
            until("twice as many looks", SOON * 3, || {
                let (said, looks) = works();
                assert!(!said, "nothing is said");
                (looks > 2 * took + 10).then_some(())
            });
        }
        let after = part(&station, raw.pid());
        let sizes = |p: &ClaimGpu| (p.mem_request, p.mem_limit, p.sm_request, p.sm_limit);
        assert_eq!(sizes(&before), sizes(&after), "{policy} changes nothing");
        let said = suggestion(&station, &["--running"]).suggestions.pop();
        assert_eq!(said.expect("asked, it answers").level, "repeats");
        assert_eq!(raw.finish(), Some(0));
    }
}

#[test]
fn the_request_for_sms_follows_need_in_both_directions() {
    let station = sized_on("rtx4090", "add_one 20ms\n", "auto-shrink = \"request\"\n");
    let mut raw = Raw::claim(&station, &["-q", "-g", "auto"]);
    let _ = alloc(&mut raw, 2);
    let pid = raw.pid();
    let falls = || {
        until("the part of the SMs falls", SOON, || {
            (part(&station, pid).sm_request <= 0.2).then_some(())
        });
    };
    falls();
    until("it rises when it works", SOON, || {
        assert!(raw.ask("launch 4").starts_with("ok"));
        (part(&station, pid).sm_request >= 0.6).then_some(())
    });
    let memory = part(&station, pid).mem_request;
    falls();
    assert_eq!(
        part(&station, pid).mem_request,
        memory,
        "memory did not change with it"
    );
    assert_eq!(raw.finish(), Some(0));
}
