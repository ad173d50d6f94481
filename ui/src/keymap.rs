//! The table of keys. One entry handles a key and names it on the key line and in the help, so that the three cannot
//! differ.

mod table;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::model::{Dialog, Model, Page};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    Any,
    Screen,
    Page(Page),
    Filter,
    Form,
    Confirm,
    Reading,
    Detail,
    Warnings,
}

impl Context {
    /// All contexts with their titles, in the order of the help.
    pub(crate) const ALL: [(Self, &str); 13] = [
        (Self::Screen, "On the screens"),
        (Self::Page(Page::Overview), "On the Overview"),
        (Self::Page(Page::Claims), "On Claims"),
        (Self::Page(Page::Queue), "On Queue"),
        (Self::Page(Page::History), "On History"),
        (Self::Page(Page::Health), "On Health"),
        (Self::Form, "While filling in"),
        (Self::Filter, "While filtering"),
        (Self::Confirm, "In a question"),
        (Self::Warnings, "In the list of warnings"),
        (Self::Detail, "On a detail page"),
        (Self::Reading, "While reading"),
        (Self::Any, "Everywhere"),
    ];

    /// The context for the next key.
    pub(crate) fn of(model: &Model) -> Self {
        match &model.dialog {
            Some(Dialog::Form(_)) => Self::Form,
            Some(Dialog::Confirm(_)) => Self::Confirm,
            Some(Dialog::Detail { .. }) => Self::Detail,
            Some(Dialog::Warnings(_)) => Self::Warnings,
            Some(Dialog::Help(_) | Dialog::Log(_) | Dialog::Message { .. }) => Self::Reading,
            None if model.filtering => Self::Filter,
            None => Self::Page(model.page),
        }
    }

    /// Whether keys of this context work in the context `now`.
    pub(crate) fn holds(self, now: Self) -> bool {
        let more = match now {
            Self::Page(_) => Self::Screen,
            Self::Detail => Self::Reading,
            _ => Self::Any,
        };
        self == now || self == Self::Any || self == more
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    code: KeyCode,
    control: bool,
}

impl Key {
    /// Parses a key as it is displayed: `n`, `Ctrl-C`, `Shift-Tab`, `F1`.
    fn parse(shown: &str) -> Option<Self> {
        let (control, name) = match shown.strip_prefix("Ctrl-") {
            Some(name) => (true, name.to_lowercase()),
            None => (false, shown.to_owned()),
        };
        let named = [
            ("Enter", KeyCode::Enter),
            ("Esc", KeyCode::Esc),
            ("Tab", KeyCode::Tab),
            ("Shift-Tab", KeyCode::BackTab),
            ("Down", KeyCode::Down),
            ("Up", KeyCode::Up),
            ("Right", KeyCode::Right),
            ("Left", KeyCode::Left),
            ("PgDn", KeyCode::PageDown),
            ("PgUp", KeyCode::PageUp),
            ("Home", KeyCode::Home),
            ("End", KeyCode::End),
            ("Del", KeyCode::Delete),
            ("Space", KeyCode::Char(' ')),
        ];
        let code = named.into_iter().find(|(n, _)| *n == name).map(|(_, c)| c);
        let function = || name.strip_prefix('F')?.parse().ok().map(KeyCode::F);
        let letter = || match name.chars().count() {
            1 => name.chars().next().map(KeyCode::Char),
            _ => None,
        };
        let code = code.or_else(function).or_else(letter)?;
        Some(Self { code, control })
    }

    /// Whether this event is this key. Shift is part of a character, not of the key.
    pub(crate) fn is(self, event: KeyEvent) -> bool {
        let strange = KeyModifiers::ALT | KeyModifiers::SUPER | KeyModifiers::META;
        event.code == self.code
            && event.modifiers.contains(KeyModifiers::CONTROL) == self.control
            && !event.modifiers.intersects(strange)
    }
}

pub(crate) struct Command {
    pub(crate) context: Context,
    /// Its keys as displayed: `Down j`.
    pub(crate) shown: &'static str,
    /// One or two words for the key line; empty: in the help only.
    pub(crate) label: &'static str,
    /// Order in which labels are dropped from a short line, the largest first.
    pub(crate) rank: u8,
    pub(crate) help: &'static str,
    /// Whether it works now, or why not.
    pub(crate) able: fn(&Model) -> Result<(), String>,
    pub(crate) run: fn(&mut Model),
}

impl Command {
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.shown.split(' ').filter_map(Key::parse)
    }
}

fn always(_: &Model) -> Result<(), String> {
    Ok(())
}

pub(crate) fn commands() -> impl Iterator<Item = &'static Command> {
    table::COMMANDS.iter()
}

/// All keys in the order of the help: context, keys (`Down j`), and effect.
#[must_use]
pub fn key_table() -> Vec<[&'static str; 3]> {
    let of = |(context, place)| {
        let own = commands().filter(move |c| c.context == context);
        own.map(move |c| [place, c.shown, c.help])
    };
    Context::ALL.into_iter().flat_map(of).collect()
}

/// The command that a key runs in a context.
pub(crate) fn find(context: Context, event: KeyEvent) -> Option<&'static Command> {
    commands().find(|c| c.context.holds(context) && c.keys().any(|k| k.is(event)))
}

/// What the key line shows now, in order.
pub(crate) fn line(model: &Model) -> Vec<&'static Command> {
    let context = Context::of(model);
    commands()
        .filter(|c| c.context.holds(context) && !c.label.is_empty() && (c.able)(model).is_ok())
        .collect()
}
