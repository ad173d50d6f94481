//! The screen on a real pseudo-terminal, seen through a terminal emulator: what it draws, and that
//! the terminal is as it was, whatever way the program leaves.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};

/// Nothing here takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The terminal and what has been written to it.
struct Seen {
    parser: vt100::Parser,
    raw: Vec<u8>,
}

/// `examples/canned` on a terminal.
struct Canned {
    seen: Arc<Mutex<Seen>>,
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    /// How the terminal was set before.
    before: String,
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize {
        rows,
        cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

/// The example, built by `cargo test` together with this test.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let path = target.join("examples/canned");
    assert!(
        path.exists(),
        "{} is missing: `cargo test -p gshare-ui` builds it",
        path.display()
    );
    path
}

impl Canned {
    fn start(args: &[&str]) -> Self {
        let pty = native_pty_system().openpty(size(24, 80)).unwrap();
        let before = format!("{:?}", pty.master.get_termios());
        let mut command = CommandBuilder::new(example());
        command.args(args);
        command.env("TERM", "xterm-256color");
        command.env("LC_ALL", "C.UTF-8");
        command.env("TZ", "UTC");
        command.env_remove("NO_COLOR");
        command.env_remove("COLORTERM");
        let child = pty.slave.spawn_command(command).unwrap();
        let some = |n| NonZeroU16::new(n).unwrap();
        let seen = Arc::new(Mutex::new(Seen {
            parser: vt100::Parser::new(some(24), some(80), 0),
            raw: Vec::new(),
        }));
        let mut output = pty.master.try_clone_reader().unwrap();
        let keys = pty.master.take_writer().unwrap();
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            let mut buf = [0; 4096];
            // The end of the program is an error or an empty read.
            while let Ok(n @ 1..) = output.read(&mut buf) {
                let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                seen.parser.process(&buf[..n]);
                seen.raw.extend_from_slice(&buf[..n]);
            }
        });
        let out = Self {
            seen,
            child,
            master: pty.master,
            keys,
            before,
        };
        // The slave stays open in `before`'s sense: settings live as long as the master.
        drop(pty.slave);
        out
    }

    fn look<T>(&self, f: impl FnOnce(&Seen) -> T) -> T {
        f(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn text(&self) -> String {
        self.look(|s| s.parser.screen().contents())
    }

    fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "no {what} on\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn until_text(&self, text: &str) {
        self.until(text, |c| c.text().contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .process_id()
            .and_then(|p| i32::try_from(p).ok())
            .unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// State of the process by /proc: `T` is stopped.
    fn state(&self) -> Option<char> {
        let pid = self.child.process_id()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn settings(&self) -> String {
        format!("{:?}", self.master.get_termios())
    }

    /// The screen is gone and the terminal is as before.
    fn assert_given_back(&self) {
        self.until("ordinary screen", |c| {
            c.look(|s| !s.parser.screen().alternate_screen())
        });
        self.look(|s| {
            let screen = s.parser.screen();
            assert!(!screen.hide_cursor(), "the cursor is hidden");
            assert!(!screen.bracketed_paste(), "pastes are still marked");
            let mouse = screen.mouse_protocol_mode();
            assert_eq!(
                mouse,
                vt100::MouseProtocolMode::None,
                "clicks are still told"
            );
        });
        assert_eq!(self.settings(), self.before);
    }

    fn end(mut self, words: &str) -> ExitStatus {
        self.until_text(words);
        let status = self.child.wait().unwrap();
        self.assert_given_back();
        status
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        // After a failed test; otherwise it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_draws_and_gives_the_terminal_back_on_q() {
    let mut canned = Canned::start(&["workstation"]);
    // The first frame may come before the first snapshot, with the key line already there.
    canned.until_text("15.3/17.7/23.5");
    canned.until_text("? help  q quit");
    canned.look(|s| {
        let screen = s.parser.screen();
        assert!(screen.alternate_screen() && screen.hide_cursor());
        let raw = String::from_utf8_lossy(&s.raw);
        assert!(raw.contains("\u{1b}[?2026h") && raw.contains("\u{1b}[?2026l"));
        // Used cells are green, free ones grey.
        let bar = |col| screen.cell(3, col).map(vt100::Cell::fgcolor);
        assert_eq!(bar(8), Some(vt100::Color::Idx(71)));
        assert_eq!(bar(25), Some(vt100::Color::Idx(240)));
    });
    assert_ne!(canned.settings(), canned.before, "raw mode was never on");
    assert!(canned.text().contains("15.3/17.7/23.5"));
    canned.press("q");
    assert!(canned.end("left: quit").success());
}

#[test]
fn ctrl_c_leaves_from_within_a_dialog() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("? help  q quit");
    canned.press("n");
    canned.until_text("Claim a part of a GPU");
    canned.press("\u{3}");
    assert!(canned.end("left: quit").success());
}

#[test]
fn signals_that_end_it_give_the_terminal_back() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let canned = Canned::start(&["demo"]);
        canned.until_text("SIMULATED DRIVER");
        canned.signal(signal);
        canned.end(&format!("left: signal {}", signal as i32));
    }
}

#[test]
fn a_panic_is_readable_and_gives_the_terminal_back() {
    let canned = Canned::start(&["workstation", "--panic"]);
    let status = canned.end("on purpose");
    assert!(!status.success());
}

#[test]
fn it_stops_and_goes_on_like_any_program() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("? help  q quit");
    for round in ["kill -TSTP", "Ctrl-Z"] {
        if round == "Ctrl-Z" {
            canned.press("\u{1a}");
        } else {
            canned.signal(Signal::SIGTSTP);
        }
        canned.until(&format!("stop by {round}"), |c| c.state() == Some('T'));
        canned.assert_given_back();
        canned.signal(Signal::SIGCONT);
        canned.until("screen after the stop", |c| {
            c.look(|s| s.parser.screen().alternate_screen()) && c.text().contains("q quit")
        });
        assert_ne!(canned.settings(), canned.before, "{round}: raw mode is off");
    }
    // It still reads keys.
    canned.press("?");
    canned.until_text("On the screens");
    canned.press("\u{1b}");
    canned.until("closed help", |c| !c.text().contains("On the screens"));
    canned.press("q");
    canned.end("left: quit");
}

#[test]
fn a_new_size_is_drawn_in_full() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("? help  q quit");
    let some = |n| NonZeroU16::new(n).unwrap();
    {
        let mut seen = canned.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.parser.screen_mut().set_size(some(40), some(120));
    }
    canned.master.resize(size(40, 120)).unwrap();
    canned.until_text("NOTEBOOK / COMMAND");
    canned.until_text("SM history");
    canned.press("q");
    canned.end("left: quit");
}

#[test]
fn a_claim_is_released_and_another_made() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("vit.ipynb");
    canned.press("jx");
    canned.until_text("Release c12");
    canned.press("y");
    canned.until_text("c12 released");
    canned.until("claim gone", |c| !c.text().contains("vit.ipynb"));
    canned.press("n\t\t\tprobe\r");
    canned.until_text("c23 is yours");
    canned.press("\r");
    canned.until_text("probe");
    canned.press("n");
    canned.until_text("Claim a part of a GPU");
    canned.press("\u{15}1\r");
    canned.until_text("most free is 5.8 on GPU 0");
    canned.press("\u{3}");
    canned.end("left: quit");
}

#[test]
fn while_nothing_changes_little_is_written() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("? help  q quit");
    let written = |c: &Canned| c.look(|s| s.raw.len());
    let clock = |c: &Canned| c.look(|s| s.parser.screen().contents_between(0, 72, 0, 80));
    // From one second of the clock to the one after the next.
    let first = clock(&canned);
    canned.until("next second", |c| clock(c) != first);
    let (start, second) = (written(&canned), clock(&canned));
    canned.until("second after", |c| clock(c) != second);
    let bytes = written(&canned) - start;
    assert!(
        (1..200).contains(&bytes),
        "{bytes} bytes for a second of the clock"
    );
    canned.press("q");
    canned.end("left: quit");
}

#[test]
fn without_a_terminal_it_says_so() {
    let output = std::process::Command::new(example()).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("needs a terminal"), "{error}");
}
