//! Programs in a claim: what they see of the GPU, their limits, and the environment for the driver. Independent
//! clients compute the same as without a claim.

use crate::support;

use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gshare::station::Station;
use gshare_core::Share;
use gshare_enforcer::nodes::{Majors, make_cap_stand_ins, make_stand_ins};
use gshare_proto::Source;
use gshare_sim_board::{Board, BoardSpec};
use support::{
    FULL, GSHARE, MIB, Raw, SOON, board, board_bytes, claim, claim_of, example, has_all, ok,
    program, python, root, run, station, station_with, until,
};

// Members cannot exceed the memory of their claim: to the byte, together, and until they are gone.

const GRANULE: u64 = 2 * MIB;

/// Waits until the service has measured the cost of a context, so that the cap is predictable.
fn overhead(station: &Station) -> u64 {
    until("the context's cost is measured", SOON, || {
        let log = std::fs::read_to_string(station.log_path()).ok()?;
        (log.matches("a CUDA context on GPU").count() >= 2).then_some(())
    });
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
    assert_eq!(raw.ask(&format!("alloc {}", GRANULE + 1)), FULL);
    assert_eq!(raw.ask(&format!("alloc {GRANULE}")), "ok 1");
    assert_eq!(raw.ask(&format!("alloc {GRANULE}")), FULL);
    assert_eq!(raw.info(), (0, cap));
    let truth = board_bytes(&board(&station).snapshot(), 0, &[raw.pid()]);
    assert_eq!(truth, cap, "and the GPU has given exactly the cap");
    assert_eq!(raw.ask("free 1"), "ok");
    assert_eq!(raw.ask(&format!("alloc {GRANULE}")), "ok 2");
    let told = until("the refusals are counted", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, raw.pid())?;
        (claim.refusals == 2 && snapshot.notices.iter().any(|n| n.text.contains("refused")))
            .then_some(claim.clone())
    });
    assert_eq!(told.state_text, "at limit");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn the_command_that_a_refusal_names_makes_room() {
    let station = station();
    let mut command = station.command();
    command
        .args(["claim", "-q", "--gpu-mem", "2G", "--gpu-ids", "0", "--"])
        .arg(example("raw_client"))
        .stderr(Stdio::piped());
    let mut raw = Raw::start(command);
    let errors = BufReader::new(raw.child.stderr.take().expect("piped"));
    let said = std::thread::spawn(move || {
        let mut lines = errors.lines().map_while(Result::ok);
        lines.find(|line| line.contains("the program asked for"))
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
    let claim = claim(&station, first.pid());
    let cap = claim.gpus[0].mem_limit;
    let mut members: Vec<Raw> = Vec::new();
    for _ in 0..7 {
        let mut command = station.command();
        command
            .args(["join", "-q", &claim.id, "--"])
            .arg(example("raw_client"));
        members.push(Raw::start(command));
    }
    let mut pids: Vec<u32> = members.iter().map(Raw::pid).collect();
    pids.push(first.pid());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The board is read continuously while the eight allocate.
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
                            assert_eq!(answer, FULL);
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

    // Burst memory is not free: three quarters do not fit beside it, a half does.
    let refused = station
        .command()
        .args("claim -q -g 0.75 --gpu-ids 0 --nonblock -- true".split(' '))
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
        FULL,
        "and it can no longer grow beyond it"
    );
    let (room, _) = other.info();
    assert_eq!(
        other.ask(&format!("alloc {room}")),
        "ok 0",
        "the other has all of its half"
    );
    assert_eq!(other.finish(), Some(0));
    until("what the other had is lent again", SOON, || {
        borrower.info().1 == 16 << 30
    });
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
fn a_command_without_the_library_is_counted_and_filtered_and_not_limited() {
    let station = station();
    let limited = ["claim", "-q", "-g", "0.25", "--gpu-ids", "0"];
    let mut command = station.command();
    command.args(limited).args(["--no-library", "--"]);
    command.arg(example("raw_client"));
    let mut raw = Raw::start(command);
    assert!(raw.info().1 > 20 * 1024 * MIB, "it sees the whole GPU");
    assert_eq!(raw.ask(&format!("alloc {}", 12 * 1024 * MIB)), "ok 0");
    let shown = until("the driver's word is its figure", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, raw.pid())?;
        let used = claim.gpus[0].mem_used?;
        (used > 12 * 1024 * MIB).then_some((claim.clone(), snapshot.service?))
    });
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

    // Typed in a claim, it no longer has that claim's library.
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

// Independent CUDA clients (Numba, NVIDIA's Python bindings, cudarc), each in a quarter of a GPU: they compute
// exactly, see their quarter as the whole GPU, and meet the cap as their own out-of-memory error.

/// What the clients allocate at each step: a byte more than whole granules.
const STEP: u64 = (256 << 20) + 1;

/// Their GPU: not the first, so that `device 0` is not GPU 0.
const GPU: usize = 1;

/// The common part of their error messages.
const REFUSAL: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// Runs a client in a quarter of a GPU. `uncharged`: maximum bytes that the driver uses for the program's modules,
/// which the cap does not count.
fn quarter(station: &Station, client: &[&Path], uncharged: u64) {
    // Until then a context's cost is a safe guess.
    until("the context's cost is measured", SOON, || {
        let log = std::fs::read_to_string(station.log_path()).ok()?;
        (log.matches("a CUDA context on GPU").count() >= 2).then_some(())
    });
    let mut command: Command = station.command();
    command
        .args("claim -q -g 0.25 --gpu-ids".split(' '))
        .args([&GPU.to_string(), "--"])
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
        let claim = claim(station, pid);
        // The memory of its modules is not over-use.
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
    quarter(&station(), &[&example("cudarc_client")], 0);
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

// `gshare smi`: a claim's share from outside agrees with the view of its programs inside.

#[test]
fn smi_shows_the_share_that_the_claim_sees() {
    let station = station();
    let mut raw = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--gpu-ids", "1", "--name", "mine"],
    );
    assert_eq!(raw.ask(&format!("alloc {}", 512 << 20)), "ok 0");
    let (free, total) = raw.info();
    let id = claim(&station, raw.pid()).id;
    let text = until("the driver lists the process", SOON, || {
        let output = run(&station, &["smi", &id]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains(&raw.pid().to_string()).then_some(text)
    });
    has_all(
        &text,
        &[&format!("{}/{}", (total - free) >> 20, total >> 20)],
    );
    has_all(&text, &["RTX 4090", "SIMULATED DRIVER"]);
    // By name, and by the environment of the claim.
    let json = run(&station, &["smi", "mine", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(value["claim"]["processes"][0]["pid"], raw.pid());
    assert_eq!(value["gpus"][0]["index"], 1);
    let own = station
        .command()
        .arg("smi")
        .env("GSHARE_CLAIM_ID", &id[1..])
        .output()
        .expect("runs");
    assert!(own.status.success());
    let none = station
        .command()
        .arg("smi")
        .env_remove("GSHARE_CLAIM_ID")
        .output()
        .expect("runs");
    assert_eq!(none.status.code(), Some(64));
    let wrong = run(&station, &["smi", "c99"]);
    assert_eq!(wrong.status.code(), Some(64));
}

// Claims that get their GPU later: the driver finds its environment when it looks, and nothing before that.

const MPS: [&str; 5] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
];

/// One H100 that is shared through MPS.
fn through_mps(strict: bool) -> Station {
    let station = station_with(|o| {
        o.strict = strict;
        o.gpus = vec!["h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = "[gpu.0]\nmode = \"mps\"\n[claims]\nleftover-grace = \"1s\"\n[mps]\n".to_owned();
    });
    until("MPS is up", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        notices
            .iter()
            .any(|n| n.text.contains("MPS on GPU 0 is up"))
            .then_some(())
    });
    station
}

/// A lazy claim of the raw client, which waits for its GPU as soon as it starts.
fn lazily(station: &Station, flags: &[&str]) -> Command {
    let mut command = station.command();
    command.args(["claim", "-q", "--lazy"]).args(flags);
    command.arg("--").arg(example("raw_client"));
    command
}

/// What `/proc/PID/environ` shows.
fn environ(pid: u32) -> Vec<String> {
    let block = std::fs::read(format!("/proc/{pid}/environ")).expect("it lives");
    let text = String::from_utf8_lossy(&block).into_owned();
    text.trim_end_matches('\0')
        .split('\0')
        .map(str::to_owned)
        .collect()
}

fn value(environ: &[String], name: &str) -> Option<String> {
    let mut found = environ
        .iter()
        .filter_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    let value = found.next().map(str::to_owned);
    assert!(found.next().is_none(), "{name} twice: {environ:?}");
    value
}

fn has_place(environ: &[String], name: &str) -> bool {
    value(environ, &format!("GSHARE_LATER_{name}")).is_some()
}

/// Waits until the claim of a process is in the queue.
fn queued(station: &Station) {
    until("it waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
}

#[test]
fn on_a_gpu_shared_through_mps_it_is_a_client_with_its_part_that_is_read_back() {
    let station = through_mps(false);
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let mut lazy = Raw::spawn(&mut lazily(&station, &["-g", "0.25"]));
    queued(&station);
    let before = environ(lazy.pid());
    for name in MPS {
        assert!(has_place(&before, name), "{name}: {before:?}");
        assert_eq!(value(&before, name), None);
    }
    drop(hog);
    assert_eq!(lazy.line(), "ok ready");
    assert_eq!(
        (lazy.ask("mps"), lazy.ask("sms"), lazy.ask("launch 1")),
        ("ok 1".into(), "ok 32".into(), "ok 1".into())
    );
    let after = environ(lazy.pid());
    for name in MPS {
        assert!(!has_place(&after, name), "{name}: {after:?}");
    }
    let entries_are_whole = after.iter().all(|entry| entry.contains('='));
    assert!(entries_are_whole, "{after:?}");
    let told = |name| value(&after, name).unwrap_or_default();
    let pipe = told("CUDA_MPS_PIPE_DIRECTORY");
    assert!(pipe.ends_with("/mps/0/pipe"), "{after:?}");
    assert!(Path::new(&pipe).join("control").exists());
    assert_eq!(told("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").len(), 9);
    let uuid = station.snapshot().expect("served").gpus[0].uuid.clone();
    assert_eq!(told("CUDA_VISIBLE_DEVICES"), uuid);
    // Like a program that started with the same claim in its environment.
    let mut now = station.command();
    now.args(["claim", "-q", "-g", "0.25", "--"]);
    let mut now = Raw::start({
        now.arg(example("raw_client"));
        now
    });
    assert_eq!(now.ask("sms"), "ok 32");
    let ordinary = environ(now.pid());
    for name in MPS {
        let (late, early) = (value(&after, name), value(&ordinary, name));
        if name == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" {
            // A quarter of the memory for claims: MPS's own use came between the two.
            let (late, early) = (mebibytes(late), mebibytes(early));
            assert!(late.abs_diff(early) <= 64, "{late} and {early}");
        } else {
            assert_eq!(late, early, "{name}");
        }
    }
    until("the SMs that the driver showed", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let figure = claim_of(&snapshot, lazy.pid())?.gpus[0].mps_sms?;
        (figure.value == 32.0 && figure.source == Source::Shim).then_some(())
    });
    let snapshot = station.snapshot().expect("served");
    let beside = |text: &str| text.contains("outside MPS");
    assert!(!snapshot.notices.iter().any(|n| beside(&n.text)));
}

/// Of a limit like `0=20124M`.
fn mebibytes(limit: Option<String>) -> u64 {
    let limit = limit.expect("a limit");
    let mib = limit.strip_prefix("0=").and_then(|m| m.strip_suffix('M'));
    mib.and_then(|m| m.parse().ok()).expect("MiB of GPU 0")
}

#[test]
fn children_from_before_and_after_the_grant_have_the_same_part() {
    let Some(bin) = python::bin("children_from_before_and_after_the_grant_have_the_same_part")
    else {
        return;
    };
    let station = through_mps(false);
    let mut command = station.command();
    command
        .args(["claim", "-q", "--lazy", "-g", "0.25", "--"])
        .arg(bin.join("python"))
        .arg(python::script("places.py"))
        .arg(example("raw_client"));
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said} {errors}");
    let uuid = station.snapshot().expect("served").gpus[0].uuid.clone();
    let pipe = said
        .lines()
        .find_map(|l| l.strip_prefix("CUDA_MPS_PIPE_DIRECTORY "))
        .and_then(|l| l.split(' ').next())
        .unwrap_or_default();
    assert!(pipe.ends_with("/mps/0/pipe"), "{said}");
    let expected = [
        "before True True True".to_owned(),
        "forked 0 32".to_owned(),
        "own place still empty True".to_owned(),
        "own 0 32".to_owned(),
        // In the C library and in /proc; Python's own copy is from its start.
        format!("CUDA_VISIBLE_DEVICES {uuid} True None"),
        format!("CUDA_MPS_PIPE_DIRECTORY {pipe} True None"),
        "whole True True".to_owned(),
        "child ready 32 1 1".to_owned(),
        "child with the copy ready 32 1 1".to_owned(),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{errors}");
}

#[test]
fn it_is_a_client_where_caps_are_strict_too() {
    root!("it_is_a_client_where_caps_are_strict_too");
    let station = through_mps(true);
    let mut lazy = Raw::start(lazily(&station, &["-g", "0.25"]));
    assert_eq!(
        (lazy.ask("mps"), lazy.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
    let shown = environ(lazy.pid());
    for name in MPS {
        assert!(value(&shown, name).is_some() && !has_place(&shown, name));
    }
}

#[test]
fn a_mig_instance_is_chosen_when_it_is_granted() {
    for cgroups in [true, false] {
        let station = station_with(|o| {
            o.gpus = vec![
                "a100-80gb:1g.10gb+1g.20gb+2g.20gb+3g.40gb".to_owned(),
                "h100".to_owned(),
            ];
            o.config = "[gpu.1]\nmode = \"mig\"\n".to_owned();
            o.cgroups = cgroups;
        });
        let mut lazy = Raw::start(lazily(&station, &["-g", "0.25"]));
        let part = claim(&station, lazy.pid()).gpus[0].clone();
        assert!(part.uuid.starts_with("MIG-"), "{part:?}");
        assert_eq!(
            (lazy.ask("count"), lazy.ask("sms")),
            ("ok 1".into(), "ok 28".into())
        );
        let own = lazy.ask("uuid").replace("GPU-", "MIG-");
        assert_eq!(own, format!("ok {}", part.uuid));
        let shown = environ(lazy.pid());
        assert_eq!(value(&shown, "CUDA_VISIBLE_DEVICES"), Some(part.uuid));
        for name in MPS {
            assert!(has_place(&shown, name) && value(&shown, name).is_none());
        }
    }
}

#[test]
fn in_time_slices_a_filter_hides_the_other_gpus_or_the_variable_does() {
    for cgroups in [true, false] {
        let station = station_with(|o| {
            o.gpus = vec!["rtx4090".to_owned(); 2];
            o.cgroups = cgroups;
        });
        let hog = Raw::claim(&station, &["-q", "-g", "1"]);
        let taken = claim_of(&station.snapshot().expect("served"), hog.pid())
            .expect("its claim")
            .gpus[0]
            .gpu;
        // An earlier choice of the user counts no more than in any other claim.
        let mut command = lazily(&station, &["-g", "0.25"]);
        let mut lazy = Raw::start({
            command.env("CUDA_VISIBLE_DEVICES", taken.to_string());
            command
        });
        let other = &station.snapshot().expect("served").gpus[1 - taken as usize];
        assert_eq!(
            (lazy.ask("count"), lazy.ask("uuid")),
            ("ok 1".into(), format!("ok {}", other.uuid))
        );
        let shown = environ(lazy.pid());
        for name in MPS {
            assert!(
                has_place(&shown, name) && value(&shown, name).is_none(),
                "{name}: {shown:?}"
            );
        }
        // Without a filter the variable hides the other GPUs, as in a claim that starts with its GPU.
        let service = station.snapshot().expect("served").service;
        let filtered = service.expect("it serves").device_filter;
        let variable = value(&shown, "CUDA_VISIBLE_DEVICES");
        assert_eq!(variable.is_none(), filtered, "{variable:?}");
        until("it is known whether it can be moved", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let levers = &claim_of(&snapshot, lazy.pid())?.place.levers;
            let as_said = levers.not_movable.is_none() == filtered;
            (as_said && levers.not_detachable.is_none()).then_some(())
        });
        // A claim that must not move has its GPUs in the variable, like claims that start with them.
        let mut fixed = Raw::start(lazily(&station, &["-g", "0.25", "--no-movable"]));
        assert_eq!(fixed.ask("count"), "ok 1");
        let shown = environ(fixed.pid());
        assert_eq!(
            value(&shown, "CUDA_VISIBLE_DEVICES").as_deref(),
            Some(other.uuid.as_str())
        );
    }
}

/// MPS variables of an outer claim must not reach a claim made inside it, on another GPU.
#[test]
fn a_claim_within_one_through_mps_is_no_client_of_its_daemon() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(), "h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = "[gpu.0]\nmode = \"mps\"\n".to_owned();
    });
    until("MPS is up", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        let up = |text: &str| text.contains("MPS on GPU 0 is up");
        notices.iter().any(|n| up(&n.text)).then_some(())
    });
    for later in [None, Some("--lazy")] {
        let mut outer = station.command();
        let gshare = outer.get_program().to_owned();
        outer
            .args(["claim", "-q", "-g", "0.25", "--gpu-ids", "0", "--"])
            .arg(gshare)
            .args(["claim", "-q", "-g", "0.25", "--gpu-ids", "1"])
            .args(later)
            .arg("--")
            .arg(example("raw_client"));
        let mut inner = Raw::start(outer);
        assert_eq!(
            (inner.ask("mps"), inner.ask("count"), inner.ask("launch 1")),
            ("ok 0".into(), "ok 1".into(), "ok 1".into()),
            "{later:?}"
        );
        let shown = environ(inner.pid());
        for name in MPS {
            assert_eq!(value(&shown, name), None, "{later:?}");
        }
        let snapshot = station.snapshot().expect("served");
        // The same process was the outer claim's command before.
        let mut its = snapshot
            .claims
            .iter()
            .filter(|c| c.pid == Some(inner.pid()));
        let own = its.find(|c| c.gpus[0].gpu == 1);
        assert!(own.is_some(), "{later:?}: {:?}", snapshot.claims);
    }
}

#[test]
fn places_of_others_are_left_alone_and_a_program_without_them_is_told() {
    let station = through_mps(false);
    // Outside every claim, and in one that had its GPU at once: names without a meaning.
    let place = ("GSHARE_LATER_CUDA_VISIBLE_DEVICES", "_".repeat(60));
    let mut libraries = station.command();
    libraries.args(["claim", "-q", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    let libraries = libraries.output().expect("runs").stdout;
    let libraries = String::from_utf8_lossy(&libraries).trim().to_owned();
    let mut outside = station.client_environment(Command::new(example("raw_client")));
    outside
        .env("LD_LIBRARY_PATH", libraries)
        .env(place.0, &place.1);
    let mut outside = Raw::start(outside);
    assert_eq!(
        (outside.ask("count"), outside.ask("mps")),
        ("ok 1".into(), "ok 0".into())
    );
    assert_eq!(
        value(&environ(outside.pid()), place.0).as_ref(),
        Some(&place.1)
    );
    drop(outside);
    let mut ordinary = station.command();
    ordinary.args(["claim", "-q", "-g", "0.25", "--"]);
    ordinary.arg(example("raw_client")).env(place.0, &place.1);
    let ordinary = Raw::start(ordinary);
    let shown = environ(ordinary.pid());
    assert_eq!(value(&shown, place.0).as_ref(), Some(&place.1));
    drop(ordinary);

    let mut without = station.command();
    without
        .args(["claim", "-q", "--lazy", "-g", "0.25", "--", "env"])
        .args(["-u", "GSHARE_LATER_CUDA_MPS_PIPE_DIRECTORY"])
        .arg(example("raw_client"))
        .stdin(Stdio::null());
    let said = without.output().expect("runs").stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    has_all(
        &said,
        &["CUDA_MPS_PIPE_DIRECTORY cannot be set", "gshare join c"],
    );

    // An earlier MPS daemon of the user is not the claim's.
    let mut before = lazily(&station, &["-g", "0.25"]);
    before.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/pipe");
    let mut before = Raw::start(before);
    assert_eq!(
        (before.ask("mps"), before.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
}

// Clients of NVIDIA's own libcuda get the same codes directly, through the library, and as members of a claim.
// Nothing here has a GPU, so the answer is that there is none; the claim is on a simulated one, which only NVML
// shows. `.ci/drivers` fetches the libraries and the clients.

fn target() -> PathBuf {
    let found = Path::new(GSHARE).ancestors().nth(2);
    found.expect("a target directory").to_owned()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/real")
        .join(name)
}

/// A program, with what is before it on the library path.
struct Client {
    name: String,
    command: Vec<PathBuf>,
    libraries: Option<PathBuf>,
}

fn compiled(dir: &Path, release: &str, library: &Path, is_static: bool) -> Client {
    let kind = if is_static { "static" } else { "shared" };
    let program = dir.join(format!("runtime-{release}-{kind}"));
    let mut compile = Command::new("cc");
    compile.arg("-o").arg(&program).arg(source("runtime.c"));
    if is_static {
        compile.arg(library.join("libcudart_static.a"));
    } else {
        compile.arg(library.join(format!("libcudart.so.{release}")));
    }
    let made = compile.args(["-ldl", "-lpthread", "-lrt"]).status();
    assert!(made.expect("cc runs").success(), "{}", program.display());
    Client {
        name: format!("{kind} runtime {release}"),
        command: vec![program],
        libraries: (!is_static).then(|| library.to_owned()),
    }
}

/// The clients that CI could fetch.
fn compiled_clients(dir: &Path) -> Vec<Client> {
    let home = target().join("nvidia-python");
    let mut found = Vec::new();
    for (release, library) in [
        ("12", home.join("cuda-12/nvidia/cuda_runtime/lib")),
        ("13", home.join("cuda-13/nvidia/cu13/lib")),
    ] {
        if library.exists() {
            found.push(compiled(dir, release, &library, false));
            found.push(compiled(dir, release, &library, true));
        } else {
            println!("skipped: the CUDA runtime {release} is not there (.ci/drivers fetches it)");
        }
    }
    let python = home.join("bin/python");
    for (module, script) in [("cuda.bindings", "bindings.py"), ("cupy", "with_cupy.py")] {
        let imports = Command::new(&python)
            .args(["-c", &format!("import {module}")])
            .output();
        if imports.is_ok_and(|output| output.status.success()) {
            found.push(Client {
                name: module.to_owned(),
                command: vec![python.clone(), source(script)],
                libraries: Some(home.join("cuda-13/nvidia/cu13/lib")),
            });
        } else {
            println!("skipped: Python's {module} is not there (.ci/drivers fetches it)");
        }
    }
    found
}

/// A client's output with a directory of libcuda before all others, perhaps started by another program.
fn printed_by(client: &Client, mut command: Command, libcuda: &Path) -> String {
    let dirs = [Some(libcuda), client.libraries.as_deref()];
    let path = std::env::join_paths(dirs.into_iter().flatten()).expect("a path");
    let output = command
        .args(&client.command)
        .env("LD_LIBRARY_PATH", path)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", client.name);
    text
}

/// Where a station's service puts the proxy: not where libraries cannot be mapped from.
fn proxy(station: &Station) -> PathBuf {
    let places = ["run/lib", "state/lib"].map(|place| station.dir().join(place));
    let found = places
        .into_iter()
        .find(|dir| dir.join("libcuda.so.1").exists());
    found.expect("the proxy is staged")
}

#[test]
fn clients_are_told_the_same_bare_and_before_the_proxy_and_in_a_claim() {
    let dir = tempfile::tempdir().expect("a directory");
    let clients = compiled_clients(dir.path());
    for release in ["535", "550"] {
        let home = target().join(format!(
            "nvidia-{release}/usr/lib/x86_64-linux-gnu/nvidia/current"
        ));
        if !home.join("libcuda.so.1").exists() {
            println!("skipped: clients of NVIDIA's libcuda {release} (.ci/drivers fetches it)");
            continue;
        }
        let sim = dir.path().join(release);
        gshare_artifacts::stage_sim(&sim).expect("staged");
        let _board =
            Board::create(&sim.join("board"), &BoardSpec::new(&["h100"])).expect("a board");
        let libraries = (home.join("libcuda.so.1"), sim.join("lib/libnvidia-ml.so.1"));
        let station = station_with(|o| {
            o.libraries = Some(libraries);
            o.config = "[devices]\nfilter = \"off\"\n[mps]\n".to_owned();
        });
        let proxy = proxy(&station);
        let claim = &["claim", "-q", "-g", "0.5", "--"];
        let path = ok(
            &station,
            &[&claim[..], &["printenv", "LD_LIBRARY_PATH"]].concat(),
        );
        assert!(path.starts_with(proxy.to_str().expect("UTF-8")), "{path}");
        for client in &clients {
            let env = || Command::new("env");
            let bare = printed_by(client, env(), &home);
            assert_eq!(printed_by(client, env(), &proxy), bare, "{}", client.name);
            let mut command = station.command();
            command.args(claim);
            assert_eq!(printed_by(client, command, &home), bare, "{}", client.name);
            println!(
                "{release}, {}: {}",
                client.name,
                bare.trim().replace('\n', "; ")
            );
        }
    }
}

/// Whether a library defines a function.
fn has(library: &Path, name: &str) -> bool {
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output();
    let text = String::from_utf8(listed.expect("nm runs").stdout).expect("UTF-8");
    text.lines().any(|line| line.ends_with(&format!(" {name}")))
}

#[test]
fn the_proxy_has_the_names_of_the_driver_that_is_there_now() {
    let station = station();
    let proxy = proxy(&station).join("libcuda.so.1");
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let (old, new) = ("cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_w2");
    assert!(has(&proxy, old) && has(&proxy, "cuInit"));
    assert!(
        !has(&proxy, "cuCoredumpGetAttribute"),
        "the simulated driver lacks it"
    );
    // The next release lacks one function, and has another.
    let mut image = std::fs::read(&driver).expect("there");
    let places: Vec<usize> = image
        .windows(old.len() + 1)
        .enumerate()
        .filter(|(_, part)| part[..old.len()] == *old.as_bytes() && part[old.len()] == 0)
        .map(|(at, _)| at)
        .collect();
    for at in places {
        image[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
    let beside = driver.with_file_name("libcuda.so.new");
    std::fs::write(&beside, image).expect("written");
    std::fs::rename(&beside, &driver).expect("renamed");
    until("the proxy is staged anew", SOON, || {
        !has(&proxy, old) && has(&proxy, "cuInit")
    });
}

// A driver whose modules are reloaded has other device numbers; filters go by numbers.

/// Names the nodes of a directory that the device filter lets through.
const OPENED: &str =
    "cd $0; for n in *; do (exec 3<$n) 2>&1 | grep -q \"No such device\" && echo $n; done";

fn opened(command: &mut Command, dir: &Path) -> Vec<String> {
    let output = command
        .args(["--", "sh", "-c", OPENED])
        .arg(dir)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn filters_follow_a_reload_of_the_drivers_modules() {
    root!("device nodes of MIG capabilities");
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.gpus = vec!["a100-80gb:1g.10gb+2g.20gb".to_owned()];
    });
    let dev = station.sim_dir().join("dev");
    let caps = dev.join("nvidia-caps");
    let snapshot = station.snapshot().expect("served");
    let filtered = snapshot.service.is_some_and(|s| s.device_filter);
    if !caps.is_dir() || !filtered {
        println!("skipped: no device nodes or no device filter here");
        return;
    }
    let held = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let id = claim(&station, held.pid()).id;
    let own = ["nvidia-cap21", "nvidia-cap22"];
    let joined = || {
        let mut command = station.command();
        command.args(["join", &id]);
        opened(&mut command, &caps)
    };
    assert_eq!(joined(), own);

    // The modules are reloaded: nodes with the same names and other numbers.
    let before = Majors::free_on_this_machine().expect("free numbers");
    let next = before.caps.expect("a number") + 1;
    let names = std::fs::read_dir(&caps).expect("readable");
    let minor = |name: &str| name.strip_prefix("nvidia-cap")?.parse().ok();
    let minors: Vec<u32> = names
        .filter_map(|e| minor(e.ok()?.file_name().to_str()?))
        .collect();
    assert!(minors.len() > 2);
    make_cap_stand_ins(&dev, next, &minors).expect("made");
    let majors = Majors {
        uvm: Some(next + 1),
        ..before
    };
    make_stand_ins(&dev, &majors, &[0]).expect("made");

    // A claim that starts now opens its own instance and no other.
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.1"]);
    assert_eq!(
        opened(&mut command, &caps),
        ["nvidia-cap12", "nvidia-cap13"]
    );
    // So does an earlier claim.
    until("the filter follows", SOON, || joined() == own);
}

// The commands of docs/recipes.md on a simulated workstation: claims, sizes, GPUs and environment are the real ones.
// The simulated driver cannot run the frameworks, so a stand-in for each program reports its GPUs and their memory.

/// Programs of the recipes that are not on every machine.
const PROGRAMS: [&str; 5] = ["python3", "torchrun", "vllm", "ollama", "ray"];

/// The beginning of a project's defaults, which stand in a file in place of options.
const DEFAULTS: &str = "gpus = ";

/// The blocks of commands, each with the preceding lines that belong to it; and the file of defaults.
fn blocks(page: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(command) => *found.last_mut().expect("one") += &format!("{command}\n"),
            None => found.push(String::new()),
        }
    }
    found.retain(|block| block.contains("gshare ") || block.starts_with(DEFAULTS));
    found
}

/// Writes a program that stands in for `name`.
fn stand_in(dir: &Path, name: &str) {
    let path = dir.join(name);
    let client = example("raw_client");
    let text = format!(
        "#!/bin/sh\nset -e\nseen=$(printf 'count\\ninfo\\nquit\\n' | {client:?} | tr '\\n' ' ')\necho \"$seen from {name}\"\n"
    );
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn the_recipes_start_programs_that_see_their_claims_gpus_and_memory() {
    let blocks = blocks(include_str!("../docs/recipes.md"));
    assert!(blocks.len() > 7, "{blocks:?}");
    let station = station();
    let bin = station.dir().join("recipes");
    std::fs::create_dir(&bin).expect("made");
    PROGRAMS.iter().for_each(|name| stand_in(&bin, name));
    std::os::unix::fs::symlink(program(), bin.join("gshare")).expect("linked");
    let path = std::env::var("PATH").unwrap_or_default();
    let largest = station.snapshot().expect("a snapshot").gpus;
    let largest = largest.iter().filter_map(|g| g.mem_total).max();
    let largest = largest.expect("a GPU") as f64;
    let mut started = 0;
    for block in blocks {
        let mut commands = block.as_str();
        if block.starts_with(DEFAULTS) {
            std::fs::write(station.dir().join(".gshare.toml"), &block).expect("written");
            commands = "gshare claim -- python3 train.py";
        }
        let mut shell = station.client_environment(Command::new("sh"));
        shell.args(["-euc", commands]).current_dir(station.dir());
        shell.env("PATH", format!("{}:{path}", bin.display()));
        let output = shell.output().expect("runs");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{block}{out}{err}");
        let size = block.split_once("-g ").or(block.split_once(DEFAULTS));
        let size = size.and_then(|(_, rest)| {
            let size = rest.split_whitespace().next()?;
            size.parse::<Share>().ok()
        });
        let part = size.expect("a size").as_f64();
        for line in out.lines().filter(|l| l.contains("from ")) {
            started += 1;
            let words: Vec<&str> = line.split_whitespace().collect();
            // `ok ready`, `ok COUNT`, `ok FREE TOTAL`.
            let [_, _, _, count, _, free, total, ..] = words.as_slice() else {
                panic!("{block}{line}");
            };
            assert_eq!(count.parse(), Ok(part.ceil() as u32), "{block}{line}");
            let [free, total] = [free, total].map(|n| n.parse::<f64>().expect("bytes"));
            assert!(free > 0.0 && free <= total, "{block}{line}");
            assert!(total <= largest * part.min(1.0), "{block}{line}");
        }
    }
    assert!(started >= 10, "{started} programs were started");
    assert!(station.snapshot().expect("a snapshot").claims.is_empty());
}
