//! `bench abuse`: one user floods a private service in twelve ways. Measures the response times of other users, and the
//! size of the service and its journal. The journal starts with a year of thirty users. Each flood runs twice: with the
//! flooder on one core and all others on another, then with all cores for everyone.

mod flood;
mod year;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_proto::{Client, Reply};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, Uid};
use serde_json::{Value, json};

pub(crate) use flood::{FLOOD_ARGUMENT, flood};

use super::say;
use super::stats::Times;
use crate::command::args::BenchArgs;
use crate::station::{Options, Station};

/// Goals for the 99th percentile of other users' response times in milliseconds, with and without a flood.
const P99_MS: f64 = 20.0;
const IDLE_P99_MS: f64 = 3.0;
/// Maximum resident memory of the service, and maximum size of its journal, in bytes.
const RESIDENT: u64 = 64 << 20;
const JOURNAL: u64 = 64 << 20;
/// Maximum duration of a start after all floods, in seconds.
const START_S: f64 = 2.0;
/// Pause between two requests of the measured user.
const PAUSE: Duration = Duration::from_millis(3);
/// After a flood its connections are closed, which must not stall others either.
const AFTER: Duration = Duration::from_secs(1);
/// User id of the flooder; it needs no account.
const FLOODER: u32 = 60_601;

/// Results of one flood.
struct Seen {
    name: &'static str,
    times: Times,
    /// 99th percentile of the time from receipt to reply in the service, in milliseconds, rounded up to a histogram
    /// bound.
    answered_ms: Option<f64>,
    /// The same with all cores for everyone.
    free_answered_ms: Option<f64>,
    resident: u64,
    journal: u64,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let span = Duration::from_secs(if args.quick { 2 } else { 30 });
    let days = if args.quick { 14 } else { 365 };
    let root = Uid::effective().is_root();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    say(&format!(
        "12 floods of {} s by one user; {}{}",
        span.as_secs(),
        if cores > 1 {
            "the flooder on one core, the service and the user who is measured on another; then all on all cores"
        } else {
            "one core for all"
        },
        if root {
            ""
        } else {
            "; not root: the flooder is the same user, so nothing is judged"
        },
    ));
    let own = tempfile::tempdir()?;
    let figures = own.path().join("figures.sock");
    let mut station = Station::start(&Options {
        config: format!("[metrics]\nlisten = {figures:?}\n"),
        ..Options::new(std::env::current_exe().context("cannot find the program itself")?)
    })?;
    let journal = station.dir().join("state/gshare.db");
    station.stop_service(Signal::SIGTERM)?;
    let filled = year::fill(&journal, days)?;
    say(&format!(
        "{filled} claims of {} users in {days} days: the journal has {} MiB",
        year::USERS,
        bytes_of(&journal) >> 20
    ));
    station.start_service()?;
    let bench = Bench {
        span,
        cores,
        journal,
        figures,
    };
    bench.place(&station, None, true)?;
    let mut victim = Victim::start(&station)?;
    victim.measure(Duration::from_millis(500), || true)?;
    let before = bench.answers()?;
    let idle = Seen {
        name: "idle",
        times: Times::new(victim.measure(span.min(Duration::from_secs(10)), || true)?),
        answered_ms: p99_ms(&before, &bench.answers()?),
        free_answered_ms: None,
        resident: resident(&station),
        journal: bytes_of(&bench.journal),
    };
    say(
        "                      p99 ms  longest ms  answers  in the service, all cores  service MiB  journal MiB",
    );
    row(&idle);
    let mut rows = Vec::new();
    for name in flood::KINDS {
        if args
            .only
            .as_deref()
            .is_some_and(|only| !name.contains(only))
        {
            continue;
        }
        let seen = bench.under(name, &station, &mut victim)?;
        row(&seen);
        rows.push(seen);
    }
    drop(victim);
    station.stop_service(Signal::SIGKILL)?;
    let begun = Instant::now();
    station.start_service()?;
    let start_s = begun.elapsed().as_secs_f64();
    say(&format!(
        "start after all that: {start_s:.2} s; the journal has {} MiB",
        bytes_of(&bench.journal) >> 20
    ));
    finish(args, root && cores > 1, &idle, &rows, start_s)
}

fn finish(
    args: &BenchArgs,
    judged: bool,
    idle: &Seen,
    rows: &[Seen],
    start_s: f64,
) -> anyhow::Result<Value> {
    let within = |seen: &Seen, goal: f64| {
        seen.times.p99().is_some_and(|ms| ms <= goal)
            && seen.free_answered_ms.is_none_or(|ms| ms <= P99_MS)
            && seen.resident <= RESIDENT
            && seen.journal <= JOURNAL
    };
    let ok = within(idle, IDLE_P99_MS)
        && rows.iter().all(|seen| within(seen, P99_MS))
        && start_s <= START_S;
    let figures = |seen: &Seen| {
        json!({
            "flood": seen.name,
            "p99_ms": seen.times.p99(),
            "longest_ms": seen.times.quantile(1.0),
            "answered_p99_ms": seen.answered_ms,
            "answered_on_all_cores_p99_ms": seen.free_answered_ms,
            "resident_bytes": seen.resident,
            "journal_bytes": seen.journal,
        })
    };
    let line = json!({
        "bench": "abuse",
        "judged": judged && !args.quick,
        "measured": {
            "idle": figures(idle),
            "floods": rows.iter().map(figures).collect::<Vec<Value>>(),
            "start_s": start_s,
        },
        "baseline": figures(idle),
        "goals": {
            "p99_ms": P99_MS, "idle_p99_ms": IDLE_P99_MS, "resident_bytes": RESIDENT,
            "journal_bytes": JOURNAL, "start_s": START_S,
        },
        "ok": ok,
    });
    Ok(line)
}

fn row(seen: &Seen) {
    let ms = |q: f64| seen.times.quantile(q).unwrap_or(f64::NAN);
    say(&format!(
        "{:<20} {:>7.1} {:>11.1} {:>8} {:>15} {:>10} {:>12} {:>12}",
        seen.name,
        ms(0.99),
        ms(1.0),
        seen.times.len(),
        at_most(seen.answered_ms),
        at_most(seen.free_answered_ms),
        seen.resident >> 20,
        seen.journal >> 20
    ));
}

fn at_most(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), |ms| format!("<= {ms}"))
}

/// Cumulative histogram: upper bound in seconds and number of answers, ascending; the last entry counts all.
type Buckets = Vec<(f64, f64)>;

/// 99th percentile of the answers between two readings in milliseconds, rounded up to a bound.
fn p99_ms(before: &Buckets, after: &Buckets) -> Option<f64> {
    let before = |n: usize| before.get(n).map_or(0.0, |(_, count)| *count);
    let counts = after.iter().enumerate();
    let new: Buckets = counts
        .map(|(n, (le, count))| (*le, count - before(n)))
        .collect();
    let all = new.last()?.1;
    let (le, _) = new
        .iter()
        .find(|(_, count)| *count >= 0.99 * all && all > 0.0)?;
    Some(le * 1000.0)
}

/// What all floods have in common.
struct Bench {
    span: Duration,
    cores: usize,
    journal: PathBuf,
    /// Socket of the service's metrics.
    figures: PathBuf,
}

impl Bench {
    /// Histogram of the service's response times to the measured user.
    fn answers(&self) -> anyhow::Result<Buckets> {
        let mut stream = UnixStream::connect(&self.figures)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        let uid = Uid::effective().as_raw();
        let user = gshare_enforcer::proc::user_name(uid).unwrap_or_else(|| uid.to_string());
        let head = format!("gshare_answer_seconds_bucket{{user=\"{user}\",le=\"");
        let bucket = |line: &str| {
            let (le, count) = line.strip_prefix(&head)?.split_once("\"} ")?;
            Some((le.parse().ok()?, count.parse().ok()?))
        };
        Ok(page.lines().filter_map(bucket).collect())
    }

    /// Binds the flooder to a core of its own, or lets every process use all cores.
    fn place(&self, station: &Station, flooder: Option<u32>, apart: bool) -> anyhow::Result<()> {
        if self.cores < 2 {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.cores).collect();
        let of = |core: usize| if apart { vec![core] } else { all.clone() };
        pin(std::process::id(), &of(0))?;
        pin(station.service_pid().context("no service")?, &of(0))?;
        flooder.map_or(Ok(()), |pid| pin(pid, &of(1)))
    }

    /// A flood with the flooder on its own core, then one with all cores for everyone.
    fn under(
        &self,
        name: &'static str,
        station: &Station,
        victim: &mut Victim,
    ) -> anyhow::Result<Seen> {
        let apart = self.flood(name, station, victim, true)?;
        let free = self.flood(name, station, victim, false)?;
        Ok(Seen {
            free_answered_ms: free.answered_ms,
            resident: apart.resident.max(free.resident),
            journal: free.journal,
            ..apart
        })
    }

    /// One flood, and a short time after it.
    fn flood(
        &self,
        name: &'static str,
        station: &Station,
        victim: &mut Victim,
        apart: bool,
    ) -> anyhow::Result<Seen> {
        let before = self.answers()?;
        let mut flooder = start(name, station, self.span)?;
        self.place(station, Some(flooder.id()), apart)?;
        let (mut most, mut looked, mut ended) = (0, Instant::now(), None);
        let times = victim.measure(self.span * 3 + Duration::from_secs(60), || {
            if looked.elapsed() >= Duration::from_millis(250) {
                looked = Instant::now();
                most = most.max(resident(station));
                if ended.is_none() && !matches!(flooder.try_wait(), Ok(None)) {
                    ended = Some(Instant::now());
                }
            }
            ended.is_none_or(|at: Instant| at.elapsed() < AFTER)
        })?;
        let _ = flooder.kill();
        let status = flooder.wait()?;
        anyhow::ensure!(status.success(), "the flood `{name}` failed: {status}");
        Ok(Seen {
            name,
            times: Times::new(times),
            answered_ms: p99_ms(&before, &self.answers()?),
            free_answered_ms: None,
            resident: most.max(resident(station)),
            journal: bytes_of(&self.journal),
        })
    }
}

fn start(name: &str, station: &Station, span: Duration) -> anyhow::Result<Child> {
    let mut command = Command::new(station.program());
    command
        .args([FLOOD_ARGUMENT, name])
        .arg(station.socket())
        .arg(span.as_secs().to_string())
        .current_dir("/")
        .stdin(Stdio::null());
    if Uid::effective().is_root() {
        command.uid(FLOODER).gid(FLOODER);
    }
    command.spawn().context("cannot start the flooder")
}

/// The measured user, who queries a claim and asks to resize it.
struct Victim {
    socket: PathBuf,
    client: Client,
    claim: String,
    asked: u64,
}

impl Victim {
    fn start(station: &Station) -> anyhow::Result<Self> {
        let mut client = station.client()?;
        let line = json!({"op": "claim", "gpus_milli": 100, "hold": true, "wait": "no"});
        let claim = match client.call(&serde_json::from_value(line)?)? {
            Reply::Granted(granted) => granted.id,
            other => anyhow::bail!("no claim for the user who is measured: {other:?}"),
        };
        Ok(Self {
            socket: station.socket(),
            client,
            claim,
            asked: 0,
        })
    }

    /// Response times in milliseconds, while `more` returns true and at most for that time.
    fn measure(
        &mut self,
        most: Duration,
        mut more: impl FnMut() -> bool,
    ) -> anyhow::Result<Vec<f64>> {
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < most && more() {
            self.asked += 1;
            let line = match self.asked % 4 {
                0 => json!({"op": "try", "gpus_milli": 50, "gpu_ids": ["1"]}),
                1 => json!({"op": "lease", "pid": 1, "start_ticks": 1}),
                n => json!({"op": "resize", "id": self.claim, "gpus_milli": 98 + n}),
            };
            let call = serde_json::from_value(line)?;
            let begun = Instant::now();
            // Every eighth request opens its own connection, as a command does.
            if self.asked.is_multiple_of(8) {
                self.client = Client::connect(&self.socket)?;
                self.client
                    .set_read_timeout(Some(Duration::from_secs(60)))?;
            }
            self.client.call(&call)?;
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
            std::thread::sleep(PAUSE);
        }
        Ok(times)
    }
}

/// Binds all threads of a process to these cores.
fn pin(pid: u32, cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = task?.file_name();
        if let Some(task) = name.to_str().and_then(|n| n.parse().ok()) {
            // The thread may have ended.
            let _ = sched_setaffinity(Pid::from_raw(task), &set);
        }
    }
    Ok(())
}

/// Resident memory of the service, in bytes.
fn resident(station: &Station) -> u64 {
    let of = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    station.service_pid().and_then(of).unwrap_or(0)
}

/// Size in bytes of a database with its additional files.
fn bytes_of(path: &Path) -> u64 {
    let names = ["", "-wal"].map(|end| PathBuf::from(format!("{}{end}", path.display())));
    let sizes = names.iter().filter_map(|p| p.metadata().ok());
    sizes.map(|m| m.len()).sum()
}
