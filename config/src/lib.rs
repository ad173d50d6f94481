//! Configuration: the service's `gshare.toml`, a project's `.gshare.toml`, and where things live.
//!
//! The keys are the fields of [`Config`], read and shown by serde; a file is laid over the defaults. Unknown keys,
//! wrong units and impossible values are all reported together, each with file, line, column and what was expected.
#![forbid(unsafe_code)]

mod classes;
mod defaults;
mod form;
mod idle;
mod keys;
mod paths;
mod problem;
mod project;
mod quotas;
mod read;
mod show;
mod types;
pub mod value;
mod words;

use std::io;
use std::path::{Path, PathBuf};

pub use idle::{Idle, IdleRule, IdleWhen};
pub use keys::{
    Admin, Advice, Cgroup, Claims, Config, Containers, Defaults, Detach, Devices, Driver, GpuKeys,
    History, Launch, Memory, Metrics, Mps, Policy, Project, Reclaim, Service, Sizes, Slurm,
    StageKeys,
};
pub use paths::{Mode, Paths, SYSTEM_FILE, SYSTEM_SOCKET, find_socket, user_file, user_socket};
pub use problem::Problem;
pub use project::{IgnoredFile, PROJECT_FILE, ProjectDefaults, ProjectFile};
pub use quotas::unpackable;
pub use types::{KernelLog, Listen, SlurmGpus, Wait, WorkHours};
pub use words::{
    AutoShrink, ExcessTime, GpuMode, LaunchCaps, LogLevel, MpsShare, NoDetach, OnFault, Overuse,
    ShareRuns, Silent, Stage, Unclaimed,
};

/// The file that packages install as `/etc/gshare/gshare.toml`: every key, with its default, as a comment.
pub const SHIPPED: &str = include_str!("../gshare.toml");

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

impl Config {
    /// The configuration for a service of this mode: its file if it exists, otherwise the defaults.
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
    pub fn load_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::check(&text, path).map_err(ConfigError::Invalid)
    }
}
