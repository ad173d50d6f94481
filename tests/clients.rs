//! CUDA clients that nobody here wrote (Numba, NVIDIA's Python bindings, cudarc), each in a quarter of a GPU:
//! they compute exactly, see their quarter as the whole GPU, and meet the cap as their own out-of-memory error.

use crate::support;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use support::{Raw, board, board_bytes, claim_of, python, station, until};

const GRANULE: u64 = 2 << 20;
/// What the clients allocate at each step: a byte more than whole granules.
const STEP: u64 = (256 << 20) + 1;
/// The GPU that they are given: not the first, so that `device 0` is not GPU 0.
const GPU: usize = 1;

/// How all of them name the refusal, in words of their own around it.
const REFUSAL: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// Runs a client in a quarter of a GPU. `uncharged`: most bytes that the driver takes for the program's
/// modules, which the cap does not count.
fn quarter(station: &Station, client: &[&Path], uncharged: u64) {
    // Until then a context's cost is a guess that is on the safe side.
    until(
        "the context's cost is measured",
        Duration::from_secs(20),
        || {
            let log = std::fs::read_to_string(station.log_path()).ok()?;
            (log.matches("a CUDA context on GPU").count() >= 2).then_some(())
        },
    );
    let mut command: Command = station.command();
    command
        .args([
            "claim",
            "-q",
            "-g",
            "0.25",
            "--gpu-ids",
            &GPU.to_string(),
            "--",
        ])
        .args(client);
    let mut client = Raw::spawn(&mut command);
    let mut facts = HashMap::new();
    loop {
        let line = client.line();
        assert!(!line.is_empty(), "it ended; so far it said {facts:?}");
        match line.split_once(' ') {
            Some((name, value)) => facts.insert(name.to_owned(), value.to_owned()),
            None if line == "ready" => break,
            None => panic!("it said {line}"),
        };
    }
    let fact = |name: &str| facts.get(name).map(String::as_str);
    assert_eq!(fact("devices"), Some("1"), "it sees its own GPU only");
    assert_eq!(fact("name"), Some("NVIDIA GeForce RTX 4090"));
    assert_eq!(fact("copy"), Some("exact"));
    assert_eq!(fact("kernel"), Some("exact"));

    let pid = client.pid();
    let board = board(station);
    let ledger = || {
        let snapshot = station.snapshot().expect("served");
        let claim = claim_of(&snapshot, pid).expect("listed");
        // What its modules take is nothing that anybody holds against it.
        assert_eq!(claim.overuse, None);
        let truth = board_bytes(&board.snapshot(), GPU, &[pid]);
        let charged = claim.gpus[0].mem_charge.expect("known");
        assert!(
            charged <= truth && truth - charged <= uncharged,
            "the ledger says {charged}, the driver {truth}"
        );
        (charged, claim.gpus[0].mem_limit, claim.refusals)
    };
    let (start, cap, _) = ledger();
    let snapshot = station.snapshot().expect("served");
    let allocatable = snapshot.gpus[GPU].mem_allocatable.expect("known");
    assert_eq!(cap, allocatable / 4 / GRANULE * GRANULE);
    assert_eq!(
        fact("total"),
        Some(cap.to_string().as_str()),
        "a quarter is its whole GPU"
    );

    // Up, step by step, to the first one whose charge exceeds the cap.
    let charge = STEP.div_ceil(GRANULE) * GRANULE;
    let fits = (cap - start) / charge;
    assert!(fits > 10, "{fits} steps of {charge} from {start} to {cap}");
    for step in 1..=fits {
        assert_eq!(client.ask("go"), format!("held {step}"), "of {fits}");
        assert_eq!(ledger().0, start + step * charge, "after step {step}");
    }
    let refused = client.ask("go");
    assert!(
        refused.starts_with("refused ") && refused.contains(REFUSAL),
        "{refused}"
    );
    let (held, _, refusals) = ledger();
    assert!(
        held <= cap && refusals >= 1,
        "{held} of {cap}, {refusals} refusals"
    );
    println!("{fits} steps of {charge} above {start}, cap {cap}; then {refused}");
    // It is still a working program.
    assert_eq!(client.ask("go on"), "after exact");
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn numba_computes_in_its_quarter_and_meets_its_cap() {
    let Some(bin) = python::bin("numba") else {
        return;
    };
    let script = python::script("numba_client.py");
    // Its modules have global variables, which share a block with its small arrays.
    quarter(&station(), &[&bin.join("python"), &script], GRANULE);
}

#[test]
fn cuda_bindings_compute_in_their_quarter_and_meet_their_cap() {
    let Some(bin) = python::bin("cuda-bindings") else {
        return;
    };
    let script = python::script("bindings_client.py");
    quarter(&station(), &[&bin.join("python"), &script], 0);
}

#[test]
fn cudarc_computes_in_its_quarter_and_meets_its_cap() {
    quarter(&station(), &[&support::example("cudarc_client")], 0);
}

#[test]
fn numba_bindings_and_cuda_core_compute_the_same_with_and_without_a_claim() {
    let Some(bin) = python::bin("cuda.core") else {
        return;
    };
    let station = station();
    let program = bin.join("python");
    let script = python::script("same_client.py");
    let said = |mut command: Command| {
        let output = command.output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        text
    };
    let mut bare = station.client_environment(Command::new(&program));
    bare.arg(&script);
    let mut claimed = station.command();
    claimed
        .args(["claim", "-q", "-g", "0.25", "--"])
        .arg(&program)
        .arg(&script);
    let (bare, claimed) = (said(bare), said(claimed));
    assert_eq!(bare.lines().count(), 3, "{bare}");
    assert_eq!(bare, claimed);
}
