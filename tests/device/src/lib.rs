//! Checks an NVIDIA driver against the documentation of the CUDA Driver API and NVML.
//!
//! The program needs only a driver: it opens `libcuda.so.1` and `libnvidia-ml.so.1` and calls them by name. Every check
//! runs in a process of its own, so that a check that crashes, hangs or corrupts its context does not affect the
//! others. The program runs unchanged on the simulated driver and on real GPUs. It prints a table of the differences
//! from the documentation.
#![allow(unsafe_code, reason = "calls C interfaces")]

mod call;
mod checks;
mod probe;
mod trial;

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use trial::{Check, Line};

/// A check that takes longer than this counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);

const USAGE: &str = "\
usage: gshare-device [--list | --probe] [NAME...]

Runs the checks whose names begin with one of NAME, or all, on the first GPU that CUDA shows, and
prints what differs from the documentation. Ends with 0 if nothing differs.

  --list    only list the checks and their sources
  --probe   only tell what this machine allows (root, cgroups, MPS, counters)";

/// Arguments with which this program runs the list.
static BEFORE: OnceLock<Vec<String>> = OnceLock::new();

/// The command to run this program again, as a helper.
pub(crate) fn own() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.args(BEFORE.get().into_iter().flatten());
    command
}

/// Results of the list, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Checks that ran.
    pub checks: u32,
    /// Points in all checks.
    pub points: u32,
    /// Checks without a difference.
    pub passed: u32,
    /// Checks with a difference.
    pub different: u32,
    /// Checks that do not apply here.
    pub skipped: u32,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            checks,
            points,
            passed,
            different,
            skipped,
        } = self;
        write!(
            f,
            "{checks} checks with {points} points: {passed} as documented, {different} different, {skipped} skipped"
        )
    }
}

impl Summary {
    /// Parses the summary line of the list's output.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let numbers: Vec<u32> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
        let [checks, points, passed, different, skipped] = numbers[..] else {
            return None;
        };
        let read = Self {
            checks,
            points,
            passed,
            different,
            skipped,
        };
        (read.to_string() == line).then_some(read)
    }
}

/// Runs the command in the arguments. Helpers are this program with `before` in front of their own arguments.
#[must_use]
pub fn run(before: &[&str], args: &[String]) -> ExitCode {
    BEFORE.get_or_init(|| before.iter().map(|word| (*word).to_owned()).collect());
    let all = checks::all();
    match args.first().map(String::as_str) {
        Some("--help" | "-h") => println!("{USAGE}"),
        Some("--list") => {
            for c in &all {
                println!("{:<28} {}", c.name, c.source);
            }
            println!("{} checks", all.len());
        }
        Some("--probe") => probe::print(),
        Some("--check") => {
            let name = args.get(1).map_or("", String::as_str);
            return match all.iter().find(|c| c.name == name) {
                Some(c) => trial::run_here(c),
                None => ExitCode::from(2),
            };
        }
        Some("--role") => return checks::role(&args[1..]),
        Some(option) if option.starts_with('-') => {
            eprintln!("{option}: unknown option\n{USAGE}");
            return ExitCode::from(2);
        }
        _ => return run_list(&all, args),
    }
    ExitCode::SUCCESS
}

fn run_list(all: &[Check], names: &[String]) -> ExitCode {
    let wanted = |c: &&Check| names.is_empty() || names.iter().any(|n| c.name.starts_with(n));
    let chosen: Vec<&Check> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        eprintln!("no check has such a name; --list lists them");
        return ExitCode::from(2);
    }
    println!("{}", probe::machine());
    if call::find_cuda("cuInit").is_none() {
        eprintln!("libcuda.so.1 cannot be loaded: a driver has to be installed here");
        return ExitCode::from(2);
    }
    let mut sum = Summary::default();
    for c in &chosen {
        let lines = run_apart(c);
        let mut is_skipped = false;
        let mut bad = false;
        for line in lines {
            match line {
                Line::Point => sum.points += 1,
                Line::Skipped(why) => {
                    is_skipped = true;
                    println!("skipped    {:<28} {why}", c.name);
                }
                Line::Different { what, want, seen } => {
                    sum.points += 1;
                    bad = true;
                    println!("DIFFERENT  {:<28} {what}", c.name);
                    println!("             expected {want}, seen {seen}");
                    println!("             source: {}", c.source);
                }
            }
        }
        sum.checks += 1;
        match (bad, is_skipped) {
            (true, _) => sum.different += 1,
            (false, true) => sum.skipped += 1,
            (false, false) => sum.passed += 1,
        }
    }
    println!("{sum}");
    if names.is_empty() {
        probe::print();
    }
    if sum.different == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one check in a process of its own.
fn run_apart(check: &Check) -> Vec<Line> {
    let died = |seen: String| Line::Different {
        what: "the check's process".to_owned(),
        want: "an end".to_owned(),
        seen,
    };
    let child = own()
        .args(["--check", check.name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return vec![died(format!("no way to start it: {e}"))],
    };
    let mut out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(out) = &mut out {
            let _ = out.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let end = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    let mut lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
    match status {
        None => lines.push(died(format!("none within {} s", LIMIT.as_secs()))),
        Some(s) if !s.success() => lines.push(died(s.to_string())),
        Some(_) if lines.is_empty() => lines.push(died("no point checked".to_owned())),
        Some(_) => {}
    }
    lines
}
