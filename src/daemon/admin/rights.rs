//! Rights of administrators, the reasons that they give, and the error when the journal cannot record a request.

use gshare_proto::{ErrorCode, WireError, messages};

use crate::daemon::convert;
use crate::daemon::journal::JournalError;
use crate::daemon::peer::Peer;
use crate::daemon::world::World;

/// Maximum length of a reason, in characters.
const REASON: usize = 200;

/// True for root, the service's own user and the groups of the config, by the kernel's credentials of the connection.
pub(crate) fn may_administrate(world: &World<'_>, peer: &Peer) -> Result<(), WireError> {
    if !peer.on_machine {
        return Err(WireError::new(
            ErrorCode::NotPermitted,
            "only administrators may do this, and no program in a container or in a user's claim, even as root",
        )
        .with_hint("run the command with sudo on the machine itself"));
    }
    let own = nix::unistd::Uid::effective().as_raw();
    if peer.uid == 0 || peer.uid == own {
        return Ok(());
    }
    let groups = &world.config.admin.groups;
    let mut named = peer
        .gids
        .iter()
        .filter_map(|gid| world.host.names.group(*gid));
    if !groups.is_empty() && named.any(|name| groups.contains(&name)) {
        return Ok(());
    }
    let user = world.host.names.user(peer.uid);
    tracing::warn!("{user} asked for what only administrators may do");
    let who = if groups.is_empty() {
        "root".to_owned()
    } else {
        messages::only_groups(groups.join(", "))
    };
    Err(WireError::new(
        ErrorCode::NotPermitted,
        format!("{user} may not do this: only administrators may, on this machine {who}"),
    )
    .with_hint("run the command with sudo, or ask to be listed: [admin] groups in gshare.toml"))
}

/// An administrator's reason, cleaned for other users' terminals.
pub(super) fn reason_of(text: Option<&str>) -> Option<String> {
    text.map(|t| convert::clean(t, REASON))
        .filter(|t| !t.trim().is_empty())
}

/// ` (fan broken)`, or nothing.
pub(super) fn in_brackets(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |r| format!(" ({r})"))
}

/// The error for a request that was not carried out because the journal could not record it.
pub(crate) fn unwritten(error: &JournalError) -> WireError {
    WireError::new(ErrorCode::Storage, messages::nothing_changed(error))
        .with_hint(messages::state_disk_room())
}
