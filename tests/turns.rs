//! Turns on a shared GPU with real processes: who is stopped, frozen or dead is in nobody's way, one claim at work
//! costs the arbiter nothing, another size counts soon. What each had is the board's account.

use crate::support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gshare::station::Station;
use gshare_sim_board::Fault;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{GSHARE, board, claim_of, root, station_with, until};

const SOON: Duration = Duration::from_secs(20);

fn workstation() -> Station {
    station_with(|o| {
        o.gpus = vec!["h100".to_owned()];
        o.costs = "spin_1ms 1000000ns\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    })
}

/// A program that launches kernels of 1 ms without end; it dies with the test.
pub(crate) struct Flood(pub(crate) Child);

impl Flood {
    /// On the first GPU, with such a share, and other flags after that.
    pub(crate) fn claim(station: &Station, share: &str) -> Self {
        let mut command: Command = station.command();
        command.args(["claim", "-q", "-g"]).args(share.split(' '));
        command.args(["--", GSHARE]);
        command.args(["__bench-gate", "flood", "spin_1ms"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let flood = Self(child.expect("starts"));
        until("it launches", SOON, || {
            (flood.busy(station) > 0).then_some(())
        });
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

/// Parts of the GPU's time that programs had in the next `length`.
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

/// Waits for a stretch in which the first of these has about such a part of what all had together.
fn comes_to(station: &Station, floods: &[&Flood], what: &str, wanted: f64) {
    until(what, SOON, || {
        let got = parts(station, floods, Duration::from_millis(400));
        let all: f64 = got.iter().sum();
        println!("{what}: {got:.3?}");
        ((got[0] / all.max(0.01) - wanted).abs() < 0.06).then_some(())
    });
}

#[test]
fn the_stopped_the_frozen_and_the_dead_are_in_nobodys_way() {
    let station = workstation();
    let (a, mut b) = (Flood::claim(&station, "0.5"), Flood::claim(&station, "0.5"));
    comes_to(&station, &[&a, &b], "halves", 0.5);
    b.signal(Signal::SIGSTOP);
    comes_to(&station, &[&a, &b], "beside one that is stopped", 1.0);
    b.signal(Signal::SIGCONT);
    comes_to(&station, &[&a, &b], "it goes on", 0.5);
    if root("a frozen cgroup") {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", b.0.id())).expect("there");
        let own = groups
            .lines()
            .find_map(|l| l.strip_prefix("0::"))
            .expect("in version 2");
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let freezer = mounts.iter().map(|m| format!("{m}{own}/cgroup.freeze"));
        match freezer
            .into_iter()
            .find(|p| std::path::Path::new(p).exists())
        {
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
    let station = workstation();
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
        (spent() == before).then_some(())
    });
    let got = parts(&station, &[&a, &b], Duration::from_millis(300));
    println!("{got:.3?}");
}

#[test]
fn another_size_counts_for_gpu_time_within_200_ms() {
    let station = workstation();
    let (a, b) = (Flood::claim(&station, "0.5"), Flood::claim(&station, "0.2"));
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, a.0.id()).expect("its claim").id.clone();
    for (size, part) in [("0.2", 0.5), ("0.8", 0.8), ("0.5", 0.714)] {
        // A machine with other work on it may be late at one try, not at each of them.
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
    let station = workstation();
    let row = || {
        let output = station.command().args(["doctor", "--json"]).output();
        let rows: serde_json::Value =
            serde_json::from_slice(&output.expect("runs").stdout).expect("JSON");
        let mut rows = rows["checks"].as_array().expect("rows").clone().into_iter();
        let row = rows.find(|row| row["name"] == "compute limit GPU 0");
        let row = row.expect("a row");
        (row["state"] == "ok", row["detail"].to_string())
    };
    let _one = Flood::claim(&station, "0.5");
    assert!(row().0, "{row:?}", row = row());
    let fault = board(&station).set_fault(Fault::NoEventTimes, true);
    fault.expect("set");
    let _other = Flood::claim(&station, "0.5");
    until("doctor says it", SOON, || {
        let (well, detail) = row();
        (!well && detail.contains("events have no times")).then_some(())
    });
}
