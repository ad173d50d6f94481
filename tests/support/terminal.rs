//! A program on a real terminal (a pty) whose screen a test can read.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use super::{Awaited, patience, until};

/// How a program asks for the cursor's place; some wait for the answer.
const WHERE: &[u8] = b"\x1b[6n";

/// Before and after a frame (a synchronized update): a terminal shows all of it at once.
const BEGINS: &[u8] = b"\x1b[?2026h";
const ENDS: &[u8] = b"\x1b[?2026l";

/// Output of the terminal so far.
struct Seen {
    screen: vt100::Parser,
    bytes: Vec<u8>,
    /// Number of bytes on the screen.
    shown: usize,
    over: bool,
}

impl Seen {
    /// Shows the output, but no part of an incomplete frame: a frame comes in pieces, and half of one shows rows of
    /// two screens.
    fn show(&mut self) {
        // The sequence itself may have come in pieces.
        let from = self.shown.saturating_sub(BEGINS.len() - 1);
        let last = |what: &[u8]| {
            let mut places = self.bytes[from..].windows(what.len());
            places.rposition(|w| w == what).map(|at| from + at)
        };
        let whole = match (last(BEGINS), last(ENDS)) {
            (Some(begins), ends) if ends.is_none_or(|ends| ends < begins) => begins,
            _ => self.bytes.len(),
        };
        if whole > self.shown {
            self.screen.process(&self.bytes[self.shown..whole]);
            self.shown = whole;
        }
    }
}

/// A program on a terminal of its own. Dropping it ends the program.
pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
    seen: Arc<Mutex<Seen>>,
    master: Box<dyn MasterPty + Send>,
}

impl Terminal {
    /// Starts the command, with its arguments, environment and directory, on a terminal of this size.
    pub fn start(command: &Command, rows: u16, cols: u16) -> Self {
        let size = PtySize {
            rows,
            cols,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pty = native_pty_system().openpty(size).expect("a pty");
        let mut builder = CommandBuilder::new(command.get_program());
        builder.args(command.get_args());
        builder.env("TERM", "xterm-256color");
        builder.env("LANG", "C.UTF-8");
        builder.env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => builder.env(name, value),
                None => builder.env_remove(name),
            }
        }
        if let Some(dir) = command.get_current_dir() {
            builder.cwd(dir);
        }
        let child = pty.slave.spawn_command(builder).expect("it starts");
        drop(pty.slave);
        let mut reader = pty.master.try_clone_reader().expect("a reader");
        let writer = Arc::new(Mutex::new(pty.master.take_writer().expect("a writer")));
        let cells = |n: u16| std::num::NonZero::new(n).expect("not zero");
        let seen = Arc::new(Mutex::new(Seen {
            screen: vt100::Parser::new(cells(rows), cells(cols), 0),
            bytes: Vec::new(),
            shown: 0,
            over: false,
        }));
        let (shared, answers) = (Arc::clone(&seen), Arc::clone(&writer));
        // Ends when the last process on the terminal has closed it.
        std::thread::spawn(move || {
            let mut chunk = [0u8; 16384];
            while let Ok(n @ 1..) = reader.read(&mut chunk) {
                let mut seen = shared.lock().expect("not poisoned");
                let from = seen.bytes.len().saturating_sub(WHERE.len() - 1);
                seen.bytes.extend_from_slice(&chunk[..n]);
                seen.show();
                let asked = seen.bytes[from..].windows(WHERE.len());
                let (row, col) = seen.screen.screen().cursor_position();
                for _ in asked.filter(|w| *w == WHERE) {
                    let mut writer = answers.lock().expect("not poisoned");
                    let _ = write!(writer, "\x1b[{};{}R", row + 1, col + 1);
                    let _ = writer.flush();
                }
            }
            shared.lock().expect("not poisoned").over = true;
        });
        Self {
            child,
            writer,
            seen,
            master: pty.master,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("not poisoned")
    }

    /// The text on the screen now.
    pub fn text(&self) -> String {
        self.seen().screen.screen().contents()
    }

    /// All bytes that the program wrote, as text.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.seen().bytes).into_owned()
    }

    /// Whether the terminal is as a shell expects it: main screen, visible cursor, no mouse, and line mode.
    pub fn restored(&self) -> bool {
        let lines = libc::ECHO | libc::ICANON | libc::ISIG;
        let flags = self
            .master
            .get_termios()
            .is_some_and(|t| libc::termios::from(t).c_lflag & lines == lines);
        let seen = self.seen();
        let screen = seen.screen.screen();
        flags
            && !screen.alternate_screen()
            && !screen.hide_cursor()
            && !screen.bracketed_paste()
            && screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None
    }

    /// Presses keys.
    pub fn send(&mut self, keys: &str) {
        let mut writer = self.writer.lock().expect("not poisoned");
        writer
            .write_all(keys.as_bytes())
            .and_then(|()| writer.flush())
            .expect("it reads");
    }

    /// Waits until the probe of the screen finds something or is true.
    pub fn wait<A: Awaited>(
        &self,
        what: &str,
        most: Duration,
        mut probe: impl FnMut(&str) -> A,
    ) -> A::Found {
        let most = patience(most);
        let end = Instant::now() + most;
        loop {
            let text = self.text();
            if let Some(found) = probe(&text).found() {
                return found;
            }
            assert!(
                Instant::now() < end,
                "not within {most:?}: {what}; the screen:\n{text}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until all of these are on the screen together.
    pub fn shows(&self, parts: &[&str], most: Duration) -> String {
        self.wait(&format!("{parts:?}"), most, |text| {
            parts
                .iter()
                .all(|p| text.contains(p))
                .then(|| text.to_owned())
        })
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.process_id().expect("it was started")
    }

    /// Waits until the program has ended and all its output is read; returns its exit code.
    pub fn ended(&mut self, most: Duration) -> u32 {
        let status = until("the program ends", most, || {
            self.child.try_wait().expect("waited")
        });
        until("the terminal is closed", most, || self.seen().over);
        status.exit_code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
