//! One run of a mix, with or without gshare.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_sim_board::{Board, BoardSnapshot};

use super::bound;
use super::rows::{Baseline, Program, Row};
use crate::bench::gate::Place;
use crate::bench::gate::run::{Cpu, arbiter_ns};

const PROGRAM: &str = include_str!("../../../../tests/device/light/light.c");
const HEADER: &str = include_str!("../../../../tests/device/light/cuda.h");

/// Timeout for a program's start and for its steps.
const PATIENCE: Duration = Duration::from_secs(120);

/// The compiled program.
#[derive(Debug)]
pub(super) struct Kit {
    program: PathBuf,
    /// See [`bound::doorbell_us`].
    doorbell_us: f64,
}

impl Kit {
    /// Compiles the program with the system's C compiler.
    pub(super) fn build(place: &Place) -> anyhow::Result<Self> {
        let dir = place.station.dir().join("light");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("light.c"), PROGRAM)?;
        std::fs::write(dir.join("cuda.h"), HEADER)?;
        let output = Command::new("cc")
            .args(["-std=c11", "-O2", "-o", "light", "light.c", "-ldl"])
            .current_dir(&dir)
            .output()
            .context("they need a C compiler, and there is no `cc` here")?;
        anyhow::ensure!(
            output.status.success(),
            "`cc` cannot compile the program: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Self {
            program: dir.join("light"),
            doorbell_us: bound::doorbell_us()?,
        })
    }
}

/// Durations of a program's steps, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    /// Mean time from one step to the next.
    pub(super) mean_us: f64,
    /// Median duration of a step, without the time between steps.
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    pub(super) most_us: f64,
}

impl Steps {
    /// Parses the program's output line.
    fn parse(line: &str) -> Option<Self> {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let [steps, all, median_us, p99_us, most_us] = numbers[..] else {
            return None;
        };
        Some(Self {
            mean_us: all / steps.max(1.0),
            median_us,
            p99_us,
            most_us,
        })
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Arm {
    /// By program; zeros for programs that are not measured.
    pub(super) steps: Vec<Steps>,
    /// Fractions of the GPUs' time that the programs had, if the board counts.
    pub(super) used: Vec<f64>,
    /// Context switches of the GPUs per measured step, if the board counts.
    pub(super) switches_per_step: Option<f64>,
    /// Processor time of the arbiter as a fraction of the time.
    pub(super) arbiter: f64,
    /// Load by processes that do not belong to the run, as a fraction of all processors.
    pub(super) others: f64,
    /// Minimum processor time of an arbiter per burst of work, in microseconds.
    pub(super) doorbell_us: f64,
}

/// The programs of a run, which are killed with it.
struct Company {
    children: Vec<Child>,
    lines: Receiver<(usize, String)>,
    /// Lines of programs that were faster than the others.
    early: Vec<(usize, String)>,
}

impl Drop for Company {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Company {
    /// Starts programs and waits until all are ready.
    fn start(commands: Vec<Command>) -> anyhow::Result<Self> {
        let (send, lines) = channel();
        let mut company = Self {
            children: Vec::new(),
            lines,
            early: Vec::new(),
        };
        for (at, mut command) in commands.into_iter().enumerate() {
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start a program")?;
            let out = child.stdout.take().context("a program has no output")?;
            company.children.push(child);
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let _ = send.send((at, line));
                }
            });
        }
        drop(send);
        let everyone = vec![true; company.children.len()];
        company.hear(&everyone)?;
        Ok(company)
    }

    /// The next line of each of these programs.
    fn hear(&mut self, from: &[bool]) -> anyhow::Result<Vec<String>> {
        let mut heard = vec![String::new(); from.len()];
        for (at, line) in self.early.drain(..) {
            heard[at] = line;
        }
        let until = Instant::now() + PATIENCE;
        while (0..from.len()).any(|at| from[at] && heard[at].is_empty()) {
            match self.lines.recv_timeout(Duration::from_millis(500)) {
                Ok((at, line)) if heard[at].is_empty() => heard[at] = line,
                Ok(early) => self.early.push(early),
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the programs ended early"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            for child in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    anyhow::bail!("a program ended early: {status}");
                }
            }
            anyhow::ensure!(Instant::now() < until, "the programs do not get on");
        }
        Ok(heard)
    }

    /// Tells all programs to begin.
    fn go(&mut self) -> anyhow::Result<()> {
        for child in &mut self.children {
            let input = child.stdin.as_mut().context("a program has no input")?;
            input.write_all(b"go\n")?;
        }
        Ok(())
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }
}

/// Runs a mix in claims (`shared`) or as its baseline; `fewer` divides the number of steps.
pub(super) fn run(
    kit: &Kit,
    place: &Place,
    row: &Row,
    shared: bool,
    fewer: u64,
) -> anyhow::Result<Arm> {
    let alone = !shared && row.baseline == Baseline::Alone;
    let programs = &row.programs[..if alone { 1 } else { row.programs.len() }];
    let commands = programs
        .iter()
        .map(|p| command(kit, place, p, shared, fewer))
        .collect();
    let mut company = Company::start(commands)?;
    let board = match place.rounds {
        None => Some(Board::open(&place.station.sim_dir().join("board"))?),
        Some(_) => None,
    };
    let own = |company: &Company| {
        let service = place.station.service_pid();
        company
            .pids()
            .chain(service)
            .chain([std::process::id()])
            .map(ticks)
            .sum::<u64>()
    };
    company.go()?;
    company.hear(&vec![true; programs.len()])?;
    let (cpu, own_before) = (Cpu::now()?, own(&company));
    let before = board.as_ref().map(Board::snapshot);
    let (arbiter, began) = (arbiter_ns(&place.station), Instant::now());
    let measured: Vec<bool> = programs.iter().map(|p| p.measured).collect();
    let lines = company.hear(&measured)?;
    let after = board.as_ref().map(Board::snapshot);
    let arbiter = arbiter_ns(&place.station).saturating_sub(arbiter) as f64;
    let others = Cpu::now()?.since_without(&cpu, own(&company).saturating_sub(own_before));
    let mut arm = Arm {
        others,
        doorbell_us: kit.doorbell_us,
        arbiter: arbiter / began.elapsed().as_nanos() as f64,
        ..Arm::default()
    };
    for (line, measured) in lines.iter().zip(measured) {
        let steps = match measured {
            true => Steps::parse(line)
                .with_context(|| format!("the program printed `{line}` in place of times"))?,
            false => Steps::default(),
        };
        arm.steps.push(steps);
    }
    if let (Some(before), Some(after)) = (before, after) {
        let passed = after.now_ns.saturating_sub(before.now_ns).max(1) as f64;
        let busy = |board: &BoardSnapshot, pid: u32| {
            let of = board.gpus.iter().flat_map(|g| &g.processes);
            of.filter(|p| p.pid == pid).map(|p| p.busy_ns).sum::<u64>()
        };
        arm.used = company
            .pids()
            .map(|pid| busy(&after, pid).saturating_sub(busy(&before, pid)) as f64 / passed)
            .collect();
        let switches = |board: &BoardSnapshot| board.gpus.iter().map(|g| g.switches).sum::<u64>();
        let steps: u64 = programs.iter().map(|p| p.steps() / fewer.max(1)).sum();
        arm.switches_per_step =
            Some(switches(&after).saturating_sub(switches(&before)) as f64 / steps.max(1) as f64);
    }
    Ok(arm)
}

fn command(kit: &Kit, place: &Place, program: &Program, shared: bool, fewer: u64) -> Command {
    let station = &place.station;
    let part = f64::from(program.share) / 1000.0;
    let size = match program.gpus.split(',').count() {
        1 => part.to_string(),
        many => format!("{many}x{part}"),
    };
    let mut command = if shared {
        let mut command = station.command();
        command
            .args(["claim", "-q", "--gpu-ids", program.gpus, "-g"])
            .arg(size)
            .arg("--")
            .arg(&kit.program);
        command
    } else {
        let mut command = station.client_environment(Command::new(&kit.program));
        command.env("CUDA_VISIBLE_DEVICES", program.gpus);
        command
    };
    if let Some(rounds) = place.rounds {
        command.env("LIGHT_ROUNDS", rounds.to_string());
    }
    if let [words @ .., _] = program.words {
        let steps = program.steps() / fewer.max(1);
        command.args(words).arg(steps.to_string());
    }
    command
}

/// Processor time of a process so far, in ticks.
fn ticks(pid: u32) -> u64 {
    let path = Path::new("/proc").join(pid.to_string()).join("stat");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The name may contain anything, and ends at the last parenthesis.
    let after = text.rsplit(')').next().unwrap_or("");
    let number = |at: usize| -> u64 {
        let word = after.split_whitespace().nth(at);
        word.and_then(|w| w.parse().ok()).unwrap_or(0)
    };
    number(11) + number(12)
}
