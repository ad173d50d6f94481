//! A claim's command line: whole in memory; on disk only what predictions need.

use std::ops::Deref;

use gshare_core::predict::Shape;
use serde::{Deserialize, Serialize};

use crate::figures;
use crate::hash::sha256;

/// Maximum number of words before the line in its process's arguments.
const LEAD: usize = 64;

/// A command line. Stored are program and script, the key of its runs, and a hash that tells it from other lines.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub(crate) struct Line {
    words: Vec<String>,
    hash: String,
    key: Shape,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    /// Program and script; older versions stored the whole line, without a hash.
    command: Vec<String>,
    line: Option<String>,
    shape: Option<Shape>,
}

/// The key of a command's runs: words of its arguments only as a hash.
pub(crate) fn key(command: &[String]) -> Shape {
    let shape = Shape::of(command);
    Shape {
        words: hashed(&shape.words),
        ..shape
    }
}

/// A text that is compared and never shown.
pub(crate) fn hashed(text: &str) -> String {
    match text {
        "" => String::new(),
        text => sha256(text.as_bytes())[..16].to_owned(),
    }
}

impl Line {
    pub(crate) fn key(&self) -> &Shape {
        &self.key
    }

    /// Takes the words from the arguments of its process, where `gshare claim`, a launcher or an interpreter may
    /// stand before them. A process that has other arguments now changes nothing.
    pub(crate) fn read_again(&mut self, process: &[String]) {
        let ends = || (0..process.len().min(LEAD)).map(|at| &process[at..]);
        let same = ends().find(|words| Self::from(words.to_vec()) == *self);
        // `docker run` gets more arguments in its claim.
        let similar = || ends().find(|words| figures::program(words) == self.words);
        if let Some(words) = same.or_else(similar) {
            self.words = words.to_vec();
        }
    }
}

impl Deref for Line {
    type Target = [String];
    fn deref(&self) -> &[String] {
        &self.words
    }
}

impl From<Vec<String>> for Line {
    fn from(words: Vec<String>) -> Self {
        Self {
            hash: hashed(&words.join("\0")),
            key: key(&words),
            words,
        }
    }
}

impl From<Stored> for Line {
    fn from(stored: Stored) -> Self {
        match (stored.line, stored.shape) {
            (Some(hash), Some(key)) => Self {
                words: stored.command,
                hash,
                key,
            },
            _ => stored.command.into(),
        }
    }
}

impl From<Line> for Stored {
    fn from(line: Line) -> Self {
        Self {
            command: figures::program(&line.words),
            line: Some(line.hash),
            shape: Some(line.key),
        }
    }
}

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Line {}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        words.into()
    }

    #[test]
    fn a_line_is_stored_by_name_and_key_and_read_again_from_its_process() {
        let whole = line("/opt/py/python3.11 /home/ada/t.py --data /secret/x --bs 64");
        let text = serde_json::to_string(&whole).unwrap();
        for word in ["secret", "ada", "opt", "data"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
        let stored: Line = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&*stored, stored.key()),
            (&*line("python3 t.py"), whole.key())
        );
        assert_eq!(stored, whole);
        let args = whole.join(" ");
        for (process, shown) in [
            (args.clone(), &*args),
            (format!("gshare claim --name python3 -- {args}"), &args),
            ("ray::train".to_owned(), "python3 t.py"),
            ("python3 t.py --more".to_owned(), "python3 t.py --more"),
        ] {
            let mut again = stored.clone();
            again.read_again(&line(&process));
            assert_eq!((&*again.join(" "), again.key()), (shown, whole.key()));
        }
    }

    #[test]
    fn a_line_with_any_number_is_read_again() {
        let whole = line("train --x=1e308k --y=-inf --z=1e999");
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(
            serde_json::from_str::<Line>(&text).unwrap(),
            whole,
            "{text}"
        );
    }

    #[test]
    fn lines_of_older_versions_are_read_whole_and_stored_without_arguments() {
        let old: Line = serde_json::from_str(r#"{"command": ["sh", "run.sh", "secret"]}"#).unwrap();
        assert_eq!(old, line("sh run.sh secret"));
        let text = serde_json::to_string(&old).unwrap();
        assert!(!text.contains("secret"), "{text}");
        let none = serde_json::to_string(&Line::default()).unwrap();
        assert_eq!(
            serde_json::from_str::<Line>(&none).unwrap(),
            Line::default()
        );
        assert_eq!(Line::default(), Vec::new().into());
    }
}
