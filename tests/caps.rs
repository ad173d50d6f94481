//! Members are held to their claim's memory: to the byte, together, and until they are gone.

use crate::support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Raw, board, board_bytes, claim_of, station, until};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;

/// Waits until the service has measured what a context costs, so that the cap can be foretold.
fn overhead(station: &gshare::station::Station) -> u64 {
    until(
        "the context's cost is measured",
        Duration::from_secs(20),
        || {
            let log = std::fs::read_to_string(station.log_path()).ok()?;
            (log.matches("a CUDA context on GPU").count() >= 2).then_some(())
        },
    );
    let mut probe = Raw::claim(station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let snapshot = station.snapshot().expect("served");
    let charge = claim_of(&snapshot, probe.pid()).expect("listed").gpus[0]
        .mem_charge
        .expect("known");
    let truth = board_bytes(&board(station).snapshot(), 0, &[probe.pid()]);
    assert_eq!(
        charge, truth,
        "a context is charged as the driver counts it"
    );
    probe.kill();
    charge
}

#[test]
fn the_cap_holds_to_the_byte_and_is_what_the_program_sees() {
    let station = station();
    let context = overhead(&station);
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let snapshot = station.snapshot().expect("served");
    let part = &claim_of(&snapshot, raw.pid()).expect("listed").gpus[0];
    let (cap, allocatable) = (
        part.mem_limit,
        snapshot.gpus[0].mem_allocatable.expect("known"),
    );
    assert_eq!(
        cap,
        allocatable / 4 / GRANULE * GRANULE,
        "a quarter of what can be divided"
    );
    assert_eq!(
        raw.info(),
        (cap - context, cap),
        "total is the cap, free is what is left of it"
    );

    // All but one granule, then one byte more than the last granule, then exactly the last granule.
    let room = cap - context;
    assert_eq!(raw.ask(&format!("alloc {}", room - GRANULE)), "ok 0");
    assert_eq!(
        raw.ask(&format!("alloc {}", GRANULE + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(raw.ask(&format!("alloc {GRANULE}")), "ok 1");
    assert_eq!(
        raw.ask(&format!("alloc {GRANULE}")),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(raw.info(), (0, cap));
    let truth = board_bytes(&board(&station).snapshot(), 0, &[raw.pid()]);
    assert_eq!(truth, cap, "and the GPU has given exactly the cap");
    assert_eq!(raw.ask("free 1"), "ok");
    assert_eq!(raw.ask(&format!("alloc {GRANULE}")), "ok 2");
    let told = until("the refusals are counted", Duration::from_secs(5), || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, raw.pid())?;
        (claim.refusals == 2 && snapshot.notices.iter().any(|n| n.text.contains("refused")))
            .then_some(claim.clone())
    });
    assert_eq!(told.state_text, "at cap");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn the_command_that_a_refusal_names_makes_room() {
    let station = station();
    let mut command = station.command();
    command
        .args(["claim", "-q", "--gpu-mem", "2G", "--gpu-ids", "0", "--"])
        .arg(support::example("raw_client"))
        .stderr(Stdio::piped());
    let mut raw = Raw::start(command);
    let errors = BufReader::new(raw.child.stderr.take().expect("piped"));
    let said = std::thread::spawn(move || {
        let mut lines = errors.lines().map_while(Result::ok);
        lines.find(|line| line.contains(" asked, "))
    });
    // In its first second, before the service has looked at the GPU again.
    let answer = raw.ask(&format!("alloc {}", 3 * 1024 * MIB));
    assert!(answer.starts_with("error 2"), "{answer}");
    let line = said.join().expect("reads on").expect("was said");
    let (_, way_out) = line.split_once("gshare resize ").expect("as found");
    let output = station
        .command()
        .arg("resize")
        .args(way_out.split_whitespace())
        .output()
        .expect("runs");
    assert!(output.status.success(), "{line}\n{output:?}");
    assert_eq!(
        raw.ask(&format!("alloc {}", 3 * 1024 * MIB)),
        "ok 0",
        "{line}"
    );
}

#[test]
fn the_neighbour_of_a_hog_has_all_that_he_claimed() {
    let station = station();
    let mut hog = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let mut neighbour = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let (free, _) = hog.info();
    let mut got = 0;
    while hog.ask(&format!("alloc {}", 256 * MIB)).starts_with("ok") {
        got += 256 * MIB;
        assert!(got <= free);
    }
    let (room, _) = neighbour.info();
    assert_eq!(neighbour.ask(&format!("alloc {room}")), "ok 0");
}

#[test]
fn eight_processes_at_once_never_exceed_the_cap_together() {
    let station = station();
    let board = board(&station);
    let mut first = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, first.pid()).expect("listed").clone();
    let cap = claim.gpus[0].mem_limit;
    let mut members: Vec<Raw> = Vec::new();
    for _ in 0..7 {
        let mut command = station.command();
        command
            .args(["join", "-q", &claim.id, "--"])
            .arg(support::example("raw_client"));
        members.push(Raw::start(command));
    }
    let mut pids: Vec<u32> = members.iter().map(Raw::pid).collect();
    pids.push(first.pid());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The board is looked at all the time while the eight allocate.
        let watch = scope.spawn(|| {
            let (mut looks, mut highest) = (0u64, 0);
            while !done.load(Ordering::Relaxed) {
                let used = board_bytes(&board.snapshot(), 0, &pids);
                assert!(used <= cap, "{used} bytes are used, the cap is {cap}");
                highest = highest.max(used);
                looks += 1;
            }
            (looks, highest)
        });
        let hogs: Vec<_> = members
            .iter_mut()
            .chain([&mut first])
            .map(|raw| {
                scope.spawn(move || {
                    let mut got = 0;
                    for _ in 0..60 {
                        let answer = raw.ask(&format!("alloc {}", 64 * MIB));
                        if answer.starts_with("ok") {
                            got += 1;
                        } else {
                            assert_eq!(answer, "error 2 CUDA_ERROR_OUT_OF_MEMORY");
                        }
                    }
                    got
                })
            })
            .collect();
        let got: u64 = hogs.into_iter().map(|h| h.join().expect("no panic")).sum();
        done.store(true, Ordering::Relaxed);
        let (looks, highest) = watch.join().expect("no panic");
        let highest = highest.max(board_bytes(&board.snapshot(), 0, &pids));
        assert!(looks > 10, "the board was looked at {looks} times");
        // Together they got all that fits: none was refused while there was room for it.
        let room = cap.saturating_sub(highest);
        assert!(got > 0 && room < 64 * MIB, "{room} bytes were left over");
    });
    let snapshot = station.snapshot().expect("served");
    let charge = snapshot
        .claims
        .iter()
        .find(|c| c.id == claim.id)
        .and_then(|c| c.gpus[0].mem_charge);
    assert_eq!(
        charge,
        Some(board_bytes(&board.snapshot(), 0, &pids)),
        "ledger and driver agree"
    );
}

#[test]
fn a_claim_borrows_up_to_its_limit_until_another_needs_the_memory() {
    let station = station();
    let flags = [
        "-q",
        "-g",
        "0.25",
        "--gpu-mem-limit",
        "16G",
        "--gpu-ids",
        "0",
    ];
    let mut borrower = Raw::claim(&station, &flags);
    assert_eq!(
        borrower.info().1,
        16 << 30,
        "while nobody else is there, the limit is its cap"
    );
    assert_eq!(borrower.ask(&format!("alloc {}", 8u64 << 30)), "ok 0");

    // What is borrowed is not free: three quarters do not fit beside it, a half does.
    let refused = station
        .command()
        .args([
            "claim",
            "-q",
            "-g",
            "0.75",
            "--gpu-ids",
            "0",
            "--nonblock",
            "--",
            "true",
        ])
        .output()
        .expect("runs");
    assert_eq!(refused.status.code(), Some(75));
    let mut other = Raw::claim(
        &station,
        &["-q", "-g", "0.5", "--gpu-ids", "0", "--nonblock"],
    );
    let (free, cap) = borrower.info();
    assert!(cap < 16 << 30, "its cap has shrunk to {cap}");
    assert_eq!(
        borrower.ask(&format!("alloc {}", free + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY",
        "and it can no longer grow beyond it"
    );
    let (room, _) = other.info();
    assert_eq!(
        other.ask(&format!("alloc {room}")),
        "ok 0",
        "the other has all of its half"
    );
    assert_eq!(other.finish(), Some(0));
    until(
        "what the other had is lent again",
        Duration::from_secs(5),
        || (borrower.info().1 == 16 << 30).then_some(()),
    );
}

#[test]
fn a_killed_member_returns_its_bytes_within_a_tick() {
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0", "--hold"]);
    let pid = raw.pid();
    assert_eq!(raw.ask(&format!("alloc {}", 1024 * MIB)), "ok 0");
    let before = station.snapshot().expect("served");
    assert!(
        before.claims[0].gpus[0]
            .mem_charge
            .is_some_and(|b| b > 1024 * MIB)
    );
    raw.kill();
    // The default tick is one second.
    until("the bytes are back", Duration::from_secs(1), || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.claims[0].gpus[0].mem_charge == Some(0)).then_some(())
    });
    assert_eq!(board_bytes(&board(&station).snapshot(), 0, &[pid]), 0);
}

#[test]
fn a_program_outside_claims_is_left_alone_and_its_memory_counts_as_unclaimed() {
    let station = station();
    let mut command = Command::new(support::example("raw_client"));
    command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut outside = Raw::start(command);
    assert_eq!(outside.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let truth = board_bytes(&board(&station).snapshot(), 0, &[outside.pid()]);
    let snapshot = until("the service sees it", Duration::from_secs(5), || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.gpus[0].mem_unclaimed == Some(truth)).then_some(snapshot)
    });
    // It is counted as a claim that has no cap.
    let auto = claim_of(&snapshot, outside.pid()).expect("counted");
    assert!(auto.adopted && auto.gpus[0].mem_used == Some(truth));
    assert_eq!((snapshot.claims.len(), snapshot.unclaimed.len()), (1, 0));
    let (total, left) = (
        snapshot.gpus[1].mem_allocatable,
        snapshot.gpus[0].mem_allocatable,
    );
    assert_eq!(
        left.zip(total).map(|(l, t)| t - l),
        Some(truth),
        "what it uses cannot be claimed"
    );
    // Two halves of what is left always fit.
    let mut halves: Vec<Raw> = (0..2)
        .map(|_| {
            Raw::claim(
                &station,
                &["-q", "-g", "0.5", "--gpu-ids", "0", "--nonblock"],
            )
        })
        .collect();
    for half in &mut halves {
        let (room, _) = half.info();
        assert_eq!(half.ask(&format!("alloc {room}")), "ok 0");
    }
}

#[test]
fn a_command_without_the_library_is_counted_and_filtered_and_not_limited() {
    let station = station();
    let limited = ["claim", "-q", "-g", "0.25", "--gpu-ids", "0"];
    let mut command = station.command();
    command.args(limited).args(["--no-library", "--"]);
    command.arg(support::example("raw_client"));
    let mut raw = Raw::start(command);
    assert!(raw.info().1 > 20 * 1024 * MIB, "it sees the whole GPU");
    assert_eq!(raw.ask(&format!("alloc {}", 12 * 1024 * MIB)), "ok 0");
    let shown = until(
        "the driver's word is its figure",
        Duration::from_secs(10),
        || {
            let snapshot = station.snapshot().ok()?;
            let claim = claim_of(&snapshot, raw.pid())?;
            let used = claim.gpus[0].mem_used?;
            (used > 12 * 1024 * MIB).then_some((claim.clone(), snapshot.service?))
        },
    );
    let (claim, service) = shown;
    assert_eq!(claim.caps, gshare_proto::Caps::None);
    assert!(claim.members.contains(&raw.pid()));
    let other = station.sim_dir().join("dev/nvidia1").display().to_string();
    let opens = |command: &mut Command| {
        let script = format!("(exec 3<{other}) 2>&1 | sed 's/.*: //'");
        let output = command.args(["sh", "-c", &script]).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    if service.device_filter {
        let mut alone = station.command();
        alone.args(limited).args(["--no-library", "--"]);
        assert_eq!(opens(&mut alone), "Operation not permitted");
    }
    assert_eq!(raw.finish(), Some(0));

    // Typed in a claim, it has the library of that one no more.
    let path = |words: &[&str]| {
        let mut command = station.command();
        command.args(limited).arg("--").arg(station.program());
        command.args(limited).args(words);
        let output = command.args(["--", "printenv", "LD_LIBRARY_PATH"]).output();
        String::from_utf8(output.expect("runs").stdout).expect("text")
    };
    let own = station.libraries().display().to_string() + "\n";
    assert_eq!(path(&["--no-library"]), own);
    assert_ne!(path(&[]), own);
}
