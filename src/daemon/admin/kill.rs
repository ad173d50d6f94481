//! Ends claims with all their processes, for administrators.

use std::collections::BTreeSet;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::units::show_duration;
use gshare_proto::counts::many;
use gshare_proto::{ErrorCode, WireError};

use super::rights::{in_brackets, reason_of};
use crate::daemon::command::{Command, EndCommand};
use crate::daemon::find::find;
use crate::daemon::order::{Act, Order};
use crate::daemon::peer::Peer;
use crate::daemon::tell;
use crate::daemon::world::World;

/// Default time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// Longest time between SIGTERM and SIGKILL.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// `gshare admin kill`.
pub(super) fn order(
    world: &World<'_>,
    peer: &Peer,
    chosen: &[ClaimId],
    grace_ms: Option<u64>,
    reason: Option<&str>,
) -> Order {
    let grace = grace_ms.map_or(GRACE, Duration::from_millis).min(LONGEST);
    let reason = reason_of(reason);
    let acts = chosen.iter().map(|id| kill_act(world, *id, reason.clone()));
    let cause = format!(
        "killed by {}{}",
        world.host.names.user(peer.uid),
        in_brackets(reason.as_deref())
    );
    // Withdraw waiting claims first, so that none of them starts on room that the others leave.
    let waits = |id: &&ClaimId| world.claims.waiting.contains_key(id);
    let withdraw = |id: &ClaimId| {
        Command::Ends(EndCommand::Withdraw {
            id: *id,
            text: format!("{id} was withdrawn while it waited: {cause}"),
        })
    };
    let mut then: Vec<Command> = chosen.iter().filter(waits).map(withdraw).collect();
    let lines: Vec<String> = chosen
        .iter()
        .map(|id| kill_one(world, *id, &cause, grace, &mut then))
        .collect();
    Order {
        acts: acts.collect(),
        then,
        ..Order::saying(lines.join("\n"), None)
    }
}

/// Ends one claim: gives the text for the administrator, and the commands.
fn kill_one(
    world: &World<'_>,
    id: ClaimId,
    cause: &str,
    grace: Duration,
    then: &mut Vec<Command>,
) -> String {
    if world.claims.waiting.contains_key(&id) {
        return format!("{id} withdrawn; it waited");
    }
    let Some(live) = world.claims.get(&id) else {
        return format!("{id} has ended");
    };
    let owner = world.host.names.user(live.record.uid);
    let end = Command::Ends(EndCommand::EndAll {
        id,
        cause: cause.to_owned(),
        grace,
    });
    if let Some(behalf) = &live.record.origin.behalf {
        let cgroup = behalf.cgroup.display();
        then.push(end);
        return format!(
            "{id} of {owner} ended; its programs below {cgroup} keep running: stop them with the system that \
             started them"
        );
    }
    let members = many(tell::members_now(world, id).len(), "process");
    let when = if grace.is_zero() {
        "now".to_owned()
    } else {
        format!("in {}", show_duration(grace))
    };
    let text = format!("{id} {cause}; its remaining programs are ended {when}");
    then.extend([Command::TellOwner { id, text }, end]);
    format!(
        "{id} of {owner}: {members} got SIGTERM; those that still run are killed {when}. This cannot be undone; {owner} can \
         claim again"
    )
}

/// The claims that the words name, in order. If one word does not fit, no claim is ended.
pub(super) fn chosen(
    world: &World<'_>,
    peer: &Peer,
    ids: &[impl AsRef<str>],
    user: Option<&str>,
    gpu: Option<&str>,
) -> Result<Vec<ClaimId>, WireError> {
    if !ids.is_empty() {
        let found: Result<BTreeSet<ClaimId>, WireError> = ids
            .iter()
            .map(|word| find(world, peer, word.as_ref()))
            .collect();
        return Ok(found?.into_iter().collect());
    }
    if user.is_none() && gpu.is_none() {
        return Err(WireError::new(
            ErrorCode::Usage,
            "give a claim, --user or --gpu",
        ));
    }
    let on = match gpu {
        Some(word) => {
            let found = world.gpus.gpu_ids("GPU ", &[word.to_owned()])?;
            found.first().map(|g| *g as usize)
        }
        None => None,
    };
    let of = |uid: u32| {
        user.is_none_or(|word| word == world.host.names.user(uid) || word.parse() == Ok(uid))
    };
    let holds = |id: &ClaimId| on.is_none_or(|g| world.machine.ledger().holders(g).contains(id));
    let held = world.claims.iter().filter(|(_, l)| of(l.record.uid));
    let held = held.map(|(id, _)| *id).filter(holds);
    let waiting = world
        .claims
        .waiting
        .iter()
        .filter(|(_, a)| of(a.record.uid));
    let waiting = waiting.map(|(id, _)| *id).filter(|_| on.is_none());
    let found: Vec<ClaimId> = held.chain(waiting).collect();
    if found.is_empty() {
        let of = user.map_or_else(String::new, |u| format!(" of {u}"));
        let at = gpu.map_or_else(String::new, |g| format!(" on GPU {g}"));
        return Err(
            WireError::new(ErrorCode::NoClaim, format!("there is no claim{of}{at}"))
                .with_hint("gshare ps -a lists the claims"),
        );
    }
    Ok(found)
}

fn kill_act(world: &World<'_>, id: ClaimId, reason: Option<String>) -> Act {
    let (uid, before) = match (world.claims.get(&id), world.claims.waiting.get(&id)) {
        (Some(live), _) => {
            let members = many(tell::members_now(world, id).len(), "process");
            (
                live.record.uid,
                format!("running with {members}: {}", what(&live.record)),
            )
        }
        (None, Some(asked)) => (
            asked.record.uid,
            format!("waiting: {}", what(&asked.record)),
        ),
        (None, None) => (u32::MAX, "gone".to_owned()),
    };
    Act {
        action: "kill",
        target: format!("{id} of {}", world.host.names.user(uid)),
        before,
        after: "ended".to_owned(),
        reason,
    }
}

fn what(record: &crate::daemon::journal::ClaimRecord) -> String {
    // No arguments: the audit log is kept for good.
    crate::figures::public(&record.command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn each_claim_ends_after_the_grace_and_its_owner_is_told() {
        let mut scene = Scene::of(1);
        scene.claim(1, 0);
        let peer = Peer::root();
        let ids = [ClaimId(1), ClaimId(2)];
        let order = order(&scene.world(), &peer, &ids, Some(0), Some("fan broken"));
        let afters: Vec<&str> = order.acts.iter().map(|act| act.before.as_str()).collect();
        assert_eq!(afters.len(), 2);
        assert_eq!(afters[1], "gone", "it has ended meanwhile");
        let done = format!("{:?}", order.then);
        assert!(
            done.contains("are ended now") && done.contains("(fan broken)"),
            "{done}"
        );
        assert!(
            matches!(&order.then[..], [Command::TellOwner { .. }, Command::Ends(EndCommand::EndAll { grace, .. })] if grace.is_zero()),
            "{done}"
        );
    }
}
