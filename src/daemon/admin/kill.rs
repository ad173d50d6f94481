//! Ending claims with all their processes, whoever they belong to.

use std::collections::BTreeSet;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::machine::Event;
use gshare_core::units::show_duration;
use gshare_proto::counts::many;
use gshare_proto::{AdminDone, ErrorCode, Reply, WireError};

use super::{Act, in_brackets, reason_of};
use crate::daemon::peer::Peer;
use crate::daemon::service::Service;
use crate::daemon::world::World;
use crate::daemon::{service, tell};

/// Between SIGTERM and SIGKILL where the administrator does not say.
const GRACE: Duration = Duration::from_secs(10);
/// Longest time between the two.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

impl Service {
    pub(super) fn admin_kill(
        &mut self,
        peer: &Peer,
        chosen: &[ClaimId],
        grace_ms: Option<u64>,
        reason: Option<&str>,
    ) -> Result<Reply, WireError> {
        let grace = grace_ms.map_or(GRACE, Duration::from_millis).min(LONGEST);
        let reason = reason_of(reason);
        let acts = chosen
            .iter()
            .map(|id| kill_act(&self.world(), *id, reason.clone()));
        let acts = acts.collect();
        self.journal
            .audit(&self.host.names, peer, acts, |_| Ok(()))?;
        let cause = format!(
            "killed by {}{}",
            self.host.names.user(peer.uid),
            in_brackets(reason.as_deref())
        );
        let lines: Vec<String> = chosen
            .iter()
            .map(|id| self.kill_one(*id, &cause, grace))
            .collect();
        Ok(Reply::Admin(AdminDone {
            message: lines.join("\n"),
            undo: None,
        }))
    }

    fn kill_one(&mut self, id: ClaimId, cause: &str, grace: Duration) -> String {
        if let Some(asked) = self.claims.waiting.remove(&id) {
            asked.out.error(WireError::new(
                ErrorCode::Ended,
                format!("{id} was withdrawn while it waited: {cause}"),
            ));
            self.drive(Event::Gone { id });
            return format!("{id} withdrawn; it waited");
        }
        let Some(live) = self.claims.get(&id) else {
            return format!("{id} has ended");
        };
        let owner = self.host.names.user(live.record.uid);
        if let Some(behalf) = &live.record.behalf {
            let cgroup = behalf.cgroup.display().to_string();
            self.kill_claim(id, cause, grace);
            return format!(
                "{id} of {owner} ended; its programs below {cgroup} keep running: stop them from the system that \
                 started them"
            );
        }
        let members = many(tell::members_now(&self.world(), id).len(), "process");
        let when = if grace.is_zero() {
            "now".to_owned()
        } else {
            format!("in {}", show_duration(grace))
        };
        self.tell_owner(
            id,
            &format!("{id} {cause}; its remaining programs are ended {when}"),
        );
        self.kill_claim(id, cause, grace);
        format!(
            "{id} of {owner}: {members} got SIGTERM; the rest is killed {when}. This cannot be undone; {owner} can \
             claim again"
        )
    }
}

/// The claims that are meant, in order. All of the words must fit, or none is touched.
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
            .map(|word| service::find(world, peer, word.as_ref()))
            .collect();
        return Ok(found?.into_iter().collect());
    }
    if user.is_none() && gpu.is_none() {
        return Err(WireError::new(
            ErrorCode::Usage,
            "no claim, user or GPU is named",
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
    // The audit log stays for good: no arguments in it.
    crate::figures::public(&record.command)
}
