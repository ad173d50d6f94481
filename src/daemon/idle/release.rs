//! Ends idle claims that cannot be offloaded, if their rule says so: as few as let a waiting claim start.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_config::NoDetach;
use gshare_core::ClaimId;
use gshare_core::units::show_duration;

use super::{Idling, has_its_gpu};
use crate::daemon::command::{Command, EndCommand};
use crate::daemon::world::World;

/// Asks which of the claims that may be ended suffice. Without any, announcements are withdrawn.
pub(super) fn choose(
    world: &World<'_>,
    claims: &mut BTreeMap<ClaimId, Idling>,
    out: &mut Vec<Command>,
) {
    let may = |claim: &&Idling| {
        let live = world.claims.get(&claim.id);
        claim.rule.no_detach == NoDetach::Release
            && claim.over(claim.rule.detach)
            && claim.pause.warned_ns.is_some()
            && !claim.is_kept()
            && claim.fixed.is_some()
            && live.is_some_and(has_its_gpu)
    };
    let due = claims.values().filter(may);
    let mut due: Vec<(Duration, ClaimId)> = due.map(|c| (c.idle(), c.id)).collect();
    // The longest idle first.
    due.sort_unstable_by(|a, b| b.cmp(a));
    if due.is_empty() || world.machine.queue().next().is_none() {
        claims.values_mut().for_each(|c| c.announced_ns = None);
    } else {
        let due = due.into_iter().map(|(_, id)| id).collect();
        out.push(Command::FewestToEnd(due));
    }
}

/// Announces the end of a chosen claim, and ends it after the countdown.
pub(super) fn count_down(
    world: &World<'_>,
    claim: &mut Idling,
    chosen: bool,
    out: &mut Vec<Command>,
) {
    let (id, patience) = (claim.id, world.config.reclaim.countdown);
    claim.now_ns = world.now.mono_ns;
    match claim.announced_ns {
        _ if !chosen => claim.announced_ns = None,
        None => {
            claim.announced_ns = Some(claim.now_ns);
            let text = format!(
                "{id} will be released in {}, so that another claim can start: {id} is idle and cannot be offloaded. Its \
                 programs on the GPU are ended and lose their memory. To keep it: gshare keep {id}",
                show_duration(patience)
            );
            out.push(Command::TellOwner { id, text });
        }
        Some(at) if claim.ago(at) >= patience => {
            let text =
                format!("{id} is released: it is idle, cannot be offloaded, and others wait");
            out.push(Command::TellOwner { id, text });
            let cause = "idle while others waited";
            out.push(Command::Ends(EndCommand::End {
                id,
                cause: cause.into(),
            }));
        }
        Some(_) => {}
    }
}
