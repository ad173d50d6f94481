//! The example `canned` on a real pseudo-terminal, seen through a terminal emulator.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};

/// Longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The terminal and what has been written to it.
pub(crate) struct Seen {
    pub(crate) parser: vt100::Parser,
    pub(crate) raw: Vec<u8>,
}

/// Bytes at the end that belong to an incomplete synchronized update.
fn unfinished(raw: &[u8]) -> usize {
    let last = |mark: &[u8]| raw.windows(mark.len()).rposition(|bytes| bytes == mark);
    match (last(b"\x1b[?2026h"), last(b"\x1b[?2026l")) {
        (Some(begin), end) if end.is_none_or(|end| end < begin) => raw.len() - begin,
        _ => 0,
    }
}

/// `examples/canned` on a terminal.
pub(crate) struct Canned {
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) child: Box<dyn Child + Send + Sync>,
    pub(crate) master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    /// The terminal's settings before.
    pub(crate) before: String,
}

pub(crate) fn size(rows: u16, cols: u16) -> PtySize {
    PtySize {
        rows,
        cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

/// The example, built by `cargo test` together with this test.
pub(crate) fn example() -> PathBuf {
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
    /// At 80x24 with 256 colours.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_at((80, 24), args, &[])
    }

    /// At any size, with variables for the program besides those of a terminal with 256 colours and UTF-8. An empty
    /// value removes a variable.
    pub(crate) fn start_at((cols, rows): (u16, u16), args: &[&str], vars: &[(&str, &str)]) -> Self {
        let pty = native_pty_system().openpty(size(rows, cols)).unwrap();
        let before = format!("{:?}", pty.master.get_termios());
        let mut command = CommandBuilder::new(example());
        command.args(args);
        command.env("TERM", "xterm-256color");
        command.env("LC_ALL", "C.UTF-8");
        command.env("TZ", "UTC");
        // A backtrace is longer than the smallest screen.
        command.env_remove("RUST_BACKTRACE");
        command.env_remove("NO_COLOR");
        for name in ["COLORTERM", "COLORFGBG", "SSH_CONNECTION"] {
            command.env_remove(name);
        }
        for (name, value) in vars {
            match value.is_empty() {
                true => command.env_remove(name),
                false => command.env(name, value),
            }
        }
        let child = pty.slave.spawn_command(command).unwrap();
        let some = |n| NonZeroU16::new(n).unwrap();
        let seen = Arc::new(Mutex::new(Seen {
            parser: vt100::Parser::new(some(rows), some(cols), 0),
            raw: Vec::new(),
        }));
        let mut output = pty.master.try_clone_reader().unwrap();
        let keys = pty.master.take_writer().unwrap();
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            let mut buf = [0; 4096];
            let mut shown = 0;
            // The end of the program is an error or an empty read.
            while let Ok(n @ 1..) = output.read(&mut buf) {
                let seen = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
                seen.raw.extend_from_slice(&buf[..n]);
                // An update appears as a whole, as on a terminal.
                let end = seen.raw.len() - unfinished(&seen.raw);
                if end > shown {
                    seen.parser.process(&seen.raw[shown..end]);
                    shown = end;
                }
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

    pub(crate) fn look<T>(&self, f: impl FnOnce(&Seen) -> T) -> T {
        f(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The terminal's text, its lines without blanks at the end.
    pub(crate) fn text(&self) -> String {
        self.look(|s| s.parser.screen().contents())
    }

    /// The chosen row, empty if there is none: the one with a background, of 256 colours.
    pub(crate) fn chosen(&self) -> String {
        self.look(|s| {
            let screen = s.parser.screen();
            let (rows, cols) = screen.size();
            let (rows, cols) = (u16::from(rows), u16::from(cols));
            let is_chosen = |row: &u16| {
                let cell = screen.cell(*row, 0).map(vt100::Cell::bgcolor);
                cell == Some(vt100::Color::Idx(238))
            };
            let row = (0..rows).find(is_chosen);
            row.map_or_else(String::new, |row| {
                let text = screen.contents_between(row, 0, row, cols);
                text.trim_start_matches([' ', '▌', '>']).to_owned()
            })
        })
    }

    pub(crate) fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "no {what} on\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn until_text(&self, text: &str) {
        self.until(text, |c| c.text().contains(text));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .process_id()
            .and_then(|p| i32::try_from(p).ok())
            .unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// State of the process from /proc: `T` is stopped.
    pub(crate) fn state(&self) -> Option<char> {
        let pid = self.child.process_id()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    pub(crate) fn settings(&self) -> String {
        format!("{:?}", self.master.get_termios())
    }

    /// The screen is gone and the terminal is restored.
    pub(crate) fn assert_given_back(&self) {
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

    pub(crate) fn end(mut self, words: &str) -> ExitStatus {
        self.until_text(words);
        let status = self.child.wait().unwrap();
        self.assert_given_back();
        status
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        // After a failed test; otherwise it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
