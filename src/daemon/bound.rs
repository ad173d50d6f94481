//! Programs that a claim may not move out of their cgroup: batch jobs, containers, and programs under other limits.

use gshare_enforcer::cgroup::{Bound, CgroupError, ClaimTree};
use gshare_proto::{ErrorCode, WireError};

use super::fences::Fences;

impl Fences {
    /// Whether a user's process may be moved into a claim; a claim must not bypass limits of others.
    pub(crate) fn may_leave(&self, pid: i32, uid: u32) -> Result<(), WireError> {
        let bound = self.tree.as_ref().and_then(|tree| tree.bound(pid, uid));
        bound.map_or(Ok(()), |bound| Err(refusal(pid, &bound)))
    }
}

/// The error for a user whose process could not be moved.
pub(crate) fn not_moved(error: &CgroupError) -> WireError {
    match error {
        CgroupError::Bound { pid, bound } => refusal(*pid, bound),
        other => WireError::new(ErrorCode::Internal, other.to_string()),
    }
}

fn refusal(pid: i32, bound: &Bound) -> WireError {
    let next = match bound {
        Bound::Job { .. } => {
            "ask the batch system for GPUs, or claim from a login session; \
             the administrator decides which GPUs belong to the batch system"
        }
        Bound::Container { .. } => {
            "start the container in a claim: gshare claim -g 0.5 -- podman run ..."
        }
        _ => {
            "claim from a login session that does not have this limit. Or ask the administrator to set the limit on \
             your systemd slice (user-UID.slice) instead: claims obey it there"
        }
    };
    let message = format!(
        "refused: in a claim, process {pid} would escape limits that were set for it elsewhere: {bound}"
    );
    WireError::new(ErrorCode::NotPermitted, message).with_hint(next)
}
