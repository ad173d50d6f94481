//! Strict launches: what the launcher is told to lay over what, who may ask, and the move into the claim. The
//! launcher is the only one that is moved: the caller runs without a GPU until it has become
//! the launcher, so that no process is in a claim's cgroup with the driver's own library in reach of its loader.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gshare_abi::wire::{Bind, Launch, LaunchAnswer, Plan};
use gshare_config::{Config, LaunchCaps, Mode};
use gshare_core::ClaimId;
use gshare_enforcer::driver::{Library, Search};
use gshare_enforcer::proc::PidFd;
use gshare_proto::{Caps, ErrorCode, WireError};

use super::die;
use super::peer::Peer;
use super::server::Sender;
use super::service::{Live, Service};
use crate::launcher;

/// CAP_SYS_ADMIN in the line `CapPrm` of `/proc/PID/status`.
const SYS_ADMIN: u64 = 1 << 21;

/// How commands are held here.
#[derive(Debug)]
pub(crate) struct Strict {
    /// By the launcher. Once decided, nothing is started in a weaker way when something is missing.
    pub(crate) on: bool,
    /// Why not, for people; empty when the configuration says so.
    pub(crate) off_because: String,
    /// `gshare-exec`.
    launcher: PathBuf,
    /// Nothing that could be staged would help.
    blocked: bool,
    /// What is laid over what, or why that cannot be said now.
    plan: Result<Vec<Bind>, String>,
}

/// The directories of the libraries that gshare stages.
#[derive(Debug, Clone)]
pub(crate) struct LibDirs {
    /// Preloaded proxies: first on `LD_LIBRARY_PATH`.
    pub(crate) preload: PathBuf,
    /// Proxies that are laid over the driver.
    pub(crate) strict: PathBuf,
    /// Where strict members find the driver itself: empty files elsewhere.
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

    /// All of them: where the driver is not to be looked for.
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
    /// Decides how commands are held from now on.
    pub(crate) fn decide(config: &Config, mode: Mode, cgroups: bool, libcuda: bool) -> Self {
        let off = |why: &str| Self {
            off_because: why.to_owned(),
            ..Self::default()
        };
        let found = launcher::find(config.launch.launcher.as_deref());
        match (config.launch.caps, found) {
            (LaunchCaps::Preload, _) => off("the config says preload ([launch] caps)"),
            (LaunchCaps::Strict, found) => Self {
                on: true,
                off_because: String::new(),
                plan: match &found {
                    Err(why) => Err(why.clone()),
                    Ok(_) if mode == Mode::User => {
                        Err("a user's own service cannot hold anybody".to_owned())
                    }
                    Ok(_) if !cgroups => Err("there are no cgroups".to_owned()),
                    Ok(_) => Err(NOT_STAGED.to_owned()),
                },
                blocked: found.is_err() || mode == Mode::User || !cgroups,
                launcher: found.unwrap_or_default(),
            },
            (LaunchCaps::Auto, _) if mode == Mode::User => {
                off("a user's own service has no right to hold anybody")
            }
            (LaunchCaps::Auto, _) if !cgroups => off("there are no cgroups"),
            (LaunchCaps::Auto, _) if !libcuda => off("there is no libcuda"),
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

    /// The launcher, for whoever is to start a command through it.
    ///
    /// # Errors
    /// Why nothing can be started now.
    pub(crate) fn launcher(&self) -> Result<&Path, String> {
        self.plan.as_ref().map_err(Clone::clone)?;
        launcher::check(&self.launcher)?;
        Ok(&self.launcher)
    }

    /// Stages the proxies for the driver that is there now, and says what is laid over what.
    pub(crate) fn stage(&mut self, found: &Found<'_>) {
        if self.on && !self.blocked {
            self.plan = plan(found);
            if let Err(why) = &self.plan {
                tracing::error!("no command can be started: {why}");
            }
        }
    }

    /// What is laid over what.
    pub(crate) fn binds(&self) -> &[Bind] {
        self.plan.as_deref().unwrap_or_default()
    }
}

/// Name of the file in the driver's directory on which every view of the launcher's has a mount.
pub(crate) const VIEW: &str = "view";
/// The plan of a service that has not looked yet.
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

/// A search for the driver's libraries that passes gshare's own over.
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
    // The driver itself first: after the others it is out of reach.
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
    .map_err(|e| format!("the proxies cannot be staged: {e}"))?;
    for (library, real, configured) in &libraries {
        let proxy = dirs.strict.join(library.file_name());
        for place in search(configured.as_deref(), dirs).installed(*library, real) {
            // What the proxy cannot stand for, a library of another word size, must not be a way around it.
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

/// An empty file that all can read; one that is there stays, it may be somebody's mount point.
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

/// Whether a process is the launcher with its capability, by the kernel's word. One that is traced or runs in a
/// user namespace is under the user's hand and has none that counts.
fn is_launcher(pid: i32, launcher: &Path) -> Result<(), String> {
    let own = fs::metadata(launcher).map_err(|e| format!("{}: {e}", launcher.display()))?;
    let gone = |_| "the process has ended".to_owned();
    let runs = fs::metadata(format!("/proc/{pid}/exe")).map_err(gone)?;
    if (runs.dev(), runs.ino()) != (own.dev(), own.ino()) {
        return Err("only gshare-exec may ask for this".to_owned());
    }
    let space = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/user")).map(|m| m.ino());
    if space(&pid.to_string()).map_err(gone)? != space("self").map_err(|e| e.to_string())? {
        return Err(
            "the process runs in a user namespace of its own, where nobody can be held".to_owned(),
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

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

impl Service {
    /// How a claim's members are held.
    pub(crate) fn caps_of(&self, live: &Live) -> Caps {
        if live.record.strict {
            Caps::Strict
        } else if self.libcuda.is_ok() {
            Caps::Cooperative
        } else {
            Caps::None
        }
    }

    /// Refuses early what the launcher would have to refuse after an hour in the queue.
    pub(crate) fn may_launch(&self, peer: &Peer) -> Result<(), WireError> {
        if !self.strict.on {
            return Ok(());
        }
        if let Err(why) = self.strict.launcher() {
            return Err(WireError::new(
                ErrorCode::NotPermitted,
                format!("caps are strict here, and commands cannot be held now: {why}"),
            )
            .with_hint("ask your administrator to look at gshare doctor"));
        }
        let Some(process) = peer.process else {
            return Ok(());
        };
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
        let status = status.unwrap_or_default();
        if field(&status, "NoNewPrivs:") == Some("1") && peer.uid != 0 {
            return Err(WireError::new(
                ErrorCode::NotPermitted,
                "caps are strict here, and no_new_privs is set for this process: the launcher gets no right to hold it",
            )
            .with_hint(
                "a sandbox, a container or a systemd unit with NoNewPrivileges= sets it; claim outside and start it in the claim",
            ));
        }
        Ok(())
    }

    /// Moves the launcher into its claim and tells it what to do.
    pub(crate) fn launch(&mut self, peer: &Peer, launch: &Launch, out: &Sender) {
        die::at("launch-asked");
        let answer = match self.try_launch(peer, ClaimId(launch.claim)) {
            Ok(plan) => LaunchAnswer::Go(plan),
            Err((code, message)) => {
                tracing::info!(
                    uid = peer.uid,
                    claim = launch.claim,
                    "launch refused: {message}"
                );
                let code = code.to_owned();
                LaunchAnswer::Refused { code, message }
            }
        };
        out.raw(answer.line(), Vec::new());
        die::at("launch-told");
        die::after_answer("launch-heard");
    }

    fn try_launch(&mut self, peer: &Peer, id: ClaimId) -> Result<Plan, (&'static str, String)> {
        let denied = |why: String| ("not_permitted", why);
        let unavailable = |why: String| ("unavailable", why);
        if !self.strict.on {
            return Err(unavailable("caps are not strict here".to_owned()));
        }
        let launcher = self.strict.launcher().map_err(unavailable)?.to_owned();
        let (Some(process), Some(pidfd)) = (peer.process, &peer.pidfd) else {
            return Err(denied(
                "the kernel does not say which process asks".to_owned(),
            ));
        };
        let live = self
            .claims
            .get(&id)
            .ok_or_else(|| ("ended", format!("{id} has ended")))?;
        if live.record.uid != peer.uid {
            return Err(denied(format!("{id} is not yours")));
        }
        if live.ending.is_some() && live.record.process.map(super::convert::key) != Some(process) {
            return Err(("ended", format!("{id} is ending")));
        }
        let cgroup = live.cgroup.as_ref();
        let cgroup = cgroup.ok_or_else(|| unavailable(format!("{id} has no cgroup")))?;
        is_launcher(process.pid, &launcher).map_err(denied)?;
        alive(pidfd).map_err(denied)?;
        die::at("launch-checked");
        cgroup
            .move_process(process.pid, Some(pidfd))
            .map_err(|error| {
                let told = super::bound::not_moved(&error);
                match told.code {
                    ErrorCode::NotPermitted => denied(told.message),
                    _ => ("internal", told.message),
                }
            })?;
        die::at("launch-moved");
        Ok(Plan {
            claim: id.0,
            majors: self.driver_majors(),
            binds: self.strict.binds().to_vec(),
        })
    }

    fn driver_majors(&self) -> Vec<u64> {
        let majors = &self.majors;
        [Some(majors.nvidia), majors.uvm, majors.caps]
            .into_iter()
            .flatten()
            .map(u64::from)
            .collect()
    }

    /// Stages the libraries for the driver that is there now.
    pub(crate) fn stage_strict(&mut self) {
        if let Ok(libcuda) = &self.libcuda {
            self.strict.stage(&Found {
                config: &self.config,
                dirs: &self.lib_dirs,
                libcuda,
                nvml: &self.nvml_path,
                socket: &self.paths.socket,
            });
        }
    }
}

/// What was read of a process by its number was that of this process.
fn alive(pidfd: &Arc<PidFd>) -> Result<(), String> {
    if pidfd.has_exited() {
        Err("the process has ended".to_owned())
    } else {
        Ok(())
    }
}
