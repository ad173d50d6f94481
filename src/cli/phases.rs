//! Duration of a claim's phases, for `gshare bench claim`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::failure::{self, Failure};

/// One line of the file given by `--phases`. Times are CLOCK_MONOTONIC in nanoseconds, which can be compared with
/// those of the parent process.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Phases {
    /// `main` was entered.
    pub(crate) main_ns: u64,
    /// The arguments and `.gshare.toml` are read.
    pub(crate) parsed_ns: u64,
    /// The socket is connected.
    pub(crate) connected_ns: u64,
    /// The grant has arrived.
    pub(crate) granted_ns: u64,
    /// Right before exec.
    pub(crate) exec_ns: u64,
    /// Time that the service spent, in microseconds by phase.
    pub(crate) service_us: Vec<(String, u64)>,
}

impl Phases {
    /// Appends this as one line of JSON.
    pub(crate) fn append(&self, path: &Path) -> Result<(), Failure> {
        let write = || -> std::io::Result<()> {
            let mut line = serde_json::to_string(self)?;
            line.push('\n');
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(line.as_bytes())
        };
        write().map_err(|e| {
            let why = format!(
                "cannot write the times of the phases to {}: {e}",
                path.display()
            );
            Failure::new(failure::INTERNAL, why)
        })
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec().unsigned_abs() * 1_000_000_000 + t.tv_nsec().unsigned_abs()
    })
}
