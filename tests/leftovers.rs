//! What a command leaves behind: tmux, ssh-agent and the like lose the GPU, not their lives; a leftover that
//! works on the GPU keeps the claim.

use crate::support;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::ClaimState;
use support::{Raw, example, root, station, until};

/// A claim whose command starts `leftover` in a session of its own and exits as soon as it has said `ready`
/// (empty: at once). What is written to the file
/// that is returned is the leftover's input; its output goes to `out` in the station's directory.
fn leave_behind(station: &Station, flags: &[&str], leftover: &str, ready: &str) -> (File, PathBuf) {
    let (input, out) = (station.dir().join("in"), station.dir().join("out"));
    nix::unistd::mkfifo(&input, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let hold = File::options()
        .read(true)
        .write(true)
        .open(&input)
        .expect("opened");
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
    until(word, Duration::from_secs(10), || {
        let text = std::fs::read_to_string(out).ok()?;
        text.lines().any(|l| l == word).then_some(())
    });
}

fn tell(mut input: &File, line: &str) {
    use std::io::Write;
    writeln!(input, "{line}").expect("written");
}

/// The program that was left behind takes memory, which counts for the claim that ends.
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
    if !root("a_leftover_without_gpu_memory_loses_the_gpu_and_lives") {
        return;
    }
    let station = station();
    // Says of each node what the kernel says.
    let node = station.sim_dir().join("dev/nvidia0");
    let shell = format!(
        "sh -c 'while read x; do (exec 3<{}) 2>&1 | sed \"s/.*: //\"; done'",
        node.display()
    );
    let (input, out) = leave_behind(&station, &["-g", "0.5", "--gpu-ids", "0"], &shell, "");
    until("the claim has ended", Duration::from_secs(5), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    tell(&input, "now");
    said(&out, "Operation not permitted");
    // A new claim gets what the old one had.
    let raw = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(raw.finish(), Some(0));
    tell(&input, "still");
    until("it lives on", Duration::from_secs(5), || {
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
        other.args([
            "claim",
            "-q",
            "-g",
            "1",
            "--gpu-ids",
            "0",
            "--nonblock",
            "--",
            "true",
        ]);
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
        until("the claim has ended", Duration::from_secs(5), || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
        assert!(other.status().expect("runs").success());
    }
}

/// A launcher that ends before its program has imported what it needs: the claim was gone when that reached CUDA.
#[test]
fn a_program_that_reaches_cuda_after_the_command_ended_has_the_claim() {
    let station = support::station_with(|o| {
        o.config = "[claims]\nleftover-grace = \"20s\"\n".to_owned();
    });
    let late = format!("sh -c 'sleep 2; exec {}'", example("raw_client").display());
    let (input, out) = leave_behind(&station, &["-g", "0.5", "--name", "late"], &late, "");
    takes_memory_while_it_ends(&station, &input, &out);
    tell(&input, "quit");
    until(
        "it ends with its last program",
        Duration::from_secs(10),
        || station.snapshot().ok()?.claims.is_empty().then_some(()),
    );
}

#[test]
fn a_lease_ends_a_running_claim_and_spares_who_does_not_use_the_gpu() {
    let station = station();
    let mut user = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0", "-t", "2s"]);
    let mut command = station.command();
    command.args([
        "claim",
        "-q",
        "-g",
        "0.5",
        "--gpu-ids",
        "0",
        "-t",
        "2s",
        "--",
        "cat",
    ]);
    let mut cat: Child = command.stdin(Stdio::piped()).spawn().expect("starts");
    let status = until("the one on the GPU ends", Duration::from_secs(10), || {
        user.child.try_wait().ok().flatten()
    });
    assert_eq!(status.code(), Some(124));
    until("both claims have ended", Duration::from_secs(5), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    assert_eq!(
        cat.try_wait().expect("asked"),
        None,
        "it lives on without a GPU"
    );
    drop(cat.stdin.take());
    assert!(cat.wait().expect("reaped").success());
}

#[test]
fn a_script_whose_program_on_the_gpu_ends_with_the_lease_ends_with_124_unless_it_succeeds() {
    let station = station();
    let scripts = [
        ("exit $?", 124),
        ("exit 3", 124),
        ("echo it goes on without", 0),
    ];
    // All at once: each has the whole lease to get its program onto the GPU.
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
    let join = || {
        let mut command = station.command();
        command
            .args(["join", "-q", &id, "--"])
            .arg(example("raw_client"));
        Raw::start(command)
    };
    let (mut a, mut b) = (join(), join());
    let room = a.info().0;
    assert_eq!(a.ask(&format!("alloc {}", room / 2)), "ok 0");
    assert!(b.info().0 <= room / 2, "they share one ledger");
    assert_eq!(a.finish(), Some(0));
    b.kill();
    until(
        "both are gone from the ledger",
        Duration::from_secs(5),
        || {
            let claim = &station.snapshot().ok()?.claims[0];
            (claim.gpus[0].mem_charge == Some(0)).then_some(())
        },
    );
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
    let input = station.dir().join("in");
    nix::unistd::mkfifo(&input, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let hold = File::options()
        .read(true)
        .write(true)
        .open(&input)
        .expect("opened");
    let mut command = station.command();
    command
        .args([
            "claim",
            "-q",
            "-g",
            "1",
            "--gpu-ids",
            "2",
            "--",
            "sh",
            "-c",
            script,
        ])
        .arg(example("raw_client"));
    let mut child = command.stderr(Stdio::null()).spawn().expect("starts");
    let lines = |wanted: usize| -> String {
        until("all have said something", Duration::from_secs(60), || {
            let text = std::fs::read_to_string(station.dir().join("all")).ok()?;
            (text.lines().count() >= wanted).then_some(text)
        })
    };
    lines(130);
    let snapshot = until("the driver's word is seen", Duration::from_secs(10), || {
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
    until("the claim has ended", Duration::from_secs(10), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}
