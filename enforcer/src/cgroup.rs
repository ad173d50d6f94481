//! cgroup v2: the tree that holds the members of every claim.
//!
//! A claim is one cgroup, `gshare/user-<uid>/claim-<id>`. Leaves hold processes, inner nodes hold
//! none. Membership is what says which claim a process belongs to: children inherit it, and a
//! member cannot leave because the directories belong to the service.
//!
//! [`OwnTree`] makes the directories itself. Where systemd owns the tree, units take its place
//! ([`UnitTree`]) behind the same trait, [`ClaimTree`]. [`Tree`] is whichever of them a machine has.

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

/// What can go wrong with a cgroup, with the cgroup, the reason and what helps.
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
    /// The service may not make cgroups where it was told to.
    #[error(
        "cgroup {dir} is not delegated to uid {uid}: {missing}\n\
         hint: run gshared as root, or in a delegated unit \
         (systemd-run --user --scope -p Delegate=yes gshared --user)"
    )]
    NotDelegated {
        /// The cgroup under which the tree should be made.
        dir: PathBuf,
        /// Effective uid of the service.
        uid: u32,
        /// What is missing, in words.
        missing: String,
    },
    /// The process is bound to the cgroup that it is in.
    #[error("process {pid} was not moved into the claim's cgroup: {bound}")]
    Bound {
        /// The process.
        pid: i32,
        /// To what.
        bound: Bound,
    },
    /// The cgroup is somebody else's: nobody is moved into it or out of it, and it is neither frozen nor killed.
    #[error(
        "the programs of this claim are those below {cgroup}, which is not gshare's: nothing is moved, frozen or killed there"
    )]
    Foreign {
        /// The cgroup, in the kernel's words.
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
        /// Where it should be.
        wanted: PathBuf,
        /// Where `/proc/<pid>/cgroup` says it is.
        found: String,
    },
    /// The cgroup still holds processes.
    #[error("cgroup {cgroup} still holds {members} process(es)")]
    Busy {
        /// The claim's cgroup.
        cgroup: PathBuf,
        /// How many processes are in it and below.
        members: usize,
    },
    /// The cgroup did not reach the wanted state in time.
    #[error("cgroup {cgroup} did not become {wanted} within {waited:?}")]
    Timeout {
        /// The claim's cgroup.
        cgroup: PathBuf,
        /// Such as `empty`.
        wanted: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// A file of the kernel does not look as expected.
    #[error("{path} has unexpected contents {contents:?}")]
    Garbled {
        /// The file.
        path: PathBuf,
        /// What it held.
        contents: String,
    },
    /// systemd, which keeps the tree, did not do its part.
    #[error("systemd did not create the cgroup for gshare\nhint: systemctl status gshare.slice")]
    Systemd(#[from] SystemdError),
    /// Any other failure of a system call.
    #[error("cannot {verb} {path}")]
    Io {
        /// What was attempted, as a verb.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
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
