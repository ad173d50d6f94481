//! A problem in a configuration file, with its place.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One thing that is wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The problem: lower case, no full stop.
    pub message: String,
    /// The expected form.
    pub expected: Option<String>,
    /// The line's text.
    source_line: String,
    /// Number of characters that the caret marks.
    width: usize,
}

impl Problem {
    /// A problem at `span` (bytes of `text`).
    pub(crate) fn at(
        file: &Path,
        text: &str,
        span: Range<usize>,
        message: impl Into<String>,
        expected: Option<String>,
    ) -> Self {
        let start = floor(text, span.start);
        let end = floor(text, span.end.max(start));
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let marked = &text[start..end.min(line_end).max(start)];
        Self {
            file: file.to_owned(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            message: message.into(),
            expected,
            source_line: text[line_start..line_end].trim_end_matches('\r').to_owned(),
            width: marked.chars().count().max(1),
        }
    }
}

/// The nearest character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // Tabs before the mark are kept, so that the caret stands below its text in any terminal.
        let indent: String = self
            .source_line
            .chars()
            .take(self.column - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        writeln!(
            f,
            "{}:{}:{}: {}",
            self.file.display(),
            self.line,
            self.column,
            self.message
        )?;
        writeln!(f, "{gutter} |")?;
        writeln!(f, "{number} | {}", self.source_line)?;
        write!(f, "{gutter} | {indent}{}", "^".repeat(self.width))?;
        if let Some(expected) = &self.expected {
            write!(f, "\n{gutter} = {expected}")?;
        }
        Ok(())
    }
}

/// The known word that `word` is probably a misspelling of.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|k| (strsim::levenshtein(&word.replace('_', "-"), k), k))
        .filter(|(d, _)| *d <= allowed)
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_its_place_in_characters() {
        let text = "a = 1\nüü = \"x\"\n";
        let at = text.find('"').expect("quote");
        let p = Problem::at(
            Path::new("f.toml"),
            text,
            at..at + 3,
            "wrong",
            Some("expected y".into()),
        );
        assert_eq!((p.line, p.column), (2, 6));
        assert_eq!(
            p.to_string(),
            "f.toml:2:6: wrong\n  |\n2 | üü = \"x\"\n  |      ^^^\n  = expected y"
        );
        // A span past the end of the text is shown at the end, not a panic.
        let end = Problem::at(Path::new("f"), text, 900..950, "m", None);
        assert_eq!((end.line, end.column), (3, 1));
    }

    #[test]
    fn near_words_are_offered_and_far_ones_are_not() {
        let known = ["socket", "state-dir", "tick"];
        assert_eq!(nearest("tik", known), Some("tick"));
        assert_eq!(nearest("state_dir", known), Some("state-dir"));
        assert_eq!(nearest("colour", known), None);
    }
}
