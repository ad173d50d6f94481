//! A line that is being typed.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Text with a cursor, counted in characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineInput {
    text: String,
    cursor: usize,
}

/// Maximum length of a field of this screen, in characters.
const MAX_CHARS: usize = 200;

impl LineInput {
    /// Text with the cursor behind it.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let cursor = text.chars().count();
        Self { text, cursor }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The text before the cursor and from it on.
    pub(crate) fn split(&self) -> (&str, &str) {
        self.text.split_at(self.byte(self.cursor))
    }

    fn byte(&self, chars: usize) -> usize {
        self.text
            .char_indices()
            .nth(chars)
            .map_or(self.text.len(), |(at, _)| at)
    }

    /// Inserts at the cursor; control characters (of a paste) are left out.
    pub(crate) fn insert(&mut self, text: &str) {
        for c in text.chars().filter(|c| !c.is_control()) {
            if self.text.chars().count() >= MAX_CHARS {
                return;
            }
            let at = self.byte(self.cursor);
            self.text.insert(at, c);
            self.cursor += 1;
        }
    }

    pub(crate) fn key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let len = self.text.chars().count();
        match key.code {
            KeyCode::Char('u') if control => {
                self.text.drain(..self.byte(self.cursor));
                self.cursor = 0;
            }
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = len,
            KeyCode::Char(c) if !control && !key.modifiers.contains(KeyModifiers::ALT) => {
                self.insert(c.encode_utf8(&mut [0; 4]));
            }
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.byte(self.cursor));
            }
            KeyCode::Delete if self.cursor < len => {
                self.text.remove(self.byte(self.cursor));
            }
            KeyCode::Left => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Right => self.cursor = (self.cursor + 1).min(len),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = len,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
