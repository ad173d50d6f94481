//! Strict launches: which files the launcher mounts over which, who may request one, and the move into the claim.
//! Only the launcher is moved: the caller runs without a GPU until it has become the launcher, so that no process in
//! a claim's cgroup can load the driver's own library.

use gshare_proto::messages;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gshare_abi::wire::Bind;
use gshare_config::{Config, LaunchCaps, Mode};
use gshare_enforcer::driver::{Library, Search};

use crate::launcher;

/// CAP_SYS_ADMIN in the line `CapPrm` of `/proc/PID/status`.
const SYS_ADMIN: u64 = 1 << 21;

/// How commands are limited on this machine.
#[derive(Debug)]
pub(crate) struct Strict {
    /// Strict limits are on. Once decided, no command starts in a weaker way if something is missing.
    pub(crate) on: bool,
    /// Why they are off, for display; empty if the configuration says so.
    pub(crate) off_because: String,
    /// `gshare-exec`.
    launcher: PathBuf,
    /// No staging can help.
    blocked: bool,
    /// The mounts, or why they are not known now.
    plan: Result<Vec<Bind>, String>,
}

/// The directories of the libraries that gshare stages.
#[derive(Debug, Clone)]
pub(crate) struct LibDirs {
    /// Preloaded proxies: first on `LD_LIBRARY_PATH`.
    pub(crate) preload: PathBuf,
    /// Proxies that are mounted over the driver.
    pub(crate) strict: PathBuf,
    /// Where strict members find the driver itself: empty files in other mount namespaces.
    pub(crate) driver: PathBuf,
}

impl LibDirs {
    /// Below the runtime directory, unless libraries cannot be mapped from there: Debian and Ubuntu mount /run
    /// noexec.
    pub(crate) fn choose(runtime_dir: &Path, state_dir: &Path) -> Self {
        let preload = lib_dir(runtime_dir, state_dir);
        Self {
            strict: preload.join("strict"),
            driver: preload.join("driver"),
            preload,
        }
    }

    /// All of them: the driver is not searched there.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        vec![
            self.preload.clone(),
            self.strict.clone(),
            self.driver.clone(),
        ]
    }
}

/// Where libraries are staged, by the directories of a service.
pub(crate) fn lib_dir(runtime_dir: &Path, state_dir: &Path) -> PathBuf {
    let base = if noexec(runtime_dir) {
        state_dir
    } else {
        runtime_dir
    };
    let base = base.canonicalize().unwrap_or_else(|_| base.to_owned());
    base.join("lib")
}

/// Whether programs and libraries cannot be mapped from there.
fn noexec(dir: &Path) -> bool {
    use nix::sys::statvfs::{FsFlags, statvfs};
    statvfs(dir).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_NOEXEC))
}

impl Default for Strict {
    fn default() -> Self {
        Self {
            on: false,
            off_because: String::new(),
            launcher: PathBuf::new(),
            blocked: false,
            plan: Err(NOT_STAGED.to_owned()),
        }
    }
}

impl Strict {
    /// Decides how commands are limited from now on.
    pub(crate) fn decide(config: &Config, mode: Mode, cgroups: bool, libcuda: bool) -> Self {
        let off = |why: &str| Self {
            off_because: why.to_owned(),
            ..Self::default()
        };
        let found = launcher::find(config.launch.launcher.as_deref());
        match (config.launch.caps, found) {
            (LaunchCaps::Preload, _) => {
                off("gshare.toml selects cooperative limits (caps = \"preload\" in [launch])")
            }
            (LaunchCaps::Strict, found) => Self {
                on: true,
                off_because: String::new(),
                plan: match &found {
                    Err(why) => Err(why.clone()),
                    Ok(_) if mode == Mode::User => {
                        Err("a user's own service cannot enforce strict limits".to_owned())
                    }
                    Ok(_) if !cgroups => Err("there are no cgroups".to_owned()),
                    Ok(_) => Err(NOT_STAGED.to_owned()),
                },
                blocked: found.is_err() || mode == Mode::User || !cgroups,
                launcher: found.unwrap_or_default(),
            },
            (LaunchCaps::Auto, _) if mode == Mode::User => {
                off("a user's own service lacks the privilege to enforce strict limits")
            }
            (LaunchCaps::Auto, _) if !cgroups => off("there are no cgroups"),
            (LaunchCaps::Auto, _) if !libcuda => off("no libcuda was found"),
            (LaunchCaps::Auto, Err(why)) => off(&why),
            (LaunchCaps::Auto, Ok(launcher)) => Self {
                on: true,
                off_because: String::new(),
                launcher,
                blocked: false,
                plan: Err(NOT_STAGED.to_owned()),
            },
        }
    }

    /// The launcher, through which a command starts.
    ///
    /// # Errors
    ///
    /// Why no command can start now.
    pub(crate) fn launcher(&self) -> Result<&Path, String> {
        self.plan.as_ref().map_err(Clone::clone)?;
        launcher::check(&self.launcher)?;
        Ok(&self.launcher)
    }

    /// Stages the proxies for the present driver, and plans the mounts.
    pub(crate) fn stage(&mut self, found: &Found<'_>) {
        if self.on && !self.blocked {
            self.plan = plan(found);
            if let Err(why) = &self.plan {
                tracing::error!("{}", messages::no_command_starts(why));
            }
        }
    }

    pub(crate) fn binds(&self) -> &[Bind] {
        self.plan.as_deref().unwrap_or_default()
    }
}

/// Name of the file in the driver's directory that has a mount in every namespace of the launcher's.
pub(crate) const VIEW: &str = "view";
/// The plan before the service has looked.
const NOT_STAGED: &str = "the service is starting";

/// What the service found of the driver.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) config: &'a Config,
    pub(crate) dirs: &'a LibDirs,
    pub(crate) libcuda: &'a Path,
    pub(crate) nvml: &'a Path,
    pub(crate) socket: &'a Path,
}

/// A search for the driver's libraries that skips gshare's own.
pub(crate) fn search(configured: Option<&Path>, dirs: &LibDirs) -> Search {
    Search {
        configured: configured.map(Path::to_owned),
        without: dirs.all(),
        ..Search::of_this_process()
    }
}

fn plan(found: &Found<'_>) -> Result<Vec<Bind>, String> {
    let dirs = found.dirs;
    let text = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    for dir in dirs.all() {
        fs::create_dir_all(&dir).map_err(|e| text(&dir, e))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).map_err(|e| text(&dir, e))?;
    }
    let (none, view) = (dirs.strict.join("none"), dirs.driver.join(VIEW));
    for file in [&none, &view] {
        empty(file).map_err(|e| text(file, e))?;
    }
    let mut binds = vec![bind(&none, &view)?];
    // The driver itself first: it cannot be reached after the others.
    let libraries = [
        (Library::Cuda, found.libcuda, &found.config.driver.libcuda),
        (Library::Nvml, found.nvml, &found.config.driver.libnvidia_ml),
    ];
    for (library, real, _) in &libraries {
        let place = dirs.driver.join(library.file_name());
        empty(&place).map_err(|e| text(&place, e))?;
        let real = real.canonicalize().map_err(|e| text(real, e))?;
        binds.push(bind(&real, &place)?);
    }
    let cuda = dirs.driver.join(Library::Cuda.file_name());
    gshare_artifacts::stage_shim_for(
        &dirs.strict,
        &cuda,
        found.libcuda,
        found.socket,
        gshare_artifacts::Mode::Strict,
    )
    .map_err(|e| format!("cannot install gshare's libraries: {e}"))?;
    for (library, real, configured) in &libraries {
        let proxy = dirs.strict.join(library.file_name());
        for place in search(configured.as_deref(), dirs).installed(*library, real) {
            // A library that the proxy cannot replace, such as one of another word size, must not bypass it.
            let from = if place.loads { &proxy } else { &none };
            binds.push(bind(from, &place.path)?);
        }
    }
    for bind in &binds {
        for path in [&bind.from, &bind.on] {
            gshare_abi::trusted(Path::new(path))?;
        }
    }
    Ok(binds)
}

/// An empty, readable file; an existing one stays, because it may be a mount point.
fn empty(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0) {
        return Ok(());
    }
    let _ = fs::remove_file(path);
    fs::File::create_new(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

fn bind(from: &Path, on: &Path) -> Result<Bind, String> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| format!("{} is not a path in UTF-8", path.display()))
    };
    let found = fs::metadata(from).map_err(|e| format!("{}: {e}", from.display()))?;
    Ok(Bind {
        from: text(from)?,
        device: found.dev(),
        inode: found.ino(),
        on: text(on)?,
    })
}

/// Whether a process is the launcher with its capability, according to the kernel. A process that is traced or in a
/// user namespace is under the user's control, and its capability does not count.
pub(super) fn is_launcher(pid: i32, launcher: &Path) -> Result<(), String> {
    let own = fs::metadata(launcher).map_err(|e| format!("{}: {e}", launcher.display()))?;
    let gone = |_| "the process has ended".to_owned();
    let runs = fs::metadata(format!("/proc/{pid}/exe")).map_err(gone)?;
    if (runs.dev(), runs.ino()) != (own.dev(), own.ino()) {
        return Err("only gshare-exec may ask for this".to_owned());
    }
    let space = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/user")).map(|m| m.ino());
    if space(&pid.to_string()).map_err(gone)? != space("self").map_err(|e| e.to_string())? {
        return Err(
            "the process runs in a user namespace of its own, where limits cannot be enforced"
                .to_owned(),
        );
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(gone)?;
    let permitted = field(&status, "CapPrm:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    if permitted.is_some_and(|sets| sets & SYS_ADMIN != 0) {
        Ok(())
    } else {
        Err("the launcher runs without its capability".to_owned())
    }
}

pub(super) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}
