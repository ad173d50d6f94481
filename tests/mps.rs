//! MPS end to end on the simulated driver: claims of several users side by side, faults, a dead server, modes
//! changed by command.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::{Snapshot, Source};
use gshare_sim_board::ProcessSnapshot;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Raw, board, claim_of, root, station_with, until};

const ADA: u32 = 61_001;
const BOB: u32 = 61_002;
const SOON: Duration = Duration::from_secs(20);

/// One H100 that is shared through MPS, by several users if `multi`.
fn workstation(more: &str) -> Station {
    station_with(|o| {
        o.gpus = vec!["h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config =
            format!("[gpu.0]\nmode = \"mps\"\n[claims]\nleftover-grace = \"1s\"\n[mps]\n{more}\n");
        o.costs = "add_one 700ms\n".to_owned();
        o.names = vec![(ADA, "ada".to_owned()), (BOB, "bob".to_owned())];
    })
}

fn client(station: &Station, uid: u32, flags: &[&str]) -> Raw {
    let program = station.dir().join("bin/raw_client");
    if !program.exists() && std::fs::hard_link(support::example("raw_client"), &program).is_err() {
        support::copy_program(support::example("raw_client"), &program);
    }
    let mut command = station.command();
    command
        .args(["claim", "-q"])
        .args(flags)
        .arg("--")
        .arg(program);
    if uid != 0 {
        command.uid(uid).gid(uid);
    }
    Raw::start(command)
}

fn process(station: &Station, pid: u32) -> ProcessSnapshot {
    let seen = board(station).snapshot();
    let mut all = seen.gpus[0].processes.iter();
    all.find(|p| p.pid == pid).expect("on the board").clone()
}

fn servers(station: &Station) -> Vec<ProcessSnapshot> {
    let seen = board(station).snapshot();
    let all = seen.gpus[0].processes.iter();
    all.filter(|p| p.name == "nvidia-cuda-mps-server")
        .cloned()
        .collect()
}

fn notices(snapshot: &Snapshot) -> Vec<String> {
    snapshot.notices.iter().map(|n| n.text.clone()).collect()
}

fn said(station: &Station, what: &str) -> String {
    until(&format!("a notice with {what:?}"), SOON, || {
        let all = notices(&station.snapshot().ok()?);
        all.into_iter().find(|n| n.contains(what))
    })
}

fn admin(station: &Station, args: &[&str]) -> Output {
    let mut command: Command = station.command();
    command.arg("admin").args(args);
    command.output().expect("runs")
}

#[test]
fn two_users_have_a_quarter_and_a_half_side_by_side() {
    if !root("two users through one MPS server") {
        return;
    }
    let station = workstation("multi-user = \"accept\"");
    let mut ada = client(&station, ADA, &["-g", "0.25"]);
    let mut bob = client(&station, BOB, &["-g", "0.5"]);
    assert_eq!(
        (ada.ask("sms"), bob.ask("sms")),
        ("ok 32".into(), "ok 66".into())
    );
    assert_eq!(
        (ada.ask("mps"), bob.ask("mps")),
        ("ok 1".into(), "ok 1".into())
    );
    let server = servers(&station);
    assert_eq!(server.len(), 1, "one server for both");
    for raw in [&ada, &bob] {
        assert_eq!(process(&station, raw.pid()).mps, Some(server[0].id));
    }
    // Both at once: each has all of the time in which the GPU runs.
    ada.tell("launch 1");
    bob.tell("launch 1");
    assert_eq!((ada.line(), bob.line()), ("ok 1".into(), "ok 1".into()));
    let busy = |pid| process(&station, pid).busy_ns;
    let gpu = board(&station).snapshot().gpus[0].busy_ns;
    let both = busy(ada.pid()) + busy(bob.pid());
    assert!(both > gpu * 5 / 4, "{both} ns of {gpu}: they took turns");
    // NVML lists clients as such; neither they nor the server are strangers.
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[0].mode, "mps");
    assert!(snapshot.unclaimed.is_empty(), "{:?}", snapshot.unclaimed);
    assert!(!notices(&snapshot).iter().any(|n| n.contains("outside MPS")));
}

/// The server has a part of each client's context: what is left is learnt from the first that has nothing else, and known
/// to the service that starts afterwards.
#[test]
fn what_a_context_costs_through_mps_is_learnt_from_its_clients() {
    if !root("clients of MPS") {
        return;
    }
    let mut station = workstation("");
    let cost = board(&station).snapshot().gpus[0].model.context_overhead;
    let charge = |station: &Station, raw: &Raw| {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, raw.pid())?.gpus[0].mem_charge
    };
    let first = client(&station, 0, &["-g", "0.25"]);
    let bytes = process(&station, first.pid()).bytes;
    assert!(bytes < cost, "it proves nothing");
    assert_eq!(
        charge(&station, &first),
        Some(cost),
        "what a whole one costs"
    );
    let learnt = format!("a CUDA context takes {}", gshare_core::Bytes(cost));
    let through = format!("{} through MPS", gshare_core::Bytes(bytes));
    let doctor = |station: &Station| {
        let output = station.command().arg("doctor").output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    until("it is learnt", SOON, || {
        doctor(&station).contains(&through).then_some(())
    });
    let told = doctor(&station);
    assert!(
        told.contains(&learnt),
        "that of a whole one is as it was: {told}"
    );
    let second = client(&station, 0, &["-g", "0.25"]);
    assert_eq!(charge(&station, &second), Some(bytes));
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts");
    let third = client(&station, 0, &["-g", "0.25"]);
    assert_eq!(charge(&station, &third), Some(bytes));
}

#[test]
fn a_fault_reaches_the_other_owner_in_words_and_the_gpu_recovers() {
    if !root("two users through one MPS server") {
        return;
    }
    let station = workstation("multi-user = \"accept\"");
    let mut ada = client(&station, ADA, &["-g", "0.25"]);
    let mut bob = client(&station, BOB, &["-g", "0.5"]);
    assert_eq!(bob.ask("launch 1"), "ok 1");
    let own = ada.ask("fault");
    assert!(own.starts_with("error 700"), "{own}");
    let others = bob.ask("sync");
    assert!(
        others.starts_with("error 700") || others.is_empty(),
        "{others:?}"
    );
    let id = "c2";
    let words = said(
        &station,
        "c2: GPU 0: a program of c1 (ada) or c2 (bob) had a fatal fault",
    );
    assert!(
        words.contains("its programs on the GPU are ended"),
        "{words}"
    );
    until("both claims end", SOON, || {
        let claims = station.snapshot().ok()?.claims;
        claims
            .iter()
            .all(|c| c.id != id && c.id != "c1")
            .then_some(())
    });
    said(&station, "MPS on GPU 0 serves again");
    let mut next = client(&station, BOB, &["-g", "0.5"]);
    assert_eq!(next.ask("launch 1"), "ok 1");
}

/// The control program is told first: the work of a client that ignores signals is over on the GPU while its
/// process still lives, and the neighbour's goes on.
#[test]
fn admin_kill_ends_the_work_through_mps_before_it_signals() {
    if !root("two users through one MPS server") {
        return;
    }
    let station = workstation("multi-user = \"accept\"");
    let mut command = station.command();
    command.args([
        "claim",
        "-q",
        "-g",
        "0.25",
        "--",
        "sh",
        "-c",
        "trap '' TERM; exec \"$0\"",
    ]);
    command.arg(support::users::reachable(&station));
    let mut stubborn = Raw::start(support::users::as_user(command, ADA));
    let mut bob = client(&station, BOB, &["-g", "0.5"]);
    assert_eq!(
        (stubborn.ask("launch 1"), bob.ask("launch 1")),
        ("ok 1".into(), "ok 1".into())
    );
    let killed = admin(&station, &["kill", "c1", "--grace", "10s"]);
    assert!(killed.status.success(), "{killed:?}");
    let ended = until("its work is ended on the GPU", SOON, || {
        let answer = stubborn.ask("sync");
        (answer != "ok").then_some(answer)
    });
    assert!(ended.starts_with("error 810 "), "{ended}");
    assert_eq!(bob.ask("launch 1"), "ok 2");
    // At once means at once, after MPS has done its part.
    let killed = admin(&station, &["kill", "c1", "--grace", "0s"]);
    assert!(killed.status.success(), "{killed:?}");
    let status = until("it is killed", SOON, || {
        stubborn.child.try_wait().ok().flatten()
    });
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL)
    );
    assert_eq!(bob.ask("launch 1"), "ok 3");
    assert_eq!(servers(&station).len(), 1, "the server is the same");
}

#[test]
fn a_dead_server_is_noticed_and_its_claims_are_kept_by_policy() {
    if !root("a server of another user") {
        return;
    }
    let station = workstation("on-fault = \"keep\"");
    let mut ada = client(&station, ADA, &["-g", "0.25", "--name", "run"]);
    assert_eq!(ada.ask("sms"), "ok 32");
    until("the supervisor knows of the client", SOON, || {
        let doctor = station.command().arg("doctor").output().ok()?;
        let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
        text.contains("1 server, 1 client;").then_some(())
    });
    let server = servers(&station).remove(0);
    assert_eq!(server.uid, ADA, "the server runs as its clients' user");
    kill(Pid::from_raw(server.pid.cast_signed()), Signal::SIGKILL).expect("killed");
    let words = said(&station, "c1: GPU 0: its MPS server died");
    assert!(words.contains("the claim stays"), "{words}");
    until("its program has ended", SOON, || {
        ada.child.try_wait().ok().flatten()
    });
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot.claims.iter().any(|c| c.id == "c1"),
        "the claim is kept"
    );
    // What its owner starts next runs through a new server.
    let mut command = station.command();
    command
        .args(["join", "run", "--"])
        .arg(station.dir().join("bin/raw_client"));
    command.uid(ADA).gid(ADA);
    let mut again = Raw::start(command);
    assert_eq!(
        (again.ask("sms"), again.ask("launch 1")),
        ("ok 32".into(), "ok 1".into())
    );
    assert_ne!(servers(&station).remove(0).id, server.id);
}

#[test]
fn what_was_given_is_read_back_and_a_resize_counts_for_the_next_program() {
    let station = workstation("");
    let program = support::example("raw_client");
    let mut command = station.command();
    // One after the other from a shell whose environment is that of the grant.
    let script = "\"$0\"; \"$0\"";
    command.args([
        "claim", "-q", "-g", "0.25", "--name", "run", "--", "sh", "-c", script,
    ]);
    command.arg(program);
    let mut shell = Raw::start(command);
    assert_eq!(shell.ask("sms"), "ok 32");
    let given = |what: f64| {
        until("the SMs that the driver showed", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let figure = snapshot.claims.first()?.gpus[0].mps_sms?;
            (figure.value == what && figure.source == Source::Shim && !figure.estimate)
                .then_some(())
        });
    };
    given(32.0);
    let resized = station
        .command()
        .args(["resize", "run", "-g", "0.5"])
        .output();
    assert!(resized.expect("runs").status.success());
    assert_eq!(
        shell.ask("sms"),
        "ok 32",
        "a program that runs keeps its part"
    );
    shell.tell("quit");
    assert_eq!(shell.line(), "ok ready");
    assert_eq!(shell.ask("sms"), "ok 66");
    given(66.0);
}

#[test]
fn one_user_at_a_time_without_multi_user_and_a_program_beside_mps_is_noticed() {
    if !root("claims of two users") {
        return;
    }
    let station = workstation("");
    let ada = client(&station, ADA, &["-g", "0.25"]);
    let mut command = station.command();
    command.args(["claim", "-g", "0.25", "--nonblock", "--", "true"]);
    command.uid(BOB).gid(BOB);
    let refused = command.output().expect("runs");
    assert_eq!(refused.status.code(), Some(75));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("serves one user at a time"), "{text}");
    // A program that unsets the variable has all SMs, which is seen.
    let mut stray = station.command();
    stray
        .args([
            "claim",
            "-q",
            "-g",
            "0.25",
            "--",
            "env",
            "-u",
            "CUDA_MPS_PIPE_DIRECTORY",
        ])
        .arg(station.dir().join("bin/raw_client"));
    stray.uid(ADA).gid(ADA);
    let mut stray = Raw::start(stray);
    assert_eq!(
        (stray.ask("mps"), stray.ask("sms")),
        ("ok 0".into(), "ok 132".into())
    );
    let words = said(&station, "runs on GPU 0 outside MPS");
    assert!(words.starts_with("c3: process"), "{words}");
    drop(stray);
    // When the last client of one user is gone the other user's turn comes, with a server of its own.
    let first = servers(&station).remove(0);
    drop(ada);
    let mut bob = client(&station, BOB, &["-g", "0.25"]);
    assert_eq!(bob.ask("sms"), "ok 32");
    let second = servers(&station).remove(0);
    assert_eq!((first.uid, second.uid), (ADA, BOB));
}

#[test]
fn a_mode_is_changed_when_the_gpu_is_empty_and_stays_over_a_restart() {
    let mut station = station_with(|o| o.gpus = vec!["h100".to_owned()]);
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert_eq!(raw.ask("mps"), "ok 0");
    let refused = admin(&station, &["mode", "0", "mps"]);
    assert_eq!(refused.status.code(), Some(75));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("GPU 0 is held by c1"), "{text}");
    let mut waits = station.command();
    waits.args(["admin", "mode", "0", "mps", "--wait"]);
    let mut waits = waits.stderr(Stdio::piped()).spawn().expect("starts");
    let mut tells = BufReader::new(waits.stderr.take().expect("piped"));
    let mut line = String::new();
    tells.read_line(&mut line).expect("told");
    assert!(line.starts_with("waits for c1"), "{line}");
    said(
        &station,
        "c1: the administrator waits for your claim to end",
    );
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[0].mode_wanted.as_deref(), Some("mps"));
    assert_eq!(snapshot.gpus[0].claimable, 0.0, "it takes no new claims");
    assert_eq!(
        raw.ask("launch 1"),
        "ok 1",
        "nothing is taken from those who are there"
    );
    // A restart of the service ends neither the wait nor the command that waits.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[0].mode_wanted.as_deref(), Some("mps"));
    assert_eq!(raw.ask("launch 1"), "ok 2");
    drop(raw);
    assert!(waits.wait().expect("ends").success());
    assert_eq!(station.snapshot().expect("served").gpus[0].mode, "mps");
    let mut through = Raw::claim(&station, &["-q", "-g", "0.5"]);
    assert_eq!(
        (through.ask("mps"), through.ask("sms")),
        ("ok 1".into(), "ok 66".into())
    );
    // The daemon and its clients outlive the service, which finds both again.
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(through.ask("launch 1"), "ok 1");
    station.start_service().expect("starts");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[0].mode, "mps");
    assert!(claim_of(&snapshot, through.pid()).is_some());
    let started = Instant::now();
    said(&station, "MPS on GPU 0 is up");
    assert!(started.elapsed() < SOON);
    let mut second = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert_eq!(second.ask("sms"), "ok 32");
    let log = admin(&station, &["log"]);
    let text = String::from_utf8_lossy(&log.stdout).into_owned();
    assert!(
        text.contains("mode") && text.contains("mps when it is empty"),
        "{text}"
    );
    drop((through, second));
    let back = admin(&station, &["mode", "0", "timeslice", "--wait=20s"]);
    assert!(back.status.success(), "{back:?}");
}

/// A command through `gshare claim`, to its end; what it printed.
fn output(station: &Station, flags: &[&str], command: &[&str]) -> String {
    let mut run = station.command();
    run.args(["claim", "-q"])
        .args(flags)
        .arg("--")
        .args(command);
    let output = run.output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn the_percentage_is_the_limit_by_policy_and_batch_comes_second() {
    let station = workstation("share = \"limit\"");
    let mut raw = client(&station, 0, &["-g", "0.25", "--limit", "0.5"]);
    assert_eq!(raw.ask("sms"), "ok 66", "the limit, not the request");
    for (class, priority) in [("batch", "1"), ("inference", "0"), ("interactive", "0")] {
        let script = ["sh", "-c", "echo $CUDA_MPS_CLIENT_PRIORITY"];
        let said = output(&station, &["-g", "0.1", "--class", class], &script);
        assert_eq!(said, priority, "{class}");
    }
}

#[test]
fn auto_runs_batch_of_one_owner_side_by_side_and_interactive_claims_in_turns() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config =
            "[gpu.0]\nmode = \"auto\"\n[claims]\nleftover-grace = \"1s\"\n[mps]\n".to_owned();
    });
    said(&station, "MPS on GPU 0 is up");
    let batch = ["-g", "0.25", "--class", "batch"];
    let mut first = client(&station, 0, &batch);
    let mut second = client(&station, 0, &["-g", "0.25", "--class", "inference"]);
    assert_eq!(
        (first.ask("mps"), first.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
    assert_eq!(second.ask("mps"), "ok 1");
    assert_eq!(station.snapshot().expect("served").gpus[0].mode, "auto");
    drop((first, second));
    until("the GPU is empty", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    // One that has to stay offloadable is not run through MPS, nor is one beside it.
    let mut notebook = client(&station, 0, &["-g", "0.25", "--class", "interactive"]);
    let mut beside = client(&station, 0, &batch);
    assert_eq!(
        (notebook.ask("mps"), notebook.ask("sms")),
        ("ok 0".into(), "ok 132".into())
    );
    assert_eq!(beside.ask("mps"), "ok 0");
}

#[test]
fn the_sockets_of_a_server_for_one_user_are_his_alone() {
    if !root("directories of two users") {
        return;
    }
    let station = workstation("");
    let ada = client(&station, ADA, &["-g", "0.25"]);
    let pipe = station.dir().join("run/mps/0/pipe");
    let seen = || {
        let meta = std::fs::metadata(&pipe).expect("there");
        (meta.uid(), meta.mode() & 0o022)
    };
    assert_eq!(seen(), (0, 0), "never a user's");
    // Another user can neither ask nor command the daemon.
    let mut control = Command::new(station.sim_dir().join("bin/nvidia-cuda-mps-control"));
    control
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .uid(BOB)
        .gid(BOB);
    control.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = control.spawn().expect("starts");
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"get_server_list\n");
    let told = child.wait_with_output().expect("ends");
    assert!(told.stdout.is_empty() && !told.status.success(), "{told:?}");
    drop(ada);
    let mut bob = client(&station, BOB, &["-g", "0.25"]);
    assert_eq!((bob.ask("mps"), seen()), ("ok 1".into(), (0, 0)));
}

#[test]
fn a_resize_says_what_it_means_for_programs_that_run_and_sets_the_next_ones_memory() {
    let station = workstation("");
    let mut command = station.command();
    let flags = [
        "claim",
        "-q",
        "-g",
        "0.25",
        "--gpu-mem",
        "8G",
        "--name",
        "run",
    ];
    command
        .args(flags)
        .args(["--", "sh", "-c", "\"$0\"; \"$0\""]);
    command.arg(support::example("raw_client"));
    let mut shell = Raw::start(command);
    assert_eq!(shell.ask("mps"), "ok 1");
    let pinned = || {
        let seen = board(&station).snapshot();
        let all = seen.gpus[0].processes.iter();
        all.filter(|p| p.mps.is_some())
            .map(|p| p.pinned >> 30)
            .max()
    };
    assert_eq!(pinned(), Some(8));
    let resize = |flags: &[&str]| {
        let mut command = station.command();
        let resized = command.args(["resize", "run"]).args(flags).output();
        let resized = resized.expect("runs");
        assert!(resized.status.success(), "{resized:?}");
        String::from_utf8_lossy(&resized.stdout).into_owned()
    };
    // What the program has is what the driver showed it, however often its claim has changed since.
    let text = resize(&["--sm", "40"]);
    assert!(
        text.contains("running ones keep 32 SMs, programs started from now on get 52"),
        "{text}"
    );
    let listed = || {
        let listed = station.command().arg("ps").output().expect("runs");
        String::from_utf8_lossy(&listed.stdout).into_owned()
    };
    let ps = listed();
    let had = "has 32 of the 132 SMs of GPU 0 through MPS: 24.2 %, asked for 40.0 %";
    assert!(ps.contains(had), "{ps}");
    let text = resize(&["--limit", "0.8"]);
    assert!(
        text.contains("the SM limit has no effect with MPS"),
        "{text}"
    );
    let text = resize(&["--gpu-mem", "10G"]);
    assert!(
        text.contains("the memory limit applies at once") && !text.contains("running ones keep"),
        "{text}"
    );
    let text = resize(&["-g", "0.5", "--gpu-mem", "12G"]);
    assert!(
        text.contains("running ones keep 32 SMs, programs started from now on get 66"),
        "{text}"
    );
    shell.tell("quit");
    assert_eq!(shell.line(), "ok ready");
    assert_eq!((shell.ask("sms"), pinned()), ("ok 66".into(), Some(12)));
}

#[test]
fn one_client_more_than_a_server_takes_is_refused() {
    let station = workstation("");
    said(&station, "MPS on GPU 0 is up");
    let start = || {
        let mut command = station.client_environment(Command::new(support::example("raw_client")));
        command.env(
            "CUDA_MPS_PIPE_DIRECTORY",
            station.dir().join("run/mps/0/pipe"),
        );
        Raw::spawn(&mut command)
    };
    // Up to CUDA 13.0 the driver takes 48.
    let mut clients: Vec<Raw> = (0..48).map(|_| start()).collect();
    for raw in &mut clients {
        assert_eq!(raw.line(), "ok ready");
    }
    let refused = start().line();
    assert!(refused.starts_with("error 808"), "{refused}");
    // When one has left there is room again.
    drop(clients.pop());
    until("there is room", SOON, || {
        (start().line() == "ok ready").then_some(())
    });
}

#[test]
fn after_a_dead_server_a_command_is_started_again_by_policy() {
    let station = workstation("on-fault = \"requeue\"");
    let log = station.dir().join("starts");
    let script = format!("echo start >> {}; exec \"$0\"", log.display());
    let claim = |flags: &[&str]| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.25", "--class", "batch"]);
        command.args(flags).args(["--", "sh", "-c", &script]);
        command.arg(support::example("raw_client"));
        Raw::start(command)
    };
    let mut again = claim(&["--requeue"]);
    let mut once = claim(&[]);
    assert_eq!(
        (again.ask("sms"), once.ask("sms")),
        ("ok 32".into(), "ok 32".into())
    );
    until("the supervisor knows of both", SOON, || {
        let doctor = station.command().arg("doctor").output().ok()?;
        let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
        text.contains("1 server, 2 clients").then_some(())
    });
    let server = servers(&station).remove(0);
    kill(Pid::from_raw(server.pid.cast_signed()), Signal::SIGKILL).expect("killed");
    let words = said(
        &station,
        "its MPS server died; its command is ended and queued again",
    );
    assert!(words.starts_with("c1:"), "{words}");
    said(
        &station,
        "its MPS server died; its programs on the GPU are ended, and so is the claim",
    );
    // The one that may be started again is, through a new server; the other has ended.
    assert_eq!(again.line(), "ok ready");
    assert_eq!(
        (again.ask("sms"), again.ask("launch 1")),
        ("ok 32".into(), "ok 1".into())
    );
    until("the other has ended", SOON, || {
        once.child.try_wait().ok().flatten()
    });
    let starts = std::fs::read_to_string(&log).expect("written");
    assert_eq!(starts.lines().count(), 3, "two commands, one of them twice");
    assert_ne!(servers(&station).remove(0).id, server.id);
}

#[test]
fn a_program_that_misses_the_pipe_is_told_and_listed_as_what_it_is() {
    let station = workstation("");
    said(&station, "MPS on GPU 0 is up");
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.25", "--", "env", "-u"]);
    command.arg("CUDA_MPS_PIPE_DIRECTORY");
    command.arg(support::example("raw_client"));
    let mut raw = Raw::start(command);
    assert_eq!(
        (raw.ask("mps"), raw.ask("sms")),
        ("ok 0".into(), "ok 132".into())
    );
    let words = said(&station, "outside MPS, so nothing limits its SMs");
    assert!(words.contains(&format!("process {}", raw.pid())), "{words}");
    let snapshot = station.snapshot().expect("served");
    let part = &claim_of(&snapshot, raw.pid()).expect("its claim").gpus[0];
    assert_eq!((part.mps_sms, &part.beside_mps), (None, &vec![raw.pid()]));
    let listed = station.command().arg("ps").output().expect("runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = format!("pid {} runs on GPU 0 outside MPS", raw.pid());
    assert!(text.contains(&line), "{text}");
}
