//! Helpers of the whole-program tests: a station, a client with known contents, waiting for a condition, random
//! numbers with a printed seed.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "each test file uses its own part"
)]

pub mod detach;
pub mod machine;
pub mod notebook;
pub mod others;
pub mod python;
pub mod runs;
pub mod steps;
pub mod terminal;
pub mod users;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gshare::station::{Options, Station};
use gshare_proto::{ClaimView, Snapshot};
use gshare_sim_board::{Board, BoardSnapshot};
use nix::sys::signal::Signal;

/// The program under test.
pub const GSHARE: &str = env!("CARGO_BIN_EXE_gshare");

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// Longest wait for something that takes no time on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);
/// The raw client's answer when memory exceeds a limit.
pub const FULL: &str = "error 2 CUDA_ERROR_OUT_OF_MEMORY";
/// The kernel's answer to opening a GPU that a filter denies, and one without a driver behind its node.
pub const DENIED: &str = "Operation not permitted";
pub const OPEN: &str = "No such device or address";

/// The program of stations: the one under test, or an installed one named by `GSHARE_PROGRAM`, so that the same tests
/// can run on released packages.
pub fn program() -> PathBuf {
    static LAID_OUT: Mutex<()> = Mutex::new(());
    let Some(program) = std::env::var_os("GSHARE_PROGRAM").map(PathBuf::from) else {
        return PathBuf::from(GSHARE);
    };
    // Built without its parts it gets those of this build.
    let parts = gshare_artifacts::beside(&program);
    let _one = LAID_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    if !parts.is_dir() {
        gshare_artifacts::lay_out(&parts).expect("laid out");
    }
    program
}

/// A program of `examples/`, which cargo builds with the tests.
pub fn example(name: &str) -> PathBuf {
    PathBuf::from(GSHARE).with_file_name("examples").join(name)
}

/// Copies a program to be run. Not with a descriptor of this process: a child that another test starts meanwhile has
/// it open for writing until its exec, and the kernel runs no such file.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    let copied = copy.arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(copied.expect("cp starts").success(), "{copy:?}");
}

/// For tests of one file that disturb one another: one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A simulated workstation, changed by `change` before it starts.
pub fn station_with(change: impl FnOnce(&mut Options)) -> Station {
    let mut options = Options::new(program());
    options.laboratory = PathBuf::from(GSHARE);
    change(&mut options);
    Station::start(&options).unwrap_or_else(|e| panic!("the station does not start: {e:#}"))
}

/// Two RTX 4090 and two H100, looked at ten times a second.
pub fn station() -> Station {
    station_with(|o| o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned())
}

/// The same with more configuration.
pub fn quick(config: &str) -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n{config}");
    })
}

/// The words of a command line.
pub fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Runs gshare with these words.
pub fn run(station: &Station, words: &[&str]) -> Output {
    let mut command = station.command();
    let output = command.args(words).stdin(Stdio::null()).output();
    output.expect("gshare runs")
}

/// The output: standard output, then standard error.
pub fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

/// Asserts that a text contains all of these.
#[track_caller]
pub fn has_all<W: AsRef<str>>(text: &str, all: &[W]) {
    for words in all.iter().map(AsRef::as_ref) {
        assert!(text.contains(words), "without {words:?}: {text}");
    }
}

/// Runs it: its exit code and output.
pub fn tried(station: &Station, words: &[&str]) -> (Option<i32>, String) {
    let output = run(station, words);
    (output.status.code(), text(&output))
}

/// Runs it and returns its output; it must succeed.
pub fn ok(station: &Station, words: &[&str]) -> String {
    let output = run(station, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether claims have device filters here.
pub fn is_filtered(station: &Station) -> bool {
    let served = station.snapshot().expect("served").service;
    served.is_some_and(|s| s.device_filter)
}

/// Ends the service by a signal, and starts it again.
pub fn restart(station: &mut Station, signal: Signal) {
    station.stop_service(signal).expect("ended");
    station.start_service().expect("starts again");
}

/// The first row of `gshare doctor` with this name, for this command's user.
pub fn doctor_row(mut command: Command, named: &str) -> serde_json::Value {
    let output = command.args(["doctor", "--json"]).output().expect("runs");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut rows = told["checks"].as_array().expect("rows").iter();
    let row = rows.find(|r| r["name"].as_str().is_some_and(|n| n.starts_with(named)));
    row.expect("a row").clone()
}

/// Runs it, expects that it is not available now (75), and returns its output.
pub fn refused(station: &Station, words: &[&str]) -> String {
    let output = run(station, words);
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert_eq!(output.status.code(), Some(75), "{words:?}: {errors}");
    errors
}

/// A new pipe, which never ends while this is open.
pub fn pipe(path: &Path) -> File {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let mut both = File::options();
    both.read(true).write(true).open(path).expect("opened")
}

/// Waits until no claim is left.
pub fn all_ended(station: &Station) {
    until("the claim has ended", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

/// The truth: the simulation's board.
pub fn board(station: &Station) -> Board {
    Board::open(&station.sim_dir().join("board")).expect("the board opens")
}

/// Longest wait for something with a time limit. Up to two seconds are promises of the product; longer limits only
/// end a test that hangs, and a slow or busy machine gets four times as much.
pub fn patience(most: Duration) -> Duration {
    if most < Duration::from_secs(5) {
        most
    } else {
        most * 4
    }
}

/// What is waited for: something that is found, or something that holds.
pub trait Awaited {
    type Found;
    fn found(self) -> Option<Self::Found>;
}

impl<T> Awaited for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

impl Awaited for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

/// Polls until `probe` finds something or is true, at most for `most`. Polls less often what takes longer: a probe is
/// mostly a whole snapshot, and other tests run meanwhile.
pub fn until<A: Awaited>(what: &str, most: Duration, mut probe: impl FnMut() -> A) -> A::Found {
    let most = patience(most);
    let start = Instant::now();
    loop {
        if let Some(found) = probe().found() {
            return found;
        }
        let waited = start.elapsed();
        assert!(waited < most, "not within {most:?}: {what}");
        std::thread::sleep((waited / 8).clamp(Duration::from_millis(5), Duration::from_millis(40)));
    }
}

/// Number of the service's looks at the driver.
pub fn looks(station: &Station) -> u64 {
    let served = station.snapshot().expect("served").service;
    served.expect("told").looks
}

/// Waits for the next look at the driver, and returns its number: until the one after it, the driver is not asked.
pub fn next_look(station: &Station) -> u64 {
    let before = looks(station);
    until("the service looks", Duration::from_secs(10), || {
        Some(looks(station)).filter(|n| *n > before)
    })
}

/// Waits until a claim is in over-use: its view, and the number of the look at which that was first reported.
pub fn accused_at(station: &Station, pid: u32) -> (ClaimView, u64) {
    until("it is accused", Duration::from_secs(20), || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?;
        let look = snapshot.service.as_ref()?.looks;
        claim.overuse.is_some().then(|| (claim.clone(), look))
    })
}

/// Whether this test process is root; says why it skips if not.
pub fn is_root(test: &str) -> bool {
    let root = nix::unistd::Uid::effective().is_root();
    if !root {
        println!("skipped: {test} needs root");
    }
    root
}

/// Ends a test that needs root.
macro_rules! root {
    ($test:expr) => {
        if !$crate::support::is_root($test) {
            return;
        }
    };
}
pub(crate) use root;

/// A program in a claim, driven line by line.
#[derive(Debug)]
pub struct Raw {
    /// The process: `gshare claim` until its exec, then the program itself.
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Raw {
    /// `gshare claim FLAGS -- CLIENT`.
    pub fn command(station: &Station, flags: &[&str]) -> Command {
        let mut command = station.command();
        command.arg("claim").args(flags).arg("--");
        command.arg(example("raw_client"));
        command
    }

    /// Starts the raw client in a claim.
    pub fn claim(station: &Station, flags: &[&str]) -> Self {
        Self::start(Self::command(station, flags))
    }

    /// The same, which may have to wait: its first line is `ok ready`.
    pub fn asks(station: &Station, flags: &[&str]) -> Self {
        Self::spawn(&mut Self::command(station, flags))
    }

    /// One more process of a claim.
    pub fn join(station: &Station, id: &str) -> Self {
        let mut command = station.command();
        command.args(["join", "-q", id, "--"]);
        command.arg(example("raw_client"));
        Self::start(command)
    }

    /// A program without gshare.
    pub fn outside(station: &Station) -> Self {
        let mut command = Command::new(example("raw_client"));
        command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        Self::start(command)
    }

    /// Starts any command that ends in the raw client, and waits until it is ready.
    pub fn start(mut command: Command) -> Self {
        let mut raw = Self::spawn(&mut command);
        let ready = raw.line();
        assert_eq!(ready, "ok ready", "{command:?}");
        raw
    }

    /// Starts the command without waiting for its first answer.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            stdin,
            stdout,
        }
    }

    /// The next line it prints; empty when it has ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout
            .read_line(&mut line)
            .expect("the client answers");
        line.trim_end().to_owned()
    }

    /// Sends a command and returns the answer; empty when it has ended.
    pub fn ask(&mut self, command: &str) -> String {
        match self.send(command) {
            Ok(()) => self.line(),
            Err(_) => String::new(),
        }
    }

    /// Sends a command without waiting for the answer.
    pub fn tell(&mut self, command: &str) {
        self.send(command).expect("the client reads");
    }

    fn send(&mut self, command: &str) -> std::io::Result<()> {
        let stdin = self.stdin.as_mut().expect("still open");
        writeln!(stdin, "{command}")?;
        stdin.flush()
    }

    /// Free and total bytes, by the driver.
    pub fn info(&mut self) -> (u64, u64) {
        let answer = self.ask("info");
        let numbers: Vec<u64> = answer
            .split_whitespace()
            .skip(1)
            .filter_map(|w| w.parse().ok())
            .collect();
        match numbers.as_slice() {
            [free, total] => (*free, *total),
            _ => panic!("info answered {answer:?}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and wait.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }

    /// Lets it end and returns its exit code.
    pub fn finish(mut self) -> Option<i32> {
        self.stdin = None;
        self.child.wait().expect("reaped").code()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The claim of a process in a snapshot.
pub fn claim_of(snapshot: &Snapshot, pid: u32) -> Option<&ClaimView> {
    snapshot.claims.iter().find(|c| c.pid == Some(pid))
}

/// The claim of a process, which has one.
pub fn claim(station: &Station, pid: u32) -> ClaimView {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, pid).expect("its claim").clone()
}

/// Bytes on a GPU of the board that belong to these processes.
pub fn board_bytes(board: &BoardSnapshot, gpu: usize, pids: &[u32]) -> u64 {
    board.gpus[gpu]
        .processes
        .iter()
        .filter(|p| pids.contains(&p.pid))
        .map(|p| p.bytes)
        .sum()
}

/// A small random generator (xorshift*) with a seed that is printed, so that a failure can be repeated
/// with `GSHARE_TEST_SEED`.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded from the environment, otherwise from the clock.
    pub fn new(test: &str) -> Self {
        let given = std::env::var("GSHARE_TEST_SEED")
            .ok()
            .and_then(|s| s.parse().ok());
        let clock = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos());
        let seed = given.unwrap_or((clock & 0xffff_ffff) as u64 | 1);
        println!("{test}: GSHARE_TEST_SEED={seed}");
        Self::seeded(seed)
    }

    /// With this seed; none is 0.
    pub fn seeded(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// The seed with which it would continue from here.
    pub fn seed(&self) -> u64 {
        self.0
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}
