//! One mix of programs on a GPU, measured from outside.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::account::{Account, Look, count_file, new_count};
use super::{POINTS, worker};
use crate::station::Station;
use anyhow::Context;

/// Hidden first argument of a program.
pub(crate) const WORKER_ARGUMENT: &str = "__bench-gate";

/// Interval between two readings.
const LOOK: Duration = Duration::from_millis(4);

/// One claim of a mix.
#[derive(Clone, Debug)]
pub(in crate::bench) struct Part {
    /// Thousandths of the GPU.
    pub(in crate::bench) share: u32,
    /// Arguments of its program.
    pub(in crate::bench) program: Vec<String>,
    /// Where its output goes.
    pub(in crate::bench) out: Option<PathBuf>,
}

/// What a mix came to.
#[derive(Clone, Debug, Default)]
pub(in crate::bench) struct Outcome {
    /// Fractions of the used GPU time, in the order of the claims.
    pub(in crate::bench) got: Vec<f64>,
    /// Largest difference from the requests in any window of 2 s, in percentage points.
    pub(in crate::bench) worst_window: f64,
    /// Largest excess of this difference over the larger of [`POINTS`] and one kernel, relative to the used GPU time.
    pub(in crate::bench) beyond: f64,
    /// Longest time without progress of a claim, in milliseconds.
    pub(in crate::bench) worst_stall_ms: f64,
    /// Used fraction of the GPU time.
    pub(in crate::bench) total: f64,
    /// Kernels and copies done, each with its duration alone, as a fraction of the time.
    pub(in crate::bench) done: f64,
    /// Busy fraction of all processors.
    pub(in crate::bench) cpu: f64,
    /// Processor time of the arbiter as a fraction of the time.
    pub(in crate::bench) arbiter: f64,
}

/// The programs of a mix, which are killed with it.
#[derive(Debug)]
pub(in crate::bench) struct Running {
    children: Vec<(usize, Child)>,
    account: Account,
    claims: usize,
    kernel_ns: u64,
}

/// Settings for the programs of a mix.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct How {
    /// The proxy is in front of the driver.
    pub(in crate::bench) gated: bool,
    /// On a real GPU: loop iterations of the kernel per millisecond.
    pub(in crate::bench) rounds: Option<u64>,
    /// Duration of a kernel that runs alone.
    pub(in crate::bench) kernel_ns: u64,
    /// Copy rate of the simulated GPU in bytes per second.
    pub(in crate::bench) rate: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    /// Starts a mix in claims.
    pub(in crate::bench) fn start(
        station: &Station,
        parts: &[Part],
        how: How,
    ) -> anyhow::Result<Self> {
        if how.rounds.is_some() {
            for claim in 0..parts.len() {
                new_count(&count_file(station, claim))?;
            }
        }
        let is_real = how.rounds.is_some();
        let mut running = Self {
            children: Vec::new(),
            account: Account::open(station, is_real, parts.len(), how.kernel_ns, how.rate)?,
            claims: parts.len(),
            kernel_ns: how.kernel_ns,
        };
        for (claim, part) in parts.iter().enumerate() {
            running.add(station, claim, part, how)?;
        }
        running.wait_for_launches()?;
        Ok(running)
    }

    fn add(
        &mut self,
        station: &Station,
        claim: usize,
        part: &Part,
        how: How,
    ) -> anyhow::Result<()> {
        let mut command = station.command();
        if let Some(rounds) = how.rounds {
            command
                .env(worker::ROUNDS, rounds.to_string())
                .env(worker::COUNT, count_file(station, claim));
        }
        command
            .args(["claim", "-q", "--gpu-ids", "0", "-g"])
            .arg(format!("{}", f64::from(part.share) / 1000.0))
            .arg("--");
        if !how.gated {
            // Every preload can be bypassed this way.
            let driver = station.libraries();
            command.args(["env", &format!("LD_LIBRARY_PATH={}", driver.display())]);
        }
        command
            .arg(station.program())
            .arg(WORKER_ARGUMENT)
            .args(&part.program)
            .stdin(Stdio::null())
            .stdout(match &part.out {
                Some(path) => std::fs::File::create(path)?.into(),
                None => Stdio::null(),
            });
        let child = command.spawn().context("cannot start a program")?;
        self.children.push((claim, child));
        Ok(())
    }

    fn pids(&self) -> Vec<(usize, u32)> {
        self.children
            .iter()
            .map(|(c, child)| (*c, child.id()))
            .collect()
    }

    fn wait_for_launches(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if self.account.all_run(&self.pids(), self.claims) {
                return Ok(());
            }
            for (_, child) in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    anyhow::bail!("a program ended early: {status}");
                }
            }
            anyhow::ensure!(Instant::now() < until, "the programs do not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Measures for a while; `wanted` are the requested fractions of GPU time.
    pub(in crate::bench) fn watch(
        &self,
        station: &Station,
        wanted: &[f64],
        length: Duration,
    ) -> anyhow::Result<Outcome> {
        let pids = self.pids();
        let mut looks: Vec<Look> = Vec::new();
        let (cpu, arbiter) = (Cpu::now()?, arbiter_ns(station));
        let began = Instant::now();
        while began.elapsed() < length {
            looks.push(self.account.look(&pids, wanted.len()));
            std::thread::sleep(LOOK);
        }
        looks.push(self.account.look(&pids, wanted.len()));
        let cpu = Cpu::now()?.since(&cpu);
        let arbiter = arbiter_ns(station).saturating_sub(arbiter) as f64;
        let mut outcome = judge(&looks, wanted, self.kernel_ns);
        outcome.cpu = cpu;
        outcome.arbiter = arbiter / began.elapsed().as_nanos() as f64;
        Ok(outcome)
    }
}

/// Windows, stalls and totals from readings of each claim's GPU time.
pub(in crate::bench) fn judge(looks: &[Look], wanted: &[f64], kernel_ns: u64) -> Outcome {
    const WINDOW: u64 = 2_000_000_000;
    let parts = |from: &Look, to: &Look| {
        let grown: Vec<f64> = from
            .used
            .iter()
            .zip(&to.used)
            .map(|(a, b)| b.saturating_sub(*a) as f64)
            .collect();
        let sum: f64 = grown.iter().sum::<f64>().max(1.0);
        (grown.iter().map(|g| g / sum).collect::<Vec<f64>>(), sum)
    };
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        return Outcome::default();
    };
    let (got, sum) = parts(first, last);
    let passed = last.now_ns.saturating_sub(first.now_ns).max(1) as f64;
    let mut worst_window: f64 = 0.0;
    let mut beyond = f64::NEG_INFINITY;
    let mut next = 0;
    for from in looks {
        // A window every 100 ms.
        if from.now_ns < next {
            continue;
        }
        next = from.now_ns + 100_000_000;
        let ends_ns = from.now_ns + WINDOW;
        let Some(after) = looks.iter().position(|l| l.now_ns >= ends_ns) else {
            break;
        };
        let to = looks[after - 1].until(ends_ns, &looks[after]);
        let (got, used) = parts(from, &to);
        // A GPU that is idle for most of a window is no excuse.
        let used = used.max(WINDOW as f64 / 2.0);
        let allowed = (kernel_ns as f64 / used * 100.0).max(POINTS);
        for (got, wanted) in got.iter().zip(wanted) {
            let points = (got - wanted).abs() * 100.0;
            worst_window = worst_window.max(points);
            beyond = beyond.max(points - allowed);
        }
    }
    let mut worst_stall = 0;
    for claim in 0..wanted.len() {
        let mut since = first;
        for pair in looks.windows(2) {
            if pair[1].used[claim] > pair[0].used[claim] {
                worst_stall = worst_stall.max(pair[0].now_ns.saturating_sub(since.now_ns));
                since = &pair[1];
            }
        }
        worst_stall = worst_stall.max(last.now_ns.saturating_sub(since.now_ns));
    }
    Outcome {
        got,
        worst_window,
        beyond,
        worst_stall_ms: worst_stall as f64 / 1e6,
        total: sum / passed,
        done: last.done.saturating_sub(first.done) as f64 / passed,
        ..Outcome::default()
    }
}

/// Processor time of the whole machine, in ticks.
#[derive(Debug)]
pub(super) struct Cpu {
    busy: u64,
    all: u64,
}

impl Cpu {
    pub(super) fn now() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let ticks: Vec<u64> = text
            .lines()
            .next()
            .unwrap_or("")
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|n| n.parse().ok())
            .collect();
        let all: u64 = ticks.iter().sum();
        let idle = ticks.get(3).unwrap_or(&0) + ticks.get(4).unwrap_or(&0);
        Ok(Self {
            busy: all - idle.min(all),
            all,
        })
    }

    fn since(&self, before: &Self) -> f64 {
        self.since_without(before, 0)
    }

    /// Busy fraction since `before`, without the ticks in `own`.
    pub(super) fn since_without(&self, before: &Self, own: u64) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        let busy = self.busy.saturating_sub(before.busy);
        busy.saturating_sub(own) as f64 / all as f64
    }
}

/// Processor time of the service's arbiter in nanoseconds; 0 without a service.
pub(in crate::bench) fn arbiter_ns(station: &Station) -> u64 {
    let Some(pid) = station.service_pid() else {
        return 0;
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").trim() == "arbiter" {
            let text = read("schedstat");
            let first = text.split_whitespace().next();
            return first.and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::super::ROUNDED;
    use super::*;

    #[test]
    fn windows_stalls_and_totals() {
        // Two claims take turns of 30 and 70 ms; then the first does nothing for half a second.
        let mut looks = Vec::new();
        let (mut a, mut b) = (0u64, 0u64);
        for ms in (0..5000u64).step_by(10) {
            looks.push(Look {
                now_ns: ms * 1_000_000,
                used: vec![a, b],
                done: a + b,
            });
            let silent = (3000..3500).contains(&ms);
            if ms % 100 < 30 && !silent {
                a += 10_000_000;
            } else {
                b += 10_000_000;
            }
        }
        let outcome = judge(&looks, &[0.3, 0.7], 0);
        assert!((outcome.total - 1.0).abs() < 0.01, "{outcome:?}");
        assert!((outcome.done - outcome.total).abs() < 1e-9, "{outcome:?}");
        assert!((outcome.worst_window - 7.5).abs() < 1.6, "{outcome:?}");
        assert!((outcome.beyond - (outcome.worst_window - POINTS)).abs() < 1e-9);
        // One kernel of 200 ms is 10 points of 2 s.
        let outcome = judge(&looks, &[0.3, 0.7], 200_000_000);
        assert!(
            (outcome.beyond - (outcome.worst_window - 10.0)).abs() < 0.1,
            "{outcome:?}"
        );
        assert!((outcome.worst_stall_ms - 570.0).abs() < 21.0, "{outcome:?}");
        assert!((outcome.got[0] - 0.27).abs() < 0.005, "{outcome:?}");
    }

    /// A claim with a tenth of the GPU has one kernel of 200 ms in five seconds: in 2 s without it that is one kernel too
    /// few, also where the readings are not 2 s apart.
    #[test]
    fn a_window_is_two_seconds_long() {
        let look = |ms: u64| {
            let first = ms.saturating_sub(2500).min(200);
            Look {
                now_ns: ms * 1_000_000,
                used: vec![first * 1_000_000, (ms - first) * 1_000_000],
                done: ms * 1_000_000,
            }
        };
        let looks: Vec<Look> = (0..5000).step_by(7).map(look).collect();
        let outcome = judge(&looks, &[0.1, 0.9], 200_000_000);
        assert!((outcome.worst_window - 10.0).abs() < 1e-6, "{outcome:?}");
        assert!(outcome.beyond.abs() < ROUNDED, "{outcome:?}");
    }
}
