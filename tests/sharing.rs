//! How claims share a GPU: one at a time, in turns, or side by side through MPS, with its control program.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_enforcer::mps::{Control, MpsError, PROGRAM};
use gshare_proto::{Snapshot, Source};
use gshare_sim_board::{Fault, ProcessSnapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{
    GSHARE, Raw, SOON, all_ended, board, claim, claim_of, doctor_row, has_all, is_root, ok, root,
    run, station_with, text, until,
};

// How GPUs are shared: one claim at a time, side by side, in instances.

#[test]
fn an_exclusive_gpu_takes_one_claim_and_gives_it_all() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(), "h100".to_owned()];
        o.config = "[gpu.0]\nmode = \"exclusive\"\n".to_owned();
    });
    // A part goes to the GPU that can be shared, a whole one to the exclusive one.
    let part = Raw::claim(&station, &["-q", "-g", "0.2"]);
    let whole = Raw::claim(&station, &["-q", "-g", "1"]);
    let snapshot = station.snapshot().expect("served");
    let gpu_of = |raw: &Raw| claim_of(&snapshot, raw.pid()).expect("its claim").gpus[0].gpu;
    assert_eq!((gpu_of(&part), gpu_of(&whole)), (1, 0));
    assert_eq!(snapshot.gpus[0].mode, "exclusive");
    assert_eq!(snapshot.gpus[0].claimable, 0.0);
    // A claim of a part of it waits until it is free, and then has all of it.
    let mut third = Raw::asks(&station, &["-q", "-g", "0.1", "--gpu-ids", "0"]);
    let reason = until("it waits", SOON, || {
        let queue = station.snapshot().ok()?.queue;
        queue.first().map(|q| q.reason.clone())
    });
    has_all(&reason, &["GPU 0 is for one claim at a time"]);
    drop(whole);
    assert_eq!(third.line(), "ok ready");
    let snapshot = station.snapshot().expect("served");
    let part = &claim_of(&snapshot, third.pid()).expect("its claim").gpus[0];
    assert_eq!(part.sm_request, 1.0);
    assert_eq!(Some(part.mem_request), snapshot.gpus[0].mem_allocatable);
}

// Turns on a shared GPU with real processes: a stopped, frozen or dead process blocks no other, one claim at work
// costs the arbiter nothing, another size takes effect soon. The board has the account.

fn taking_turns() -> Station {
    station_with(|o| {
        o.gpus = vec!["h100".to_owned()];
        o.costs = "spin_1ms 1000000ns\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    })
}

/// A program that launches kernels of 1 ms without end; it ends with the test.
pub(crate) struct Flood(pub(crate) Child);

impl Flood {
    /// On the first GPU, with this share and further flags.
    pub(crate) fn claim(station: &Station, share: &str) -> Self {
        let mut command: Command = station.command();
        command.args(["claim", "-q", "-g"]).args(share.split(' '));
        command.args(["--", GSHARE]);
        command.args(["__bench-gate", "flood", "spin_1ms"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let flood = Self(child.expect("starts"));
        until("it launches", SOON, || flood.busy(station) > 0);
        flood
    }

    /// GPU time so far in nanoseconds.
    pub(crate) fn busy(&self, station: &Station) -> u64 {
        let seen = board(station).snapshot();
        let mut all = seen.gpus[0].processes.iter();
        all.find(|p| p.pid == self.0.id()).map_or(0, |p| p.busy_ns)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).expect("signalled");
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It began while its claim was alone on the GPU, and the program launches nothing more.
#[test]
fn a_kernel_that_does_not_end_is_named_where_others_come_later() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(), "h100".to_owned()];
        o.costs = "add_one 15s\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let why = || ok(&station, &["why"]);
    let mut long = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    assert_eq!(long.ask("start 1"), "ok");
    // Time in which a claim that is alone would be named.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(
        why(),
        "no claim waits; gshare why ID explains one that runs"
    );
    let elsewhere = Raw::claim(&station, &["-q", "-g", "0.2", "--gpu-ids", "1"]);
    let other = Raw::claim(&station, &["-q", "-g", "0.2", "--gpu-ids", "0"]);
    let snapshot = station.snapshot().expect("served");
    let [long_id, other_id, elsewhere] = [&long, &other, &elsewhere].map(|raw| {
        claim_of(&snapshot, raw.pid())
            .expect("its claim")
            .id
            .clone()
    });
    let named = format!("{long_id} has run one kernel for ");
    until("it is named", SOON, || {
        why().starts_with(&named).then_some(())
    });
    for id in [&long_id, &other_id] {
        has_all(
            &ok(&station, &["why", id]),
            &[&named, "GPU 0 cannot be shared meanwhile"],
        );
    }
    assert_eq!(why().matches(&named).count(), 1);
    let said = ok(&station, &["why", &elsewhere]);
    assert!(!said.contains(&named), "another GPU: {said}");
    assert_eq!(long.ask("sync"), "ok");
    until("it is over", SOON, || {
        (!why().contains(&named)).then_some(())
    });
}

/// Fractions of the GPU's time that programs had in the next `length`.
fn parts(station: &Station, floods: &[&Flood], length: Duration) -> Vec<f64> {
    let at = || {
        (
            board(station).snapshot().now_ns,
            floods.iter().map(|f| f.busy(station)).collect::<Vec<_>>(),
        )
    };
    let (began, before) = at();
    std::thread::sleep(length);
    let (ended, after) = at();
    let passed = (ended - began).max(1) as f64;
    before
        .iter()
        .zip(after)
        // The board forgets a program that has died between the two looks.
        .map(|(b, a)| a.saturating_sub(*b) as f64 / passed)
        .collect()
}

/// Waits for a period in which the first of these has about this fraction of the total.
fn comes_to(station: &Station, floods: &[&Flood], what: &str, wanted: f64) {
    until(what, SOON, || {
        let got = parts(station, floods, Duration::from_millis(400));
        let all: f64 = got.iter().sum();
        println!("{what}: {got:.3?}");
        (got[0] / all.max(0.01) - wanted).abs() < 0.06
    });
}

#[test]
fn the_stopped_the_frozen_and_the_dead_are_in_nobodys_way() {
    let station = taking_turns();
    let (a, mut b) = (Flood::claim(&station, "0.5"), Flood::claim(&station, "0.5"));
    comes_to(&station, &[&a, &b], "halves", 0.5);
    b.signal(Signal::SIGSTOP);
    comes_to(&station, &[&a, &b], "beside one that is stopped", 1.0);
    b.signal(Signal::SIGCONT);
    comes_to(&station, &[&a, &b], "it goes on", 0.5);
    if is_root("a frozen cgroup") {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", b.0.id())).expect("there");
        let own = groups
            .lines()
            .find_map(|l| l.strip_prefix("0::"))
            .expect("in version 2");
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let freezer = mounts.iter().map(|m| format!("{m}{own}/cgroup.freeze"));
        match freezer.into_iter().find(|p| Path::new(p).exists()) {
            Some(freezer) if own.contains(station.cgroup_root()) => {
                std::fs::write(&freezer, "1").expect("frozen");
                comes_to(&station, &[&a, &b], "beside one that is frozen", 1.0);
                std::fs::write(&freezer, "0").expect("thawed");
                comes_to(&station, &[&a, &b], "it is thawed", 0.5);
            }
            _ => println!("skipped: claims have no cgroups here"),
        }
    }
    b.0.kill().expect("killed");
    comes_to(&station, &[&a, &b], "beside one that is dead", 1.0);
}

#[test]
fn one_claim_at_work_costs_the_arbiter_nothing() {
    let station = taking_turns();
    let (a, b) = (Flood::claim(&station, "0.5"), Flood::claim(&station, "0.5"));
    let spent = || {
        let pid = station.service_pid().expect("it runs");
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        let mut arbiter = tasks.flatten().filter(|t| {
            std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.trim() == "arbiter")
        });
        let task = arbiter.next().expect("an arbiter").path().join("schedstat");
        let text = std::fs::read_to_string(task).expect("counted");
        text.split(' ')
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .expect("nanoseconds")
    };
    let before = spent();
    comes_to(&station, &[&a, &b], "halves", 0.5);
    assert!(spent() > before, "two at work need it");
    // The other one holds its half and does nothing.
    b.signal(Signal::SIGSTOP);
    comes_to(&station, &[&a, &b], "one at work", 1.0);
    until("it sleeps", SOON, || {
        let before = spent();
        std::thread::sleep(Duration::from_millis(700));
        spent() == before
    });
    let got = parts(&station, &[&a, &b], Duration::from_millis(300));
    println!("{got:.3?}");
}

#[test]
fn another_size_counts_for_gpu_time_within_200_ms() {
    let station = taking_turns();
    let (a, b) = (Flood::claim(&station, "0.5"), Flood::claim(&station, "0.2"));
    let id = claim(&station, a.0.id()).id;
    for (size, part) in [("0.2", 0.5), ("0.8", 0.8), ("0.5", 0.714)] {
        // A busy machine may be late in one attempt, but not in all.
        let mut last = Vec::new();
        let counted = (0..8).any(|_| {
            let back = station
                .command()
                .args(["resize", &id, "-g", "0.4"])
                .output();
            assert!(back.expect("runs").status.success());
            let resized = station.command().args(["resize", &id, "-g", size]).output();
            assert!(resized.expect("runs").status.success());
            std::thread::sleep(Duration::from_millis(200));
            last = parts(&station, &[&a, &b], Duration::from_millis(500));
            (last[0] / (last[0] + last[1]).max(0.01) - part).abs() < 0.06
        });
        println!("-g {size}: {last:.3?} for {part}");
        assert!(counted, "-g {size}: {last:.3?} for {part}");
    }
}

#[test]
fn doctor_says_that_shares_are_not_kept_where_events_have_no_times() {
    let station = taking_turns();
    let row = || {
        let row = doctor_row(station.command(), "compute limit GPU 0");
        (row["state"] == "ok", row["detail"].to_string())
    };
    let _one = Flood::claim(&station, "0.5");
    assert!(row().0, "{row:?}", row = row());
    let fault = board(&station).set_fault(Fault::NoEventTimes, true);
    fault.expect("set");
    let _other = Flood::claim(&station, "0.5");
    until("doctor says it", SOON, || {
        let (well, detail) = row();
        !well && detail.contains("events have no times")
    });
}

// MPS end to end on the simulated driver: claims of several users side by side, faults, a dead server, modes
// changed by command.

const ADA: u32 = 61_001;

const BOB: u32 = 61_002;

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
    root!("two users through one MPS server");
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
    // NVML lists clients as such; neither they nor the server count as programs without a claim.
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[0].mode, "mps");
    assert!(snapshot.unclaimed.is_empty(), "{:?}", snapshot.unclaimed);
    assert!(!notices(&snapshot).iter().any(|n| n.contains("outside MPS")));
}

/// The server has a part of each client's context: the rest is learnt from the first client that has nothing else,
/// and known to a restarted service.
#[test]
fn what_a_context_costs_through_mps_is_learnt_from_its_clients() {
    root!("clients of MPS");
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
    let learnt = format!("each CUDA context takes {}", gshare_core::Bytes(cost));
    let through = format!("{} through MPS", gshare_core::Bytes(bytes));
    let doctor = |station: &Station| {
        let output = run(station, &["doctor"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    until("it is learnt", SOON, || doctor(&station).contains(&through));
    let told = doctor(&station);
    assert!(
        told.contains(&learnt),
        "that of a whole one is as it was: {told}"
    );
    let second = client(&station, 0, &["-g", "0.25"]);
    assert_eq!(charge(&station, &second), Some(bytes));
    support::restart(&mut station, Signal::SIGKILL);
    let third = client(&station, 0, &["-g", "0.25"]);
    assert_eq!(charge(&station, &third), Some(bytes));
}

#[test]
fn a_fault_reaches_the_other_owner_in_words_and_the_gpu_recovers() {
    root!("two users through one MPS server");
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
    has_all(&words, &["its programs on the GPU are ended"]);
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

/// The control program is told first: the work of a client that ignores signals is over on the GPU while its process
/// still lives, and the neighbour's continues.
#[test]
fn admin_kill_ends_the_work_through_mps_before_it_signals() {
    root!("two users through one MPS server");
    let station = workstation("multi-user = \"accept\"");
    let mut command = station.command();
    command
        .args("claim -q -g 0.25 -- sh -c".split(' '))
        .arg("trap '' TERM; exec \"$0\"");
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
    root!("a server of another user");
    let station = workstation("on-fault = \"keep\"");
    let mut ada = client(&station, ADA, &["-g", "0.25", "--name", "run"]);
    assert_eq!(ada.ask("sms"), "ok 32");
    until("the supervisor knows of the client", SOON, || {
        let doctor = run(&station, &["doctor"]);
        let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
        text.contains("1 server, 1 client;")
    });
    let server = servers(&station).remove(0);
    assert_eq!(server.uid, ADA, "the server runs as its clients' user");
    kill(Pid::from_raw(server.pid.cast_signed()), Signal::SIGKILL).expect("killed");
    let words = said(&station, "c1: GPU 0: its MPS server died");
    has_all(&words, &["the claim stays"]);
    until("its program has ended", SOON, || {
        ada.child.try_wait().ok().flatten()
    });
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot.claims.iter().any(|c| c.id == "c1"),
        "the claim is kept"
    );
    // Its owner's next program runs through a new server.
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
fn one_user_at_a_time_without_multi_user_and_a_program_beside_mps_is_noticed() {
    root!("claims of two users");
    let station = workstation("");
    let ada = client(&station, ADA, &["-g", "0.25"]);
    let mut command = station.command();
    command.args(["claim", "-g", "0.25", "--nonblock", "--", "true"]);
    command.uid(BOB).gid(BOB);
    let refused = command.output().expect("runs");
    assert_eq!(refused.status.code(), Some(75));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    has_all(&text, &["serves one user at a time"]);
    // A program that unsets the variable has all SMs, which is detected.
    let mut stray = station.command();
    stray
        .args("claim -q -g 0.25 -- env -u CUDA_MPS_PIPE_DIRECTORY".split(' '))
        .arg(station.dir().join("bin/raw_client"));
    stray.uid(ADA).gid(ADA);
    let mut stray = Raw::start(stray);
    assert_eq!(
        (stray.ask("mps"), stray.ask("sms")),
        ("ok 0".into(), "ok 132".into())
    );
    let words = said(&station, "runs on GPU 0 outside MPS");
    assert!(words.starts_with("c3: process"), "{words}");
    let line = format!("pid {} runs on GPU 0 outside MPS", stray.pid());
    let listed = ok(&station, &["ps"]);
    has_all(&listed, &[&line]);
    drop(stray);
    // When the last client of one user is gone the other user's turn comes, with a new server.
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
    has_all(&text, &["GPU 0 is held by c1"]);
    let mut waits = station.command();
    waits.args(["admin", "mode", "0", "mps", "--wait"]);
    let mut waits = waits.stderr(Stdio::piped()).spawn().expect("starts");
    let mut tells = BufReader::new(waits.stderr.take().expect("piped"));
    let mut line = String::new();
    tells.read_line(&mut line).expect("told");
    assert!(line.starts_with("waits for c1"), "{line}");
    said(&station, "c1: when your claim has ended, GPU");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[0].mode_wanted.as_deref(), Some("mps"));
    assert_eq!(snapshot.gpus[0].claimable, 0.0, "it takes no new claims");
    assert_eq!(
        raw.ask("launch 1"),
        "ok 1",
        "nothing is taken from those who are there"
    );
    // A restart of the service ends neither the wait nor the command that waits.
    support::restart(&mut station, Signal::SIGKILL);
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
    // The daemon and its clients outlive the service, and a restarted one finds both.
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
    has_all(&text, &["mode", "mps when it is empty"]);
    drop((through, second));
    let back = admin(&station, &["mode", "0", "timeslice", "--wait=20s"]);
    assert!(back.status.success(), "{back:?}");
}

/// A command through `gshare claim`, to its end; its output.
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
    let doctor = |what: &str| {
        until(what, SOON, || {
            let told = text(&run(&station, &["doctor"]));
            let flat = told.split_whitespace().collect::<Vec<_>>().join(" ");
            flat.contains(what).then_some(flat)
        })
    };
    said(&station, "MPS on GPU 0 is up");
    let told = doctor("auto, no claims now: mps, one user at a time: 0 servers, 0 clients");
    has_all(&told, &["other claims take turns"]);
    let batch = ["-g", "0.25", "--class", "batch"];
    let mut first = client(&station, 0, &batch);
    let mut second = client(&station, 0, &["-g", "0.25", "--class", "inference"]);
    assert_eq!(
        (first.ask("mps"), first.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
    assert_eq!(second.ask("mps"), "ok 1");
    assert_eq!(station.snapshot().expect("served").gpus[0].mode, "auto");
    let told = doctor("auto, now mps, one user at a time: 1 server, 2 clients;");
    let fix = "fix: to run several users side by side: [mps] multi-user = \"accept\"";
    has_all(&told, &[fix]);
    drop((first, second));
    all_ended(&station);
    // A claim that must stay offloadable is not run through MPS, nor is one beside it.
    let mut notebook = client(&station, 0, &["-g", "0.25", "--class", "interactive"]);
    let mut beside = client(&station, 0, &batch);
    assert_eq!(
        (notebook.ask("mps"), notebook.ask("sms")),
        ("ok 0".into(), "ok 132".into())
    );
    assert_eq!(beside.ask("mps"), "ok 0");
    doctor("auto, now timeslice: claims take turns");
}

#[test]
fn the_sockets_of_a_server_for_one_user_are_his_alone() {
    root!("directories of two users");
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
    let given = |what: f64| {
        until("the SMs that the driver showed", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let figure = snapshot.claims.first()?.gpus[0].mps_sms?;
            (figure.value == what && figure.source == Source::Shim && !figure.estimate)
                .then_some(())
        });
    };
    given(32.0);
    // The program has the SMs that the driver showed it, however often its claim has changed since.
    let text = resize(&["--sm", "40"]);
    has_all(
        &text,
        &["running ones keep 32 SMs, programs started from now on get 52"],
    );
    let listed = || {
        let listed = run(&station, &["ps"]);
        String::from_utf8_lossy(&listed.stdout).into_owned()
    };
    let ps = listed();
    let had = "has 32 of the 132 SMs of GPU 0 through MPS: 24.2 %, asked for 40.0 %";
    has_all(&ps, &[had]);
    let text = resize(&["--limit", "0.8"]);
    has_all(&text, &["the SM limit has no effect with MPS"]);
    let text = resize(&["--gpu-mem", "10G"]);
    assert!(
        text.contains("the memory limit applies at once") && !text.contains("running ones keep"),
        "{text}"
    );
    let text = resize(&["-g", "0.5", "--gpu-mem", "12G"]);
    has_all(
        &text,
        &["running ones keep 32 SMs, programs started from now on get 66"],
    );
    assert_eq!(
        shell.ask("sms"),
        "ok 32",
        "a program that runs keeps its part"
    );
    shell.tell("quit");
    assert_eq!(shell.line(), "ok ready");
    assert_eq!((shell.ask("sms"), pinned()), ("ok 66".into(), Some(12)));
    given(66.0);
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
        let doctor = run(&station, &["doctor"]);
        let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
        text.contains("1 server, 2 clients")
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
    // The one that may be restarted is, through a new server; the other has ended.
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

// The simulated control program of MPS compared with NVIDIA's own, and gshare's driver of it with the latter.
// NVIDIA's program runs without a GPU; `.ci/drivers` fetches it into the target directory.

/// NVIDIA's program where CI puts it, or as it is installed.
fn real(test: &str) -> Option<PathBuf> {
    let target = Path::new(GSHARE).ancestors().nth(2)?;
    let fetched = target.join("nvidia-mps/usr/bin").join(PROGRAM);
    let installed = Path::new("/usr/bin").join(PROGRAM);
    let found = [fetched, installed].into_iter().find(|p| p.is_file());
    if found.is_none() {
        println!("skipped: {test} needs NVIDIA's {PROGRAM} (.ci/drivers fetches it)");
    }
    found
}

/// The simulated one: the program itself under another name.
fn simulated(dir: &Path) -> PathBuf {
    let program = dir.join(PROGRAM);
    if std::fs::hard_link(GSHARE, &program).is_err() {
        support::copy_program(GSHARE, &program);
    }
    program
}

fn directory() -> tempfile::TempDir {
    let open = std::fs::Permissions::from_mode(0o755);
    let made = tempfile::Builder::new()
        .prefix("gsm")
        .permissions(open)
        .tempdir();
    made.expect("a directory")
}

struct Daemon {
    program: PathBuf,
    dir: PathBuf,
}

impl Daemon {
    fn start(program: &Path, dir: &Path) -> Self {
        for name in ["pipe", "log"] {
            std::fs::create_dir_all(dir.join(name)).expect("made");
        }
        let daemon = Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
        };
        let mut start = daemon.command();
        start.stdout(Stdio::null()).stderr(Stdio::null());
        let status = start.arg("-d").status().expect("runs");
        assert!(status.success(), "{program:?} -d");
        let second = daemon.command().arg("-d").output().expect("runs");
        assert_eq!(
            second.status.code(),
            Some(1),
            "only one daemon in a directory"
        );
        daemon
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dir.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.dir.join("log"))
            .stderr(Stdio::piped());
        command
    }

    /// The output of some commands by a user, with the exit status.
    fn say(&self, input: &str, uid: u32) -> String {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("runs");
        let mut stdin = child.stdin.take().expect("piped");
        let _ = writeln!(stdin, "{input}");
        drop(stdin);
        let output = child.wait_with_output().expect("ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        format!("{}{}[{code}]", text(&output.stderr), text(&output.stdout))
    }
}

/// Every command that needs no GPU, in an order in which some see what others set.
const COMMANDS: &str = "get_server_list
get_server_list x
get_server_status
get_server_status 1
get_server_status abc
get_client_list
get_client_list 1
get_device_client_list
get_device_client_list 1
ps
ps -p 1
get_default_active_thread_percentage
set_default_active_thread_percentage 50
get_default_active_thread_percentage
set_default_active_thread_percentage 0
set_default_active_thread_percentage 100.5
set_default_active_thread_percentage -3
set_default_active_thread_percentage 33.333
set_default_active_thread_percentage abc
set_default_active_thread_percentage
set_default_active_thread_percentage 12x
set_default_active_thread_percentage 1e1
set_default_active_thread_percentage 25 70
get_active_thread_percentage 1
set_active_thread_percentage 1 50
set_active_thread_percentage
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 2G
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 512M
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 1500M
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 12
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 2g
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 abc
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit GPU-x 1G
get_default_device_pinned_mem_limit GPU-x
set_default_device_pinned_mem_limit 99 1G
get_default_device_pinned_mem_limit 99
get_default_device_pinned_mem_limit
set_default_device_pinned_mem_limit 0
get_device_pinned_mem_limit 1 0
set_device_pinned_mem_limit 1 0 1G
get_default_client_priority
set_default_client_priority 1
get_default_client_priority
set_default_client_priority 2
set_default_client_priority x
get_default_client_priority
terminate_client 1 1
terminate_client
shutdown_server
shutdown_server 1
shutdown_server 1 -f
start_server
start_server -uid
start_server -uid x
nonsense
GET_SERVER_LIST
sm_partition add x 1
lspart
device_query
 get_default_client_priority";

#[test]
fn the_simulated_program_answers_as_the_real_one() {
    let Some(real) = real("the comparison of control programs") else {
        return;
    };
    let (a, b) = (directory(), directory());
    let program = simulated(b.path());
    let (real, sim) = (
        Daemon::start(&real, a.path()),
        Daemon::start(&program, b.path()),
    );
    for command in COMMANDS.lines() {
        assert_eq!(sim.say(command, 0), real.say(command, 0), "{command:?}");
    }
    let together = "get_default_active_thread_percentage\nnonsense\nget_server_list";
    assert_eq!(sim.say(together, 0), real.say(together, 0));
    // The socket accepts everybody; only the owner may change anything.
    if nix::unistd::Uid::effective().is_root() {
        let stranger = 61_003;
        for command in COMMANDS
            .lines()
            .filter(|c| !c.starts_with("start_server -uid"))
        {
            let (of_sim, of_real) = (sim.say(command, stranger), real.say(command, stranger));
            assert_eq!(of_sim, of_real, "{command:?} by a stranger");
        }
        for command in ["start_server -uid 0", "quit", "quit -t 1"] {
            let (of_sim, of_real) = (sim.say(command, stranger), real.say(command, stranger));
            assert_eq!(of_sim, of_real, "{command:?} by a stranger");
        }
    }
    assert_eq!(sim.say("quit", 0), real.say("quit", 0));
    for daemon in [&sim, &real] {
        until("the daemon has ended", SOON, || {
            let answer = daemon.say("get_server_list", 0);
            answer.starts_with("Cannot find MPS control daemon process")
        });
    }
}

/// Drives a control program as the service does.
fn drive(program: &Path) {
    let dir = directory();
    let control = Control::new(program, &dir.path().join("0")).expect("directories");
    assert!(matches!(control.percentage(), Err(MpsError::Silent { .. })));
    let pid = control.start("GPU-x", false).expect("starts");
    assert!(gshare_enforcer::proc::stat(pid).is_some());
    // A release with newer words of its own also understands these.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("readable");
    let mut settings = environment.split(|byte| *byte == 0);
    assert!(settings.any(|s| s == b"CUDA_MPS_PROTOCOL_VERSION=2"));
    assert_eq!(control.percentage().expect("answers"), 100.0);
    assert_eq!(control.set_percentage(25.0).expect("set"), 25.0);
    assert_eq!(control.servers().expect("answers"), Vec::<i32>::new());
    assert_eq!(control.state(1).expect("answers"), None);
    assert!(control.clients(1).expect("answers").is_empty());
    assert!(!control.terminate(1, 1).expect("answers"));
    // A second daemon does not hinder the first.
    let again = control.start("GPU-x", false);
    assert!(again.is_ok() || matches!(again, Err(MpsError::NotStarted { .. })));
    control.quit(1).expect("ends");
    // Its remains, sockets and all, do not hinder the next.
    control.start("GPU-x", false).expect("starts again");
    control.quit(1).expect("ends");
    // One that hangs is not waited for, and is gone anyway.
    let hung = control.start("GPU-x", false).expect("starts once more");
    hang(hung);
    control.quit(60).expect("ends");
    gone(hung);
}

fn hang(pid: i32) {
    let stop = Signal::SIGSTOP;
    kill(Pid::from_raw(pid), stop).expect("stopped");
}

fn gone(pid: i32) {
    let state = gshare_enforcer::proc::stat(pid).map(|s| s.state);
    assert!(matches!(state, None | Some('Z')), "{state:?}");
}

/// Like an upgrade of the driver: the kernel then calls the program of the running daemon deleted.
#[test]
fn a_daemon_is_ended_after_its_program_was_replaced() {
    let dir = directory();
    let program = simulated(dir.path());
    let control = Control::new(&program, &dir.path().join("0")).expect("directories");
    let daemon = control.start("GPU-x", false).expect("starts");
    std::fs::remove_file(&program).expect("removed");
    std::fs::write(&program, "#!/bin/sh\necho other words\n").expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
    hang(daemon);
    control.quit(60).expect("ends");
    gone(daemon);
}

#[test]
fn the_driver_of_the_control_program_works_with_the_real_one() {
    if let Some(real) = real("driving the real control program") {
        drive(&real);
    }
}

#[test]
fn and_with_the_simulated_one() {
    let dir = directory();
    drive(&simulated(dir.path()));
}
