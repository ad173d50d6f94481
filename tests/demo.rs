//! `gshare demo --headless`: what it prints is what the simulated GPUs really did.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gshare_proto::{Call, Client, Reply, Snapshot, Source};
use gshare_sim_board::Board;
use support::{GSHARE, until};

/// The demo's directory: found by its process among the temporary ones.
fn directory(tmp: &std::path::Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(tmp).ok()?.flatten();
    entries
        .map(|e| e.path())
        .find(|p| p.join("run/gshared.sock").exists())
}

fn snapshot(dir: &std::path::Path) -> Option<Snapshot> {
    match Client::connect(&dir.join("run/gshared.sock"))
        .ok()?
        .call(&Call::Snapshot)
        .ok()?
    {
        Reply::Snapshot(s) => Some(*s),
        _ => None,
    }
}

#[test]
fn the_demo_shows_what_the_board_did_and_cleans_up() {
    let tmp = tempfile::tempdir().expect("a directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), mode).expect("set");
    let demo = Command::new(GSHARE)
        .args(["demo", "--headless", "--for", "12s", "--json"])
        .env("TMPDIR", tmp.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let started = Instant::now();
    let dir = until(
        "the demo's service answers",
        Duration::from_secs(20),
        || directory(tmp.path()),
    );
    let board = Board::open(&dir.join("sim/board")).expect("the board opens");

    // While it plays, the service's memory figures are the board's: looked at until both were read in the
    // same quiet moment.
    until(
        "the figures agree with the board",
        Duration::from_secs(12),
        || {
            if started.elapsed() < Duration::from_secs(4) {
                return None;
            }
            let (before, seen, after) = (board.snapshot(), snapshot(&dir)?, board.snapshot());
            let used = |b: &gshare_sim_board::BoardSnapshot| {
                b.gpus.iter().map(|g| g.used).collect::<Vec<u64>>()
            };
            let shown: Option<Vec<u64>> = seen.gpus.iter().map(|g| g.mem_used).collect();
            (used(&before) == used(&after) && shown? == used(&before)).then_some(())
        },
    );

    // A job is killed: its bytes are gone from the next snapshot.
    let victim = until("the tagger runs", Duration::from_secs(10), || {
        let s = snapshot(&dir)?;
        let claim = s
            .claims
            .iter()
            .find(|c| c.name.as_deref() == Some("tagger.service"))?
            .clone();
        claim.gpus[0].mem_used.filter(|b| *b > 1 << 30)?;
        Some(claim)
    });
    let (pid, gpu) = (
        victim.pid.expect("it has a process"),
        victim.gpus[0].gpu as usize,
    );
    let busy = |b: &Board| b.snapshot().gpus[gpu].busy_ns;
    let (from, at) = (busy(&board), Instant::now());
    let shown = until("it is busy", Duration::from_secs(8), || {
        let s = snapshot(&dir)?;
        let g = &s.gpus[gpu];
        Some((g.time_busy?.value, g.sm_active?.value))
            .filter(|_| at.elapsed() > Duration::from_millis(1500))
    });
    let truth = 100.0 * (busy(&board) - from) as f64 / at.elapsed().as_nanos() as f64;
    assert!(
        (shown.0 - truth).abs() < 15.0,
        "time busy {} against {truth}",
        shown.0
    );
    assert!(
        shown.1 < 45.0,
        "its few blocks leave most SMs idle: {}",
        shown.1
    );
    let waits = until("a whole GPU is waited for", Duration::from_secs(8), || {
        snapshot(&dir)?.queue.pop()
    });
    assert!(waits.reason.contains("most free"), "{}", waits.reason);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.cast_signed()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("killed");
    until("its bytes are gone", Duration::from_secs(2), || {
        let s = snapshot(&dir)?;
        let gone = s.claims.iter().all(|c| c.id != victim.id);
        (gone
            && board.snapshot().gpus[gpu]
                .processes
                .iter()
                .all(|p| p.pid != pid))
        .then_some(())
    });

    let output = demo.wait_with_output().expect("ends");
    assert!(output.status.success());
    let last: Snapshot = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(last.gpus.len(), 4);
    assert!(last.simulated);
    assert!(
        last.gpus
            .iter()
            .all(|g| g.mem_allocatable.is_some() && g.mem_used.is_some())
    );
    assert!(last.claims.len() >= 5, "{} claims", last.claims.len());
    assert!(
        last.queue.is_empty(),
        "who waited got the GPU that the killed job left"
    );
    let head = last
        .claims
        .iter()
        .find(|c| c.id == waits.id)
        .expect("it runs");
    assert_eq!(head.gpus[0].gpu as usize, gpu);
    assert!(
        last.users.len()
            >= if nix::unistd::Uid::effective().is_root() {
                4
            } else {
                1
            }
    );
    let hog = last
        .claims
        .iter()
        .find(|c| c.name.as_deref() == Some("train.py"))
        .expect("the hog is there");
    assert!(hog.refusals >= 1, "it hit its cap");
    // A 4090 has no counters: what its claims' own launches give is an estimate, the H100's figure is none.
    let source = |gpu: usize| last.gpus[gpu].sm_active.map(|f| (f.source, f.estimate));
    assert_eq!(source(0), Some((Source::Shim, true)));
    assert_eq!(source(2), Some((Source::Gpm, false)));
    assert!(!dir.exists(), "everything is cleaned up");
    let ours = std::fs::read_dir("/sys/fs/cgroup/unified")
        .into_iter()
        .flatten()
        .flatten();
    let name = dir
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .replace('.', "");
    assert!(
        !ours
            .map(|e| e.file_name())
            .any(|n| n.to_string_lossy().contains(&name)),
        "no cgroup is left"
    );
}

#[test]
fn ctrl_c_ends_the_demo_in_order() {
    let tmp = tempfile::tempdir().expect("a directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), mode).expect("set");
    let mut demo = Command::new(GSHARE)
        .args(["demo", "--headless", "--for", "60s"])
        .env("TMPDIR", tmp.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let dir = until("claims run", Duration::from_secs(20), || {
        let dir = directory(tmp.path())?;
        (snapshot(&dir)?.claims.len() >= 4).then_some(dir)
    });
    let pids: Vec<u32> = snapshot(&dir)
        .expect("served")
        .claims
        .into_iter()
        .flat_map(|c| c.members)
        .collect();
    assert!(!pids.is_empty());
    let pid = nix::unistd::Pid::from_raw(demo.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("sent");
    let status = until("the demo ends", Duration::from_secs(10), || {
        demo.try_wait().ok().flatten()
    });
    assert_eq!(status.code(), Some(130));
    assert!(!dir.exists(), "its directory is gone");
    let alive = |pid: &u32| {
        std::path::Path::new(&format!("/proc/{pid}/exe"))
            .read_link()
            .is_ok()
    };
    until("its jobs are gone", Duration::from_secs(2), || {
        (!pids.iter().any(alive)).then_some(())
    });
}
