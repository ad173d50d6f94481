//! Facts about a process on the board.
#![allow(unsafe_code, reason = "asks libc for the user id")]

/// A process at registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Pid in the process's own namespace.
    pub pid: u32,
    pub uid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`); 0 if unknown.
    pub start: u64,
    pub name: String,
}

impl ProcessInfo {
    /// The calling process.
    #[must_use]
    pub fn current() -> ProcessInfo {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The command name is in parentheses and may contain any character, so count from the last parenthesis.
        let start = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok())
            .unwrap_or(0);
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        ProcessInfo {
            pid: std::process::id(),
            // SAFETY: getuid has no preconditions.
            uid: unsafe { libc::getuid() },
            start,
            name: name.trim_end().to_owned(),
        }
    }
}
