//! A claim from its request to its end: what can be requested, how it waits, how its size changes while programs run,
//! when it ends, and what happens to processes that its command leaves behind.

use crate::support;

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::host::LimitsFile;
use gshare_proto::{Call, ClaimState, Reply, ResizeSpec, Wait, messages};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::unistd::Pid;
use support::terminal::Terminal;
use support::{
    FULL, MIB, Raw, SOON, all_ended, board, board_bytes, example, has_all, root, run, station,
    station_with, text, until, words,
};

/// The limits pages of a claim: guaranteed SMs in thousandths, and the cap in bytes.
fn pages(station: &Station, id: &str) -> Vec<(u32, u64)> {
    let (mut dirs, mut found) = (vec![station.dir().to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() {
                dirs.push(entry.path());
            } else if name.starts_with(&format!("{id}-")) && name.ends_with(".limits") {
                let file = match LimitsFile::open(&entry.path()) {
                    Ok(file) => file,
                    // Moved or renamed since the listing: the next look sees it.
                    Err(_) if !entry.path().exists() => continue,
                    Err(error) => panic!("{}: {error}", entry.path().display()),
                };
                let sm = file.page().sm_request_permille.load(Ordering::Relaxed);
                found.push((sm, file.memory_cap()));
            }
        }
    }
    found
}

#[test]
fn parts_of_several_gpus_of_one_model_have_a_page_a_cap_and_figures_on_each() {
    let station = station();
    // One RTX 4090 is half taken, so that only the two H100 have three quarters each.
    let other = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let mut both = Raw::claim(&station, &["-q", "-g", "2x0.75"]);
    let claim = support::claim(&station, both.pid());
    let gpus: Vec<u32> = claim.gpus.iter().map(|g| g.gpu).collect();
    assert_eq!(gpus, [2, 3], "of one model");
    assert_eq!(both.ask("count"), "ok 2", "it sees its two and no other");
    let caps: Vec<u64> = claim.gpus.iter().map(|g| g.mem_limit).collect();
    let mut seen = pages(&station, &claim.id);
    seen.sort_unstable();
    assert_eq!(seen, [(750, caps[0]), (750, caps[1])]);
    // The cap holds on each GPU separately.
    let most = format!("alloc {}", caps[0] - 4096 * MIB);
    for device in ["device 0", "device 1"] {
        assert_eq!(both.ask(device), "ok");
        assert!(both.ask(&most).starts_with("ok"), "{device}");
        assert_eq!(both.ask(&format!("alloc {}", 8192 * MIB)), FULL, "{device}");
    }
    let charged = until("both are charged", SOON, || {
        let claim = support::claim(&station, both.pid());
        let charges: Vec<u64> = claim.gpus.iter().filter_map(|g| g.mem_charge).collect();
        (charges.len() == 2 && charges.iter().all(|c| *c > caps[0] / 2)).then_some(charges)
    });
    assert!(charged.iter().zip(&caps).all(|(charge, cap)| charge <= cap));
    let status = run(&station, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let room = &status["claimable_now"];
    let models: Vec<(&str, f64, u64)> = room["models"]
        .as_array()
        .expect("models")
        .iter()
        .map(|m| {
            let number = |key: &str| m[key].as_f64().expect("a number");
            (
                m["model"].as_str().expect("a name"),
                number("largest"),
                number("whole") as u64,
            )
        })
        .collect();
    // One RTX 4090 is whole and half of the other is free; a quarter of each H100 is.
    assert_eq!(models, [("RTX 4090", 1.0, 1), ("H100 80GB", 0.25, 0)]);
    assert_eq!(room["sum"].as_f64(), Some(2.0));
    assert_eq!(status["gpus"][0]["claimable"].as_f64(), Some(0.5));
    let ps = text(&run(&station, &["ps"]));
    has_all(&ps, &["2,3", "2x0.75"]);
    let waits = run(
        &station,
        &["claim", "-g", "2x0.5", "--model", "h100", "--nonblock"],
    );
    assert_eq!(waits.status.code(), Some(75), "{}", text(&waits));
    // Smaller on each, and back.
    for index in [1, 0] {
        assert_eq!(both.ask(&format!("device {index}")), "ok");
        assert_eq!(both.ask(&format!("free {index}")), "ok");
    }
    let resized = run(&station, &["resize", &claim.id, "-g", "2x0.25"]);
    assert_eq!(resized.status.code(), Some(0), "{}", text(&resized));
    assert!(
        support::claim(&station, both.pid())
            .gpus
            .iter()
            .all(|g| (g.sm_request - 0.25).abs() < 1e-9)
    );
    let wrong = run(&station, &["resize", &claim.id, "-g", "3x0.25"]);
    assert_eq!(wrong.status.code(), Some(64), "{}", text(&wrong));
    let now = run(
        &station,
        &["claim", "-g", "2x0.5", "--model", "h100", "--", "true"],
    );
    assert_eq!(now.status.code(), Some(0), "{}", text(&now));
    let turns = "(takes turns with other claims on GPUs 2,3)";
    assert!(text(&now).contains(turns), "{}", text(&now));
    let released = run(&station, &["release", &claim.id]);
    assert_eq!(released.status.code(), Some(0), "{}", text(&released));
    until("its pages are gone", SOON, || {
        pages(&station, &claim.id).is_empty()
    });
    drop(other);
}

#[test]
fn models_and_modes_bind_a_claim_and_what_is_not_here_is_refused_with_what_is() {
    let station = station_with(|o| o.config = "[gpu]\n3 = { mode = \"exclusive\" }\n".to_owned());
    let place = |args: &[&str]| {
        let claim = Raw::claim(&station, args);
        let gpus: Vec<u32> = support::claim(&station, claim.pid())
            .gpus
            .iter()
            .map(|g| g.gpu)
            .collect();
        gpus
    };
    assert_eq!(place(&["-q", "-g", "0.1", "--model", "h100"]), [2]);
    assert_eq!(place(&["-q", "-g", "0.1", "--model", "RTX 4090,a100"]), [0]);
    assert_eq!(place(&["-q", "-g", "0.1", "--mode", "exclusive"]), [3]);
    for (args, words) in [
        (vec!["--model", "b200"], "RTX 4090"),
        (vec!["--model", "h100", "--gpu-ids", "0"], "h100"),
        (vec!["--mode", "mps"], "offers mode `mps`"),
    ] {
        let mut all = vec!["claim", "-g", "0.1"];
        all.extend(args);
        let refused = run(&station, &all);
        assert_eq!(refused.status.code(), Some(64), "{}", text(&refused));
        assert!(text(&refused).contains(words), "{}", text(&refused));
    }
}

#[test]
fn a_class_starts_at_its_hours_and_a_changed_configuration_lets_it_start() {
    let station = station_with(|o| o.config = "[class.batch]\nstart = false\n".to_owned());
    let mut waits = station.command();
    let mut waits = waits
        .args(["claim", "-q", "-g", "0.25", "--", "true"])
        .spawn()
        .expect("runs");
    let queued = until("it waits", SOON, || {
        station.snapshot().ok()?.queue.first().cloned()
    });
    assert!(
        queued
            .reason
            .contains("no hour of the day is open to claims of class"),
        "{}",
        queued.reason
    );
    assert_eq!(queued.mem_request, None, "a quarter of GPUs of two models");
    assert_eq!(
        place_of(&station, "interactive"),
        Some(0),
        "others are not kept"
    );
    let file = std::fs::read_dir(station.dir())
        .expect("listed")
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "toml"))
        .expect("its configuration");
    let old = std::fs::read_to_string(&file).expect("read");
    let rules = "[class.batch]\nrules = [{ hours = \"6-18\", priority = 7 }, { hours = \"18-6\", priority = 9 }]\n";
    std::fs::write(&file, old.replace("[class.batch]\nstart = false\n", rules)).expect("written");
    let service = station.service_pid().expect("it runs");
    kill(Pid::from_raw(service.cast_signed()), Signal::SIGHUP).expect("sent");
    assert_eq!(waits.wait().expect("reaped").code(), Some(0));
}

fn place_of(station: &Station, class: &str) -> Option<i32> {
    run(
        station,
        &["claim", "-q", "-g", "0.25", "--class", class, "--", "true"],
    )
    .status
    .code()
}

#[test]
fn a_lease_is_told_on_the_terminal_put_off_and_ends_after_a_grace_with_124() {
    root!("a_lease_is_told_on_the_terminal_put_off_and_ends_after_a_grace_with_124");
    let station = station_with(|o| {
        o.config = "[claims]\nlease-warning = \"1s\"\nlease-grace = \"2s\"\n".to_owned();
        o.tick = "0.2s".to_owned();
    });
    // It does not end by the signal, like a program that saves its state.
    let line = format!("trap '' TERM; exec {}", example("raw_client").display());
    let mut command = station.command();
    command.args(["claim", "-g", "0.25", "-t", "4s", "--", "sh", "-c", &line]);
    let mut terminal = Terminal::start(&command, 24, 160);
    terminal.shows(&["ok ready"], SOON);
    let claim = || station.snapshot().expect("served").claims.first().cloned();
    let before = claim().expect("listed");
    let extended = run(&station, &["extend", &before.id, "-t", "2s"]);
    assert_eq!(extended.status.code(), Some(0), "{}", text(&extended));
    let after = claim().expect("listed");
    let added = after.ends_ms.zip(before.ends_ms).map(|(a, b)| a - b);
    assert_eq!(added, Some(2000));
    terminal.shows(&["its time limit ends in", "gshare extend"], SOON);
    terminal.shows(&["its time limit is over", "to save their work"], SOON);
    // It keeps its GPU while it saves.
    terminal.send("alloc 1048576\n");
    terminal.shows(&["ok 0"], SOON);
    let late = run(&station, &["extend", &before.id, "-t", "2s"]);
    assert_eq!(late.status.code(), Some(124), "{}", text(&late));
    assert_eq!(terminal.ended(SOON), 124);
    assert!(
        terminal
            .written()
            .contains("reached its time limit before its command was done"),
        "{}",
        terminal.written()
    );
    until("the claim has ended", SOON, || claim().is_none());
    let log = text(&run(&station, &["log", &before.id]));
    has_all(&log, &["time limit ended", "later than before"]);
}

/// Ctrl-Z left a claim that held its memory for ever and was shown as running.
#[test]
fn a_job_that_was_stopped_is_shown_as_stopped_until_it_goes_on() {
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert!(raw.ask("launch 1").starts_with("ok"));
    let job = Pid::from_raw(raw.pid().cast_signed());
    kill(job, Signal::SIGSTOP).expect("stopped");
    until("it is shown as stopped", SOON, || {
        support::claim(&station, raw.pid()).state_text == "stopped"
    });
    kill(job, Signal::SIGCONT).expect("goes on");
    until("it runs", SOON, || {
        support::claim(&station, raw.pid()).state_text != "stopped"
    });
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn a_claim_without_a_command_has_an_end_and_no_library_can_be_forbidden() {
    let station = station_with(|o| {
        o.config =
            "[claims]\nheld-limit = \"3s\"\nlease-grace = \"0s\"\nno-library = false\n".to_owned();
    });
    let told = text(&run(&station, &["claim", "-g", "0.25"]));
    has_all(
        &told,
        &["ends in 3s, or with gshare release c1; longer: gshare extend c1"],
    );
    let longer = run(&station, &["claim", "-g", "0.25", "-t", "1h", "--short"]);
    assert!(longer.status.success());
    until("its limit ends it", SOON, || {
        let claims = station.snapshot().ok()?.claims;
        (claims.len() == 1 && claims[0].id == "c2").then_some(())
    });
    let refused = run(&station, &["claim", "--no-library", "--", "true"]);
    assert_eq!(refused.status.code(), Some(77));
    assert!(
        text(&refused).contains("--no-library is forbidden here"),
        "{}",
        text(&refused)
    );
}

/// The owner of a program that computed on the processor at that moment read nothing, and later only that "the
/// process belongs to no claim".
#[test]
fn a_lease_that_ends_beside_the_gpu_is_told_and_so_is_each_later_call() {
    root!("a_lease_that_ends_beside_the_gpu_is_told_and_so_is_each_later_call");
    // The device filter refuses the GPU, or without one the library.
    for cgroups in [true, false] {
        ended_beside_the_gpu(cgroups);
    }
}

fn ended_beside_the_gpu(cgroups: bool) {
    let station = station_with(|o| {
        o.cgroups = cgroups;
        o.tick = "0.2s".to_owned();
    });
    let line = format!("read line; exec {}", example("raw_client").display());
    let mut command = station.command();
    command.args(["claim", "-g", "0.25", "-t", "1s", "--", "sh", "-c", &line]);
    let mut terminal = Terminal::start(&command, 24, 200);
    terminal.shows(
        &[
            "c1 has ended: its time limit is over",
            "gshare claim -- CMD",
        ],
        SOON,
    );
    terminal.send("now\n");
    terminal.shows(
        &[
            "gshare: c1 ended",
            "ago (time limit ended); this program has no GPU",
            "error 100",
        ],
        SOON,
    );
}

#[test]
fn a_signal_comes_before_the_time_limit_to_programs_on_the_gpu_or_to_the_command() {
    let station = station();
    let none = run(&station, &["claim", "--signal", "USR1", "--", "true"]);
    assert_eq!(none.status.code(), Some(64), "{}", text(&none));
    // The first output; none if this machine was too slow for the program to start in time.
    let first = |signal: &str, lead: u32| {
        let signal = format!("{signal}@{}", 3600 - lead);
        let mut command = station.command();
        let flags = [
            "claim", "-q", "-g", "0.1", "-t", "1h", "--signal", &signal, "--",
        ];
        command.args(flags).args(["bash", "-c"]);
        // A program on the GPU that does not handle the signal ends by it.
        command
            .arg("trap 'echo command; exit' USR1; exec 3<&0; \"$0\" <&3 & wait $! || echo program");
        command.arg(example("raw_client"));
        let mut child = Raw::spawn(&mut command);
        let there = child.line() == "ok ready" && child.ask("alloc 1048576") == "ok 0";
        let said = there.then(|| child.line());
        child.kill();
        said
    };
    for (signal, wanted) in [("USR1", "program"), ("B:USR1", "command")] {
        let said = [2, 10, 30].map(|lead| move || first(signal, lead));
        let found = said
            .iter()
            .find_map(|said| said().filter(|said| said == wanted));
        assert_eq!(found.as_deref(), Some(wanted), "{signal}");
    }
}

#[test]
fn with_a_lease_too_the_exit_code_and_signals_are_the_commands() {
    let station = station();
    let shell = |line: &str| {
        let args = [
            "claim", "-q", "-g", "0.1", "-t", "1h", "--", "sh", "-c", line,
        ];
        run(&station, &args)
    };
    assert_eq!(shell("exit 7").status.code(), Some(7));
    assert_eq!(shell("kill -KILL $$").status.signal(), Some(9));
    let mut command: Command = station.command();
    command.args(["claim", "-q", "-g", "0.1", "-t", "1h", "--", "sh", "-c"]);
    command.arg("trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done");
    let mut child = Raw::spawn(&mut command);
    assert_eq!(child.line(), "ready");
    kill(Pid::from_raw(child.pid().cast_signed()), Signal::SIGUSR1).expect("sent");
    assert_eq!(child.child.wait().expect("reaped").code(), Some(5));
    // Ending gshare ends the command.
    let mut child = Raw::claim(&station, &["-q", "-g", "0.1", "-t", "1h"]);
    child.kill();
    all_ended(&station);
}

// Waiting claims: why, until when, and what happened to them.

/// As if it were started without gshare.
#[test]
fn a_command_starts_with_the_signals_blocked_that_its_caller_blocks() {
    let station = station();
    let blocked: SigSet = [Signal::SIGWINCH, Signal::SIGUSR1].into_iter().collect();
    let before = blocked
        .thread_swap_mask(SigmaskHow::SIG_BLOCK)
        .expect("blocked");
    let shows = ["grep", "SigBlk", "/proc/self/status"];
    let said = [&[][..], &["-t", "1h"]].map(|flags| {
        let mut command = station.command();
        command
            .args(["claim", "-q", "-g", "0.1"])
            .args(flags)
            .arg("--")
            .args(shows);
        text(&command.output().expect("runs"))
    });
    let plain = text(
        &Command::new(shows[0])
            .args(&shows[1..])
            .output()
            .expect("runs"),
    );
    before.thread_set_mask().expect("as before");
    assert_ne!(plain, "SigBlk:\t0000000000000000\n");
    assert_eq!(said, [plain.clone(), plain]);
}

#[test]
fn a_waiting_claim_says_why_and_when_and_its_log_tells_the_rest() {
    let station = station();
    let mut held = Raw::claim(
        &station,
        &["-q", "-g", "0.75", "--gpu-ids", "0", "-t", "1h"],
    );
    let held_id = {
        let snapshot = station.snapshot().expect("served");
        snapshot.claims.first().expect("listed").id.clone()
    };
    let free = run(
        &station,
        &["claim", "-g", "0.25", "--gpu-ids", "0", "--dry-run"],
    );
    assert_eq!(free.status.code(), Some(0), "{}", text(&free));
    assert!(text(&free).contains("would start now"), "{}", text(&free));
    // Memory alone brings a proportional part of the compute; the limits are shown beside the size.
    let whole = station.snapshot().expect("served").gpus[1].mem_allocatable;
    let sm = (3u64 << 30) * 1000 / whole.expect("known");
    let mem = ["--gpu-mem", "3G", "--gpu-mem-limit", "5G", "--limit", "0.8"];
    let alone = [&["claim", "--gpu-ids", "1", "--dry-run"], &mem[..]].concat();
    let tried = text(&run(&station, &alone));
    let percent = sm as f64 / 10.0;
    let says = format!(
        "would start now: 3.0 GiB (limit 5.0 GiB) and {percent} % (limit 80 %) of the compute of GPU 1"
    );
    assert!(tried.contains(&says), "{says}\n{tried}");
    let tried = run(&station, &[&alone[..], &["--json"]].concat()).stdout;
    let tried: serde_json::Value = serde_json::from_slice(&tried).expect("JSON");
    let part = &tried["gpus"][0];
    assert_eq!(
        (&part["mem_limit"], &part["sm_limit"]),
        (&(5u64 << 30).into(), &0.8.into())
    );
    assert_eq!(part["sm"].as_f64(), Some(sm as f64 / 1000.0), "{part}");
    let full = run(
        &station,
        &["claim", "-g", "0.5", "--gpu-ids", "0", "--dry-run"],
    );
    assert_eq!(full.status.code(), Some(75), "{}", text(&full));
    assert!(
        text(&full).contains("would wait") && text(&full).contains(&held_id),
        "{}",
        text(&full)
    );
    for words in ["1st in the queue, within your guarantee", "time limit of"] {
        assert!(text(&full).contains(words), "{words}: {}", text(&full));
    }
    let tried = run(
        &station,
        &words("claim -g 0.5 --gpu-ids 0 --dry-run --json"),
    );
    assert_eq!(tried.status.code(), Some(75), "{}", text(&tried));
    let tried: serde_json::Value = serde_json::from_slice(&tried.stdout).expect("JSON");
    assert_eq!(
        (&tried["starts"], &tried["position"], &tried["would_start"]),
        (&false.into(), &1.into(), &"-g 0.25".into())
    );
    let never = run(&station, &["claim", "-g", "8", "--dry-run"]);
    assert_eq!(never.status.code(), Some(64), "{}", text(&never));
    assert!(
        station.snapshot().expect("served").queue.is_empty(),
        "nothing was claimed"
    );

    let mut patient = station.command();
    patient.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "0", "--", "true"]);
    let mut patient = patient.spawn().expect("runs");
    let waiting = until("it waits", SOON, || {
        station.snapshot().ok()?.queue.first().cloned()
    });
    let left = waiting.expected_ms.expect("the holder has a lease");
    let now = station.snapshot().expect("served").taken_ms;
    let minutes = left.saturating_sub(now) / 60_000;
    assert!((58..=60).contains(&minutes), "in {minutes} min");
    assert!(waiting.entitled, "its owner is alone and may have all");
    assert!(waiting.mem_request.is_some(), "half of one GPU");
    let why = run(&station, &["why", &waiting.id]);
    assert_eq!(why.status.code(), Some(0));
    for words in [
        "needs",
        &held_id,
        "guarantee of",
        &messages::starts_now("-g 0.25"),
        "time limit of",
    ] {
        assert!(text(&why).contains(words), "{words}: {}", text(&why));
    }
    // Without an argument they list the claims that they can report on.
    let lists = [
        ("why", &waiting.id, "gshare why ID explains one of them"),
        ("log", &held_id, "gshare log ID shows what happened"),
    ];
    for (word, id, more) in lists {
        let list = run(&station, &[word]);
        let lines = text(&list);
        let row = lines.lines().any(|l| l.starts_with(&format!("{id} ")));
        assert!(
            list.status.success() && row && lines.contains(more),
            "{lines}"
        );
        let json = run(&station, &[word, "--json"]).stdout;
        assert!(String::from_utf8_lossy(&json).contains(&format!("\"id\":\"{id}\"")));
    }
    let queue = run(&station, &["queue"]);
    assert!(
        text(&queue).contains("in 1h") || text(&queue).contains("in 59m"),
        "{}",
        text(&queue)
    );

    held.kill();
    assert_eq!(patient.wait().expect("reaped").code(), Some(0));
    let log = until("its end is written down", SOON, || {
        let log = text(&run(&station, &["log", &waiting.id]));
        log.contains("ended: command exited").then_some(log)
    });
    let order: Vec<usize> = ["waits: needs", "granted: 0.50 of GPU 0", "ended"]
        .iter()
        .map(|w| log.find(w).unwrap_or_else(|| panic!("{w}: {log}")))
        .collect();
    assert!(order.is_sorted(), "{log}");
    // A user who does not know the ID of a claim that has ended finds it without one: the last that ended first.
    let log = text(&run(&station, &["log"]));
    let ended = format!("  {}: root, true, ", waiting.id);
    let row = log
        .lines()
        .find(|l| l.contains(&ended))
        .unwrap_or_else(|| panic!("{log}"));
    assert!(
        row.ends_with(" with 0.50 of GPU 0; command exited"),
        "{log}"
    );
    let order = [&waiting.id, &held_id].map(|id| log.find(&format!("  {id}: ")));
    assert!(order.is_sorted() && order[0].is_some(), "{log}");
    let json = run(&station, &["log", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["ended"][0]["claim"], *waiting.id, "{json}");
    let unknown = run(&station, &["log", "c999"]);
    assert_eq!(unknown.status.code(), Some(64), "{}", text(&unknown));
    let running = run(&station, &["why", "c999"]);
    assert_eq!(running.status.code(), Some(64), "{}", text(&running));
}

// A claim changes its size while its programs run.

fn resize(station: &Station, args: &[&str]) -> Output {
    let mut command = station.command();
    command.arg("resize").args(args);
    command.output().expect("runs")
}

/// The SM words that the gate reads, and the cap that every reservation is checked against.
fn page(station: &Station, id: &str) -> (u32, u32, u64) {
    let pages = until("the limits page is there", SOON, || {
        let mut dirs = vec![station.dir().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).ok()?.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.path().is_dir() {
                    dirs.push(entry.path());
                } else if name.starts_with(&format!("{id}-")) && name.ends_with(".limits") {
                    return LimitsFile::open(&entry.path()).ok();
                }
            }
        }
        None
    });
    let page = pages.page();
    (
        page.sm_request_permille.load(Ordering::Relaxed),
        page.sm_limit_permille.load(Ordering::Relaxed),
        pages.memory_cap(),
    )
}

#[test]
fn a_claim_under_load_has_its_new_size_within_200_ms_and_is_never_over_it() {
    let station = station();
    let board = board(&station);
    let mut first = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let id = support::claim(&station, first.pid()).id;
    let mut second = Raw::join(&station, &id);
    let pids = [first.pid(), second.pid()];
    let (_, start) = first.info();
    // The cap that the watcher expects: raised before a larger size is requested, lowered after a smaller one is
    // granted.
    let held_to = AtomicU64::new(start);
    let done = AtomicBool::new(false);
    let asked = AtomicU64::new(0);
    let (mut slowest, mut sizes) = (Duration::ZERO, Vec::new());
    std::thread::scope(|scope| {
        // Both allocate and free without a pause, together more than the smallest size, and free everything when
        // refused.
        for raw in [&mut first, &mut second] {
            let (done, asked) = (&done, &asked);
            scope.spawn(move || {
                let mut held = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let answer = raw.ask(&format!("alloc {}", 256 * MIB));
                    match answer.strip_prefix("ok ") {
                        Some(index) => held.push(index.to_owned()),
                        None => assert_eq!(answer, FULL),
                    }
                    if held.len() >= 12 || answer.starts_with("error") {
                        for index in held.drain(..) {
                            assert_eq!(raw.ask(&format!("free {index}")), "ok");
                        }
                    }
                }
            });
        }
        let watch = scope.spawn(|| {
            let (mut looks, mut over) = (0u64, Vec::new());
            while !done.load(Ordering::Relaxed) {
                // It may be lowered or raised at any moment of the look.
                let before = held_to.load(Ordering::SeqCst);
                let used = board_bytes(&board.snapshot(), 0, &pids);
                let most = before.max(held_to.load(Ordering::SeqCst));
                if used > most {
                    over.push((used, most));
                }
                looks += 1;
            }
            (looks, over)
        });
        let mut client = station.client().expect("connects");
        for _ in 0..3 {
            for milli in [200u32, 800, 500] {
                if milli > 200 {
                    held_to.store(u64::MAX, Ordering::SeqCst);
                }
                // A limit below the present charge is refused: repeat until it is not.
                let resized = until("it is small enough", SOON, || {
                    let started = Instant::now();
                    let call = Call::Resize(Box::new(ResizeSpec {
                        id: id.clone().into(),
                        gpus_milli: Some(milli),
                        wait: Wait::No,
                        ..ResizeSpec::default()
                    }));
                    let Ok(Reply::Resized(resized)) = client.call(&call) else {
                        return None;
                    };
                    let (request, _, cap) = page(&station, &id);
                    assert_eq!(request, milli, "the SMs' word is written");
                    assert_eq!(cap, resized.gpus[0].mem_limit, "and so is the cap");
                    slowest = slowest.max(started.elapsed());
                    Some(resized)
                });
                held_to.store(resized.gpus[0].mem_limit, Ordering::SeqCst);
                sizes.push(resized.gpus[0].mem_limit);
                let before = asked.load(Ordering::Relaxed);
                until("the load goes on", SOON, || {
                    asked.load(Ordering::Relaxed) > before + 60
                });
            }
        }
        done.store(true, Ordering::Relaxed);
        let (looks, over) = watch.join().expect("no panic");
        assert!(looks > 50, "the board was looked at {looks} times");
        assert_eq!(over, [], "bytes in use and what was allowed");
    });
    println!("slowest {slowest:?}");
    assert!(slowest < Duration::from_millis(200), "took {slowest:?}");
    assert!(sizes[0] < start && sizes[1] > start && sizes[2] == start);
    assert_eq!(first.info().1, start, "and the program sees it");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would_and_a_patient_one_waits() {
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    let id = support::claim(&station, raw.pid()).id;
    let other = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let refused = resize(&station, &[&id, "-g", "0.75"]);
    assert_eq!(refused.status.code(), Some(75), "{}", text(&refused));
    let other_id = support::claim(&station, other.pid()).id;
    assert!(
        text(&refused).contains("is possible") && text(&refused).contains(&other_id),
        "{}",
        text(&refused)
    );
    assert!(
        text(&refused).contains(&format!("gshare resize {id} -g 0.5")),
        "{}",
        text(&refused)
    );
    let fits = resize(&station, &[&id, "-g", "0.5", "--limit", "0.8", "--json"]);
    assert!(fits.status.success(), "{}", text(&fits));
    let json: serde_json::Value = serde_json::from_slice(&fits.stdout).expect("JSON");
    assert_eq!(json["gpus"][0]["sm_request"], 0.5);
    assert_eq!(json["gpus"][0]["sm_limit"], 0.8);
    assert_eq!(page(&station, &id).0, 500);
    assert_eq!(page(&station, &id).1, 800);

    let (free, _) = raw.info();
    assert_eq!(raw.ask(&format!("alloc {}", free / 2)), "ok 0");
    let small = resize(&station, &[&id, "-g", "0.1"]);
    assert_eq!(small.status.code(), Some(75), "{}", text(&small));
    assert!(
        text(&small).contains("more than the new limit"),
        "{}",
        text(&small)
    );
    let only = resize(
        &station,
        &[&id, "--gpu-mem", "1G", "--gpu-mem-limit", "12G"],
    );
    assert!(only.status.success(), "{}", text(&only));
    assert!(
        text(&only).contains("more than its new size"),
        "{}",
        text(&only)
    );
    until("its state says so", SOON, || {
        let state = support::claim(&station, raw.pid()).state_text;
        state.contains("over its size")
    });

    let mut patient = station.command();
    patient.args(["resize", &id, "-g", "1", "--wait", "30s"]);
    let patient = patient.spawn().expect("runs");
    until("the wish waits", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let gpu = snapshot.gpus.iter().find(|g| g.index == 1)?;
        (gpu.claimable == 0.0).then_some(())
    });
    assert_eq!(other.finish(), Some(0));
    let mut patient = patient;
    assert_eq!(patient.wait().expect("reaped").code(), Some(0));
    assert_eq!(support::claim(&station, raw.pid()).gpus[0].sm_request, 1.0);
}

#[test]
fn a_new_size_survives_the_service() {
    let mut station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let id = support::claim(&station, raw.pid()).id;
    let done = resize(
        &station,
        &[&id, "-g", "0.25", "--gpu-mem-limit", "9G", "--limit", "0.6"],
    );
    assert!(done.status.success(), "{}", text(&done));
    let before = support::claim(&station, raw.pid());
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(raw.info().1, 9 << 30, "the page stays");
    station.start_service().expect("starts again");
    let after = support::claim(&station, raw.pid());
    assert_eq!(after.gpus[0].mem_request, before.gpus[0].mem_request);
    assert_eq!(after.gpus[0].mem_limit, 9 << 30);
    assert_eq!(
        (after.gpus[0].sm_request, after.gpus[0].sm_limit),
        (0.25, 0.6)
    );
    assert_eq!(page(&station, &id).0, 250);
    assert_eq!(page(&station, &id).1, 600);
    let again = resize(&station, &[&id, "-g", "1"]);
    assert!(again.status.success(), "{}", text(&again));
}

// Processes that a command leaves behind: tmux, ssh-agent and the like lose only the GPU; a leftover that works on
// the GPU keeps the claim.

/// A claim whose command starts `leftover` in a session of its own and exits once it has printed `ready` (empty: at
/// once). The returned file is the leftover's input; its output goes to `out` in the station's directory.
fn leave_behind(station: &Station, flags: &[&str], leftover: &str, ready: &str) -> (File, PathBuf) {
    let dir = station.dir();
    let (hold, out) = (support::pipe(&dir.join("in")), dir.join("out"));
    let script = format!(
        "setsid {leftover} < in > out 2>&1 & until grep -qs '{ready}' out || [ -z '{ready}' ]; do sleep 0.02; done"
    );
    let mut command = station.command();
    command.args(["claim", "-q"]).args(flags);
    let status = command.args(["--", "sh", "-c", &script]).status();
    assert!(status.expect("runs").success());
    (hold, out)
}

fn said(out: &PathBuf, word: &str) {
    until(word, SOON, || {
        let text = std::fs::read_to_string(out).ok()?;
        text.lines().any(|l| l == word).then_some(())
    });
}

fn tell(mut input: &File, line: &str) {
    use std::io::Write;
    writeln!(input, "{line}").expect("written");
}

/// The leftover program allocates memory, which counts for the ending claim.
fn takes_memory_while_it_ends(station: &Station, input: &File, out: &PathBuf) {
    said(out, "ok ready");
    tell(input, "alloc 1048576");
    said(out, "ok 0");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.claims[0].state, ClaimState::Ending);
    assert!(snapshot.claims[0].gpus[0].mem_charge > Some(0));
}

#[test]
fn a_leftover_without_gpu_memory_loses_the_gpu_and_lives() {
    root!("a_leftover_without_gpu_memory_loses_the_gpu_and_lives");
    let station = station();
    // Says of each node what the kernel says.
    let node = station.sim_dir().join("dev/nvidia0");
    let shell = format!(
        "sh -c 'while read x; do (exec 3<{}) 2>&1 | sed \"s/.*: //\"; done'",
        node.display()
    );
    let (input, out) = leave_behind(&station, &["-g", "0.5", "--gpu-ids", "0"], &shell, "");
    all_ended(&station);
    tell(&input, "now");
    said(&out, "Operation not permitted");
    // A new claim gets the old one's room.
    let raw = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(raw.finish(), Some(0));
    tell(&input, "still");
    until("it lives on", SOON, || {
        (std::fs::read_to_string(&out).ok()?.lines().count() == 2).then_some(())
    });
}

#[test]
fn a_leftover_with_gpu_memory_keeps_the_claim_until_it_ends_or_is_released() {
    for release in [false, true] {
        let station = station();
        let client = example("raw_client");
        let flags = ["-g", "0.5", "--gpu-ids", "0", "--name", "left"];
        let (input, out) =
            leave_behind(&station, &flags, &client.display().to_string(), "ok ready");
        takes_memory_while_it_ends(&station, &input, &out);
        let mut other = station.command();
        other.args("claim -q -g 1 --gpu-ids 0 --nonblock -- true".split(' '));
        assert_eq!(other.status().expect("runs").code(), Some(75));
        if release {
            let mut command = station.command();
            assert!(
                command
                    .args(["release", "left"])
                    .status()
                    .expect("runs")
                    .success()
            );
        } else {
            tell(&input, "quit");
        }
        all_ended(&station);
        assert!(other.status().expect("runs").success());
    }
}

/// A launcher that ends before its program has imported its modules: the claim was gone when the program reached
/// CUDA.
#[test]
fn a_program_that_reaches_cuda_after_the_command_ended_has_the_claim() {
    let station = station_with(|o| {
        o.config = "[claims]\nleftover-grace = \"20s\"\n".to_owned();
    });
    let late = format!("sh -c 'sleep 2; exec {}'", example("raw_client").display());
    let (input, out) = leave_behind(&station, &["-g", "0.5", "--name", "late"], &late, "");
    takes_memory_while_it_ends(&station, &input, &out);
    tell(&input, "quit");
    until("it ends with its last program", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

#[test]
fn a_script_whose_program_on_the_gpu_ends_with_the_lease_ends_with_124_unless_it_succeeds() {
    let station = station();
    let scripts = [
        ("exit $?", 124),
        ("exit 3", 124),
        ("echo it goes on without", 0),
    ];
    // All at once: each has the whole time limit to get its program onto the GPU.
    let run = |(after, code): (&'static str, i32)| {
        let mut command = station.command();
        let line = format!("{}; {after}", example("raw_client").display());
        let flags = ["claim", "-q", "-g", "0.25", "-t", "8s", "--", "sh", "-c"];
        let child = command.args(flags).arg(line).stdin(Stdio::piped());
        let mut child = child.stdout(Stdio::null()).spawn().expect("starts");
        (child.stdin.take(), child, after, code)
    };
    for (_open, mut child, after, code) in scripts.map(run) {
        let status = until("it ends", Duration::from_secs(60), || {
            child.try_wait().ok().flatten()
        });
        assert_eq!(status.code(), Some(code), "{after}");
    }
}

#[test]
fn a_held_claim_is_joined_and_ends_by_release_alone() {
    let station = station();
    let mut command = station.command();
    let output = command
        .args(["claim", "--short", "-g", "0.25"])
        .output()
        .expect("runs");
    let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let join = || Raw::join(&station, &id);
    let (mut a, mut b) = (join(), join());
    let room = a.info().0;
    assert_eq!(a.ask(&format!("alloc {}", room / 2)), "ok 0");
    assert!(b.info().0 <= room / 2, "they share one ledger");
    assert_eq!(a.finish(), Some(0));
    b.kill();
    until("both are gone from the ledger", SOON, || {
        let claim = &station.snapshot().ok()?.claims[0];
        (claim.gpus[0].mem_charge == Some(0)).then_some(())
    });
    let state = station.snapshot().expect("served").claims[0].state;
    assert_eq!(state, ClaimState::Held);
    let mut release = Command::new(station.program());
    release
        .env("GSHARE_SOCKET", station.socket())
        .args(["release", &id]);
    assert!(release.status().expect("runs").success());
    assert_eq!(station.snapshot().expect("served").claims, []);
}

#[test]
fn more_processes_than_slots_disturb_nobody_and_places_come_back() {
    let station = station();
    let script = "i=0; while [ $i -lt 130 ]; do \"$0\" < in >> all & i=$((i+1)); done; wait";
    let hold = support::pipe(&station.dir().join("in"));
    let mut command = station.command();
    command
        .args("claim -q -g 1 --gpu-ids 2 -- sh -c".split(' '))
        .arg(script)
        .arg(example("raw_client"));
    let mut child = command.stderr(Stdio::null()).spawn().expect("starts");
    let lines = |wanted: usize| -> String {
        until("all have said something", Duration::from_secs(60), || {
            let text = std::fs::read_to_string(station.dir().join("all")).ok()?;
            (text.lines().count() >= wanted).then_some(text)
        })
    };
    lines(130);
    let snapshot = until("the driver's word is seen", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = &snapshot.claims.first()?.gpus[0];
        (part.mem_used? >= part.mem_charge?).then_some(snapshot)
    });
    assert_eq!(
        (snapshot.claims.len(), &snapshot.unclaimed),
        (1, &Vec::new())
    );
    let part = &snapshot.claims[0].gpus[0];
    assert!(part.mem_charge <= Some(part.mem_limit));
    let log = std::fs::read_to_string(station.log_path()).expect("there");
    assert!(!log.contains("ERROR"), "{log}");
    let other = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(other.finish(), Some(0));
    drop(hold);
    assert!(child.wait().expect("reaped").success());
    all_ended(&station);
}
