//! The library as the service's observer uses it: GPUs are released for a reset, and divided.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use gshare_enforcer::gpu::{
    GpuSample, GpuState, MigError, MigOrder, MigState, Observer, ObserverConfig,
};
use gshare_sim_board::{Board, BoardError, BoardSpec, ProcessInfo};

const LONG: Duration = Duration::from_secs(20);

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let name = "libgshare_sim_nvml.so";
    let places = exe.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    places.into_iter().find(|path| path.exists()).unwrap()
}

fn workstation(models: &[&str]) -> (tempfile::TempDir, Board, Observer) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lib")).unwrap();
    let nvml = dir.path().join("lib/libnvidia-ml.so.1");
    std::fs::copy(library(), &nvml).unwrap();
    let board = Board::create(&dir.path().join("board"), &BoardSpec::new(models)).unwrap();
    let config = ObserverConfig {
        interval: Duration::from_millis(50),
        ..ObserverConfig::new(nvml)
    };
    let observer = Observer::spawn(config, |_| {});
    observer.sample_now(LONG).unwrap();
    (dir, board, observer)
}

fn sample(observer: &Observer) -> GpuSample {
    observer.sample_now(LONG).unwrap()
}

#[test]
fn a_gpu_that_is_let_go_can_be_reset_and_the_others_go_on() {
    let (_dir, board, observer) = workstation(&["rtx4090", "h100"]);
    let uuid = sample(&observer).gpus[1].uuid.clone();
    assert!(uuid.is_some());
    let in_use = |gpu| matches!(board.reset(gpu), Err(BoardError::InUse { .. }));
    assert!(in_use(0) && in_use(1));
    observer.release([1]).recv_timeout(LONG).unwrap();
    board.reset(1).unwrap();
    let seen = sample(&observer);
    assert_eq!(seen.gpus[1].state, GpuState::Released);
    assert_eq!(
        (&seen.gpus[1].uuid, seen.gpus[1].mem_used),
        (&uuid, None),
        "what it is stays known"
    );
    assert!(seen.gpus[0].mem_used.is_some() && in_use(0));
    board.reset(1).unwrap();
    // Takes one back and releases the other.
    observer.release([0]).recv_timeout(LONG).unwrap();
    let seen = sample(&observer);
    assert_eq!(seen.gpus[0].state, GpuState::Released);
    assert_eq!(seen.gpus[1].state, GpuState::Ok);
    assert!(seen.gpus[1].mem_used.is_some() && in_use(1));
    board.reset(0).unwrap();
    observer.release([]).recv_timeout(LONG).unwrap();
    assert!(sample(&observer).gpus.iter().all(|g| g.mem_used.is_some()));
}

/// Runs one step on the first GPU.
fn step(observer: &Observer, order: MigOrder) -> Result<MigState, MigError> {
    observer.divider(0).step(order, LONG)
}

#[test]
fn a_gpu_is_divided_by_the_drivers_rules() {
    if !nix_is_root() {
        println!("skipped: only root divides GPUs");
        return;
    }
    let (_dir, board, observer) = workstation(&["h100", "rtx4090"]);
    let state = step(&observer, MigOrder::Look).unwrap();
    assert!(!state.on && state.instances.is_empty());
    let starts = |id: u32| {
        let size = state.sizes.iter().find(|s| s.id == id).unwrap();
        (size.size, size.starts.clone())
    };
    // Table of placements in NVIDIA's MIG user guide.
    assert_eq!(starts(19), (1, (0..7).collect()));
    assert_eq!(starts(15), (2, vec![0, 2, 4, 6]));
    assert_eq!(starts(14), (2, vec![0, 2, 4]));
    assert_eq!(starts(9), (4, vec![0, 4]));
    assert_eq!(starts(5), (4, vec![0]));
    assert_eq!(starts(0), (8, vec![0]));
    let make = |profile, start| step(&observer, MigOrder::Make { profile, start });
    assert_eq!(make(9, 0), Err(MigError::NotSupported), "the mode is off");
    assert!(step(&observer, MigOrder::Mode(true)).unwrap().on);
    let gi = make(9, 0).unwrap().instances[0].gi;
    // It is not usable before it has a compute instance.
    assert!(sample(&observer).gpus[0].instances.is_empty());
    for (profile, start) in [(9, 2), (14, 0), (14, 2), (0, 0), (5, 0)] {
        let refused = make(profile, start);
        assert!(
            refused == Err(MigError::NoRoom),
            "{profile} at {start}: {refused:?}"
        );
    }
    assert!(step(&observer, MigOrder::Open { gi }).unwrap().instances[0].open);
    let seen = sample(&observer);
    let instance = &seen.gpus[0].instances[0];
    assert_eq!((instance.gi, instance.start), (gi, Some(0)));
    let first = instance.uuid.clone();
    // A compute instance holds its GPU instance, a program holds the compute instance, and instances hold the mode.
    assert_eq!(
        step(&observer, MigOrder::Remove { gi }),
        Err(MigError::InUse)
    );
    let slot = board.register(&ProcessInfo::current()).unwrap();
    let context = board.add_context(slot, 2).unwrap();
    assert_eq!(
        step(&observer, MigOrder::Close { gi }),
        Err(MigError::InUse)
    );
    assert_eq!(step(&observer, MigOrder::Mode(false)), Err(MigError::InUse));
    board.remove_context(slot, 2, context).unwrap();
    step(&observer, MigOrder::Close { gi }).unwrap();
    // A recreated instance has a new identity.
    step(&observer, MigOrder::Open { gi }).unwrap();
    let second = sample(&observer).gpus[0].instances[0].uuid.clone();
    assert_ne!(first, second);
    // A reboot removes the instances and, on this model, the mode.
    board.reboot().unwrap();
    let after = step(&observer, MigOrder::Look).unwrap();
    assert!(!after.on && after.instances.is_empty());
    let other = observer.divider(1).step(MigOrder::Look, LONG);
    assert_eq!(other, Err(MigError::NotSupported));
}

/// Runs in a process of its own, for the test below: has every GPU open and runs nothing there, as a monitor does.
#[test]
fn monitor() {
    let Some(library) = std::env::var_os("MONITORED") else {
        return;
    };
    let observer = Observer::spawn(ObserverConfig::new(library), |_| {});
    observer.sample_now(LONG).unwrap();
    println!("open");
    let mut rest = String::new();
    std::io::stdin().read_line(&mut rest).unwrap();
}

#[test]
fn a_mode_that_waits_for_a_reset_is_said_and_left() {
    if !nix_is_root() {
        println!("skipped: only root divides GPUs");
        return;
    }
    let (dir, board, observer) = workstation(&["a100-80gb"]);
    let mut monitor = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "monitor", "--nocapture"])
        .env("MONITORED", dir.path().join("lib/libnvidia-ml.so.1"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(monitor.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("open")));
    let waits = step(&observer, MigOrder::Mode(true));
    assert!(matches!(waits, Err(MigError::Pending(_))), "{waits:?}");
    let state = step(&observer, MigOrder::Look).unwrap();
    assert!(!state.on && state.asked, "noted, not done");
    assert_eq!(board.snapshot().gpus[0].mig, [false, true]);
    // No other process has it open any more: this model is reset, so earlier handles need a new look-up.
    drop(monitor.stdin.take());
    monitor.wait().unwrap();
    assert!(step(&observer, MigOrder::Mode(true)).unwrap().on);
    assert_eq!(board.snapshot().gpus[0].resets, 1);
}

/// Whether this process is root, by the owner of its own directory in `/proc`.
fn nix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
