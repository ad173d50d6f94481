//! Idle claims that cannot be offloaded: the alternative by `[idle] no-detach`.

use gshare_config::NoDetach;

use super::Idling;
use crate::daemon::command::{ClaimCommand, Command};
use crate::daemon::live::Live;
use crate::daemon::world::World;

/// The alternative, in the words for its owner at the start.
const fn words(how: NoDetach) -> &'static str {
    match how {
        NoDetach::Warn => "gshare only warns you",
        NoDetach::Shrink => "its size shrinks to what it uses",
        NoDetach::Release => {
            "its programs on the GPU are ended as soon as another claim can start in their place"
        }
    }
}

/// The alternative that is possible for this claim: an instance has a fixed size.
pub(super) fn possible(how: NoDetach, live: &Live) -> NoDetach {
    let mut slices = live.record.slices.iter();
    match how {
        NoDetach::Shrink if slices.any(|s| s.uuid.starts_with("MIG-")) => NoDetach::Warn,
        how => how,
    }
}

/// Notifies its owner when its programs start something that prevents offloading.
pub(super) fn tell(world: &World<'_>, claim: &mut Idling, out: &mut Vec<Command>) {
    let live = world.claims.get(&claim.id);
    if live.is_none_or(|l| l.members.is_empty()) || claim.told_fixed == claim.fixed {
        return;
    }
    claim.told_fixed.clone_from(&claim.fixed);
    if let Some(why) = &claim.fixed {
        let (id, then) = (claim.id, words(claim.rule.no_detach));
        let text =
            format!("{id} cannot be offloaded: {why}. When it idles while others wait, {then}");
        out.push(Command::TellOwner { id, text });
    }
}

/// Reduces its size to its use, which frees the rest.
pub(super) fn shrink(world: &World<'_>, claim: &mut Idling, out: &mut Vec<Command>) {
    let waits = world.machine.queue().next().is_some();
    let may = claim.fixed.is_some() && !claim.is_kept();
    let patience = world.config.reclaim.countdown;
    let due = may && waits && claim.over(claim.rule.detach) && claim.was_warned_for(patience);
    if due && claim.once(super::INSTEAD) && claim.rule.no_detach == NoDetach::Shrink {
        out.push(Command::Claims(ClaimCommand::Shrink(claim.id)));
    }
}
