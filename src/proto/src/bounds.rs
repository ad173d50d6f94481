//! Bounded types for clients' input. The bound is checked while a line is parsed, so that the service never handles
//! more. Values made with [`From`] are not checked.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Text of at most `N` bytes with a meaning as a whole, such as an id: a longer one is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Text<const N: usize>(String);

/// Text for display, such as a name: printable, and cut after `N` characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Label<const N: usize>(String);

/// At most `N` entries: a longer list is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct List<T, const N: usize>(Vec<T>);

/// A command line for display and for predicting sizes: printable, cut, and without words that look like passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CommandLine(Vec<String>);

/// Maximum number of words, characters per word, and bytes of all words.
const WORDS: usize = 64;
const WORD: usize = 256;
const COMMAND: usize = 4096;
/// Replaces a password.
const HIDDEN: &str = "***";

/// Untrusted text for a terminal: no control characters, and no invisible ones that reverse, join or split text.
pub fn printable(text: &str) -> impl Iterator<Item = char> + '_ {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
    };
    text.chars().map(move |c| if steers(c) { ' ' } else { c })
}

macro_rules! text {
    ($name:ident) => {
        impl<const N: usize> $name<N> {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl<const N: usize> Deref for $name<N> {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }
        impl<const N: usize> AsRef<str> for $name<N> {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl<const N: usize> fmt::Display for $name<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl<const N: usize> From<&str> for $name<N> {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
        impl<const N: usize> From<String> for $name<N> {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
        impl<const N: usize> From<$name<N>> for String {
            fn from(text: $name<N>) -> Self {
                text.0
            }
        }
        impl<const N: usize> PartialEq<str> for $name<N> {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }
        impl<const N: usize> PartialEq<&str> for $name<N> {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }
        impl<const N: usize> PartialEq<$name<N>> for String {
            fn eq(&self, other: &$name<N>) -> bool {
                *self == other.0
            }
        }
    };
}
text!(Text);
text!(Label);

impl<'de, const N: usize> Deserialize<'de> for Text<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bounded<const N: usize>;
        impl<const N: usize> Visitor<'_> for Bounded<N> {
            type Value = Text<N>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "text of at most {N} bytes")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<N>, E> {
                if text.len() <= N {
                    return Ok(Text(text.to_owned()));
                }
                Err(E::custom(format!(
                    "text of {} bytes; at most {N} are allowed",
                    text.len()
                )))
            }
        }
        from.deserialize_str(Bounded)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Label<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Cut<const N: usize>;
        impl<const N: usize> Visitor<'_> for Cut<N> {
            type Value = Label<N>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Label<N>, E> {
                Ok(Label(printable(text).take(N).collect()))
            }
        }
        from.deserialize_str(Cut)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for List<T, N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bounded<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Bounded<T, N> {
            type Value = List<T, N>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N} entries")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T, N>, A::Error> {
                let mut list = Vec::new();
                while list.len() < N {
                    match seq.next_element()? {
                        Some(entry) => list.push(entry),
                        None => return Ok(List(list)),
                    }
                }
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(List(list)),
                    Some(_) => Err(A::Error::custom(format!("a list of more than {N} entries"))),
                }
            }
        }
        from.deserialize_seq(Bounded(PhantomData))
    }
}

impl<T, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: PartialEq<U>, U, const N: usize, const M: usize> PartialEq<[U; M]> for List<T, N> {
    fn eq(&self, other: &[U; M]) -> bool {
        self.0.as_slice() == other
    }
}

impl<T, U: Into<T>, const N: usize> From<Vec<U>> for List<T, N> {
    fn from(list: Vec<U>) -> Self {
        list.into_iter().collect()
    }
}

impl<T, U: Into<T>, const N: usize> FromIterator<U> for List<T, N> {
    fn from_iter<I: IntoIterator<Item = U>>(list: I) -> Self {
        Self(list.into_iter().map(Into::into).collect())
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a List<T, N> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl CommandLine {
    /// The stored form of these words.
    pub fn of<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Self {
        let (mut kept, mut left, mut hide) = (Vec::new(), COMMAND, false);
        for word in words.into_iter().take(WORDS) {
            let word = word.as_ref();
            let mut word = if std::mem::take(&mut hide) && !word.starts_with('-') {
                HIDDEN.to_owned()
            } else {
                let takes = |w: &str| w.starts_with('-') && !w.contains('=') && names_a_secret(w);
                let cut: String = printable(&without_secret(word)).take(WORD).collect();
                hide = takes(word) || takes(&cut);
                // A cut may turn a harmless word into one that looks like a key.
                without_secret(&cut)
            };
            while word.len() > left {
                word.pop();
            }
            left -= word.len();
            kept.push(word);
            if left == 0 {
                break;
            }
        }
        Self(kept)
    }

    #[must_use]
    pub fn into_words(self) -> Vec<String> {
        self.0
    }
}

impl Deref for CommandLine {
    type Target = [String];
    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl From<Vec<String>> for CommandLine {
    fn from(words: Vec<String>) -> Self {
        Self::of(words)
    }
}

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = CommandLine;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the words of a command line")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<CommandLine, A::Error> {
                let mut words: Vec<String> = Vec::new();
                while words.len() < WORDS {
                    match seq.next_element()? {
                        Some(word) => words.push(word),
                        None => return Ok(CommandLine::of(words)),
                    }
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(CommandLine::of(words))
            }
        }
        from.deserialize_seq(Words)
    }
}

/// Whether the name of a flag or variable suggests a key or a password: only its last part counts, so that
/// `--max-tokens` and `--key-dim` do not.
fn names_a_secret(name: &str) -> bool {
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default();
    let last = last.to_ascii_lowercase();
    [
        "key",
        "token",
        "password",
        "passwd",
        "secret",
        "credentials",
    ]
    .contains(&last.as_str())
        || last.ends_with("apikey")
}

/// A word without its key or password: `--api-key=X`, `HF_TOKEN=X`, `https://me:X@host`, and words with the prefix of
/// a well-known service's keys.
fn without_secret(word: &str) -> String {
    const KEYS: [&str; 7] = [
        "hf_",
        "sk-",
        "ghp_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "AKIA",
    ];
    let shown = without_value(word);
    if KEYS.iter().any(|k| shown.starts_with(k)) && shown.len() >= 20 {
        return HIDDEN.to_owned();
    }
    shown
}

fn without_value(word: &str) -> String {
    if let Some((name, value)) = word.split_once('=') {
        if names_a_secret(name) && !value.is_empty() {
            return format!("{name}={HIDDEN}");
        }
        return format!("{name}={}", without_secret(value));
    }
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((user, host)) = rest.split('/').next().and_then(|a| a.rsplit_once('@'))
        && let Some((user, _)) = user.split_once(':')
    {
        let path = &rest[rest.find('/').unwrap_or(rest.len())..];
        return format!("{scheme}://{user}:{HIDDEN}@{host}{path}");
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_texts_and_lists_are_refused_and_labels_cut() {
        fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
            serde_json::from_str(text).map_err(|e| e.to_string())
        }
        assert_eq!(read::<Text<3>>("\"abc\"").expect("fits"), *"abc");
        let error = read::<Text<3>>("\"abcd\"").expect_err("too long");
        assert!(error.contains("4 bytes; at most 3 are allowed"), "{error}");
        assert_eq!(&*read::<List<u8, 2>>("[1, 2]").expect("fits"), [1, 2]);
        let error = read::<List<u8, 2>>("[1, 2, 3]").expect_err("too long");
        assert!(error.contains("more than 2"), "{error}");
        let label: Label<4> = read("\"a\\u001bb\\u202ecd\"").expect("cut");
        assert_eq!(label, *"a b ");
    }

    #[test]
    fn a_command_line_is_cut_and_has_no_passwords() {
        let long = CommandLine::of(vec!["é".repeat(1000); 1000]);
        assert!(long.len() <= WORDS && long.iter().map(String::len).sum::<usize>() <= COMMAND);
        for (given, kept) in [
            ("--api-key=SECRET", "--api-key=***"),
            ("HF_TOKEN=abc", "HF_TOKEN=***"),
            ("--password SECRET x", "--password *** x"),
            ("--token --verbose", "--token --verbose"),
            ("hf_0123456789abcdefghij", "***"),
            ("--url=https://me:pw@host/a", "--url=https://me:***@host/a"),
            (
                "--max-tokens=512 --key-dim 64",
                "--max-tokens=512 --key-dim 64",
            ),
            ("--lr=0.1 data=x", "--lr=0.1 data=x"),
            ("sk-0123456789abcdef0123==", "***"),
        ] {
            let line = CommandLine::of(given.split(' '));
            assert_eq!(line.join(" "), kept);
        }
        // A cut word must not show the beginning of a key, and must not be cut again.
        for end in ["", "=", "://a:b@c"] {
            let word = format!("AKIA{}{end}", "x".repeat(300));
            let line = CommandLine::of([&word]);
            assert_eq!(line.join(" "), "***", "{end}");
        }
        let word = format!("https://me:{}@host", "x".repeat(300));
        assert_eq!(CommandLine::of([&word]).join(" "), "https://me:***@host");
        let text = serde_json::to_string(&vec!["--secret=x"; 100]).expect("JSON");
        let read: CommandLine = serde_json::from_str(&text).expect("words");
        assert_eq!((read.len(), read[0].as_str()), (WORDS, "--secret=***"));
    }
}
