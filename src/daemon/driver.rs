//! The driver as the service finds it: its libraries, and the proxies that stand in their place.

use std::path::{Path, PathBuf};

use anyhow::Context;
use gshare_config::{Config, Paths};
use gshare_enforcer::driver::Library;

use super::strict::{Found, LibDirs, Strict, search};

/// What there is of it, and how commands are held to it.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) simulated: bool,
    /// Where it is, or why there is none.
    pub(crate) libcuda: Result<PathBuf, String>,
    pub(crate) nvml: PathBuf,
    pub(crate) dirs: LibDirs,
    pub(crate) strict: Strict,
}

impl Driver {
    /// Looks for it. Nothing is held strictly until that is decided.
    pub(crate) fn find(config: &Config, paths: &Paths) -> anyhow::Result<Self> {
        let dirs = LibDirs::choose(&paths.runtime_dir, &paths.state_dir);
        let nvml = search(config.driver.libnvidia_ml.as_deref(), &dirs)
            .locate(Library::Nvml)
            .context("no NVIDIA driver\nhint: to try gshare without a GPU: gshare demo")?;
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

    /// Looks again after its files have changed.
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

    /// Stages what is laid over the driver that is there now.
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

/// Puts the proxies where cooperative programs find them, with the names that the driver has now.
pub(super) fn stage_preload(dirs: &LibDirs, libcuda: &Path, socket: &Path) -> std::io::Result<()> {
    let mode = gshare_artifacts::Mode::Preload;
    gshare_artifacts::stage_shim(&dirs.preload, libcuda, socket, mode)
}
