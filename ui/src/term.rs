//! The terminal: raw mode, alternate screen, bracketed paste. Whatever way the program leaves, the
//! terminal is as it was.

use std::io::{self, IsTerminal, Stdout, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::queue;
use crossterm::style::{Print, ResetColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Clicks and the wheel, told with coordinates of any size. Not movements: they would be most of what a
/// slow line carries. With Shift held, terminals select text as ever.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";

/// Whether the terminal is ours now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The thread that draws: only its panic ends the screen.
static SCREEN_THREAD: OnceLock<Mutex<ThreadId>> = OnceLock::new();

/// Panics of other threads, told when the terminal is back.
static LATER: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Puts the terminal back if it is ours. Errors are of no use to anybody here: the terminal may be
/// gone, which is why we leave.
fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    let _ = queue!(
        out,
        EndSynchronizedUpdate,
        Print(MOUSE_OFF),
        DisableBracketedPaste,
        ResetColor,
        LeaveAlternateScreen,
        Show
    );
    let _ = out.flush();
    let _ = disable_raw_mode();
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    for text in later.drain(..) {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// A panic message on the alternate screen is lost with it, so the screen goes first.
fn hook_panics() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let screen = SCREEN_THREAD
                .get()
                .map(|t| *t.lock().unwrap_or_else(PoisonError::into_inner));
            let elsewhere = screen.is_some_and(|t| t != thread::current().id());
            if elsewhere && TAKEN.load(Ordering::SeqCst) {
                let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
                later.push(info.to_string());
                return;
            }
            give_back();
            before(info);
        }));
    });
}

/// The terminal while the screen is on it.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    pub(crate) fn take() -> io::Result<Self> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the screen needs a terminal for input and output",
            ));
        }
        let id = thread::current().id();
        let owner = SCREEN_THREAD.get_or_init(|| Mutex::new(id));
        *owner.lock().unwrap_or_else(PoisonError::into_inner) = id;
        hook_panics();
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let mut screen = Self { terminal };
        screen.enter()?;
        Ok(screen)
    }

    fn enter(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        let mut out = io::stdout();
        queue!(
            out,
            EnterAlternateScreen,
            EnableBracketedPaste,
            Print(MOUSE_ON),
            Hide,
            Clear(ClearType::All)
        )?;
        out.flush()
    }

    /// Gives the terminal back for a while.
    pub(crate) fn leave(&mut self) {
        give_back();
    }

    /// Takes it again, and draws everything anew next time.
    pub(crate) fn retake(&mut self) -> io::Result<()> {
        self.enter()?;
        // A new one knows nothing of the old frame. (Its own clear() would ask the terminal where the
        // cursor is, and the answer would go to the keys.)
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }

    /// Draws everything anew next time, whatever is on the terminal.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        let mut out = io::stdout();
        queue!(out, Clear(ClearType::All))?;
        out.flush()?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }

    /// Draws one frame; the terminal shows it at once or not at all. `view` draws and says where the
    /// cursor is.
    pub(crate) fn draw(
        &mut self,
        view: impl FnOnce(Rect, &mut Buffer) -> Option<(u16, u16)>,
    ) -> io::Result<()> {
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)?;
        self.terminal.draw(|frame| {
            let area = frame.area();
            if let Some(cursor) = view(area, frame.buffer_mut()) {
                frame.set_cursor_position(cursor);
            }
        })?;
        queue!(self.terminal.backend_mut(), EndSynchronizedUpdate)?;
        Write::flush(self.terminal.backend_mut())
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> io::Result<(u16, u16)> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}
