//! What a claim can ask for: parts of several GPUs, models and modes, hours of its class, a lease.

use crate::support;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::Ordering;
use std::time::Duration;

use gshare::station::Station;
use gshare_abi::host::LimitsFile;
use gshare_proto::ClaimView;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::terminal::Terminal;
use support::{Raw, claim_of, example, root, station, station_with, until};

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(10);

fn run(station: &Station, args: &[&str]) -> Output {
    let mut command = station.command();
    command.args(args).output().expect("runs")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn view(station: &Station, raw: &Raw) -> ClaimView {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, raw.pid()).expect("listed").clone()
}

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
                    // Moved or renamed between the listing and the look: the next look sees it.
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
    let claim = view(&station, &both);
    let gpus: Vec<u32> = claim.gpus.iter().map(|g| g.gpu).collect();
    assert_eq!(gpus, [2, 3], "of one model");
    assert_eq!(both.ask("count"), "ok 2", "it sees its two and no other");
    let caps: Vec<u64> = claim.gpus.iter().map(|g| g.mem_limit).collect();
    let mut seen = pages(&station, &claim.id);
    seen.sort_unstable();
    assert_eq!(seen, [(750, caps[0]), (750, caps[1])]);
    // The cap holds on each GPU apart.
    let most = format!("alloc {}", caps[0] - 4096 * MIB);
    for device in ["device 0", "device 1"] {
        assert_eq!(both.ask(device), "ok");
        assert!(both.ask(&most).starts_with("ok"), "{device}");
        assert_eq!(
            both.ask(&format!("alloc {}", 8192 * MIB)),
            "error 2 CUDA_ERROR_OUT_OF_MEMORY",
            "{device}"
        );
    }
    let charged = until("both are charged", SOON, || {
        let claim = view(&station, &both);
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
    assert!(ps.contains("2,3") && ps.contains("2x0.75"), "{ps}");
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
        view(&station, &both)
            .gpus
            .iter()
            .all(|g| (g.sm_request - 0.25).abs() < 1e-9)
    );
    let wrong = run(&station, &["resize", &claim.id, "-g", "3x0.25"]);
    assert_eq!(wrong.status.code(), Some(64), "{}", text(&wrong));
    let now = run(
        &station,
        &["claim", "-g", "2x0.5", "--model", "h100", "--short"],
    );
    assert_eq!(now.status.code(), Some(0), "{}", text(&now));
    let released = run(&station, &["release", &claim.id]);
    assert_eq!(released.status.code(), Some(0), "{}", text(&released));
    until("its pages are gone", SOON, || {
        pages(&station, &claim.id).is_empty().then_some(())
    });
    drop(other);
}

#[test]
fn models_and_modes_bind_a_claim_and_what_is_not_here_is_refused_with_what_is() {
    let station = station_with(|o| o.config = "[gpu]\n3 = { mode = \"exclusive\" }\n".to_owned());
    let place = |args: &[&str]| {
        let claim = Raw::claim(&station, args);
        let gpus: Vec<u32> = view(&station, &claim).gpus.iter().map(|g| g.gpu).collect();
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
    if !root("a_lease_is_told_on_the_terminal_put_off_and_ends_after_a_grace_with_124") {
        return;
    }
    let station = station_with(|o| {
        o.config = "[claims]\nlease-warning = \"1s\"\nlease-grace = \"2s\"\n".to_owned();
        o.tick = "0.2s".to_owned();
    });
    // It does not end by the signal, as a program that saves what it has.
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
    // Its GPU is its own while it saves.
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
    until("the claim has ended", SOON, || {
        claim().is_none().then_some(())
    });
    let log = text(&run(&station, &["log", &before.id]));
    assert!(
        log.contains("time limit ended") && log.contains("later than before"),
        "{log}"
    );
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
        (view(&station, &raw).state_text == "stopped").then_some(())
    });
    kill(job, Signal::SIGCONT).expect("goes on");
    until("it runs", SOON, || {
        (view(&station, &raw).state_text != "stopped").then_some(())
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
    assert!(
        told.contains("ends in 3s, or with gshare release c1; longer: gshare extend c1"),
        "{told}"
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

/// The owner of a program that computes on the processor at that moment read nothing, and later only that "the process
/// belongs to no claim".
#[test]
fn a_lease_that_ends_beside_the_gpu_is_told_and_so_is_each_later_call() {
    if !root("a_lease_that_ends_beside_the_gpu_is_told_and_so_is_each_later_call") {
        return;
    }
    let station = station_with(|o| o.tick = "0.2s".to_owned());
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
        ],
        SOON,
    );
}

#[test]
fn a_signal_comes_before_the_time_limit_to_programs_on_the_gpu_or_to_the_command() {
    let station = station();
    let none = run(&station, &["claim", "--signal", "USR1", "--", "true"]);
    assert_eq!(none.status.code(), Some(64), "{}", text(&none));
    // The first word that is said; nothing where this machine was too slow for the program to be there in time.
    let first = |signal: &str, lead: u32| {
        let signal = format!("{signal}@{}", 3600 - lead);
        let mut command = station.command();
        let flags = [
            "claim", "-q", "-g", "0.1", "-t", "1h", "--signal", &signal, "--",
        ];
        command.args(flags).args(["bash", "-c"]);
        // A program on the GPU that does not expect the signal ends by it.
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
    let mut command = station.command();
    command
        .args(["claim", "-q", "-g", "0.1", "-t", "1h", "--"])
        .arg(example("raw_client"));
    let mut child = Raw::start(command);
    child.kill();
    until("the claim has ended", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}
