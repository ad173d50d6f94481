//! Where files, sockets and state live, for the system service and for a user's own.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use directories::BaseDirs;
use nix::unistd::Uid;

use crate::keys::Config;

/// Configuration of the system service.
pub const SYSTEM_FILE: &str = "/etc/gshare/gshare.toml";
/// Where the system service listens unless its configuration says otherwise.
pub const SYSTEM_SOCKET: &str = "/run/gshare/gshared.sock";

/// Whose service it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One for the machine, run by root.
    System,
    /// A user's own, without privileges.
    User,
}

impl Mode {
    /// The mode of this process: root is the system unless `user` was asked for.
    #[must_use]
    pub fn of_process(user: bool) -> Self {
        if !user && Uid::effective().is_root() {
            Self::System
        } else {
            Self::User
        }
    }

    /// The word on screens and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
        }
    }

    /// The configuration file of this mode, whether or not it exists; `None` for a user without a home.
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

/// `$XDG_RUNTIME_DIR/gshare`, else `/tmp/gshare-<uid>`. The service must check that the latter is its own.
fn user_runtime_dir() -> PathBuf {
    env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .map_or_else(
            || PathBuf::from(format!("/tmp/gshare-{}", Uid::effective())),
            |p| p.join("gshare"),
        )
}

/// Where a user's own service listens unless its configuration says otherwise.
#[must_use]
pub fn user_socket() -> PathBuf {
    user_runtime_dir().join("gshared.sock")
}

/// The places that a service uses.
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
    /// The places that a service of this mode uses.
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

/// The socket that a client should use when it was not told one: the system service's if it is there,
/// else the user's own, else the ones that the configuration files name. The second value lists the
/// places that were looked at.
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
    // The files are read only when nothing listens at the usual places: a client starts fast.
    let usual = there(PathBuf::from(SYSTEM_SOCKET)).or_else(|| there(user_socket()));
    let found = usual.or_else(|| {
        [Mode::System, Mode::User].into_iter().find_map(|mode| {
            let path = Config::load(mode).ok()?.paths(mode).socket;
            there(path)
        })
    });
    (found, tried)
}

/// Whether `path` is there and belongs to root or to this user: `/tmp/gshare-<uid>` could be anybody's.
fn trusted(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|m| m.uid() == 0 || m.uid() == Uid::effective().as_raw())
}
