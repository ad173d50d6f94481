//! `gshare admin`: drain, kill and their record, on real processes.

use crate::support;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use gshare::station::Station;
use nix::sys::signal::Signal;
use serde_json::Value;
use support::terminal::Terminal;
use support::{Raw, root, station, station_with, until};

const SOON: Duration = Duration::from_secs(15);

fn run(station: &Station, args: &[&str]) -> Output {
    station.command().args(args).output().expect("gshare runs")
}

/// What a command prints when it succeeds.
fn said(station: &Station, args: &[&str]) -> String {
    let output = run(station, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn log(station: &Station) -> Vec<Value> {
    let text = said(station, &["admin", "log", "--json"]);
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
    let text = said(
        &station,
        &["admin", "drain", "1", "--reason", "new \x1b[31mfan"],
    );
    assert!(
        text.contains("GPU 1 is drained: no new claims start there; c1 ("),
        "{text}"
    );
    assert!(text.ends_with("undo: gshare admin undrain 1\n"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");

    // A claim that wants it waits, and says why.
    let refused = run(
        &station,
        &["claim", "-g", "0.1", "--gpu-ids", "1", "--nonblock", "true"],
    );
    assert_eq!(refused.status.code(), Some(75));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(
        stderr.contains("GPU 1 is drained (new  [31mfan)"),
        "{stderr}"
    );
    let mut waits = station.command();
    waits.args(["claim", "-q", "-g", "0.1", "--gpu-ids", "1", "--"]);
    waits.arg(support::example("raw_client"));
    let mut waits = Raw::spawn(&mut waits);
    let reason = until("it waits", SOON, || {
        let queue = station.snapshot().ok()?.queue;
        queue.first().map(|q| q.reason.clone())
    });
    assert!(reason.contains("GPU 1 is drained"), "{reason}");
    // Others go elsewhere; the screen and the listing show it.
    let elsewhere = Raw::claim(&station, &["-q", "-g", "0.9"]);
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot
            .claims
            .iter()
            .all(|c| c.id == "c1" || c.gpus[0].gpu != 1)
    );
    assert_eq!(snapshot.gpus[1].claimable, 0.0);
    assert!(said(&station, &["status"]).contains("draining: new"));

    // A service that was killed knows it still; the claim that waited is in the queue again.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    let again = until("it waits again", SOON, || {
        let queue = station.snapshot().ok()?.queue;
        queue.first().map(|q| q.reason.clone())
    });
    assert!(again.contains("GPU 1 is drained"), "{again}");
    let drain = station.snapshot().expect("served").gpus[1].drain.clone();
    assert_eq!(
        drain.and_then(|d| d.reason).as_deref(),
        Some("new  [31mfan")
    );

    let text = said(&station, &["admin", "undrain", "1"]);
    assert!(text.contains("GPU 1 takes claims again"), "{text}");
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
    let late = run(&station, &["admin", "drain", "1", "--wait=1s"]);
    assert_eq!(late.status.code(), Some(75));
    let stderr = String::from_utf8_lossy(&late.stderr);
    assert!(stderr.contains("waits for 1: c1 ("), "{stderr}");
    assert!(stderr.contains("claims are still there"), "{stderr}");

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
        stderr.ends_with("empty: no claim is left there\n"),
        "{stderr}"
    );
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
    // A kill that was under way when the service died is carried on.
    let text = said(
        &station,
        &["admin", "kill", "deaf", "--grace", "1h", "--reason", "test"],
    );
    assert!(text.contains("c1 of "), "{text}");
    assert!(text.contains("cannot be undone"), "{text}");
    let state = station.snapshot().expect("served").claims[0]
        .state_text
        .clone();
    assert!(state.starts_with("ending: killed by "), "{state}");
    assert!(
        lives(child.id()) && lives(grandchild),
        "they ignore SIGTERM"
    );
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    said(&station, &["admin", "kill", "c1", "--grace", "0"]);
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
fn the_owner_reads_the_reason_on_his_terminal() {
    let station = station();
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.25", "--", "sh", "-c"]);
    command.arg("trap 'sleep 1000' TERM; echo begun; sleep 1000");
    let terminal = Terminal::start(&command, 24, 100);
    until("it runs", SOON, || {
        terminal.text().contains("begun").then_some(())
    });
    let reason = "the power goes off";
    said(
        &station,
        &[
            "admin", "kill", "--gpu", "0", "--grace", "1s", "--reason", reason,
        ],
    );
    until("the reason is on the terminal", SOON, || {
        let text = terminal.text();
        (text.contains("gshare: c1 killed by ") && text.contains(reason)).then_some(())
    });
    until("it has ended", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

#[test]
fn only_root_and_the_groups_of_the_config_may() {
    if !root("only_root_and_the_groups_of_the_config_may") {
        return;
    }
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
        assert!(
            stderr.contains("60007 may not use gshare admin") && stderr.contains("groups games"),
            "{stderr}"
        );
    }
    assert_eq!(log(&station).len(), 0);
    let done = by(&format!("--groups={gid}"), &["admin", "drain", "0"]);
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    let entries = log(&station);
    assert_eq!(entries[0]["uid"], 60007);
    let seen = std::fs::read_to_string(station.log_path()).expect("a log");
    assert!(seen.contains("60007 drain GPU 0 ("), "{seen}");
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
    let text = said(
        &station,
        &[
            "admin", "quota", "set", &party, "--max", "0.5", "--weight", "2",
        ],
    );
    assert!(
        text.starts_with(&format!("{party}: weight 2, at most 0.5\n")),
        "{text}"
    );
    let undo = format!("undo: gshare admin quota remove {party}\n");
    assert!(text.ends_with(&undo), "{text}");

    let first = Raw::claim(&station, &["-q", "-g", "0.4"]);
    let refused = |station: &Station, size: &str| {
        let output = run(station, &["claim", "-g", size, "--nonblock", "true"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let (code, stderr) = refused(&station, "0.2");
    assert_eq!(code, Some(75), "{stderr}");
    let why = format!("wants 0.2 of a GPU; {party} may hold 0.5 at most and holds 0.4");
    assert!(stderr.contains(&why), "{stderr}");
    let (code, stderr) = refused(&station, "1");
    assert_eq!(
        code,
        Some(64),
        "more than the quota can never start: {stderr}"
    );
    // Growing is no way around it, and a killed service knows it still.
    let grown = run(&station, &["resize", "c1", "-g", "0.6"]);
    assert_eq!(grown.status.code(), Some(75));
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert_eq!(refused(&station, "0.2").0, Some(75));

    let listed = said(&station, &["admin", "quota", "list", "--json"]);
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
    let text = said(&station, &["admin", "quota", "remove", &party]);
    assert!(
        text.contains(&format!("quota set {party} --weight 2 --max 0.5\n")),
        "{text}"
    );
    assert_eq!(refused(&station, "0.2").0, Some(0));
    let acts: Vec<String> = log(&station)
        .iter()
        .map(|e| e["action"].to_string())
        .collect();
    assert_eq!(acts, [r#""quota set""#, r#""quota remove""#]);
    drop(first);
}

#[test]
fn two_administrators_at_once_are_recorded_one_after_the_other() {
    let station = station();
    let sizes = |first: u32| (0..8).map(move |n| format!("0.{}", first + n));
    let set = |sizes: Vec<String>| {
        for max in sizes {
            said(
                &station,
                &["admin", "quota", "set", "group:root", "--max", &max],
            );
        }
    };
    std::thread::scope(|scope| {
        for first in [11, 31] {
            scope.spawn(move || set(sizes(first).collect()));
        }
    });
    let entries = log(&station);
    assert_eq!(entries.len(), 16, "{entries:?}");
    let text = |entry: &Value, key: &str| entry[key].as_str().expect("a text").to_owned();
    let mut entries: Vec<&Value> = entries.iter().collect();
    entries.sort_by_key(|entry| entry["seq"].as_u64());
    for pair in entries.windows(2) {
        assert_eq!(
            text(pair[0], "after"),
            text(pair[1], "before"),
            "nobody overwrote unseen"
        );
    }
    let last = text(entries[15], "after");
    let list = said(&station, &["admin", "quota", "list"]);
    let max = last.rsplit(' ').next().expect("a number");
    assert!(list.contains(max), "{last}: {list}");
    // A plan is of what its administrator saw.
    let plan = said(&station, &["admin", "stage", "4", "--dry-run"]);
    let (_, id) = plan.split_once("\nplan ").expect(&plan);
    let id = id.split(';').next().expect("an id");
    said(&station, &["admin", "stage", "2"]);
    let late = run(&station, &["admin", "stage", "4", "--plan", id]);
    assert_eq!(
        late.status.code(),
        Some(75),
        "another has changed the stage since"
    );
}
