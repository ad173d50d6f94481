//! cgroup v2: the tree of the members of all claims.
//!
//! A claim is one cgroup, `gshare/user-<uid>/claim-<id>`. Leaves hold processes, inner nodes none. Membership defines
//! the claim of a process: children inherit it, and a member cannot leave because the directories belong to the
//! service.
//!
//! [`OwnTree`] makes the directories itself. If systemd owns the tree, units take its place ([`UnitTree`]) behind the
//! same trait, [`ClaimTree`]. [`Tree`] is the one that this machine has.

mod bound;
mod claim;
mod events;
mod mount;
pub(crate) mod name;
mod tree;
mod units;
mod which;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::systemd::SystemdError;

pub use bound::{Bound, container_id};
pub use claim::ClaimCgroup;
pub use events::{CgroupEvents, EventsWatch, TreeWatch};
pub(crate) use mount::unescape;
pub use mount::{Mount, path_of_pid, v2_path};
pub use tree::{ClaimPlace, ClaimTree, OwnTree, Parent};
pub use units::UnitTree;
pub use which::{Tree, trees};

/// Errors about a cgroup, with the reason and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    #[error(
        "no cgroup v2 hierarchy in {mountinfo}\n\
         hint: mount one (mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified) or run without cgroups"
    )]
    NoMount { mountinfo: PathBuf },
    #[error(
        "cgroup {dir} is not delegated to uid {uid}: {missing}\n\
         hint: run gshared as root, or in a delegated unit \
         (systemd-run --user --scope -p Delegate=yes gshared --user)"
    )]
    NotDelegated {
        dir: PathBuf,
        uid: u32,
        missing: String,
    },
    #[error("process {pid} was not moved into the claim's cgroup: {bound}")]
    Bound { pid: i32, bound: Bound },
    /// The cgroup belongs to another program: gshare neither moves processes into or out of it, nor freezes or kills
    /// it.
    #[error(
        "the programs of this claim are those below {cgroup}, which is not gshare's: nothing is moved, frozen or killed there"
    )]
    Foreign { cgroup: PathBuf },
    #[error("process {pid} ended before it was moved into {cgroup}")]
    Vanished { pid: i32, cgroup: PathBuf },
    #[error("process {pid} is in cgroup {found}, not in {wanted}, after the move")]
    NotMoved {
        pid: i32,
        wanted: PathBuf,
        /// Its cgroup according to `/proc/<pid>/cgroup`.
        found: String,
    },
    #[error("cgroup {cgroup} still holds {members} process(es)")]
    Busy { cgroup: PathBuf, members: usize },
    #[error("cgroup {cgroup} did not become {wanted} within {waited:?}")]
    Timeout {
        cgroup: PathBuf,
        wanted: &'static str,
        waited: Duration,
    },
    #[error("{path} has unexpected contents {contents:?}")]
    Garbled { path: PathBuf, contents: String },
    #[error("systemd did not create the cgroup for gshare\nhint: systemctl status gshare.slice")]
    Systemd(#[from] SystemdError),
    #[error("cannot {verb} {path}")]
    Io {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl CgroupError {
    pub(crate) fn io(verb: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            verb,
            path: path.into(),
            source,
        }
    }

    /// Whether the cgroup does not exist (any more).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(libc::ENODEV))
    }
}
