//! Processes: `/proc`, the peer of a socket, the end of a process.
//!
//! A process may end between any two reads. "Gone" is `None` here, never an error. A pid is valid only for a moment;
//! [`ProcessKey`] and [`PidFd`] stay valid.

mod namespace;
mod pidfd;
mod read;
mod sys;
mod terminal;
mod trim;

pub use namespace::{
    UserNamespace, lives_on_the_machine, range_owner, subordinate_owner, user_namespace,
};
pub use pidfd::{PidFd, peer_groups};
pub(crate) use read::undeleted;
pub use read::{
    ProcessKey, Rights, Stat, Uids, ancestors, cmdline, environ, exe, group_exists, group_name,
    groups_of, has_mapped, key, mount_points, primary_gid, rights, stat, uid_of, uids, user_exists,
    user_name,
};
pub use sys::{end_by_sigpipe, give_back_heap, share_one_heap};
pub use terminal::{Terminal, terminal};
pub use trim::give_back_files;
