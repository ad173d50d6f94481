//! Messages to the screen, and commands from it.

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

/// A command that only the run loop can carry out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cmd {
    Ask(Request),
    Quit,
    /// Copy this to the clipboard.
    Copy(String),
    Redraw,
    /// Restore the terminal and stop, as Ctrl-Z does.
    Suspend,
}
