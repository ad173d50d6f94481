//! Everything that can happen to the screen, and everything that it can want.

use crossterm::event::{KeyEvent, MouseEvent};

use crate::feed::{Request, Update};
use crate::text::Clock;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Msg {
    Key(KeyEvent),
    Mouse(MouseEvent),
    Paste(String),
    /// The terminal has this many columns and rows.
    Resize(u16, u16),
    Update(Update),
    Tick(Clock),
}

/// Something is to be done; only the run loop does it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cmd {
    Ask(Request),
    Quit,
    /// Put this on the clipboard.
    Copy(String),
    Redraw,
    /// Give the terminal back and stop, as Ctrl-Z does.
    Suspend,
}
