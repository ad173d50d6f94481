//! The service's surroundings: whom it serves, its files, the driver, and the kernel mechanisms that contain claims.

#[cfg(test)]
use std::path::PathBuf;

#[cfg(test)]
use gshare_config::Config;
use gshare_config::{Mode, Paths};
#[cfg(test)]
use gshare_enforcer::nodes::Majors;

use tokio::sync::mpsc::UnboundedSender;

use super::arbiter::Gates;
use super::driver::Driver;
use super::fences::Fences;
use super::msg::Msg;
use super::names::Names;
use super::notebooks::helpers::Helpers;
#[cfg(test)]
use super::strict::{LibDirs, Strict};

/// The service's surroundings.
#[derive(Debug)]
pub(crate) struct Host {
    /// For the machine or for one user.
    pub(crate) mode: Mode,
    pub(crate) paths: Paths,
    pub(crate) started_ms: u64,
    /// Number of services that have started on this journal.
    pub(crate) epoch: u64,
    /// Messages from threads and processes that work for the service.
    pub(crate) events: UnboundedSender<Msg>,
    /// The processes that query Jupyter.
    pub(crate) helpers: Helpers,
    /// Shares of GPU time.
    pub(crate) gates: Option<Gates>,
    pub(crate) names: Names,
    pub(crate) driver: Driver,
    pub(crate) fences: Fences,
}

#[cfg(test)]
impl Host {
    /// Surroundings without anything.
    pub(crate) fn none() -> Self {
        let config = Config::default();
        let paths = config.paths(Mode::System);
        let driver = Driver {
            simulated: true,
            libcuda: Err("none".to_owned()),
            nvml: PathBuf::new(),
            dirs: LibDirs::choose(&paths.runtime_dir, &paths.state_dir),
            strict: Strict::default(),
        };
        Self {
            mode: Mode::System,
            paths,
            started_ms: 0,
            epoch: 0,
            events: tokio::sync::mpsc::unbounded_channel().0,
            helpers: Helpers::default(),
            gates: None,
            names: Names::default(),
            driver,
            fences: Fences {
                tree: None,
                no_tree: None,
                filters: None,
                no_filter: None,
                majors: Majors::parse(""),
            },
        }
    }
}
