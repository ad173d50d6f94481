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
    /// No cgroup v2 hierarchy is mounted.
    #[error(
        "no cgroup v2 hierarchy in {mountinfo}\n\
         hint: mount one (mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified) or run without cgroups"
    )]
    NoMount {
        /// The file that was searched.
        mountinfo: PathBuf,
    },
    /// The service may not create cgroups there.
    #[error(
        "cgroup {dir} is not delegated to uid {uid}: {missing}\n\
         hint: run gshared as root, or in a delegated unit \
         (systemd-run --user --scope -p Delegate=yes gshared --user)"
    )]
    NotDelegated {
        /// The cgroup under which the tree was to be made.
        dir: PathBuf,
        /// Effective uid of the service.
        uid: u32,
        /// What is missing, for people.
        missing: String,
    },
    /// The process is bound to the cgroup that it is in.
    #[error("process {pid} was not moved into the claim's cgroup: {bound}")]
    Bound {
        /// The process.
        pid: i32,
        /// The reason.
        bound: Bound,
    },
    /// The cgroup belongs to another program: gshare neither moves processes into or out of it, nor freezes or kills
    /// it.
    #[error(
        "the programs of this claim are those below {cgroup}, which is not gshare's: nothing is moved, frozen or killed there"
    )]
    Foreign {
        /// The kernel's name of the cgroup.
        cgroup: PathBuf,
    },
    /// The process ended before it could be moved.
    #[error("process {pid} ended before it was moved into {cgroup}")]
    Vanished {
        /// The process.
        pid: i32,
        /// The claim's cgroup.
        cgroup: PathBuf,
    },
    /// The kernel accepted the move but the process is somewhere else.
    #[error("process {pid} is in cgroup {found}, not in {wanted}, after the move")]
    NotMoved {
        /// The process.
        pid: i32,
        /// The wanted cgroup.
        wanted: PathBuf,
        /// Its cgroup according to `/proc/<pid>/cgroup`.
        found: String,
    },
    /// The cgroup still holds processes.
    #[error("cgroup {cgroup} still holds {members} process(es)")]
    Busy {
        /// The claim's cgroup.
        cgroup: PathBuf,
        /// Number of processes in it and below.
        members: usize,
    },
    /// The cgroup did not reach the wanted state in time.
    #[error("cgroup {cgroup} did not become {wanted} within {waited:?}")]
    Timeout {
        /// The claim's cgroup.
        cgroup: PathBuf,
        /// The wanted state, such as `empty`.
        wanted: &'static str,
        /// The time waited.
        waited: Duration,
    },
    /// A file of the kernel has unexpected content.
    #[error("{path} has unexpected contents {contents:?}")]
    Garbled {
        /// The file.
        path: PathBuf,
        /// Its content.
        contents: String,
    },
    /// systemd, which owns the tree, failed.
    #[error("systemd did not create the cgroup for gshare\nhint: systemctl status gshare.slice")]
    Systemd(#[from] SystemdError),
    /// Any other failure of a system call.
    #[error("cannot {verb} {path}")]
    Io {
        /// The attempted action, as a verb.
        verb: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
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
