//! Parses slurm.conf and similar files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum depth of includes.
const DEEPEST: usize = 8;

/// Keys in small letters with their values, in the order of the file and its includes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Conf(Vec<(String, String)>);

/// The lines of a file and of those that it includes, without comments; `dir` is its directory.
pub(super) fn lines(text: &[u8], dir: &Path) -> Vec<String> {
    lines_to(text, dir, DEEPEST)
}

fn lines_to(text: &[u8], dir: &Path, depth: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let of = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (key, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if !key.eq_ignore_ascii_case("include") || depth == 0 {
            return vec![line.to_owned()];
        }
        let files = matching(dir.join(name.trim())).into_iter();
        let texts = files.map(|file| fs::read(file).unwrap_or_default());
        let all = texts.flat_map(|text| lines_to(&text, dir, depth - 1));
        all.collect()
    };
    text.lines().flat_map(of).collect()
}

/// The files that an include names. Slurm takes patterns in plugstack.conf, by the rules of sh.
fn matching(name: PathBuf) -> Vec<PathBuf> {
    if name.exists() {
        return vec![name];
    }
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", r"IFS=; printf '%s\n' $0"]).arg(name);
    let found = sh.output().map(|o| o.stdout).unwrap_or_default();
    let found = String::from_utf8_lossy(&found);
    found.lines().map(PathBuf::from).collect()
}

impl Conf {
    /// Parses a file; `dir` is its directory.
    pub(super) fn of(text: &[u8], dir: &Path) -> Self {
        let pair = |line: String| {
            let (key, value) = line.split_once('=')?;
            Some((key.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        Self(lines(text, dir).into_iter().filter_map(pair).collect())
    }

    /// An unreadable file counts as empty.
    pub(super) fn read(file: &Path) -> Self {
        let dir = file.parent().unwrap_or(Path::new("/"));
        Self::of(&fs::read(file).unwrap_or_default(), dir)
    }

    /// All values of a key.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let own = self.0.iter().filter(move |(k, _)| k == key);
        own.map(|(_, value)| value.as_str())
    }

    /// The last value of a key in small letters, which applies.
    pub(super) fn last(&self, key: &str) -> &str {
        let own = self.0.iter().rfind(|(k, _)| k == key);
        own.map_or("", |(_, value)| value)
    }

    /// Whether a key is switched on.
    pub(super) fn is_on(&self, key: &str) -> bool {
        let value = self.last(key);
        ["yes", "true", "1"]
            .iter()
            .any(|w| value.eq_ignore_ascii_case(w))
    }

    /// Whether a list of words contains this one.
    pub(super) fn lists(&self, key: &str, word: &str) -> bool {
        let mut words = self.last(key).split(',');
        words.any(|w| w.trim().eq_ignore_ascii_case(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts_also_of_an_included_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("more.conf"), "PrivateData = jobs,usage\n").unwrap();
        let text = b"# x=y\nConstrainDevices = Yes # y\r\nprivatedata=none\nInclude more.conf\nInclude more\n";
        let conf = Conf::of(text, dir.path());
        assert!(conf.is_on("constraindevices") && !conf.is_on("x"));
        assert!(conf.lists("privatedata", "Jobs") && !conf.lists("privatedata", "none"));
        assert_eq!(conf.last("x"), "");
    }
}
