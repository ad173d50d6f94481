//! `gshare admin`: drain, kill, guarantees, GPUs that are released for a reset, and the audit log.

use crate::support;

use std::process::{Command, Output, Stdio};

use gshare::station::Station;
use gshare_proto::{GpuState, Grade, messages};
use gshare_sim_board::BoardError;
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{
    Raw, SOON, board, claim, has_all, ok, quick, refused, root, run, station, station_with, until,
    words,
};

// `gshare admin`: drain, kill and their record, on real processes.

fn log(station: &Station) -> Vec<Value> {
    let text = ok(station, &["admin", "log", "--json"]);
    let value: Value = serde_json::from_str(&text).expect("JSON");
    value["entries"].as_array().expect("a list").clone()
}

fn lives(pid: u32) -> bool {
    gshare_enforcer::proc::stat(pid.cast_signed()).is_some_and(|s| s.state != 'Z')
}

#[test]
fn a_drained_gpu_starts_nothing_until_it_is_opened_again() {
    let mut station = station();
    let runs = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let text = ok(
        &station,
        &["admin", "drain", "1", "--reason", "new \x1b[31mfan"],
    );
    has_all(
        &text,
        &["GPU 1 is drained: no new claims start there; c1 ("],
    );
    assert!(text.ends_with("undo: gshare admin undrain 1"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");

    // A claim that needs it waits, and says why.
    let refused = run(
        &station,
        &["claim", "-g", "0.1", "--gpu-ids", "1", "--nonblock", "true"],
    );
    assert_eq!(refused.status.code(), Some(75));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    has_all(&stderr, &["GPU 1 is drained (new  [31mfan)"]);
    let mut waits = Raw::asks(&station, &["-q", "-g", "0.1", "--gpu-ids", "1"]);
    let reason = until("it waits", SOON, || {
        let queue = station.snapshot().ok()?.queue;
        queue.first().map(|q| q.reason.clone())
    });
    has_all(&reason, &["GPU 1 is drained"]);
    // Other claims go elsewhere; the screen and the listing show it.
    let elsewhere = Raw::claim(&station, &["-q", "-g", "0.9"]);
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot
            .claims
            .iter()
            .all(|c| c.id == "c1" || c.gpus[0].gpu != 1)
    );
    assert_eq!(snapshot.gpus[1].claimable, 0.0);
    assert!(ok(&station, &["status"]).contains("draining: new"));

    // A killed service still knows it after a restart, and the waiting claim is in the queue again.
    support::restart(&mut station, Signal::SIGKILL);
    let again = until("it waits again", SOON, || {
        let queue = station.snapshot().ok()?.queue;
        queue.first().map(|q| q.reason.clone())
    });
    has_all(&again, &["GPU 1 is drained"]);
    let drain = station.snapshot().expect("served").gpus[1].drain.clone();
    assert_eq!(
        drain.and_then(|d| d.reason).as_deref(),
        Some("new  [31mfan")
    );

    let text = ok(&station, &["admin", "undrain", "1"]);
    has_all(&text, &[&messages::gpu_takes_claims(1)]);
    assert_eq!(waits.line(), "ok ready", "who waited starts now");
    let acts: Vec<String> = log(&station)
        .iter()
        .map(|e| format!("{} {} -> {}", e["action"], e["before"], e["after"]))
        .collect();
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert_eq!(acts[0], r#""drain" "open" -> "drained""#);
    assert!(acts[1].starts_with(r#""undrain" "drained by "#), "{acts:?}");
    drop((runs, waits, elsewhere));
}

#[test]
fn drain_waits_until_the_gpu_is_empty() {
    let station = station();
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let late = run(
        &station,
        &["admin", "drain", "1", "--reason", "fan", "--wait=1s"],
    );
    assert_eq!(late.status.code(), Some(75));
    let stderr = String::from_utf8_lossy(&late.stderr);
    has_all(&stderr, &["waits for 1: c1 ("]);
    has_all(&stderr, &["claims are still there"]);

    let waiting = station
        .command()
        .args(["admin", "drain", "GPU-", "0"])
        .output();
    assert_eq!(
        waiting.expect("runs").status.code(),
        Some(64),
        "a word that fits several GPUs changes nothing"
    );
    let waits = station
        .command()
        .args(["admin", "drain", "1", "--wait"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gshare runs");
    assert_eq!(raw.finish(), Some(0));
    let output = waits.wait_with_output().expect("ends");
    assert!(output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.ends_with("no claim is left on the drained GPUs\n"),
        "{stderr}"
    );
    let drain = station.snapshot().expect("served").gpus[1].drain.clone();
    assert_eq!(drain.and_then(|d| d.reason).as_deref(), Some("fan"));
}

/// A claim whose command ignores SIGTERM and has a child in a session of its own, which does not use the GPU.
fn stubborn(station: &Station) -> (std::process::Child, u32) {
    let child = station
        .command()
        .args(["claim", "-q", "-g", "0.25", "--name", "deaf", "--", "sh", "-c"])
        .arg("trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & wait; sleep 1000")
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("gshare runs");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a pid");
    (child, line.trim().parse().expect("a pid"))
}

#[test]
fn kill_ends_every_process_of_a_claim() {
    let mut station = station();
    let (mut child, grandchild) = stubborn(&station);
    let mut bystander = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert!(lives(child.id()) && lives(grandchild));
    // A kill that was under way when the service died is continued.
    let text = ok(
        &station,
        &["admin", "kill", "deaf", "--grace", "1h", "--reason", "test"],
    );
    has_all(&text, &["c1 of "]);
    has_all(&text, &["cannot be undone"]);
    let state = station.snapshot().expect("served").claims[0]
        .state_text
        .clone();
    assert!(state.starts_with("ending: killed by "), "{state}");
    assert!(
        lives(child.id()) && lives(grandchild),
        "they ignore SIGTERM"
    );
    support::restart(&mut station, Signal::SIGKILL);
    ok(&station, &["admin", "kill", "c1", "--grace", "0"]);
    let status = child.wait().expect("reaped");
    assert!(!status.success());
    until("all of it has ended", SOON, || {
        (!lives(grandchild) && station.snapshot().ok()?.claims.len() == 1).then_some(())
    });
    assert!(bystander.ask("info").starts_with("ok"), "others run on");
    let acts = log(&station);
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert_eq!(acts[0]["reason"], "test");
    assert_eq!(acts[0]["after"], "ended");
    let none = run(&station, &["admin", "kill", "--gpu", "3"]);
    assert_eq!(none.status.code(), Some(64));
}

#[test]
fn only_root_and_the_groups_of_the_config_may() {
    root!("only_root_and_the_groups_of_the_config_may");
    let games = Command::new("getent").args(["group", "games"]).output();
    let games = String::from_utf8(games.expect("getent runs").stdout).expect("UTF-8");
    let Some(gid) = games.split(':').nth(2).map(str::to_owned) else {
        println!("skipped: there is no group `games`");
        return;
    };
    let station = station_with(|o| o.config = "[admin]\ngroups = [\"games\"]\n".to_owned());
    let by = |groups: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=60007", "--regid=60007", groups]);
        command.arg(station.program()).args(args);
        let mut command = station.client_environment(command);
        command.current_dir("/").output().expect("setpriv runs")
    };
    for args in [
        &["admin", "drain", "0"][..],
        &["admin", "undrain", "0"],
        &["admin", "kill", "c1"],
        &["admin", "log"],
    ] {
        let refused = by("--clear-groups", args);
        assert_eq!(refused.status.code(), Some(77), "{args:?}");
        let stderr = String::from_utf8_lossy(&refused.stderr);
        has_all(
            &stderr,
            &[
                "60007 may not do this: only administrators may",
                "groups games",
            ],
        );
    }
    assert_eq!(log(&station).len(), 0);
    let done = by(&format!("--groups={gid}"), &["admin", "drain", "0"]);
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    let entries = log(&station);
    assert_eq!(entries[0]["uid"], 60007);
    let seen = std::fs::read_to_string(station.log_path()).expect("a log");
    has_all(&seen, &["60007 drain GPU 0 ("]);
}

#[test]
fn the_most_that_a_quota_allows_holds_over_claims_and_restarts() {
    let mut station = station_with(|o| {
        o.config = "[quotas]\n\"user:nobody\" = { gpus = 1.0 }\n".to_owned();
    });
    let me = gshare_enforcer::proc::user_name(nix::unistd::Uid::effective().as_raw());
    let Some(me) = me else {
        println!("skipped: this user has no name");
        return;
    };
    let party = format!("user:{me}");
    let text = ok(
        &station,
        &[
            "admin", "quota", "set", &party, "--max", "0.5", "--weight", "2",
        ],
    );
    assert!(
        text.starts_with(&format!("{party}: weight 2, at most 0.5\n")),
        "{text}"
    );
    let undo = format!("undo: gshare admin quota remove {party}");
    assert!(text.ends_with(&undo), "{text}");

    let first = Raw::claim(&station, &["-q", "-g", "0.4"]);
    let refused = |station: &Station, size: &str| {
        let output = run(station, &["claim", "-g", size, "--nonblock", "true"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let (code, stderr) = refused(&station, "0.2");
    assert_eq!(code, Some(75), "{stderr}");
    let why = format!("needs 0.2 of a GPU; {party} may hold 0.5 at most and holds 0.4");
    has_all(&stderr, &[&why]);
    let (code, stderr) = refused(&station, "1");
    assert_eq!(
        code,
        Some(64),
        "more than the quota can never start: {stderr}"
    );
    // Growing does not bypass it, and a killed service still knows it.
    let grown = run(&station, &["resize", "c1", "-g", "0.6"]);
    assert_eq!(grown.status.code(), Some(75));
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(refused(&station, "0.2").0, Some(75));

    let listed = ok(&station, &["admin", "quota", "list", "--json"]);
    let value: Value = serde_json::from_str(&listed).expect("JSON");
    let quotas = value["quotas"].as_array().expect("a list");
    assert_eq!(quotas.len(), 2, "{quotas:?}");
    assert!(
        quotas
            .iter()
            .any(|q| q["party"] == "user:nobody" && q["from_config"] == true)
    );
    for wrong in [
        &["admin", "quota", "set", "ada", "--max", "1"][..],
        &["admin", "quota", "set", "user:ada"],
        &["admin", "quota", "set", "user:ada", "--max", "0"],
        &[
            "admin", "quota", "set", "user:ada", "--gpus", "2", "--max", "1",
        ],
        &["admin", "quota", "remove", "user:nobody"],
    ] {
        assert_eq!(run(&station, wrong).status.code(), Some(64), "{wrong:?}");
    }
    let text = ok(&station, &["admin", "quota", "remove", &party]);
    has_all(&text, &[&format!("quota set {party} --weight 2 --max 0.5")]);
    assert_eq!(refused(&station, "0.2").0, Some(0));
    let acts: Vec<String> = log(&station)
        .iter()
        .map(|e| e["action"].to_string())
        .collect();
    assert_eq!(acts, [r#""quota set""#, r#""quota remove""#]);
    drop(first);
}

// `gshare admin release`: a GPU can be reset only while no program has it open, gshare included.

fn claim_on(station: &Station, gpu: &str) -> Output {
    let words = ["claim", "-q", "-g", "0.25", "--gpu-ids", gpu, "--nonblock"];
    run(station, &[&words[..], &["--", "true"]].concat())
}

fn is_in_use(station: &Station, gpu: usize) -> bool {
    match board(station).reset(gpu) {
        Err(BoardError::InUse { .. }) => true,
        Ok(()) => false,
        Err(other) => panic!("{other}"),
    }
}

fn answers(station: &Station, gpu: usize) {
    until("the GPU answers", SOON, || {
        let gpu = &station.snapshot().ok()?.gpus[gpu];
        (gpu.state == GpuState::Ok && gpu.mem_used.is_some()).then_some(())
    });
}

#[test]
fn a_reset_is_refused_while_gshared_has_the_gpu_open_and_done_once_it_is_released() {
    let station = quick("");
    let mut beside = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    assert_eq!(beside.ask("alloc 1073741824"), "ok 0");
    // The service's NVML and the checkpoint engine have it open.
    assert!(is_in_use(&station, 1));
    board(&station).raise_xid(1, 95).expect("raised");
    until("GPU 1 is sick", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let health = snapshot.gpus[1].health.clone()?;
        let tell = health.tell.filter(|_| health.grade == Grade::Sick)?;
        has_all(&tell, &["gshare admin release 1"]);
        Some(())
    });
    let said = ok(&station, &["admin", "release", "1"]);
    has_all(&said, &["gshare has closed GPU 1"]);
    has_all(&said, &["undo: gshare admin release 1 --take"]);
    board(&station).reset(1).expect("nobody has it open");
    // Its identity stays known; no claim starts there, and the reason is shown.
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[1].state, GpuState::Released);
    assert_eq!(snapshot.gpus[1].mem_used, None);
    let none = claim_on(&station, "1");
    assert_eq!(none.status.code(), Some(75));
    let text = String::from_utf8_lossy(&none.stderr).into_owned();
    has_all(&text, &["GPU 1 is released by"]);
    // A claim elsewhere continues, and others may start there.
    assert_eq!(beside.ask("alloc 1048576"), "ok 1");
    assert!(claim_on(&station, "0").status.success());
    answers(&station, 0);
    let taken = ok(&station, &["admin", "release", "1", "--take"]);
    has_all(&taken, &["GPU 1 is taken back"]);
    answers(&station, 1);
    // The reset has repaired it, and no administrator has to report that.
    until("it takes claims again", SOON, || {
        claim_on(&station, "1").status.success()
    });
    assert!(is_in_use(&station, 1));
    let log = ok(&station, &["admin", "log"]);
    has_all(&log, &["release", "take"]);
}

#[test]
fn a_release_for_a_time_ends_by_itself_and_outlives_the_service() {
    let mut station = quick("");
    let said = ok(&station, &["admin", "release", "1", "2", "--for", "15s"]);
    has_all(&said, &["taken back in 15 s"]);
    board(&station).reset(1).expect("nobody has it open");
    // A restarted service does not open them.
    support::restart(&mut station, Signal::SIGKILL);
    until("what the one before had open is closed", SOON, || {
        !is_in_use(&station, 1) && !is_in_use(&station, 2)
    });
    assert!(is_in_use(&station, 0));
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[2].state, GpuState::Released);
    assert!(snapshot.gpus[2].uuid.starts_with("GPU-"));
    answers(&station, 1);
    answers(&station, 2);
    assert!(is_in_use(&station, 1) && is_in_use(&station, 2));
    until("claims start", SOON, || {
        claim_on(&station, "2").status.success()
    });
}

#[test]
fn a_gpu_that_a_claim_holds_is_not_released() {
    let station = quick("");
    let held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let id = claim(&station, held.pid()).id;
    let text = refused(&station, &["admin", "release", "1"]);
    has_all(&text, &[&format!("GPU 1 is held by {id}")]);
    has_all(&text, &["gshare admin drain 1 --wait"]);
    assert!(is_in_use(&station, 1));
    let none = run(&station, &["admin", "release", "1", "--take"]);
    let text = String::from_utf8_lossy(&none.stdout).into_owned();
    has_all(&text, &["GPU 1 was not released"]);
}

#[test]
fn the_mps_daemon_lets_go_with_the_rest_and_is_started_again() {
    let station = quick("[gpu.1]\nmode = \"mps\"\n");
    let mps_claim = || {
        let words = words("claim -q -g 0.25 --gpu-ids 1 --nonblock --");
        let raw = support::example("raw_client");
        let mut command = station.command();
        command.args(words).arg(raw);
        command
    };
    // A client brings up a server, which has the GPU open after it.
    until("MPS is up", SOON, || {
        let mut raw = Raw::spawn(&mut mps_claim());
        (raw.line() == "ok ready").then(|| raw.finish())
    });
    ok(&station, &["admin", "release", "1"]);
    board(&station).reset(1).expect("nobody has it open");
    ok(&station, &["admin", "release", "1", "--take"]);
    until("MPS is up again", SOON, || {
        let mut raw = Raw::spawn(&mut mps_claim());
        raw.line() == "ok ready"
    });
}
