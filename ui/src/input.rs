//! A line of input: tui-input's editing, in a field of bounded length.

use crossterm::event::{Event, KeyEvent};
use tui_input::backend::crossterm::to_input_request;
use tui_input::{Input, InputRequest};

#[derive(Clone, Debug, Default)]
pub(crate) struct LineInput {
    line: Input,
    /// What stands there is only proposed: the first character that is typed replaces it.
    proposed: bool,
}

impl PartialEq for LineInput {
    fn eq(&self, other: &Self) -> bool {
        self.split() == other.split()
    }
}

/// Maximum length of an input line, in characters.
const MAX_CHARS: usize = 200;

impl LineInput {
    /// Proposed text, with the cursor behind it.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            line: Input::new(text.into()),
            proposed: true,
        }
    }

    pub(crate) fn text(&self) -> &str {
        self.line.value()
    }

    /// The text before the cursor, and the rest.
    pub(crate) fn split(&self) -> (&str, &str) {
        let mut starts = self.text().char_indices();
        let at = starts.nth(self.line.cursor()).map(|(at, _)| at);
        self.text().split_at(at.unwrap_or(self.text().len()))
    }

    /// Inserts at the cursor, without the control characters of pasted text.
    pub(crate) fn insert(&mut self, text: &str) {
        let typed = text.chars().filter(|c| !c.is_control());
        typed.for_each(|c| self.edit(InputRequest::InsertChar(c)));
    }

    pub(crate) fn key(&mut self, key: KeyEvent) {
        if let Some(request) = to_input_request(&Event::Key(key)) {
            self.edit(request);
        }
    }

    fn edit(&mut self, request: InputRequest) {
        let types = matches!(request, InputRequest::InsertChar(_));
        if std::mem::take(&mut self.proposed) && types {
            self.line.reset();
        }
        let is_full = self.text().chars().count() >= MAX_CHARS;
        if !is_full || !types {
            self.line.handle(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyModifiers};

    use super::*;

    #[test]
    fn what_is_typed_replaces_a_proposal_that_nobody_has_touched() {
        let mut input = LineInput::new("0.25");
        input.insert("0.3");
        assert_eq!(input.text(), "0.3");
        let mut input = LineInput::new("0.25");
        for code in [KeyCode::Backspace, KeyCode::Char('4')] {
            input.key(code.into());
        }
        assert_eq!(input.text(), "0.24");
    }

    #[test]
    fn editing_works_on_characters() {
        let mut input = LineInput::new("größe");
        for (code, want) in [
            (KeyCode::Left, ("größ", "e")),
            (KeyCode::Backspace, ("grö", "e")),
            (KeyCode::Char('x'), ("gröx", "e")),
            (KeyCode::Home, ("", "gröxe")),
            (KeyCode::Delete, ("", "röxe")),
            (KeyCode::End, ("röxe", "")),
        ] {
            input.key(code.into());
            assert_eq!(input.split(), want);
        }
        input.key(KeyCode::Tab.into());
        assert_eq!(input.split(), ("röxe", ""));
        input.insert("a\nb");
        assert_eq!(input.text(), "röxeab");
        input.key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
        assert_eq!(input.text(), "");
        input.insert(&"x".repeat(MAX_CHARS + 9));
        input.key(KeyCode::Char('x').into());
        assert_eq!(input.text().len(), MAX_CHARS);
    }
}
