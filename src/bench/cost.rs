//! `bench cost`: cost of monitoring. The service with one poll per second, eight GPUs, fifty claims and a hundred
//! processes, and the screen, are compared with common monitors on the same simulated NVML in the same run. The service
//! and the screen are those of `GSHARE_PROGRAM`, an installed one, if that is set.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_enforcer::proc;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use serde_json::{Value, json};

use super::say;
use crate::command::args::BenchArgs;
use crate::demo::Job;
use crate::station::{Options, Station};

const CLAIMS: usize = 50;
/// Terminal size in columns and rows: for the comparison, and for idle screens beside two idle claims.
const SIZE: (u16, u16) = (110, 34);
const QUIET: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 50)];
/// Percent of a core.
const GOAL_SERVICE: f64 = 0.5;
const GOAL_SCREEN: f64 = 0.12;
/// Bytes per second of an idle screen.
const GOAL_BYTES: f64 = 600.0;
const GOAL_RESIDENT: u64 = 16 << 20;
/// Programs run this long before they are measured.
const SETTLE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let span = Duration::from_secs(if args.quick { 5 } else { 60 });
    say(&format!(
        "8 GPUs, {CLAIMS} claims of 2 processes, a look a second; over {} s each; a simulated NVML, whose own work is in every figure",
        span.as_secs(),
    ));
    let gpus = [
        "rtx4090", "rtx4090", "rtx4090", "rtx4090", "h100", "h100", "h100", "h100",
    ];
    let laboratory = std::env::current_exe().context("cannot find the program itself")?;
    let installed = std::env::var_os("GSHARE_PROGRAM").map(PathBuf::from);
    let station = Station::start(&Options {
        gpus: gpus.map(str::to_owned).to_vec(),
        costs: "notebook_cell 40ms\ntrain_step 4ms\n".to_owned(),
        laboratory: laboratory.clone(),
        ..Options::new(installed.unwrap_or(laboratory))
    })?;
    let service = station.service_pid().context("the service does not run")?;
    let meter = Meter::of(service)?;
    let (idle, _) = meter.percent(span.min(Duration::from_secs(20)), None)?;
    say(&format!(
        "  service, nothing claimed    {idle:>7.3} % of a core"
    ));
    let quiet = quiet(&station, span.min(Duration::from_secs(20)))?;
    let mut cast = Cast::start(&station)?;
    let processes = cast.wait(&station)?;
    std::thread::sleep(SETTLE);
    let (busy, _) = meter.percent(span, None)?;
    let resident = resident(service);
    say(&format!(
        "  service, {processes} processes      {busy:>7.3} % of a core (goal {GOAL_SERVICE}), {:.1} MiB resident (goal {}), by {}",
        resident as f64 / f64::from(1 << 20),
        GOAL_RESIDENT >> 20,
        meter.how()
    ));
    let mut rows: Vec<Value> = Vec::new();
    let mut screen = None;
    for monitor in monitors(&station) {
        match monitor.measure(&station, span) {
            Ok((percent, bytes)) => {
                if monitor.name == "gshare top" {
                    screen = Some(percent);
                }
                say(&format!(
                    "  {:<26} {percent:>7.3} % of a core, {:.0} bytes/s to the terminal",
                    monitor.name, bytes
                ));
                rows.push(json!({ "monitor": monitor.name, "percent_of_core": percent, "bytes_per_s": bytes }));
            }
            Err(error) => {
                say(&format!("  {:<26} skipped: {error:#}", monitor.name));
                rows.push(json!({ "monitor": monitor.name, "skipped": format!("{error:#}") }));
            }
        }
    }
    cast.end();
    let ok = busy <= GOAL_SERVICE
        && resident <= GOAL_RESIDENT
        && screen.is_some_and(|percent| percent <= GOAL_SCREEN)
        && quiet
            .iter()
            .all(|(percent, bytes)| *percent <= GOAL_SCREEN && *bytes <= GOAL_BYTES);
    let line = json!({
        "bench": "cost",
        "device": "sim",
        "span_s": span.as_secs(),
        "service_idle_percent": idle,
        "service_percent": busy,
        "goal_service_percent": GOAL_SERVICE,
        "service_resident_bytes": resident,
        "goal_resident_bytes": GOAL_RESIDENT,
        "processes": processes,
        "measured_by": meter.how(),
        "monitors": rows,
        "goal_screen_percent": GOAL_SCREEN,
        "quiet_screens": QUIET.iter().zip(&quiet).collect::<Vec<_>>(),
        "goal_quiet_bytes_per_s": GOAL_BYTES,
        "judged": !args.quick,
        "ok": ok,
    });
    Ok(line)
}

/// Percent of a core, and bytes per second, of idle screens beside two idle claims.
fn quiet(station: &Station, span: Duration) -> anyhow::Result<Vec<(f64, f64)>> {
    let claim = |size| {
        let mut command = station.command();
        // The command ends when its input is closed.
        command.args(["claim", "-q", "-g", size, "--", "cat"]);
        command
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start a claim")
    };
    let mut cast = Cast(vec![claim("0.25")?, claim("0.5")?]);
    let mut out = Vec::new();
    for size in QUIET {
        let [mut screen, ..] = monitors(station);
        screen.size = size;
        let (percent, bytes) = screen.measure(station, span)?;
        let size = format!("{}x{}", size.0, size.1);
        say(&format!(
            "  gshare top, two idle claims, {size:<7} {percent:>7.3} % of a core (goal {GOAL_SCREEN}), {bytes:.0} bytes/s (goal {GOAL_BYTES})"
        ));
        out.push((percent, bytes));
    }
    cast.end();
    Ok(out)
}

/// Claims and their processes.
struct Cast(Vec<Child>);

impl Cast {
    fn start(station: &Station) -> anyhow::Result<Self> {
        let mut children = Vec::new();
        let still = Job::Notebook { mib: 64 };
        let works = Job::Steady {
            kernel: "train_step".to_owned(),
            grid: 32,
            block: 256,
            mib: 64,
            pause_ms: 500,
        };
        for n in 0..CLAIMS {
            // Two processes in each claim; in every tenth claim one of them works now and then.
            let second = if n % 10 == 0 { &works } else { &still };
            let words = |job: &Job| {
                let program = station.laboratory().display().to_string();
                format!("{program} {}", job.arguments().join(" "))
            };
            let script = format!("{} & exec {}", words(&still), words(second));
            let mut command = station.command();
            command
                .args(["claim", "-q", "-g", "0.125", "--", "sh", "-c", &script])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            children.push(command.spawn().context("cannot start a claim")?);
        }
        Ok(Self(children))
    }

    /// Waits until all processes are on their GPUs; returns their number.
    fn wait(&mut self, station: &Station) -> anyhow::Result<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            let snapshot = station.snapshot()?;
            let found: usize = snapshot.claims.iter().map(|c| c.processes.len()).sum();
            if snapshot.claims.len() == CLAIMS && found >= 2 * CLAIMS {
                return Ok(found);
            }
            anyhow::ensure!(
                Instant::now() < until,
                "{} claims and {found} processes after {PATIENCE:?}",
                snapshot.claims.len()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn end(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures the processor time of a process.
struct Meter {
    pid: i32,
    cgroup: Option<PathBuf>,
}

impl Meter {
    /// Uses a cgroup if one can be created, else the process's own figures.
    fn of(pid: u32) -> anyhow::Result<Self> {
        let pid = pid.cast_signed();
        proc::stat(pid).context("the process to measure has ended")?;
        let made = mount().and_then(|mount| {
            let dir = mount.join(format!("gshare-bench-cost-{pid}"));
            fs::create_dir(&dir).ok()?;
            if fs::write(dir.join("cgroup.procs"), pid.to_string()).is_ok() {
                return Some(dir);
            }
            let _ = fs::remove_dir(&dir);
            None
        });
        Ok(Self { pid, cgroup: made })
    }

    fn how(&self) -> &'static str {
        if self.cgroup.is_some() {
            "cgroup cpu.stat"
        } else {
            "/proc/PID/stat"
        }
    }

    /// Moves the process into the cgroup. A service that is handling a request may move itself back to the cgroup that
    /// it saw a moment ago.
    fn enter(&self) -> anyhow::Result<()> {
        let Some(dir) = &self.cgroup else {
            return Ok(());
        };
        for _ in 0..5 {
            fs::write(dir.join("cgroup.procs"), self.pid.to_string())?;
            std::thread::sleep(Duration::from_millis(200));
            if self.holds() {
                return Ok(());
            }
        }
        anyhow::bail!("the process does not stay in the cgroup that it is measured by")
    }

    /// Whether the process is in the cgroup.
    fn holds(&self) -> bool {
        let Some(dir) = &self.cgroup else { return true };
        let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        pids.lines().any(|pid| pid == self.pid.to_string())
    }

    fn used_us(&self) -> anyhow::Result<u64> {
        match &self.cgroup {
            Some(dir) => {
                let text = fs::read_to_string(dir.join("cpu.stat"))?;
                let line = text.lines().find_map(|l| l.strip_prefix("usage_usec "));
                line.context("cpu.stat has no usage_usec")?
                    .trim()
                    .parse()
                    .context("cpu.stat cannot be read")
            }
            None => Ok(proc::stat(self.pid)
                .context("the program has ended")?
                .cpu_ticks
                * 10_000),
        }
    }

    /// Percent of a core over a time, and the rate per second of what `also` counts.
    fn percent(
        &self,
        span: Duration,
        also: Option<&dyn Fn() -> u64>,
    ) -> anyhow::Result<(f64, f64)> {
        self.enter()?;
        let count = || also.map_or(0, |f| f());
        let (before, counted, began) = (self.used_us()?, count(), Instant::now());
        std::thread::sleep(span);
        let seconds = began.elapsed().as_secs_f64();
        let used = self.used_us()?.saturating_sub(before);
        let rate = count().saturating_sub(counted) as f64 / seconds;
        anyhow::ensure!(
            self.holds(),
            "the process has left the cgroup that it is measured by"
        );
        Ok((used as f64 / 1e4 / seconds, rate))
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Some(dir) = &self.cgroup else { return };
        // Move remaining processes to the top, so that the cgroup can be removed.
        if let Some(top) = dir.parent() {
            let left = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines() {
                let _ = fs::write(top.join("cgroup.procs"), pid);
            }
        }
        let _ = fs::remove_dir(dir);
    }
}

/// Mount point of cgroup2.
fn mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mut fields = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let found = fields.find(|f| f.get(2) == Some(&"cgroup2"))?;
    Some(PathBuf::from(found[1]))
}

/// Resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(u64::MAX / 1024).saturating_mul(1024)
}

/// A terminal monitor for GPUs.
struct Monitor {
    name: &'static str,
    program: Option<PathBuf>,
    arguments: &'static [&'static str],
    get: &'static str,
    size: (u16, u16),
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

fn monitors(station: &Station) -> [Monitor; 3] {
    [
        Monitor {
            name: "gshare top",
            program: Some(station.program().to_owned()),
            arguments: &["top"],
            get: "",
            size: SIZE,
        },
        Monitor {
            name: "nvitop",
            program: on_path("nvitop"),
            arguments: &["--monitor", "full", "--interval", "1"],
            get: "pip install nvitop",
            size: SIZE,
        },
        Monitor {
            name: "nvtop",
            program: on_path("nvtop"),
            arguments: &["-d", "10"],
            get: "apt install nvtop",
            size: SIZE,
        },
    ]
}

impl Monitor {
    /// Percent of a core, and bytes per second that it writes.
    fn measure(&self, station: &Station, span: Duration) -> anyhow::Result<(f64, f64)> {
        let program = self
            .program
            .as_ref()
            .with_context(|| format!("it is not here ({})", self.get))?;
        let size = Winsize {
            ws_row: self.size.1,
            ws_col: self.size.0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).context("no terminal")?;
        // A program that inherits its own terminal's other end would outlive this one.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        let mut command = station.client_environment(Command::new("setsid"));
        command.arg("--ctty").arg(program).args(self.arguments);
        command
            .env("TERM", "xterm-256color")
            .stdin(pty.slave.try_clone()?)
            .stdout(pty.slave.try_clone()?)
            .stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start setsid")?;
        drop(command);
        drop(pty.slave);
        let bytes = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = std::sync::Arc::clone(&bytes);
        let mut screen = fs::File::from(pty.master);
        let reader = std::thread::spawn(move || {
            let mut some = [0; 65536];
            while let Ok(n @ 1..) = screen.read(&mut some) {
                count.fetch_add(n as u64, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let measured = measure(&mut child, span, &|| {
            bytes.load(std::sync::atomic::Ordering::Relaxed)
        });
        let _ = child.kill();
        let _ = child.wait();
        let _ = reader.join();
        measured
    }
}

fn measure(
    child: &mut Child,
    span: Duration,
    written: &dyn Fn() -> u64,
) -> anyhow::Result<(f64, f64)> {
    let meter = Meter::of(child.id())?;
    std::thread::sleep(SETTLE);
    if let Some(status) = child.try_wait()? {
        anyhow::bail!("it ended at once: {status}");
    }
    anyhow::ensure!(written() > 0, "it drew nothing");
    meter.percent(span, Some(written))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_busy_process_is_told_from_an_idle_one() {
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let mut idle = Command::new("sleep").arg("60").spawn().unwrap();
        let percent = |child: &Child| {
            let meter = Meter::of(child.id()).unwrap();
            meter.percent(Duration::from_millis(500), None).unwrap().0
        };
        let (high, low) = (percent(&busy), percent(&idle));
        for child in [&mut busy, &mut idle] {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(high > 5.0 && low < 5.0, "{high} {low}");
        assert!(resident(std::process::id()) > 1 << 20);
        assert!(on_path("sh").is_some() && on_path("no-such-monitor").is_none());
    }

    #[test]
    fn a_process_that_leaves_its_cgroup_is_not_measured() {
        let mut idle = Command::new("sleep").arg("60").spawn().unwrap();
        let meter = Meter::of(idle.id()).unwrap();
        let top = meter.cgroup.as_ref().and_then(|dir| dir.parent());
        let away = top.map(|top| top.join("cgroup.procs"));
        let over = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| {
                while let (Some(away), false) = (&away, over.load(Ordering::Relaxed)) {
                    let _ = fs::write(away, idle.id().to_string());
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let measured = meter.percent(Duration::from_secs(2), None);
            over.store(true, Ordering::Relaxed);
            measured
        });
        let _ = idle.kill();
        let _ = idle.wait();
        // Without cgroups the process's own figures are used.
        assert_eq!(measured.is_err(), away.is_some(), "{measured:?}");
    }
}
