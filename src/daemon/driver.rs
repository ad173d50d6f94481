//! The driver on this machine: its libraries, and the proxies that replace them.

use std::path::{Path, PathBuf};

use anyhow::Context;
use gshare_config::{Config, Paths};
use gshare_enforcer::driver::Library;
use gshare_proto::messages;

use super::strict::{Found, LibDirs, Strict, search};

/// The driver, and how commands are bound to its proxies.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) simulated: bool,
    /// Its path, or why there is none.
    pub(crate) libcuda: Result<PathBuf, String>,
    pub(crate) nvml: PathBuf,
    pub(crate) dirs: LibDirs,
    pub(crate) strict: Strict,
}

impl Driver {
    /// Finds the driver. Strict limits are off until they are decided.
    pub(crate) fn find(config: &Config, paths: &Paths) -> anyhow::Result<Self> {
        let dirs = LibDirs::choose(&paths.runtime_dir, &paths.state_dir);
        let nvml = search(config.driver.libnvidia_ml.as_deref(), &dirs)
            .locate(Library::Nvml)
            .with_context(|| format!("no NVIDIA driver\nhint: {}", messages::try_demo()))?;
        let libcuda = search(config.driver.libcuda.as_deref(), &dirs)
            .locate(Library::Cuda)
            .map_err(|e| e.to_string());
        Ok(Self {
            simulated: crate::figures::is_simulated(&nvml),
            libcuda,
            nvml,
            dirs,
            strict: Strict::default(),
        })
    }

    /// Finds the driver again after its files have changed.
    pub(crate) fn find_again(&mut self, config: &Config, socket: &Path) {
        let configured = config.driver.libcuda.as_deref();
        if let Ok(found) = search(configured, &self.dirs).locate(Library::Cuda) {
            self.libcuda = Ok(found);
        }
        let configured = config.driver.libnvidia_ml.as_deref();
        if let Ok(found) = search(configured, &self.dirs).locate(Library::Nvml) {
            self.nvml = found;
        }
        if let Ok(libcuda) = &self.libcuda
            && let Err(error) = stage_preload(&self.dirs, libcuda, socket)
        {
            tracing::error!(%error, "cannot install gshare's CUDA library for the driver that is now installed");
        }
    }

    /// Stages the proxies that are mounted over the present driver.
    pub(crate) fn stage_strict(&mut self, config: &Config, socket: &Path) {
        if let Ok(libcuda) = &self.libcuda {
            self.strict.stage(&Found {
                config,
                dirs: &self.dirs,
                libcuda,
                nvml: &self.nvml,
                socket,
            });
        }
    }
}

/// Puts the proxies where cooperative programs find them, under the driver's present file names.
pub(super) fn stage_preload(dirs: &LibDirs, libcuda: &Path, socket: &Path) -> std::io::Result<()> {
    let mode = gshare_artifacts::Mode::Preload;
    gshare_artifacts::stage_shim(&dirs.preload, libcuda, socket, mode)
}
