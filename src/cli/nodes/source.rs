//! Sources of a machine's figures: its service by ssh, or a status file in a shared directory. One thread for each,
//! so that none waits for another.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gshare_core::units::show_duration;
use gshare_proto::{Snapshot, messages, printable};
use nix::fcntl::OFlag;

use super::{Node, Row, SILENT};
use crate::clock::unix_ms;
use crate::command::failure::{self, Failure};

/// Time between two attempts to reach a machine.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest line from a machine, in bytes: snapshots grow with the number of claims.
const LONGEST: u64 = 64 << 20;
/// Largest status file, in bytes.
const LARGEST_FILE: u64 = 64 << 10;
/// Longest text of ssh's that is shown, in characters.
const LONGEST_SAID: usize = 300;

/// A machine, or several.
#[derive(Debug)]
pub(super) enum Source {
    /// A host name for ssh.
    Ssh(OsString),
    /// A directory with status files.
    Files(PathBuf),
}

impl Source {
    /// # Errors
    ///
    /// A name that ssh would take for an option.
    pub(super) fn of(word: OsString) -> Result<Self, Failure> {
        if word.as_bytes().contains(&b'/') {
            return Ok(Self::Files(word.into()));
        }
        if word.as_bytes().first().is_none_or(|b| *b == b'-') {
            let text = format!("`{}` is not a host", word.display());
            return Err(Failure::new(failure::USAGE, text));
        }
        Ok(Self::Ssh(word))
    }
}

/// What is known of a machine.
#[derive(Debug, Default)]
struct State {
    node: Option<Node>,
    /// Time of its last state.
    at: Option<Instant>,
    /// Why there is nothing newer.
    lost: Option<String>,
}

type States = Arc<Mutex<BTreeMap<(usize, String), State>>>;

/// All machines.
#[derive(Debug)]
pub(super) struct Sources {
    states: States,
    /// Of each source, for ssh.
    hosts: Vec<Option<OsString>>,
    programs: Vec<Arc<Mutex<Option<Child>>>>,
    /// Directories that have not been read yet.
    unread: Arc<Mutex<usize>>,
    begun: Instant,
}

impl Sources {
    /// Starts to query all.
    pub(super) fn open(socket: Option<&Path>, sources: Vec<Source>) -> Self {
        let mut all = Self {
            states: States::default(),
            hosts: Vec::new(),
            programs: Vec::new(),
            unread: Arc::default(),
            begun: Instant::now(),
        };
        for (n, source) in sources.into_iter().enumerate() {
            let states = Arc::clone(&all.states);
            match source {
                Source::Ssh(host) => {
                    all.hosts.push(Some(host.clone()));
                    let key = (n, host.display().to_string());
                    locked(&states).insert(key.clone(), State::default());
                    let program = Arc::default();
                    all.programs.push(Arc::clone(&program));
                    let socket = socket.map(Path::to_owned);
                    std::thread::spawn(move || {
                        loop {
                            let lost = listen(&host, socket.as_deref(), &program, |node| {
                                tell(&states, &key, node);
                            });
                            if let Some(state) = locked(&states).get_mut(&key) {
                                state.lost = Some(lost);
                            }
                            std::thread::sleep(AGAIN);
                        }
                    });
                }
                Source::Files(dir) => {
                    all.hosts.push(None);
                    *locked(&all.unread) += 1;
                    let unread = Arc::clone(&all.unread);
                    std::thread::spawn(move || {
                        look(&states, n, &dir);
                        *locked(&unread) -= 1;
                        loop {
                            std::thread::sleep(Duration::from_secs(1));
                            look(&states, n, &dir);
                        }
                    });
                }
            }
        }
        all
    }

    /// Whether each has answered or failed.
    pub(super) fn all_told(&self) -> bool {
        let told = |s: &State| s.at.is_some() || s.lost.is_some();
        *locked(&self.unread) == 0 && locked(&self.states).values().all(told)
    }

    /// How long a picture of that time holds: a machine that becomes silent since then is shown at once.
    pub(super) fn holds(&self, every: Duration, taken: Instant) -> Duration {
        let states = locked(&self.states);
        let answer = states.values().filter(|s| s.lost.is_none());
        let at = answer.filter_map(|s| Some(s.at? + SILENT));
        let next = at.filter(|at| *at > taken).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        left.map_or(every, |left| left.min(every))
    }

    /// The host of a source, if it is reached by ssh.
    pub(super) fn host(&self, source: usize) -> Option<&OsStr> {
        self.hosts.get(source)?.as_deref()
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let states = locked(&self.states);
        let row = |((source, name), state): (&(usize, String), &State)| {
            let quiet = state.at.unwrap_or(self.begun).elapsed();
            let silent = || match quiet >= SILENT {
                true => Some(format!("silent for {}", show_duration(whole(quiet)))),
                false => state.at.is_none().then(|| "no answer yet".to_owned()),
            };
            Row {
                name: name.clone(),
                node: state.node.clone(),
                silent: state.lost.clone().or_else(silent),
                source: *source,
            }
        };
        states.iter().map(row).collect()
    }
}

/// Ends the child process with the reader.
impl Drop for Sources {
    fn drop(&mut self) {
        for program in &self.programs {
            if let Some(mut child) = locked(program).take() {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

fn tell(states: &States, key: &(usize, String), node: Node) {
    let state = State {
        node: Some(node),
        at: Some(Instant::now()),
        lost: None,
    };
    locked(states).insert(key.clone(), state);
}

/// `gshare` on another machine.
pub(in crate::cli) fn ssh(host: &OsStr) -> Command {
    let mut command = Command::new("ssh");
    command
        .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=3"])
        .args(["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3"])
        .arg(host)
        .arg("gshare");
    command
}

/// Handles a machine's output until it ends; returns why it ended.
fn listen(
    host: &OsString,
    socket: Option<&Path>,
    program: &Mutex<Option<Child>>,
    mut told: impl FnMut(Node),
) -> String {
    let mut command = ssh(host);
    if let Some(socket) = socket {
        let path = crate::cli::env::quoted(&socket.to_string_lossy());
        command.arg("--socket").arg(path);
    }
    let command = command
        .args(["status", "--json", "--watch", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return no_ssh(&error).message,
    };
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return "ssh has no output".to_owned();
    };
    *locked(program) = Some(child);
    // Read stderr too: a program that writes much there would block.
    let last = Arc::new(Mutex::new(String::new()));
    let said = Arc::clone(&last);
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stderr.take(LONGEST)).split(b'\n');
        while let Some(Ok(line)) = lines.next() {
            if let Some(line) = meant(&line) {
                *locked(&said) = line;
            }
        }
    });
    let mut lines = BufReader::new(stdout);
    let mut line = Vec::new();
    let mut wrong = None;
    while wrong.is_none() {
        line.clear();
        match lines.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(n) if n > 0 && line.ends_with(b"\n") => {}
            _ => break,
        }
        match serde_json::from_slice::<Snapshot>(&line) {
            Ok(snapshot) => told(Node::of(&snapshot)),
            Err(_) => wrong = Some(messages::strange_answer()),
        }
    }
    let ended = locked(program).take();
    if let Some(mut child) = ended {
        let _ = child.kill();
        let _ = child.wait();
    }
    // Its last output may still be on its way.
    std::thread::sleep(Duration::from_millis(50));
    let said = locked(&last).clone();
    wrong.unwrap_or_else(|| match said.is_empty() {
        true => "the connection ended".to_owned(),
        false => said,
    })
}

/// A line that explains the end.
fn meant(line: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(line);
    let line = line.trim();
    if line.is_empty() || line.starts_with("hint: ") {
        return None;
    }
    let line = line.strip_prefix("gshare: ").unwrap_or(line);
    Some(printable(line).take(LONGEST_SAID).collect())
}

/// The error if ssh cannot be started.
pub(super) fn no_ssh(error: &io::Error) -> Failure {
    let failure = Failure::new(failure::NOT_FOUND, format!("cannot start ssh: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => failure.with_hint("install ssh: the package openssh-client"),
        _ => failure,
    }
}

/// Reads the status files of a directory; unchanged ones are skipped.
fn look(states: &States, n: usize, dir: &Path) {
    let whole = (n, dir.display().to_string());
    let files = match std::fs::read_dir(dir) {
        Ok(files) => files,
        Err(error) => {
            let lost = Some(format!("cannot be read: {error}"));
            locked(states).entry(whole).or_default().lost = lost;
            return;
        }
    };
    let mut any = false;
    for path in files.filter_map(|f| Some(f.ok()?.path())) {
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let Some(node) = read(&path) else { continue };
        any = true;
        let name = path.file_stem().unwrap_or_default().display().to_string();
        let key = (n, name);
        let known = locked(states).get(&key).map(|s| {
            let taken = s.node.as_ref().map(|node| node.taken_ms);
            (taken, s.at.is_some())
        });
        match known {
            Some((taken, _)) if taken == Some(node.taken_ms) => {}
            Some(_) => tell(states, &key, node),
            // The first look compares clocks, which differ between machines by less than that.
            None if unix_ms().abs_diff(node.taken_ms) < 5_000 => tell(states, &key, node),
            None => {
                let state = State {
                    lost: Some("silent: its status file is old".to_owned()),
                    node: Some(node),
                    at: None,
                };
                locked(states).insert(key, state);
            }
        }
    }
    let mut states = locked(states);
    if any {
        states.remove(&whole);
    } else {
        states.entry(whole).or_default().lost = Some("no status file is in it".to_owned());
    }
}

fn read(path: &Path) -> Option<Node> {
    // Do not block on a pipe in that place.
    let mut open = std::fs::OpenOptions::new();
    let open = open.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = open.open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_became_silent_while_a_picture_was_drawn_is_shown_at_once() {
        let sources = Sources::open(None, Vec::new());
        let every = Duration::from_secs(2);
        let taken = Instant::now();
        let state = |before: Duration| State {
            at: taken.checked_sub(before),
            ..State::default()
        };
        let put = |state| locked(&sources.states).insert((0, "m0".to_owned()), state);
        put(state(SILENT));
        assert_eq!(sources.holds(every, taken), every, "the picture has it");
        put(state(SILENT - Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(sources.holds(every, taken), Duration::ZERO);
        put(state(Duration::from_secs(2)));
        let left = sources.holds(every, taken);
        assert!(!left.is_zero() && left < SILENT, "{left:?}");
    }
}
