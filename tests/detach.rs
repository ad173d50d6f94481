//! GPU memory of claims that run goes to the host and comes back: contents equal, processes alive, bytes on one side.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::ClaimView;
use gshare_sim_board::{CheckpointFault, CheckpointHow, CheckpointStep};
use nix::sys::signal::Signal;
use support::{Raw, board, board_bytes, claim_of, station_with, until};

const GIB: u64 = 1 << 30;
const SOON: Duration = Duration::from_secs(20);

/// Four GPUs on which memory moves fast.
fn station() -> Station {
    let keys = "[claims]\nleftover-grace = \"1s\"\n[detach]\ntimeout = \"1s\"\ndrain = \"1s\"\nhost-reserve = \"1 MiB\"\n";
    let station = station_with(|o| o.config = keys.to_owned());
    let rate = board(&station).set_checkpoint_rate(Duration::from_millis(5), 1 << 42);
    rate.expect("the rate is set");
    station
}

fn run(station: &Station, words: &[&str]) -> Output {
    let output = station.command().args(words).stdin(Stdio::null()).output();
    output.expect("gshare runs")
}

fn ok(station: &Station, words: &[&str]) -> String {
    let output = run(station, words);
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{words:?}: {said} {errors}");
    said
}

fn claim(station: &Station, pid: u32) -> ClaimView {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, pid).expect("its claim").clone()
}

/// Waits until a claim may be detached: the engine runs, and its members are known.
fn ready(station: &Station, pid: u32) -> ClaimView {
    until("the claim can be detached", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?;
        claim
            .place
            .levers
            .not_detachable
            .is_none()
            .then(|| claim.clone())
    })
}

/// Bytes of a process on all GPUs of the board.
fn on_gpus(station: &Station, pid: u32) -> u64 {
    let seen = board(station).snapshot();
    (0..seen.gpus.len())
        .map(|gpu| board_bytes(&seen, gpu, &[pid]))
        .sum()
}

/// A member that holds a GiB with something in it; its checksum.
fn holder(station: &Station, flags: &[&str]) -> (Raw, String) {
    let mut raw = Raw::claim(station, flags);
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 0");
    assert_eq!(raw.ask("fill 0 4711"), "ok");
    let sum = raw.ask("sum 0");
    ready(station, raw.pid());
    (raw, sum)
}

const ON_GPU_0: [&str; 5] = ["-q", "-g", "0.5", "--gpu-ids", "0"];

#[test]
fn detached_memory_is_free_the_process_lives_and_its_next_call_brings_it_back() {
    let station = station();
    let mut command = station.command();
    command
        .arg("claim")
        .args(ON_GPU_0)
        .arg("--")
        .arg(support::example("raw_client"))
        .stderr(Stdio::piped());
    let mut raw = Raw::start(command);
    let errors = BufReader::new(raw.child.stderr.take().expect("piped"));
    let said = std::thread::spawn(move || {
        let mut lines = errors.lines().map_while(Result::ok);
        lines.find(|line| line.contains("this call waited"))
    });
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 0");
    assert_eq!(raw.ask("fill 0 7"), "ok");
    assert_eq!(raw.ask("launch 3"), "ok 3");
    let sum = raw.ask("sum 0");
    let before = ready(&station, raw.pid());
    let held = on_gpus(&station, raw.pid());
    assert!(held > GIB, "{held}");

    let done = ok(&station, &["detach", &before.id]);
    assert!(
        done.starts_with(&format!("{} detached, ", before.id)),
        "{done}"
    );
    assert_eq!(on_gpus(&station, raw.pid()), 0, "nothing is on a GPU");
    let view = claim(&station, raw.pid());
    assert_eq!(view.place.word.as_deref(), Some("detached"));
    assert_eq!(view.place.host_bytes, before.gpus[0].mem_charge);
    assert!(
        view.state_text.starts_with("detached, "),
        "{}",
        view.state_text
    );
    assert_eq!(raw.ask("ping"), "ok pong", "its threads run");
    // Its place is free: a claim of the whole GPU fits, and has to go before the other is back.
    let mut other = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(other.ask(&format!("alloc {GIB}")), "ok 0");
    raw.tell("sum 0");
    until("the call waits for room", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, raw.pid())
            .is_some_and(|c| c.place.word.as_deref() == Some("detached"))
            .then_some(())
    });
    assert_eq!(other.finish(), Some(0));
    assert_eq!(raw.line(), sum, "contents are as before");
    assert_eq!(on_gpus(&station, raw.pid()), held, "and on the GPU");
    assert_eq!(raw.ask("launch 1"), "ok 4", "modules and kernels, too");
    assert_eq!(claim(&station, raw.pid()).place.word, None);
    let line = said.join().expect("reads on").expect("was said");
    assert!(line.contains("has its GPU memory back"), "{line}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn attach_brings_a_claim_back_without_a_call() {
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for _ in 0..3 {
        ok(&station, &["detach", &id]);
        assert_eq!(on_gpus(&station, raw.pid()), 0);
        let again = ok(&station, &["detach", &id]);
        assert!(again.contains("already"), "{again}");
        ok(&station, &["attach", &id]);
        assert_eq!(on_gpus(&station, raw.pid()), held);
    }
    assert_eq!(raw.ask("sum 0"), sum);
    let json = ok(&station, &["detach", &id, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["id"], id.as_str());
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn suspended_processes_stand_still_and_resume_where_they_stopped() {
    if !support::root("suspended_processes_stand_still_and_resume_where_they_stopped") {
        return;
    }
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    ok(&station, &["suspend", &id]);
    let view = claim(&station, raw.pid());
    assert_eq!(view.place.word.as_deref(), Some("suspended"));
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    raw.tell("ping");
    raw.tell("sum 0");
    let frozen = format!("/proc/{}/cgroup", raw.pid());
    let cgroup = std::fs::read_to_string(frozen).expect("its cgroup");
    assert!(cgroup.contains("claim-1"), "{cgroup}");
    // Neither its threads nor its calls go on, and no call brings it back.
    let woken = until("it stands still", SOON, || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", raw.pid())).ok()?;
        Some(state)
    });
    assert!(!woken.is_empty());
    ok(&station, &["resume", &id]);
    assert_eq!(raw.line(), "ok pong");
    assert_eq!(raw.line(), sum);
    // Detached without being frozen: its threads run.
    ok(&station, &["suspend", &id]);
    ok(&station, &["detach", &id]);
    assert_eq!(raw.ask("ping"), "ok pong");
    ok(&station, &["suspend", &id]);
    assert_eq!(
        claim(&station, raw.pid()).place.word.as_deref(),
        Some("suspended")
    );
    ok(&station, &["attach", &id]);
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn a_moved_claim_has_its_memory_on_the_other_gpu_and_sees_no_difference() {
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    assert_eq!(raw.ask("launch 2"), "ok 2");
    let before = claim(&station, raw.pid());
    assert_eq!(before.place.levers.not_movable, None);
    let (id, held) = (before.id.clone(), on_gpus(&station, raw.pid()));
    for target in [1, 0, 1] {
        let done = ok(&station, &["move", &id, "--gpu", &target.to_string()]);
        assert!(done.contains(&format!("moved to GPU {target}")), "{done}");
        let seen = board(&station).snapshot();
        assert_eq!(board_bytes(&seen, target, &[raw.pid()]), held);
        assert_eq!(on_gpus(&station, raw.pid()), held, "and nowhere else");
        let after = claim(&station, raw.pid());
        assert_eq!(after.gpus[0].gpu as usize, target);
        assert_eq!(after.gpus[0].mem_charge, before.gpus[0].mem_charge);
        assert_eq!(raw.ask("sum 0"), sum);
        assert_eq!(raw.ask("count"), "ok 1");
    }
    assert_eq!(raw.ask("launch 1"), "ok 3");
    // Its ledger goes on there: the cap holds, and what is freed is free.
    let (free, total) = raw.info();
    assert!(
        raw.ask(&format!("alloc {}", free + 1))
            .starts_with("error 2")
    );
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 1");
    assert_eq!(raw.info(), (free - GIB, total));
    let wrong = run(&station, &["move", &id, "--gpu", "2"]);
    assert_eq!(wrong.status.code(), Some(75), "another model: {wrong:?}");
    let twice = run(&station, &["move", &id, "--gpu", "1"]);
    assert_eq!(twice.status.code(), Some(75), "there already: {twice:?}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_cannot_be_detached_says_so_before_anybody_asks() {
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--no-movable"]);
    let view = ready(&station, raw.pid());
    let why = view.place.levers.not_movable.expect("it was claimed so");
    assert!(why.contains("--no-movable"), "{why}");
    assert_eq!(raw.ask("managed 4096"), "ok");
    let why = until("it is seen", SOON, || {
        claim(&station, raw.pid()).place.levers.not_detachable
    });
    assert!(why.contains("managed memory"), "{why}");
    let ps = ok(&station, &["ps"]);
    assert!(
        ps.contains("cannot be detached: it uses managed memory"),
        "{ps}"
    );
    let refused = run(&station, &["detach", &view.id]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert_eq!(raw.ask("launch 1"), "ok 1", "nothing happened to it");
}

/// A kernel that takes a minute: whoever waits for it is in the driver.
fn slow_kernels(station: &Station) {
    let costs = station.sim_dir().join("costs");
    std::fs::write(costs, "add_one 60s\n").expect("costs are written");
}

#[test]
fn a_thread_that_is_stuck_in_the_driver_keeps_its_claim_where_it_is() {
    let station = station();
    slow_kernels(&station);
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    raw.tell("launch 1");
    until("the kernel runs", SOON, || {
        (claim(&station, raw.pid()).launches? > 0).then_some(())
    });
    let held = on_gpus(&station, raw.pid());
    let refused = run(&station, &["detach", &id]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(75), "{errors}");
    assert!(errors.contains("did not end within"), "{errors}");
    assert_eq!(on_gpus(&station, raw.pid()), held);
    assert_eq!(claim(&station, raw.pid()).place.word, None, "it runs on");
}

#[test]
fn whatever_the_driver_does_a_claim_is_whole_on_one_side() {
    use CheckpointHow::{Hangs, Refused};
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    let board = board(&station);
    let fault = |fault: Option<(CheckpointStep, CheckpointHow)>| {
        let fault = fault.map(|(step, how)| CheckpointFault::of_all(step, how));
        board.set_checkpoint_fault(fault).expect("set");
    };
    for step in [Lock, Checkpoint] {
        fault(Some((step, Refused)));
        let refused = run(&station, &["detach", &id]);
        assert_eq!(refused.status.code(), Some(75), "{step:?}: {refused:?}");
        assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
        assert_eq!(raw.ask("sum 0"), sum, "{step:?}: it runs on");
        fault(None);
    }
    // On its way back it stays in the host, and comes as soon as it can.
    ok(&station, &["detach", &id]);
    fault(Some((Restore, Refused)));
    let refused = run(&station, &["attach", &id]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert_eq!(on_gpus(&station, raw.pid()), 0, "all in the host");
    assert_eq!(
        claim(&station, raw.pid()).place.word.as_deref(),
        Some("detached")
    );
    fault(None);
    // Hangs are given up, and undone once they end.
    fault(Some((Unlock, Hangs)));
    let mut attach = station.command();
    attach
        .args(["attach", &id])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut attach = attach.spawn().expect("runs");
    until("its memory is back", Duration::from_secs(90), || {
        (on_gpus(&station, raw.pid()) == held).then_some(())
    });
    fault(None);
    until("it runs again", SOON, || {
        claim(&station, raw.pid())
            .place
            .word
            .is_none()
            .then_some(())
    });
    assert_eq!(raw.ask("sum 0"), sum);
    let _ = attach.wait();
    fault(Some((Checkpoint, Hangs)));
    let mut detach = station.command();
    detach
        .args(["detach", &id])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut detach = detach.spawn().expect("runs");
    until("the step is given up", SOON, || {
        let log = std::fs::read_to_string(station.log_path()).ok()?;
        log.contains("neither here nor there").then_some(())
    });
    fault(None);
    assert_eq!(detach.wait().expect("ends").code(), Some(75));
    assert_eq!(raw.ask("sum 0"), sum);
    assert_eq!(on_gpus(&station, raw.pid()), held);
}

#[test]
fn a_process_that_dies_in_the_middle_takes_nothing_with_it() {
    let station = station();
    let (raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let fault = CheckpointFault::of_all(CheckpointStep::Checkpoint, CheckpointHow::Dies);
    board(&station)
        .set_checkpoint_fault(Some(fault))
        .expect("set");
    let _ = run(&station, &["detach", &id]);
    until("the claim ends with its command", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    board(&station).set_checkpoint_fault(None).expect("set");
    let (mut next, sum) = holder(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(next.ask("sum 0"), sum, "its place is free");
}

#[test]
fn too_little_host_memory_is_found_before_anything_is_done() {
    let keys = "[detach]\nhost-reserve = \"100000 GiB\"\n";
    let station = station_with(|o| o.config = keys.to_owned());
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let refused = run(&station, &["detach", &id]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(75), "{errors}");
    assert!(errors.contains("the host has"), "{errors}");
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn the_service_may_die_at_every_step_of_a_lever() {
    let mut station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for (words, steps) in [
        (&["detach"][..], &gshare::daemon::LEVER_STEPS[..]),
        (
            &["attach"],
            &["lever-journaled", "lever-worked", "lever-settled"],
        ),
        (
            &["move", "--gpu", "1"],
            &["lever-journaled", "lever-worked", "lever-settled"],
        ),
    ] {
        for step in steps {
            let what = format!("{} dies at {step}", words[0]);
            // Where it starts from.
            if words[0] == "attach" {
                ok(&station, &["detach", &id]);
            } else {
                ok(&station, &["attach", &id]);
            }
            if words[0] == "move" && claim(&station, raw.pid()).gpus[0].gpu == 1 {
                ok(&station, &["move", &id, "--gpu", "0"]);
            }
            station.stop_service(Signal::SIGTERM).expect("stopped");
            station
                .start_service_with(&["--die-at", step])
                .expect("starts");
            ready(&station, raw.pid());
            let mut all = vec![words[0], id.as_str()];
            all.extend(&words[1..]);
            let mut command = station.command();
            command
                .args(&all)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut asking = command.spawn().expect("runs");
            until(&what, SOON, || station.service_ended().then_some(()));
            let _ = asking.kill();
            let _ = asking.wait();
            station
                .start_service()
                .unwrap_or_else(|e| panic!("{what}: {e:#}"));
            let (word, gpu) = match words[0] {
                "detach" => (Some("detached"), 0),
                "attach" => (None, 0),
                _ => (None, 1),
            };
            let found = until(&format!("{what}: found again"), SOON, || {
                let found = claim(&station, raw.pid());
                let settled = found.place.word.as_deref();
                matches!(settled, None | Some("detached")).then_some(found)
            });
            assert_eq!(found.place.word.as_deref(), word, "{what}");
            let seen = board(&station).snapshot();
            let there = board_bytes(&seen, gpu, &[raw.pid()]);
            assert_eq!(there, if word.is_some() { 0 } else { held }, "{what}");
            assert_eq!(on_gpus(&station, raw.pid()), there, "{what}: on one side");
            ready(&station, raw.pid());
            assert_eq!(raw.ask("sum 0"), sum, "{what}");
        }
    }
}

#[test]
fn calls_that_only_ask_leave_a_detached_claim_alone_for_a_while() {
    let station = station();
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    ok(&station, &["detach", &id]);
    let begun = std::time::Instant::now();
    raw.tell("info");
    until("it asks in the end", SOON, || {
        claim(&station, raw.pid())
            .place
            .word
            .is_none()
            .then_some(())
    });
    assert!(
        begun.elapsed() >= Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert!(raw.line().starts_with("ok "));
}
