//! The terminal: raw mode, alternate screen, bracketed paste. It is restored however the program ends.

use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::queue;
use crossterm::style::{Print, ResetColor};
use crossterm::terminal::{
    Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode, size,
};
use nix::sys::signal::{Signal, raise};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::canvas::Canvas;
use crate::view::Cursor;

/// Clicks and the wheel, with coordinates of any size. No movements, which would be most of the traffic on a slow
/// line. With Shift held, terminals still select text.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal if it is in use. Errors are ignored: the terminal may be gone, which is why the screen ends.
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
}

/// A panic message on the alternate screen would be lost with it, so the screen is left first. The panic of another
/// thread ends the screen, too, as it ends the installed program.
fn hook_panics() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}

#[derive(Debug)]
pub(crate) struct Screen {
    canvas: Canvas,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Self> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the screen needs a terminal for input and output",
            ));
        }
        hook_panics();
        let (columns, rows) = size()?;
        let canvas = Canvas::new(columns, rows)?;
        let mut screen = Self { canvas };
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

    /// Restores the terminal and stops; takes it again after SIGCONT, when it may have another size.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        give_back();
        raise(Signal::SIGSTOP)?;
        self.enter()?;
        self.fit()
    }

    /// Reads the terminal's present size, and redraws everything next time.
    pub(crate) fn fit(&mut self) -> io::Result<()> {
        let (columns, rows) = size()?;
        self.renew(columns, rows)
    }

    /// Redraws everything next time, whatever is on the terminal.
    pub(crate) fn renew(&mut self, columns: u16, rows: u16) -> io::Result<()> {
        self.canvas = Canvas::new(columns, rows)?;
        Ok(())
    }

    /// Shows the frame; the terminal shows it at once or not at all.
    pub(crate) fn show(
        &mut self,
        draw: impl FnOnce(Rect, &mut Buffer) -> Cursor,
    ) -> io::Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            return Err(io::Error::other("a part of the screen has failed"));
        }
        let bytes = self.canvas.show(draw)?;
        // In one piece, so that the receiver wakes up once.
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }

    pub(crate) fn size(&self) -> (u16, u16) {
        self.canvas.size()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}
