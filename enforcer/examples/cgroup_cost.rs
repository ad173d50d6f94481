//! What a claim costs in the kernel: making a cgroup, loading and attaching its filter, moving a
//! process in. Prints medians and 99th percentiles in microseconds; needs root.
//!
//! `cargo run --release -p gshare-enforcer --example cgroup_cost [ROUNDS [GAP_MS]]`
#![allow(clippy::unwrap_used, reason = "a measurement has nobody to report to")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gshare_enforcer::cgroup::{ClaimPlace, ClaimTree, OwnTree, Parent, TreeWatch};
use gshare_enforcer::device::{DeviceRules, Filters};
use gshare_enforcer::nodes::Majors;
use gshare_enforcer::proc::PidFd;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<u32>().unwrap());
    let rounds = numbers.next().unwrap_or(100);
    let gap = Duration::from_millis(numbers.next().unwrap_or(300).into());
    let name = format!("gshare-cost-{}", std::process::id());
    let tree = match OwnTree::open(&Parent::Top, &name) {
        Ok(tree) => tree,
        Err(e) => {
            println!("skipped: {e}");
            return;
        }
    };
    for (title, gap) in [("back to back", Duration::ZERO), ("spaced", gap)] {
        println!(
            "{title} ({} ms apart), {rounds} rounds, microseconds:",
            gap.as_millis()
        );
        measure(&tree, rounds, gap);
    }
    tree.remove_if_empty().unwrap();
}

fn measure(tree: &OwnTree, rounds: u32, gap: Duration) {
    let mut filters = Filters::default();
    let mut watch = TreeWatch::new().unwrap();
    let majors = Majors {
        nvidia: 240,
        uvm: Some(241),
        caps: None,
    };
    let granted = DeviceRules::gpus(majors.clone(), [1, 2]);
    filters.preload(&granted).unwrap();
    let steps = [
        "load one program (once per set of GPUs)",
        "mkdir cgroup",
        "attach loaded filter",
        "watch",
        "move pid, cold",
        "move pid, again",
        "remove cgroup",
        "warm up, cold",
        "move pid after warming up",
    ];
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); steps.len()];
    for round in 0..rounds {
        let mut child = Child::new();
        std::thread::sleep(gap);
        let place = |claim| ClaimPlace { uid: 1000, claim };
        let mut step = 0;
        let mut time = |elapsed: Duration| {
            times[step].push(elapsed);
            step += 1;
        };
        // Minors of its own make each round's program a new one.
        let fresh = DeviceRules::gpus(majors.clone(), [round % 250, 251]);
        time(elapsed(|| Filters::default().preload(&fresh).unwrap()));
        let start = Instant::now();
        let claim = tree.create(place(u64::from(round) * 2)).unwrap();
        time(start.elapsed());
        time(elapsed(|| filters.set_on_new(&claim, &granted).unwrap()));
        time(elapsed(|| watch.add(&claim).unwrap()));
        time(elapsed(|| {
            claim.move_process(child.pid, Some(&child.pidfd)).unwrap();
        }));
        let second = tree.create(place(u64::from(round) * 2 + 1)).unwrap();
        time(elapsed(|| {
            second.move_process(child.pid, Some(&child.pidfd)).unwrap();
        }));
        child.end();
        second.wait_empty(Duration::from_secs(5)).unwrap();
        time(elapsed(|| tree.remove(&claim).unwrap()));

        let mut child = Child::new();
        std::thread::sleep(gap);
        time(elapsed(|| tree.warm_up().unwrap()));
        time(elapsed(|| {
            second.move_process(child.pid, Some(&child.pidfd)).unwrap();
        }));
        child.end();
        second.wait_empty(Duration::from_secs(5)).unwrap();
        tree.remove(&second).unwrap();
    }
    for (step, mut times) in steps.into_iter().zip(times) {
        times.sort();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
        println!("  {step:<42} median {:>7}  p99 {:>7}", at(50), at(99));
    }
}

/// A process to be moved about.
struct Child {
    process: std::process::Child,
    pid: i32,
    pidfd: PidFd,
}

impl Child {
    fn new() -> Self {
        let process = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = process.id().cast_signed();
        Self {
            process,
            pid,
            pidfd: PidFd::open(pid).unwrap().unwrap(),
        }
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn elapsed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
