//! Notifies the owner of a claim: on the screen for everybody, on the terminals of its processes, and in the output
//! of its notebook.

use std::collections::BTreeSet;

use gshare_core::ClaimId;
use gshare_enforcer::proc::{self, ProcessKey};

use super::whose::members_of;
use super::world::World;

/// Writes a line to the owner's terminals; skips a terminal that does not accept it at once.
pub(crate) fn write_to_terminals(world: &World<'_>, id: ClaimId, text: &str) {
    let Some(owner) = world.claims.get(&id).map(|live| live.record.uid) else {
        return;
    };
    let members = members_now(world, id);
    let terminals: BTreeSet<_> = members
        .iter()
        .filter_map(|p| proc::terminal(p.pid, owner))
        .collect();
    for terminal in terminals {
        if let Err(error) = terminal.say(&format!("gshare: {text}")) {
            tracing::debug!(%id, %error, "cannot write to the owner's terminal");
        }
    }
}

/// The claim's processes at this moment, on the GPU or not.
pub(crate) fn members_now(world: &World<'_>, id: ClaimId) -> Vec<ProcessKey> {
    let members = |live| {
        members_of(
            live,
            &world.host.paths.socket,
            world.host.fences.tree.as_ref(),
        )
    };
    world.claims.get(&id).map(members).unwrap_or_default()
}
