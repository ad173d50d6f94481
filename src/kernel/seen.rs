//! The helper's report about a user's kernels. It runs as that user, who can replace it, so the report is untrusted.

use serde::{Deserialize, Serialize};

/// Maximum length of a name, in characters.
pub(super) const NAME: usize = 1024;
/// Maximum length of an id or a state, in bytes.
const WORD: usize = 256;
/// Maximum number of kernels per user.
const KERNELS: usize = 4096;

/// A server's report about a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub id: String,
    /// The notebook's file, or the name of a console; absent for a kernel without either.
    pub path: Option<String>,
    /// `idle`, `busy`, `starting`, ...
    pub state: Option<String>,
    /// Last activity, Unix milliseconds.
    pub active_ms: Option<u64>,
    /// Number of connected clients.
    pub connections: Option<u64>,
    /// Pid of the server.
    pub server: i32,
}

/// Reads a list of reports; entries larger than the helper's limits are dropped.
///
/// # Errors
///
/// When the line is no such list.
pub fn read(line: &str) -> serde_json::Result<Vec<Seen>> {
    let mut all: Vec<Seen> = serde_json::from_str(line)?;
    let fits =
        |text: &Option<String>, most| text.as_ref().is_none_or(|t| t.chars().count() <= most);
    all.retain(|s| s.id.len() <= WORD && fits(&s.state, WORD) && fits(&s.path, NAME));
    all.truncate(KERNELS);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_helper_says_is_bounded() {
        let seen = |id: &str, path: &str| Seen {
            id: id.to_owned(),
            path: Some(path.to_owned()),
            ..Seen::default()
        };
        let long = "x".repeat(5000);
        let all = [
            seen("a", "a.ipynb"),
            seen("b", &long),
            seen(&long, "c"),
            seen("d", "ü"),
        ];
        let line = serde_json::to_string(&all).expect("written");
        let read_back = read(&line).expect("a list");
        assert_eq!(read_back, [all[0].clone(), all[3].clone()]);
        let many = vec![seen("a", "b"); 5000];
        let line = serde_json::to_string(&many).expect("written");
        assert_eq!(read(&line).expect("a list").len(), KERNELS);
        assert!(read("{}").is_err());
    }
}
