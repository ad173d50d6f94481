//! The peer of a connection: the only place that determines the user for whom it counts, and whether it may have an
//! administrator's rights. Based on the kernel's credentials alone.

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
    pub(crate) conn: ConnId,
    /// The user for whom it counts: the effective uid at `connect`, or the owner of the user namespace or subordinate
    /// uid that it came from.
    pub(crate) uid: u32,
    /// Its groups at that time.
    pub(crate) gids: Arc<[u32]>,
    /// The process that connected.
    pub(crate) process: Option<ProcessKey>,
    /// A handle on it.
    pub(crate) pidfd: Option<Arc<PidFd>>,
    /// It runs on the machine itself, not in a container.
    pub(crate) on_machine: bool,
    /// It is the machine's root below the cgroup of a claim, and counts for the claim's owner.
    pub(crate) was_root: bool,
}

/// Whether this kernel provides handles on the connecting process (6.5 and later).
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
    /// The peer of a new connection. `subordinate` is the owner of the range that its uid is in.
    ///
    /// # Errors
    ///
    /// The kernel's; inside, the text for a user for whom no account stands.
    pub(crate) fn of(
        conn: ConnId,
        stream: &UnixStream,
        subordinate: Option<u32>,
        names: &Names,
    ) -> io::Result<Result<Self, WireError>> {
        let cred = stream.peer_cred()?;
        // A pid alone may be another process's by now: the connecting process may have ended and left the connection
        // to another. The pid is trusted only on kernels without handles.
        let pidfd = if peer_handles() {
            PidFd::of_peer(stream.as_fd())?
        } else {
            cred.pid().map(PidFd::open).transpose()?.flatten()
        };
        let pid = pidfd.as_ref().and_then(PidFd::pid);
        let process = pid.and_then(proc::key);
        let namespace = pid.map(proc::user_namespace);
        let on_machine = pid.is_some_and(proc::lives_on_the_machine);
        // The facts are about this process if it still lives.
        let lives = process.is_some() && pidfd.as_ref().is_some_and(|fd| !fd.has_exited());
        let namespace = match namespace {
            Some(Ok(namespace)) if lives => namespace,
            // A user's service may not look, and serves that user alone.
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
            was_root: false,
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
            was_root: false,
        }
    }

    /// Whether it has the rights of the machine's root.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0 && self.on_machine
    }
}

/// The owner of the range of subordinate uids that a uid is in. Looked up outside the state's task, as is whether the
/// uid has an account.
pub(super) async fn subordinate_owner(uid: u32, names: &Names) -> Option<u32> {
    let ranges = std::fs::read_to_string("/etc/subuid").ok()?;
    proc::range_owner(&ranges, uid)?;
    names.know(uid, &[]).await;
    let looked = tokio::task::spawn_blocking(move || proc::subordinate_owner(uid));
    looked.await.ok()?
}

/// The user for whom a process in the machine's own namespace counts, as in [`Peer`]; for threads.
pub(super) fn owner_of(uid: u32) -> u32 {
    let has_account = |uid| proc::user_name(uid).is_some();
    let subordinate = proc::subordinate_owner(uid);
    counts_for(uid, UserNamespace::Same, subordinate, has_account).unwrap_or(uid)
}

/// The user for whom a process counts that connects as `uid` from a namespace: every user has one guarantee and one
/// set of limits, with any number of uids. `subordinate` is the owner of the range that `uid` is in.
fn counts_for(
    uid: u32,
    namespace: UserNamespace,
    subordinate: Option<u32>,
    has_account: impl Fn(u32) -> bool,
) -> Option<u32> {
    match namespace {
        // Container daemons make namespaces as root for the owners of the ranges; other namespaces of root's keep
        // accounts' uids (systemd's PrivateUsers=).
        UserNamespace::Of(0) => subordinate.or_else(|| has_account(uid).then_some(uid)),
        UserNamespace::Of(owner) => Some(owner),
        // A set-user-ID program can take a subordinate uid out of its namespace. Uids of accounts may be in a user's
        // range by mistake.
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
            // An account of a directory service inside a user's range counts for itself.
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
