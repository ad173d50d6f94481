//! Paths of files, sockets and state, for the system service and for a user's own.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use directories::BaseDirs;
use nix::unistd::Uid;

use crate::keys::Config;

/// Configuration of the system service.
pub const SYSTEM_FILE: &str = "/etc/gshare/gshare.toml";
/// Default socket of the system service.
pub const SYSTEM_SOCKET: &str = "/run/gshare/gshared.sock";

/// The kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One for the machine, run by root.
    System,
    /// A user's own, without privileges.
    User,
}

impl Mode {
    /// The mode of this process: root runs the system service unless `user` is set.
    #[must_use]
    pub fn of_process(user: bool) -> Self {
        if !user && Uid::effective().is_root() {
            Self::System
        } else {
            Self::User
        }
    }

    /// The word for display and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
        }
    }

    /// The configuration file of this mode, which may not exist; `None` for a user without a home.
    #[must_use]
    pub fn file(self) -> Option<PathBuf> {
        match self {
            Self::System => Some(PathBuf::from(SYSTEM_FILE)),
            Self::User => user_file(),
        }
    }
}

/// `$XDG_CONFIG_HOME/gshare/gshare.toml`; `None` without a home directory.
#[must_use]
pub fn user_file() -> Option<PathBuf> {
    Some(BaseDirs::new()?.config_dir().join("gshare/gshare.toml"))
}

/// `$XDG_RUNTIME_DIR/gshare`, otherwise `/tmp/gshare-<uid>`. The service must check that it owns the latter.
fn user_runtime_dir() -> PathBuf {
    env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .map_or_else(
            || PathBuf::from(format!("/tmp/gshare-{}", Uid::effective())),
            |p| p.join("gshare"),
        )
}

/// Default socket of a user's own service.
#[must_use]
pub fn user_socket() -> PathBuf {
    user_runtime_dir().join("gshared.sock")
}

/// The paths of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Socket for clients.
    pub socket: PathBuf,
    /// Claim pages and staged libraries; emptied by a reboot.
    pub runtime_dir: PathBuf,
    /// Journal and history; kept.
    pub state_dir: PathBuf,
}

impl Config {
    /// The paths of a service of this mode.
    #[must_use]
    pub fn paths(&self, mode: Mode) -> Paths {
        let service = &self.service;
        let runtime_dir = service.runtime_dir.clone().unwrap_or_else(|| match mode {
            Mode::System => PathBuf::from("/run/gshare"),
            Mode::User => user_runtime_dir(),
        });
        let state_dir = service.state_dir.clone().unwrap_or_else(|| match mode {
            Mode::System => PathBuf::from("/var/lib/gshare"),
            Mode::User => BaseDirs::new()
                .and_then(|b| b.state_dir().map(|d| d.join("gshare")))
                .unwrap_or_else(|| runtime_dir.join("state")),
        });
        Paths {
            socket: service
                .socket
                .clone()
                .unwrap_or_else(|| runtime_dir.join("gshared.sock")),
            runtime_dir,
            state_dir,
        }
    }
}

/// The default socket for a client: the system service's if it exists, otherwise the user's own, otherwise those in
/// the configuration files. The second value lists the searched places.
#[must_use]
pub fn find_socket() -> (Option<PathBuf>, Vec<PathBuf>) {
    let mut tried = Vec::new();
    let mut there = |path: PathBuf| {
        let found = trusted(&path);
        if !tried.contains(&path) {
            tried.push(path.clone());
        }
        found.then_some(path)
    };
    // The files are read only if there is no socket at the usual places, so that a client starts fast.
    let usual = there(PathBuf::from(SYSTEM_SOCKET)).or_else(|| there(user_socket()));
    let found = usual.or_else(|| {
        [Mode::System, Mode::User].into_iter().find_map(|mode| {
            let path = Config::load(mode).ok()?.paths(mode).socket;
            there(path)
        })
    });
    (found, tried)
}

/// Whether `path` exists and belongs to root or to this user: any user can create `/tmp/gshare-<uid>`.
fn trusted(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|m| m.uid() == 0 || m.uid() == Uid::effective().as_raw())
}
