//! The peer at the other end of the socket: the one place that says for whom a connection counts, and whether it may
//! have an administrator's rights. By the kernel's word alone.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use gshare_enforcer::proc::{self, PidFd, ProcessKey, UserNamespace};
use gshare_proto::{ErrorCode, WireError};
use tokio::net::UnixStream;

use super::connection::ConnId;
use super::names::Names;

/// The process at the other end, and its user.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The connection.
    pub(crate) conn: ConnId,
    /// The user for whom it counts: the effective one at `connect`, or the owner of the namespace or of the
    /// subordinate number that it came from.
    pub(crate) uid: u32,
    /// Its groups then.
    pub(crate) gids: Arc<[u32]>,
    /// The process that connected.
    pub(crate) process: Option<ProcessKey>,
    /// A handle on it.
    pub(crate) pidfd: Option<Arc<PidFd>>,
    /// It lives on the machine itself, not in a container.
    pub(crate) on_machine: bool,
}

/// Whether this kernel hands out handles on the process that connected (6.5 and later).
fn peer_handles() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        std::os::unix::net::UnixStream::pair()
            .ok()
            .and_then(|(a, _b)| PidFd::of_peer(a.as_fd()).ok().flatten())
            .is_some()
    })
}

impl Peer {
    /// The peer that has connected. `subordinate` is the owner of the range that its user id is in.
    ///
    /// # Errors
    /// The kernel's; inside, what a user is told that nobody stands for.
    pub(crate) fn of(
        conn: ConnId,
        stream: &UnixStream,
        subordinate: Option<u32>,
        names: &Names,
    ) -> io::Result<Result<Self, WireError>> {
        let cred = stream.peer_cred()?;
        // The number alone may by now be that of another process: whoever connected may have ended and left the
        // connection to somebody else. Only kernels that have no handles are believed the number.
        let pidfd = if peer_handles() {
            PidFd::of_peer(stream.as_fd())?
        } else {
            cred.pid().map(PidFd::open).transpose()?.flatten()
        };
        let pid = pidfd.as_ref().and_then(PidFd::pid);
        let process = pid.and_then(proc::key);
        let namespace = pid.map(proc::user_namespace);
        let on_machine = pid.is_some_and(proc::lives_on_the_machine);
        // What was read is of this process if it lives still.
        let lives = process.is_some() && pidfd.as_ref().is_some_and(|fd| !fd.has_exited());
        let namespace = match namespace {
            Some(Ok(namespace)) if lives => namespace,
            // A service of a user may not look, and serves that user alone.
            _ => UserNamespace::Same,
        };
        let Some(uid) = counts_for(cred.uid(), namespace, subordinate, |uid| {
            names.account(uid).name.is_some()
        }) else {
            let uid = cred.uid();
            return Ok(Err(WireError::new(
                ErrorCode::NotPermitted,
                format!("user id {uid} of this container is not mapped to a user of this machine"),
            )
            .with_hint(
                "the administrator can map this id to a user in /etc/subuid",
            )));
        };
        let gids = if uid == cred.uid() {
            let mut gids = proc::peer_groups(stream.as_fd()).unwrap_or_default();
            gids.push(cred.gid());
            gids
        } else {
            names.account(uid).gids()
        };
        Ok(Ok(Self {
            conn,
            uid,
            gids: gids.into(),
            process: process.filter(|_| lives),
            pidfd: pidfd.filter(|_| lives).map(Arc::new),
            on_machine: on_machine && lives,
        }))
    }

    /// Root of the machine, without a process.
    #[cfg(test)]
    pub(crate) fn root() -> Self {
        Self {
            conn: 0,
            uid: 0,
            gids: Arc::new([]),
            process: None,
            pidfd: None,
            on_machine: true,
        }
    }

    /// Whether it has the rights of the machine's root.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0 && self.on_machine
    }
}

/// The owner of the range of subordinate user ids that a number is in. Looked up off the task that owns the state, as is
/// whether the number has an account.
pub(super) async fn subordinate_owner(uid: u32, names: &Names) -> Option<u32> {
    let ranges = std::fs::read_to_string("/etc/subuid").ok()?;
    proc::range_owner(&ranges, uid)?;
    names.know(uid, &[]).await;
    let looked = tokio::task::spawn_blocking(move || proc::subordinate_owner(uid));
    looked.await.ok()?
}

/// The user for whom a process of the machine's own namespace counts, as in [`Peer`]. For threads.
pub(super) fn owner_of(uid: u32) -> u32 {
    let has_account = |uid| proc::user_name(uid).is_some();
    let subordinate = proc::subordinate_owner(uid);
    counts_for(uid, UserNamespace::Same, subordinate, has_account).unwrap_or(uid)
}

/// The user for whom a process counts that connects as `uid` from a namespace: everybody has one quota and one set of
/// limits, however many numbers they can connect with. `subordinate` is the owner of the range that `uid` is in.
fn counts_for(
    uid: u32,
    namespace: UserNamespace,
    subordinate: Option<u32>,
    has_account: impl Fn(u32) -> bool,
) -> Option<u32> {
    match namespace {
        // Container daemons make namespaces as root, for the users who have the ranges; others of root's let accounts
        // keep their numbers (systemd's PrivateUsers=).
        UserNamespace::Of(0) => subordinate.or_else(|| has_account(uid).then_some(uid)),
        UserNamespace::Of(owner) => Some(owner),
        // A program with the set-user-ID bit brings a subordinate number out of its namespace. Numbers of accounts may
        // lie in somebody's range by mistake.
        UserNamespace::Same | UserNamespace::Elsewhere => {
            Some(subordinate.filter(|_| !has_account(uid)).unwrap_or(uid))
        }
    }
}

#[cfg(test)]
mod tests {
    use UserNamespace::{Elsewhere, Of, Same};

    use super::*;

    #[test]
    fn everybody_counts_once_whatever_their_number() {
        let known = |uid: u32| [0, 1000, 100_777].contains(&uid);
        for (uid, namespace, range, expect) in [
            (1000, Same, None, Some(1000)),
            (61_001, Same, None, Some(61_001)),
            (100_005, Same, Some(1000), Some(1000)),
            // An account of a directory service in somebody's range stays itself.
            (100_777, Same, Some(1000), Some(100_777)),
            (100_777, Of(1001), Some(1000), Some(1001)),
            (100_005, Of(1000), None, Some(1000)),
            (100_005, Of(0), Some(1000), Some(1000)),
            (100_777, Of(0), Some(1000), Some(1000)),
            (1000, Of(0), None, Some(1000)),
            (100_005, Of(0), None, None),
            (5, Elsewhere, None, Some(5)),
        ] {
            let found = counts_for(uid, namespace, range, known);
            assert_eq!(found, expect, "{uid} {namespace:?} {range:?}");
        }
    }
}
