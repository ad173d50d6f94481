//! Configuration: the service's `gshare.toml`, a project's `.gshare.toml`, and where things live.
//!
//! Reading goes in one walk over the parsed text, with the position of every key and value: unknown
//! keys, wrong units and impossible values are all reported together, each with file, line, column
//! and what was expected. A key exists only if something reads it.
#![forbid(unsafe_code)]

mod claims;
mod classes;
mod detach;
mod history;
mod idle;
mod keys;
mod paths;
mod policy;
mod problem;
mod project;
mod read;
mod reclaim;
mod sharing;
mod show;
mod sizes;
pub mod value;

use std::io;
use std::path::{Path, PathBuf};

pub use claims::Claims;
pub use detach::Detach;
pub use history::{History, KernelLog, WorkHours};
pub use idle::{Idle, IdleRule, IdleWhen, NoDetach};
pub use keys::{
    Admin, Advice, Cgroup, Config, Containers, Defaults, Devices, Driver, Launch, LaunchCaps,
    Listen, LogLevel, Memory, Metrics, Project, Service, Wait, unpackable,
};
pub use paths::{Mode, Paths, SYSTEM_FILE, SYSTEM_SOCKET, find_socket, user_file, user_socket};
pub use policy::{ExcessTime, Overuse, Policy, Unclaimed};
pub use problem::Problem;
pub use project::{IgnoredFile, PROJECT_FILE, ProjectDefaults, ProjectFile};
pub use reclaim::Reclaim;
pub use sharing::{GpuKeys, GpuMode, Mps, MpsShare, OnFault};
pub use sizes::{AutoShrink, ShareRuns, Sizes};

/// The file that packages install as `/etc/gshare/gshare.toml`: every key, with its default, as a comment.
pub const SHIPPED: &str = include_str!("../gshare.toml");

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The file says something that has no meaning. All problems, in the order of the file.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

impl Config {
    /// The configuration in force for a service of this mode: its file where there is one, else defaults.
    ///
    /// # Errors
    /// When the file cannot be read or is not valid.
    pub fn load(mode: Mode) -> Result<Self, ConfigError> {
        let Some(path) = mode.file() else {
            return Ok(Self::default());
        };
        match Self::load_file(&path) {
            Err(ConfigError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(Self::default())
            }
            other => other,
        }
    }

    /// The configuration of one file, which must exist.
    ///
    /// # Errors
    /// When the file cannot be read or is not valid.
    pub fn load_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::check(&text, path).map_err(ConfigError::Invalid)
    }
}
