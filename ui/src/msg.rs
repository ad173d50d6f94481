//! Everything that can happen to the screen, and everything that it can want.

use crossterm::event::{KeyEvent, MouseEvent};

use crate::feed::{Request, Update};
use crate::text::Clock;

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Msg {
    /// A key.
    Key(KeyEvent),
    /// The mouse.
    Mouse(MouseEvent),
    /// Text was pasted.
    Paste(String),
    /// The terminal has this many columns and rows.
    Resize(u16, u16),
    /// News from the feeder.
    Update(Update),
    /// Time has passed.
    Tick(Clock),
}

/// Something is to be done; only the run loop does it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cmd {
    /// Ask the feeder.
    Ask(Request),
    /// Leave.
    Quit,
    /// Draw everything anew.
    Redraw,
    /// Give the terminal back and stop, as Ctrl-Z does.
    Suspend,
}
