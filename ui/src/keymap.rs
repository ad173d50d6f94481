//! The one table of keys: what handles a key also names it on the key line and in the help, so that
//! the three cannot differ.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::model::{Dialog, Model};
use crate::msg::Cmd;
use crate::update::act;

/// Where a key is pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// Everywhere.
    Any,
    /// On the screen itself.
    Overview,
    /// While the filter is typed.
    Filter,
    /// In the claim dialog.
    Form,
    /// In a question.
    Confirm,
    /// In a box with text.
    Reading,
}

impl Context {
    /// What the next key goes to.
    pub(crate) fn of(model: &Model) -> Self {
        match &model.dialog {
            Some(Dialog::Claim(_)) => Self::Form,
            Some(Dialog::Confirm { .. }) => Self::Confirm,
            Some(Dialog::Detail { .. } | Dialog::Help { .. } | Dialog::Message { .. }) => {
                Self::Reading
            }
            None if model.filtering => Self::Filter,
            None => Self::Overview,
        }
    }

    /// For the help.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Any => "Everywhere",
            Self::Overview => "On the screen",
            Self::Filter => "While filtering",
            Self::Form => "Claiming",
            Self::Confirm => "In a question",
            Self::Reading => "While reading",
        }
    }
}

/// A key to press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    code: KeyCode,
    control: bool,
}

impl Key {
    /// Whether this event is this key. Shift is part of a character, not of the key.
    pub(crate) fn is(self, event: KeyEvent) -> bool {
        let strange = KeyModifiers::ALT | KeyModifiers::SUPER | KeyModifiers::META;
        event.code == self.code
            && event.modifiers.contains(KeyModifiers::CONTROL) == self.control
            && !event.modifiers.intersects(strange)
    }

    /// The event of this key.
    #[cfg(test)]
    pub(crate) fn event(self) -> KeyEvent {
        let modifiers = if self.control {
            KeyModifiers::CONTROL
        } else {
            KeyModifiers::NONE
        };
        KeyEvent::new(self.code, modifiers)
    }
}

const fn key(code: KeyCode) -> Key {
    Key {
        code,
        control: false,
    }
}

const fn letter(c: char) -> Key {
    key(KeyCode::Char(c))
}

const fn ctrl(c: char) -> Key {
    Key {
        code: KeyCode::Char(c),
        control: true,
    }
}

/// A row of the table.
pub(crate) struct Command {
    /// Where it works.
    pub(crate) context: Context,
    /// Keys that run it.
    pub(crate) keys: &'static [Key],
    /// The keys as people write them.
    pub(crate) shown: &'static str,
    /// One or two words for the key line; empty for the help only.
    pub(crate) label: &'static str,
    /// Which labels go first when the line is short: the largest.
    pub(crate) rank: u8,
    /// A sentence for the help.
    pub(crate) help: &'static str,
    /// Whether it can work now, else why not.
    pub(crate) able: fn(&Model) -> Result<(), String>,
    /// Does it.
    pub(crate) run: fn(&mut Model) -> Vec<Cmd>,
}

fn always(_: &Model) -> Result<(), String> {
    Ok(())
}

/// All keys.
pub(crate) static COMMANDS: &[Command] = &[
    Command {
        context: Context::Overview,
        keys: &[letter('n')],
        shown: "n",
        label: "claim",
        rank: 9,
        help: "claim a part of a GPU and hold it until it is released",
        able: Model::service,
        run: act::open_claim,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::Enter)],
        shown: "Enter",
        label: "detail",
        rank: 6,
        help: "everything about the chosen claim, waiting claim or GPU",
        able: act::some_row,
        run: act::open_detail,
    },
    Command {
        context: Context::Overview,
        keys: &[letter('x'), key(KeyCode::Delete)],
        shown: "x",
        label: "release",
        rank: 7,
        help: "release the chosen claim of yours, or withdraw it from the queue; asks first",
        able: Model::service,
        run: act::ask_release,
    },
    Command {
        context: Context::Overview,
        keys: &[letter('/')],
        shown: "/",
        label: "filter",
        rank: 5,
        help: "show only rows with a user, claim, name, command or state that you type",
        able: act::some_snapshot,
        run: act::start_filter,
    },
    Command {
        context: Context::Overview,
        keys: &[letter('s')],
        shown: "s",
        label: "sort",
        rank: 3,
        help: "sort the claims by id, user, GPU, memory, GPU time, SM activity",
        able: act::some_snapshot,
        run: act::next_sort,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::Tab)],
        shown: "Tab",
        label: "next",
        rank: 4,
        help: "go to the next part of the screen: claims, queue, GPUs",
        able: act::some_snapshot,
        run: act::next_section,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::Down), letter('j')],
        shown: "Down j",
        label: "",
        rank: 0,
        help: "choose the next row",
        able: act::some_snapshot,
        run: act::down,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::Up), letter('k')],
        shown: "Up k",
        label: "",
        rank: 0,
        help: "choose the row before",
        able: act::some_snapshot,
        run: act::up,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::PageDown)],
        shown: "PgDn",
        label: "",
        rank: 0,
        help: "go down by a page",
        able: act::some_snapshot,
        run: act::page_down,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::PageUp)],
        shown: "PgUp",
        label: "",
        rank: 0,
        help: "go up by a page",
        able: act::some_snapshot,
        run: act::page_up,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::Home)],
        shown: "Home",
        label: "",
        rank: 0,
        help: "choose the first row",
        able: act::some_snapshot,
        run: act::first,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::End)],
        shown: "End",
        label: "",
        rank: 0,
        help: "choose the last row",
        able: act::some_snapshot,
        run: act::last,
    },
    Command {
        context: Context::Overview,
        keys: &[key(KeyCode::Esc)],
        shown: "Esc",
        label: "",
        rank: 0,
        help: "choose no row, then show all rows again",
        able: always,
        run: act::clear,
    },
    Command {
        context: Context::Overview,
        keys: &[letter(' ')],
        shown: "Space",
        label: "",
        rank: 0,
        help: "stop the captions of the demo, and let them go on",
        able: act::some_caption,
        run: act::pause_captions,
    },
    Command {
        context: Context::Overview,
        keys: &[letter('?')],
        shown: "?",
        label: "help",
        rank: 10,
        help: "these keys, and what the signs mean",
        able: always,
        run: act::open_help,
    },
    Command {
        context: Context::Overview,
        keys: &[letter('q')],
        shown: "q",
        label: "quit",
        rank: 8,
        help: "leave; claims stay as they are",
        able: always,
        run: act::quit,
    },
    Command {
        context: Context::Filter,
        keys: &[key(KeyCode::Enter)],
        shown: "Enter",
        label: "keep",
        rank: 8,
        help: "keep the filter",
        able: always,
        run: act::keep_filter,
    },
    Command {
        context: Context::Filter,
        keys: &[key(KeyCode::Esc)],
        shown: "Esc",
        label: "show all",
        rank: 7,
        help: "show all rows again",
        able: always,
        run: act::drop_filter,
    },
    Command {
        context: Context::Form,
        keys: &[key(KeyCode::Enter)],
        shown: "Enter",
        label: "claim",
        rank: 8,
        help: "make the claim",
        able: always,
        run: act::send_claim,
    },
    Command {
        context: Context::Form,
        keys: &[key(KeyCode::Tab), key(KeyCode::Down)],
        shown: "Tab Down",
        label: "next line",
        rank: 6,
        help: "go to the next line",
        able: always,
        run: act::next_field,
    },
    Command {
        context: Context::Form,
        keys: &[key(KeyCode::BackTab), key(KeyCode::Up)],
        shown: "Shift-Tab Up",
        label: "",
        rank: 5,
        help: "go to the line before",
        able: always,
        run: act::previous_field,
    },
    Command {
        context: Context::Form,
        keys: &[key(KeyCode::Esc)],
        shown: "Esc",
        label: "close",
        rank: 7,
        help: "claim nothing",
        able: always,
        run: act::close,
    },
    Command {
        context: Context::Confirm,
        keys: &[letter('y')],
        shown: "y",
        label: "release it",
        rank: 8,
        help: "yes, release it",
        able: always,
        run: act::release,
    },
    Command {
        context: Context::Confirm,
        keys: &[letter('n'), key(KeyCode::Esc)],
        shown: "n Esc",
        label: "keep it",
        rank: 7,
        help: "no, keep it",
        able: always,
        run: act::close,
    },
    Command {
        context: Context::Reading,
        keys: &[key(KeyCode::Down), letter('j')],
        shown: "Down j",
        label: "",
        rank: 0,
        help: "read on",
        able: always,
        run: act::scroll_down,
    },
    Command {
        context: Context::Reading,
        keys: &[key(KeyCode::Up), letter('k')],
        shown: "Up k",
        label: "",
        rank: 0,
        help: "read back",
        able: always,
        run: act::scroll_up,
    },
    Command {
        context: Context::Reading,
        keys: &[key(KeyCode::Esc), key(KeyCode::Enter), letter('q')],
        shown: "Esc Enter q",
        label: "close",
        rank: 8,
        help: "close the box",
        able: always,
        run: act::close,
    },
    Command {
        context: Context::Any,
        keys: &[ctrl('c')],
        shown: "Ctrl-C",
        label: "",
        rank: 0,
        help: "leave at once",
        able: always,
        run: act::quit,
    },
    Command {
        context: Context::Any,
        keys: &[ctrl('z')],
        shown: "Ctrl-Z",
        label: "",
        rank: 0,
        help: "stop and give the terminal back; fg brings the screen back",
        able: always,
        run: act::suspend,
    },
];

/// The command that a key runs in a context.
pub(crate) fn find(context: Context, event: KeyEvent) -> Option<&'static Command> {
    COMMANDS.iter().find(|c| {
        (c.context == context || c.context == Context::Any) && c.keys.iter().any(|k| k.is(event))
    })
}

/// What the key line shows now, in order.
pub(crate) fn line(model: &Model) -> Vec<&'static Command> {
    let context = Context::of(model);
    COMMANDS
        .iter()
        .filter(|c| c.context == context && !c.label.is_empty() && (c.able)(model).is_ok())
        .collect()
}
