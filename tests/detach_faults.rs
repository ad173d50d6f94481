//! Levers when something goes wrong: the driver refuses, hangs or loses a process, its engine is killed, a thread is
//! stuck in a call, the host's memory is short. Nothing is lost: a claim is whole on one side, its contents equal, and
//! its people are told in words.

use crate::support;

use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::UsagePage;
use gshare_sim_board::{CheckpointHow, CheckpointStep};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::detach::{
    GIB, SOON, claim, fault, fill, holder, join, met, ok, on_gpus, ready, refused, settles,
    station_of, station_that, word,
};
use support::{Raw, board, until};

const ON_GPU_0: [&str; 5] = ["-q", "-g", "0.5", "--gpu-ids", "0"];

fn start(station: &Station, words: &[&str]) -> Child {
    let mut command = station.command();
    command.args(words);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

fn log(station: &Station, id: &str) -> String {
    ok(station, &["log", id])
}

/// Engines of a station's service. Whose child a process is, is asked of the process: the lists of children that threads
/// have miss one whose thread ends while they are read.
fn engines(station: &Station) -> Vec<i32> {
    let service = station.service_pid().expect("it runs").to_string();
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|p| p.file_name().to_str()?.parse::<i32>().ok());
    let is_engine = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|l| l.contains("__checkpoint-engine"))
    };
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&service)
    };
    let mut engines: Vec<i32> = pids.filter(is_engine).filter(is_child).collect();
    engines.sort_unstable();
    engines
}

#[test]
fn whatever_the_driver_refuses_leaves_a_claim_whole_on_one_side() {
    use CheckpointStep::{Checkpoint, Lock, Restore};
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    let suspends = support::root("suspend");
    let levers = ["offload", "suspend"]
        .into_iter()
        .filter(|l| suspends || *l == "offload");
    for lever in levers {
        for step in [Lock, Checkpoint] {
            fault(&station, Some((step, CheckpointHow::Refused)), None);
            let why = refused(&station, &[lever, &id]);
            assert!(
                why.contains(&format!("cuCheckpointProcess{step:?}")),
                "{why}"
            );
            assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
            fault(&station, None, None);
            assert_eq!(raw.ask("sum 0"), sum, "{step:?}: it runs on");
            assert!(log(&station, &id).contains("could not be offloaded"));
        }
        // On its way back it stays in the host, and comes as soon as it can.
        ok(&station, &[lever, &id]);
        fault(&station, Some((Restore, CheckpointHow::Refused)), None);
        let back = if lever == "suspend" {
            "resume"
        } else {
            "restore"
        };
        refused(&station, &[back, &id]);
        assert_eq!(on_gpus(&station, raw.pid()), 0, "all in the host");
        let (pid, is) = (raw.pid(), format!("{lever}ed"));
        settles(&station, pid, Some(&is));
        fault(&station, None, None);
        ok(&station, &[back, &id]);
        assert_eq!(on_gpus(&station, raw.pid()), held);
        assert_eq!(raw.ask("sum 0"), sum);
    }
    // A move whose second half is refused ends where it began.
    fault(&station, Some((Checkpoint, CheckpointHow::Refused)), None);
    refused(&station, &["move", &id, "--gpu", "1"]);
    fault(&station, None, None);
    assert_eq!(claim(&station, raw.pid()).gpus[0].gpu, 0);
    // The driver has no room there: a program that nobody counts took it a moment ago.
    let mut stranger =
        station.client_environment(std::process::Command::new(support::example("raw_client")));
    stranger.env("CUDA_VISIBLE_DEVICES", "1");
    let mut stranger = Raw::start(stranger);
    board(&station)
        .set_checkpoint_rate(Duration::from_millis(5), 1 << 42)
        .expect("set");
    fault(&station, Some((Restore, CheckpointHow::Waits)), None);
    let mut moving = start(&station, &["move", "-q", &id, "--gpu", "1"]);
    met(&station);
    let free = stranger.info().0;
    assert_eq!(
        stranger.ask(&format!("alloc {}", free - (64 << 20))),
        "ok 0"
    );
    fault(&station, None, None);
    assert_eq!(moving.wait().expect("ends").code(), Some(75));
    assert_eq!(claim(&station, raw.pid()).gpus[0].gpu, 0);
    assert_eq!(on_gpus(&station, raw.pid()), held);
    assert_eq!(raw.ask("sum 0"), sum, "it is back where it was");
    assert!(log(&station, &id).contains("could not be moved"));
}

/// Each step takes longer than anybody waits, and then fails or works.
fn late(how: CheckpointHow, driver: &str) {
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.driver = Some(driver.to_owned());
    });
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        let before = engines(&station);
        assert_eq!(before.len(), 1, "{before:?}");
        fault(&station, Some((step, how)), None);
        let mut asking = start(
            &station,
            &[if leaves { "offload" } else { "restore" }, "-q", &id],
        );
        met(&station);
        // The engine that hangs is ended, and the owner told, before anything else changes.
        until("the step is given up", SOON, || {
            let gone = engines(&station).iter().all(|e| !before.contains(e));
            gone.then_some(())
        });
        until("it is told", SOON, || {
            log(&station, &id).contains("tries again").then_some(())
        });
        assert!(asking.try_wait().expect("waited").is_none(), "it is open");
        fault(&station, None, None);
        let code = asking.wait().expect("ends").code();
        match step {
            // Once all are back, that they do not run yet is no reason to give up.
            Unlock => assert_eq!(code, Some(0)),
            _ => assert_eq!(code, Some(75), "{step:?}"),
        }
        let gave_up = format!("cuCheckpointProcess{step:?} on process {}", raw.pid());
        let told = log(&station, &id);
        let mut told = told.lines().filter(|l| l.contains("did not end within"));
        assert!(told.any(|l| l.contains(&gave_up)), "{step:?}");
        if step == Restore {
            settles(&station, raw.pid(), Some("offloaded"));
            assert_eq!(on_gpus(&station, raw.pid()), 0, "it has not come back late");
            ok(&station, &["restore", &id]);
        }
        settles(&station, raw.pid(), None);
        assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
        assert_eq!(raw.ask("sum 0"), sum, "{step:?}");
    }
}

#[test]
fn every_step_that_hangs_is_given_up_and_undone_once_it_ends() {
    late(CheckpointHow::Hangs, "580.95.05");
}

#[test]
fn every_step_that_is_done_too_late_is_undone() {
    late(CheckpointHow::Waits, "580.95.05");
}

/// Newer drivers say that a step is under way, and take no other until it has ended.
#[test]
fn with_a_driver_that_tells_the_states_in_between_late_steps_are_undone_as_well() {
    for how in [CheckpointHow::Hangs, CheckpointHow::Waits] {
        late(how, "615.71.09");
    }
}

#[test]
fn a_process_that_the_driver_loses_is_told_and_keeps_nobody_from_coming_back() {
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let (mut first, sum) = holder(&station, &ON_GPU_0);
        let id = claim(&station, first.pid()).id;
        let mut second = join(&station, &id);
        let _ = fill(&mut second, 0);
        ready(&station, first.pid());
        let held = on_gpus(&station, first.pid());
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        let pid = second.pid();
        fault(&station, Some((step, CheckpointHow::Fails)), Some(pid));
        if leaves {
            let why = refused(&station, &["offload", &id]);
            assert!(
                why.contains(&format!("the driver has lost process {pid}")),
                "{why}"
            );
        } else {
            ok(&station, &["restore", &id]);
        }
        fault(&station, None, None);
        settles(&station, first.pid(), None);
        assert_eq!(on_gpus(&station, first.pid()), held, "{step:?}");
        assert_eq!(first.ask("sum 0"), sum, "{step:?}: the other goes on");
        assert!(second.ask("sum 0").starts_with("error"), "it is lost");
        let told = log(&station, &id);
        assert!(
            told.contains(&format!("a checkpoint of process {pid} failed")),
            "{told}"
        );
        assert!(
            told.contains(&format!("failed in cuCheckpointProcess{step:?}")),
            "{told}"
        );
        // Until it has ended the claim stays where it is, and says so before anybody asks.
        let why = claim(&station, first.pid()).place.levers.not_detachable;
        assert!(
            why.expect("told")
                .contains(&format!("checkpoint of process {pid} failed"))
        );
        second.kill();
        ready(&station, first.pid());
        ok(&station, &["offload", &id]);
        assert_eq!(first.ask("sum 0"), sum);
        assert_eq!(first.finish(), Some(0));
        until("the claim ends", SOON, || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
    }
}

/// Processes with a communicator in common: while one is locked whatever is asked of the other hangs, and the lock that hung
/// is done late, once the first runs again. In the end all run as before, and nobody tries that again.
#[test]
fn processes_that_wait_for_each_other_are_given_up_and_all_run_on() {
    let station = station_of(2, "");
    let (mut first, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, first.pid()).id;
    let mut others = [join(&station, &id), join(&station, &id)];
    let sums = others.each_mut().map(|other| fill(other, 0));
    ready(&station, first.pid());
    let held = on_gpus(&station, first.pid());
    let hang = (CheckpointStep::Lock, CheckpointHow::WaitsForPeers);
    fault(&station, Some(hang), None);
    let begun = Instant::now();
    let why = refused(&station, &["offload", &id]);
    let took = begun.elapsed();
    println!("given up after {took:?}: {why}");
    assert!(took < Duration::from_secs(45), "{took:?}");
    assert!(why.contains("did not end within"), "{why}");
    assert_eq!(on_gpus(&station, first.pid()), held, "nothing has moved");
    assert_eq!(first.ask("sum 0"), sum, "it runs");
    for (other, sum) in others.iter_mut().zip(&sums) {
        assert_eq!(&other.ask("sum 0"), sum, "and so do the others");
    }
    assert_eq!(word(&station, first.pid()), None);
    assert!(log(&station, &id).contains("could not be offloaded"));
    let unable = claim(&station, first.pid()).place.levers.not_detachable;
    let unable = unable.expect("known from now on");
    assert!(
        unable.contains("while another process of the claim is paused"),
        "{unable}"
    );
    fault(&station, None, None);
    // A person may try, and if that works it is taken back.
    ok(&station, &["offload", &id]);
    assert_eq!(on_gpus(&station, first.pid()), 0);
    ok(&station, &["restore", &id]);
    ready(&station, first.pid());
    assert_eq!(first.ask("sum 0"), sum);
}

#[test]
fn an_engine_that_is_killed_in_the_middle_of_a_step_is_replaced_and_the_step_done() {
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        fault(&station, Some((step, CheckpointHow::Waits)), None);
        let mut asking = start(
            &station,
            &[if leaves { "offload" } else { "restore" }, "-q", &id],
        );
        met(&station);
        for engine in engines(&station) {
            kill(Pid::from_raw(engine), Signal::SIGKILL).expect("killed");
        }
        fault(&station, None, None);
        assert_eq!(asking.wait().expect("ends").code(), Some(0), "{step:?}");
        if leaves {
            assert_eq!(on_gpus(&station, raw.pid()), 0, "{step:?}");
            ok(&station, &["restore", &id]);
        }
        assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
        assert_eq!(raw.ask("sum 0"), sum, "{step:?}");
    }
}

#[test]
fn the_driver_is_initialised_once_however_many_levers_are_pulled() {
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let inits = || board(&station).snapshot().inits;
    let before = (inits(), engines(&station));
    assert_eq!(before.1.len(), 1);
    for gpu in ["1", "0", "1"] {
        ok(&station, &["offload", &id]);
        ok(&station, &["restore", &id]);
        ok(&station, &["move", &id, "--gpu", gpu]);
        assert_eq!(raw.ask("sum 0"), sum);
    }
    assert_eq!((inits(), engines(&station)), before, "nobody called cuInit");
    // One that has died is replaced, by one.
    kill(Pid::from_raw(before.1[0]), Signal::SIGKILL).expect("killed");
    ok(&station, &["offload", &id]);
    ok(&station, &["restore", &id]);
    assert_eq!(inits(), before.0 + 1);
    let after = engines(&station);
    assert!(after.len() == 1 && after != before.1, "{after:?}");
}

/// A kernel that takes a minute: whoever waits for it is in the driver.
fn slow_kernels(station: &Station) {
    let costs = station.sim_dir().join("costs");
    std::fs::write(costs, "add_one 60s\n").expect("costs are written");
}

#[test]
fn a_thread_that_is_stuck_in_the_driver_keeps_its_claim_where_it_is() {
    let station = station_of(2, "");
    slow_kernels(&station);
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let mut other = join(&station, &id);
    let sum = fill(&mut other, 0);
    raw.tell("launch 1");
    until("the kernel runs", SOON, || {
        (claim(&station, raw.pid()).launches? > 0).then_some(())
    });
    let held = on_gpus(&station, raw.pid());
    let suspends = support::root("suspend");
    let levers: [&[&str]; 3] = [
        &["offload", &id],
        &["move", &id, "--gpu", "1"],
        &["suspend", &id],
    ];
    for words in levers.into_iter().filter(|l| suspends || l[0] != "suspend") {
        let why = refused(&station, words);
        let process = format!("process {}", raw.pid());
        assert!(
            why.contains("did not end within") && why.contains(&process),
            "{why}"
        );
        assert_eq!(on_gpus(&station, raw.pid()), held);
        assert_eq!(word(&station, raw.pid()), None, "it runs on");
        assert_eq!(other.ask("sum 0"), sum, "and so does the other process");
        assert!(log(&station, &id).contains(&process));
    }
}

#[test]
fn work_that_does_not_end_is_given_up_by_the_locks_own_time_out() {
    let station = station_of(2, "");
    slow_kernels(&station);
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    // No thread is in the driver: the GPU is at work.
    assert_eq!(raw.ask("start 1"), "ok");
    let held = on_gpus(&station, pid);
    let before = engines(&station);
    let why = refused(&station, &["offload", &id]);
    let wanted = format!("work of process {pid} on the GPU did not end within 3 s");
    assert!(why.contains(&wanted), "{why}");
    assert!(log(&station, &id).contains(&wanted));
    assert_eq!(engines(&station), before, "the driver gave it up by itself");
    assert_eq!((on_gpus(&station, pid), word(&station, pid)), (held, None));
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 1", "calls go through");
}

/// Marks a thread of the process as inside a call, as it would itself, or takes that back.
fn mark(pid: u32, entry: u32) {
    let dir = format!("/proc/{pid}/fd");
    let maps = format!("/proc/{pid}/map_files");
    let at = std::mem::offset_of!(UsagePage, marks);
    let mut marked = 0;
    let all = [dir, maps].map(|d| std::fs::read_dir(d).ok());
    let all = all.into_iter().flatten().flatten().flatten();
    for file in all {
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        if !target.to_string_lossy().contains("memfd:gshare") || marked > 0 {
            continue;
        }
        let open = std::fs::File::options().write(true).open(file.path());
        let Ok(open) = open else { continue };
        if open
            .metadata()
            .is_ok_and(|m| m.len() == size_of::<UsagePage>() as u64)
        {
            // The last place but one: no thread of this program has it.
            let place = (at + 126 * 64) as u64;
            open.write_all_at(&entry.to_ne_bytes(), place)
                .expect("written");
            marked += 1;
        }
    }
    assert_eq!(marked, 1, "the page of the claim's use");
}

#[test]
fn a_thread_found_in_the_driver_after_the_lock_means_that_all_run_again_at_once() {
    if !support::root("a_thread_found_in_the_driver_after_the_lock") {
        return;
    }
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    fault(
        &station,
        Some((CheckpointStep::Lock, CheckpointHow::Waits)),
        None,
    );
    let mut asking = start(&station, &["offload", "-q", &id]);
    // All calls were out when the lock was asked for; now one is seen in the driver.
    met(&station);
    mark(raw.pid(), 7);
    fault(&station, None, None);
    assert_eq!(asking.wait().expect("ends").code(), Some(75));
    mark(raw.pid(), 0);
    let told = log(&station, &id);
    assert!(told.contains("is still in a driver call"), "{told}");
    assert_eq!(on_gpus(&station, raw.pid()), held, "nothing has moved");
    assert_eq!(raw.ask("sum 0"), sum, "it runs");
    ok(&station, &["offload", &id]);
    assert_eq!(
        on_gpus(&station, raw.pid()),
        0,
        "and can be offloaded later"
    );
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn too_little_host_memory_is_found_before_anything_is_done() {
    let station = station_that("", |o| {
        o.config = "[detach]\nhost-reserve = \"100000 GiB\"\n".to_owned();
    });
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for words in [&["offload", &id][..], &["move", &id, "--gpu", "1"]] {
        let why = refused(&station, words);
        assert!(why.contains("the host has") && why.contains("GiB"), "{why}");
        assert_eq!(on_gpus(&station, raw.pid()), held);
        assert_eq!(raw.ask("sum 0"), sum);
    }
}

#[test]
fn a_process_that_ends_while_its_memory_is_on_the_way_frees_its_place() {
    let station = station_of(2, "");
    for (lever, step) in [
        ("offload", CheckpointStep::Checkpoint),
        ("restore", CheckpointStep::Restore),
    ] {
        let (mut raw, _) = holder(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
        let (id, pid) = (claim(&station, raw.pid()).id, raw.pid());
        if lever == "restore" {
            ok(&station, &["offload", &id]);
        }
        fault(&station, Some((step, CheckpointHow::Waits)), None);
        let mut asking = start(&station, &[lever, "-q", &id]);
        met(&station);
        raw.kill();
        let begun = Instant::now();
        fault(&station, None, None);
        let _ = asking.wait().expect("ends");
        until("the claim ends with its command", SOON, || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
        assert!(begun.elapsed() < SOON);
        assert_eq!(on_gpus(&station, pid), 0);
    }
    let (mut next, sum) = holder(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(next.ask("sum 0"), sum, "its place is free");
    assert_eq!(next.ask(&format!("alloc {}", 20 * GIB)), "ok 1");
}
