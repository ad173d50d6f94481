//! What the plugin for Slurm leaves on a node.

use std::fs;
use std::path::{Path, PathBuf};

use gshare_config::Paths;

/// Directory of the plugin's files and the jobs': beside the claims' pages, gone after a reboot.
pub(crate) fn jobs(paths: &Paths) -> PathBuf {
    paths.runtime_dir.join("slurm")
}

/// A command of the Slurm whose slurmd runs here, as the plugin has found it; without one, as `PATH` finds it.
pub(crate) fn program(jobs: &Path, name: &str) -> PathBuf {
    fs::canonicalize(jobs.join("bin").join(name)).unwrap_or_else(|_| name.into())
}
