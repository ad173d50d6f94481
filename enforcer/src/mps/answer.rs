//! Output of NVIDIA's program. Users who may connect to a daemon may give it commands too, so the output is bounded
//! before it is used.

use crate::plain::plain;

/// Maximum bytes read of an answer.
pub(super) const LONGEST: u64 = 64 << 10;
/// Maximum processes in a list: a server has at most 60 clients.
const PROCESSES: usize = 1024;
/// Maximum text passed on, in characters.
const TEXT: usize = 200;

/// State of a server by its own report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Starting.
    Initializing,
    /// Serving.
    Active,
    /// A fault of one client has ended all; it takes no others until these are gone.
    Fault,
    /// An unknown state.
    Other(String),
}

/// An answer as text for people; may be empty.
pub(super) fn text(answer: &str) -> String {
    plain(answer.trim(), TEXT)
}

/// A share of the threads in percent: above 0, at most 100.
pub(super) fn percentage(answer: &str) -> Option<f64> {
    let value: f64 = answer.trim().parse().ok()?;
    (value > 0.0 && value <= 100.0).then_some(value)
}

/// Processes, one a line. An invalid pid would signal many processes.
pub(super) fn pids(answer: &str) -> Vec<i32> {
    let lines = answer.lines().filter_map(|line| line.trim().parse().ok());
    lines.filter(|pid| *pid > 0).take(PROCESSES).collect()
}

/// State of a server; `None` if it does not exist (any more).
pub(super) fn state(answer: &str) -> Option<ServerState> {
    match answer.trim() {
        "INITIALIZING" => Some(ServerState::Initializing),
        "ACTIVE" => Some(ServerState::Active),
        "FAULT" => Some(ServerState::Fault),
        other if other.ends_with("not found") => None,
        other => Some(ServerState::Other(text(other))),
    }
}

/// The end of a daemon's log.
pub(super) fn last_words(log: &str) -> String {
    let last: Vec<&str> = log.lines().rev().take(3).collect();
    text(&last.into_iter().rev().collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_control_program_says_is_bounded() {
        assert_eq!(pids("17\n 18\n0\n-1\n99999999999\nx\n"), [17, 18]);
        assert_eq!(pids(&"7\n".repeat(5000)).len(), PROCESSES);
        assert_eq!(percentage("25.0\n"), Some(25.0));
        for odd in ["NaN", "inf", "-1", "0", "100.1", "", "Server 3 not found"] {
            assert_eq!(percentage(odd), None, "{odd}");
        }
        assert_eq!(state("FAULT\n"), Some(ServerState::Fault));
        assert_eq!(state("Server 3 not found\n"), None);
        let hostile = format!("\u{1b}[2J\u{202e}{}", "x".repeat(4096));
        let Some(ServerState::Other(word)) = state(&hostile) else {
            panic!("a word that is not known");
        };
        assert!(word.starts_with("?[2J?x") && word.len() == TEXT, "{word}");
        assert_eq!(last_words("a\nb\nc\nd\u{7}"), "b; c; d?");
    }
}
