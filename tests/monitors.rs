//! Monitors that nobody here wrote (nvitop, gpustat, nvtop) run unmodified on the simulated NVML, on a real
//! terminal: what their screens show is what the board did.

use crate::support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gshare::station::Station;
use support::terminal::Terminal;
use support::{Raw, board, board_bytes, python, station_with};

const MIB: u64 = 1 << 20;
/// How far a shown utilisation may be from the board's, in points: both are means over windows of a second
/// or two that do not begin together.
const POINTS: f64 = 15.0;
/// The GPUs of the station, as NVML names them.
const NAMES: [&str; 4] = [
    "GeForce RTX 4090",
    "GeForce RTX 4090",
    "H100 80GB HBM3",
    "H100 80GB HBM3",
];

/// A station in which GPU 1 is partly busy, GPU 2 has memory only, GPU 3 is busy, and GPU 0 is free.
struct Load {
    station: Station,
    /// Process id and MiB on GPUs 1, 2 and 3.
    members: [(u32, u64); 3],
    from: Vec<u64>,
    since: Instant,
    _busy: [Raw; 2],
    stop: Arc<AtomicBool>,
    paced: Option<JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let station = station_with(|o| o.costs = "add_one 20ms\n".to_owned());
        // A short path, so that no screen has to cut it.
        let program: PathBuf = station.dir().join("raw_client");
        let original = support::example("raw_client");
        if std::fs::hard_link(&original, &program).is_err() {
            support::copy_program(&original, &program);
        }
        let board = board(&station);
        let member = |gpu: &str, mib: u64| {
            let mut command = station.command();
            command
                .args(["claim", "-q", "-g", "0.5", "--gpu-ids", gpu, "--"])
                .arg(&program);
            let mut raw = Raw::start(command);
            assert_eq!(raw.ask(&format!("alloc {}", mib * MIB)), "ok 0");
            assert_eq!(raw.ask("launch 1"), "ok 1");
            raw
        };
        let mut half = member("1", 5000);
        let still = member("2", 10_000);
        let mut full = member("3", 15_000);
        let seen = board.snapshot();
        let members = [(1, &half), (2, &still), (3, &full)].map(|(gpu, raw)| {
            let bytes = board_bytes(&seen, gpu, &[raw.pid()]);
            assert!(bytes > 5000 * MIB);
            (raw.pid(), bytes / MIB)
        });
        // More than a test takes: a kernel after the other.
        full.tell("launch 100000");
        // 20 ms of every 50 ms.
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&stop);
        let paced = std::thread::spawn(move || {
            let started = Instant::now();
            for round in 1.. {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                assert!(half.ask("launch 1").starts_with("ok"));
                let next = started + Duration::from_millis(50) * round;
                std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            }
        });
        Self {
            from: board.snapshot().gpus.iter().map(|g| g.busy_ns).collect(),
            since: Instant::now(),
            station,
            members,
            _busy: [still, full],
            stop,
            paced: Some(paced),
        }
    }

    /// What part of the time each GPU has been busy by the board, in percent.
    fn busy(&self) -> Vec<f64> {
        let now = board(&self.station).snapshot();
        let ns = self.since.elapsed().as_nanos() as f64;
        let grown = now.gpus.iter().zip(&self.from);
        grown
            .map(|(g, from)| 100.0 * (g.busy_ns - from) as f64 / ns)
            .collect()
    }

    fn open(&self, program: &str, args: &[&str], size: (u16, u16)) -> Terminal {
        let mut command = self.station.client_environment(Command::new(program));
        command.args(args);
        Terminal::start(&command, size.0, size.1)
    }

    /// Waits until the screen shows all that is on the GPUs: the rows that `read` finds must say, per GPU,
    /// its name, the MiB that processes have and its utilisation, and per process its GPU, the MiB and
    /// perhaps its own utilisation.
    fn agrees(&self, screen: &Terminal, read: impl Fn(&str) -> Option<Shown>) {
        let last = std::cell::RefCell::new(String::new());
        let judge = |text: &str| {
            let shown = read(text)?;
            // The first seconds of the load are not yet in every window.
            if self.since.elapsed() < Duration::from_secs(4) {
                return None;
            }
            match self.differs(&shown) {
                None => Some(shown),
                Some(why) => {
                    *last.borrow_mut() = why;
                    None
                }
            }
        };
        let end = Instant::now() + Duration::from_secs(40);
        let shown = loop {
            if let Some(shown) = judge(&screen.text()) {
                break shown;
            }
            assert!(
                Instant::now() < end,
                "{}; {:?}; the screen:\n{}",
                last.borrow(),
                read(&screen.text()),
                screen.text()
            );
            std::thread::park_timeout(Duration::from_millis(50));
        };
        println!("board: {:.0?} % busy; shown: {shown:?}", self.busy());
    }

    /// What is not as the board has it.
    fn differs(&self, shown: &Shown) -> Option<String> {
        let mib = [0, self.members[0].1, self.members[1].1, self.members[2].1];
        let truth = self.busy();
        assert!(truth[1] > 10.0 && truth[1] < 70.0 && truth[2] < 1.0 && truth[3] > 90.0);
        let near = |a: f64, b: f64| (a - b).abs() <= POINTS;
        for (g, gpu) in shown.gpus.iter().enumerate() {
            if !gpu.name.contains(NAMES[g]) {
                return Some(format!("GPU {g} is called {}", gpu.name));
            }
            if gpu.mib.is_some_and(|m| m != mib[g]) {
                return Some(format!("GPU {g} has {} MiB", mib[g]));
            }
            if !near(gpu.util, truth[g]) {
                return Some(format!("GPU {g} was busy {:.0} %", truth[g]));
            }
        }
        for (g, (pid, mib)) in (1..).zip(self.members) {
            let Some(row) = shown.processes.iter().find(|p| p.pid == pid) else {
                return Some(format!("process {pid} is on GPU {g}"));
            };
            if row.gpu != g || row.mib != mib {
                return Some(format!("process {pid} has {mib} MiB on GPU {g}"));
            }
            if row.util.is_some_and(|u| !near(u, truth[g])) {
                return Some(format!("process {pid} was busy {:.0} %", truth[g]));
            }
        }
        (shown.processes.len() != 3).then(|| "three processes use GPUs".to_owned())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(paced) = self.paced.take() {
            let ended = paced.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// What a monitor shows.
#[derive(Debug)]
struct Shown {
    gpus: [Gpu; 4],
    processes: Vec<Process>,
}

#[derive(Debug)]
struct Gpu {
    name: String,
    /// Used memory, where the monitor leaves out what the driver keeps for itself.
    mib: Option<u64>,
    util: f64,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    gpu: usize,
    mib: u64,
    util: Option<f64>,
}

/// The number before a unit: `5510MiB`, `40%`.
fn number<T: std::str::FromStr>(text: &str, unit: &str) -> Option<T> {
    text.trim().strip_suffix(unit)?.trim().parse().ok()
}

fn four(gpus: Vec<Gpu>) -> Option<[Gpu; 4]> {
    gpus.try_into().ok()
}

#[test]
fn nvitop_shows_what_the_board_did() {
    let Some(bin) = python::bin("nvitop") else {
        return;
    };
    let load = Load::start();
    let program = bin.join("nvitop").display().to_string();
    let mut screen = load.open(&program, &["--monitor"], (60, 140));
    load.agrees(&screen, |text| {
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split('│').collect()).collect();
        // A GPU has two lines; the second has temperature, memory and utilisation.
        let gpus = lines.iter().zip(lines.iter().skip(1));
        let gpus = gpus.filter_map(|(first, second)| {
            let (index, name) = first.get(1)?.trim().split_once("  ")?;
            index.parse::<usize>().ok()?;
            let used = second.get(2)?.split('/').next()?;
            let zero = (used.trim() == "0B").then_some(0);
            Some(Gpu {
                name: name.to_owned(),
                mib: Some(zero.or_else(|| number(used, "MiB"))?),
                util: number(second.get(3)?.split_whitespace().next()?, "%")?,
            })
        });
        let processes = lines.iter().filter_map(|cells| {
            let words: Vec<&str> = cells.get(1)?.split_whitespace().collect();
            let [gpu, pid, "C", _user, mib, sm, ..] = words.as_slice() else {
                return None;
            };
            cells[1].contains("raw_client").then_some(())?;
            Some(Process {
                pid: pid.parse().ok()?,
                gpu: gpu.parse().ok()?,
                mib: number(mib, "MiB")?,
                util: sm.parse().ok(),
            })
        });
        Some(Shown {
            gpus: four(gpus.collect())?,
            processes: processes.collect(),
        })
    });
    screen.send("q");
    assert_eq!(screen.ended(Duration::from_secs(10)), 0);
}

#[test]
fn gpustat_shows_what_the_board_did() {
    let Some(bin) = python::bin("gpustat") else {
        return;
    };
    let load = Load::start();
    let program = bin.join("gpustat").display().to_string();
    let args = ["--show-cmd", "--show-user", "--show-pid", "-i", "1"];
    let screen = load.open(&program, &args, (30, 140));
    load.agrees(&screen, |text| {
        let mut processes = Vec::new();
        let mut gpus = Vec::new();
        // [1] NVIDIA GeForce RTX 4090 | 48°C, 100 % |  5510 / 24564 MB | root:raw_client/11457(5510M)
        for line in text.lines().filter(|l| l.starts_with('[')) {
            let cells: Vec<&str> = line.split('|').collect();
            let [name, state, memory, who] = cells.as_slice() else {
                return None;
            };
            let used = memory.split('/').next()?.trim();
            gpus.push(Gpu {
                name: (*name).to_owned(),
                mib: Some(used.parse().ok()?),
                util: number(state.rsplit(',').next()?, "%")?,
            });
            for process in who.split_whitespace() {
                let (command, rest) = process.split_once('/')?;
                assert!(command.ends_with(":raw_client"), "{line}");
                let (pid, mib) = rest.split_once('(')?;
                processes.push(Process {
                    pid: pid.parse().ok()?,
                    gpu: gpus.len() - 1,
                    mib: number(mib, "M)")?,
                    util: None,
                });
            }
        }
        Some(Shown {
            gpus: four(gpus)?,
            processes,
        })
    });
}

#[test]
fn nvtop_shows_what_the_board_did() {
    if let Err(why) = Command::new("nvtop").arg("--version").output() {
        println!("skipped: nvtop does not start: {why}");
        return;
    }
    let load = Load::start();
    let mut screen = load.open("nvtop", &["-d", "5"], (60, 140));
    load.agrees(&screen, |text| {
        let lines: Vec<&str> = text.lines().collect();
        let mut gpus = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            // Device 1 [NVIDIA GeForce RTX 4090] PCIe ..., clocks, GPU[||| 40%] MEM[||| 5.7Gi/23.9Gi]
            let Some(rest) = line.trim_start().strip_prefix("Device ") else {
                continue;
            };
            let bar = lines.get(at + 2)?.split(']').next()?;
            gpus.push(Gpu {
                name: rest.to_owned(),
                // This monitor counts what the driver keeps as used.
                mib: None,
                util: number(bar.rsplit(['|', '[', ' ']).next()?, "%")?,
            });
        }
        let processes = lines.iter().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [pid, _user, gpu, "Compute", util, mib, ..] = words.as_slice() else {
                return None;
            };
            line.contains("raw_client").then_some(())?;
            Some(Process {
                pid: pid.parse().ok()?,
                gpu: gpu.parse().ok()?,
                mib: number(mib, "MiB")?,
                util: number(util, "%"),
            })
        });
        Some(Shown {
            gpus: four(gpus)?,
            processes: processes.collect(),
        })
    });
    screen.send("q");
    assert_eq!(screen.ended(Duration::from_secs(10)), 0);
}
