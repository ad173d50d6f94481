//! The end of a claim: asked for by its owner, by its lease or by the exit of its command; and its last
//! entry in the journal.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gshare_core::machine::Event;
use gshare_core::{ClaimId, Held};
use gshare_enforcer::cgroup::{ClaimCgroup, ClaimPlace, ClaimTree, Tree};
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{ErrorCode, Reply, WireError};

use super::claims::Claims;
use super::fact::Fact;
use super::journal::Ended;
use super::live::TERM_GRACE;
use super::peer::Peer;
use super::policy::limits;
use super::service::{Ending, Live, Service};
use super::world::{World, world_of};
use super::{claim_for, gpus, members, mps, service, tell, whose};
use crate::daemon::command::Command;

/// A control program of MPS that has not answered by then is not waited for.
const MPS_ANSWERS: Duration = Duration::from_secs(4);

impl Service {
    pub(crate) fn release(&mut self, peer: &Peer, word: &str) -> Result<Reply, WireError> {
        let id = service::find(&self.world(), peer, word)?;
        may(&self.world(), peer, id, "release")?;
        Ok(Reply::Done {
            message: self.let_go(peer, id),
        })
    }

    pub(crate) fn release_all(&mut self, peer: &Peer) -> Result<Reply, WireError> {
        let mine: Vec<ClaimId> = self
            .claims
            .iter()
            .filter(|(_, l)| l.record.uid == peer.uid && l.record.behalf.is_none())
            .map(|(id, _)| *id)
            .chain(
                self.claims
                    .waiting
                    .iter()
                    .filter(|(_, a)| a.record.uid == peer.uid && a.record.behalf.is_none())
                    .map(|(id, _)| *id),
            )
            .collect();
        if mine.is_empty() {
            return Err(WireError::new(ErrorCode::NoClaim, "you hold no claims"));
        }
        let messages: Vec<String> = mine.into_iter().map(|id| self.let_go(peer, id)).collect();
        Ok(Reply::Done {
            message: messages.join("\n"),
        })
    }

    fn let_go(&mut self, peer: &Peer, id: ClaimId) -> String {
        if self.claims.contains_key(&id) {
            self.claims.refuse_wanting(
                id,
                &WireError::new(ErrorCode::Ended, format!("{id} was released")),
            );
            if self.claims.waiting.remove(&id).is_some() {
                self.drive(Event::Gone { id });
            }
        } else if let Some(asked) = self.claims.waiting.remove(&id) {
            asked.out.error(WireError::new(
                ErrorCode::Ended,
                format!("{id} was withdrawn while it waited"),
            ));
            self.drive(Event::Gone { id });
            return format!("{id} withdrawn");
        }
        let by = if peer.is_root() && self.claims.get(&id).is_some_and(|l| l.record.uid != 0) {
            "released by root".to_owned()
        } else {
            "released".to_owned()
        };
        self.terminate(id, &by);
        match self.claims.get(&id) {
            None => format!("{id} released"),
            Some(_) => format!(
                "{id} is being released: its processes on the GPU got SIGTERM, and SIGKILL in {} s",
                TERM_GRACE.as_secs()
            ),
        }
    }

    /// Ends a claim whose processes may still hold GPU memory: nothing more is granted to them, those
    /// that hold the GPU are asked to end, later made to. Others lose the GPU, not their lives.
    pub(crate) fn terminate(&mut self, id: ClaimId, cause: &str) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        if live.record.behalf.is_some() || live.record.plain {
            return self.end_behalf(id, cause);
        }
        for seat in &live.seats {
            seat.limits.set_state(gshare_abi::State::NotGranted);
        }
        if live.ending.as_ref().is_none_or(|e| e.kill_at.is_none()) {
            self.begin_end(id, Ending::killing(cause, false));
        }
        // Clients of MPS are ended on the GPU first; the signals follow when that is done.
        if !mps::terminate_clients(&self.world(), id) {
            let holders = whose::holders(&self.world(), id);
            signal(&self.world(), &holders, libc::SIGTERM);
        }
        self.settle_ending(id);
        self.screens.touch();
    }

    /// From now on a claim ends; a restarted service goes on with it.
    pub(crate) fn begin_end(&mut self, id: ClaimId, ending: Ending) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        live.record.ending = Some(ending.cause.clone());
        live.record.kill_all |= ending.all;
        live.ending = Some(ending);
        self.journal.keep(&live.record, "that a claim is ending");
        // One that is suspended could not act on a signal, nor end without one.
        self.claims.set_frozen(id, false);
        self.core.then(Event::Ending { id });
    }

    /// Ends a claim with all its processes: SIGTERM now, SIGKILL after `grace`. One that ends already ends so
    /// from now on.
    pub(crate) fn kill_claim(&mut self, id: ClaimId, cause: &str, grace: Duration) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        if live.record.behalf.is_some() {
            return self.end_behalf(id, cause);
        }
        for seat in &live.seats {
            seat.limits.set_state(gshare_abi::State::NotGranted);
        }
        let kill_at = Some(Instant::now() + grace);
        let ending = Ending::killing(cause, true);
        self.begin_end(id, Ending { kill_at, ..ending });
        // Clients of MPS are ended on the GPU first: one that is killed with work in flight harms its neighbours.
        if mps::terminate_clients(&self.world(), id) {
            if let Some(ending) = self.claims.get_mut(&id).and_then(|l| l.ending.as_mut()) {
                ending.by_mps = Some(grace);
                ending.kill_at = Some(Instant::now() + grace + MPS_ANSWERS);
            }
        } else {
            ask_all_to_end(&self.world(), id);
        }
        self.settle_ending(id);
        self.screens.touch();
    }

    /// The work of a claim's clients has been ended by MPS: now the signals.
    pub(crate) fn clients_terminated(&mut self, id: ClaimId) {
        let ending = self.claims.get_mut(&id).and_then(|l| l.ending.as_mut());
        match ending {
            Some(ending) if ending.all => {
                if let Some(grace) = ending.by_mps.take() {
                    ending.kill_at = Some(Instant::now() + grace);
                }
                ask_all_to_end(&self.world(), id);
            }
            _ => {
                let holders = whose::holders(&self.world(), id);
                signal(&self.world(), &holders, libc::SIGTERM);
            }
        }
        self.settle_ending(id);
    }

    /// Ends the claim if nothing of it is left on the GPU.
    pub(crate) fn settle_ending(&mut self, id: ClaimId) {
        if self.claims.end_saving(id) {
            // Clients of MPS are ended on the GPU first; the signals follow when that is done.
            mps::terminate_clients(&self.world(), id);
        }
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let Some(ending) = &live.ending else { return };
        let released = ending.kill_at.is_some();
        let (cause, all) = (ending.cause.clone(), ending.all);
        let holders = if all {
            tell::members_now(&self.world(), id)
        } else {
            whose::holders(&self.world(), id)
        };
        if holders.is_empty()
            && (released || !launched_lately(&self.world(), live) && !may_begin(&self.world(), id))
        {
            self.dismantle(id, &cause);
            self.drive(Event::Gone { id });
            return;
        }
        let due = self
            .claims
            .get(&id)
            .and_then(|l| l.ending.as_ref()?.kill_at)
            .is_some_and(|at| at <= Instant::now());
        if due {
            if all {
                kill_members(&self.world(), id, &holders);
            } else {
                signal(&self.world(), &holders, libc::SIGKILL);
            }
            let mut first = false;
            if let Some(ending) = self.claims.get_mut(&id).and_then(|l| l.ending.as_mut()) {
                ending.kill_at = Some(Instant::now() + Duration::from_secs(1));
                first = !std::mem::replace(&mut ending.told, true);
            }
            if first {
                self.notice(
                    Some(id),
                    format!("{id}: processes that did not end were killed ({cause})"),
                );
            }
        }
    }

    /// Takes a claim apart: pages, filter, cgroup, journal. The core is told by the caller.
    pub(crate) fn dismantle(&mut self, id: ClaimId, cause: &str) {
        let Some(live) = self.claims.remove(&id) else {
            return;
        };
        for seat in &live.seats {
            seat.limits.set_state(gshare_abi::State::NotGranted);
        }
        // By the record: a grant that failed half-way has made some that are no seats yet.
        for slice in &live.record.slices {
            if let Some(gpu) = self.gpus.gpu_index(&slice.uuid) {
                let _ = std::fs::remove_file(self.host.limits_path(&self.gpus, id, gpu));
            }
        }
        (self.sizes).end_run(&world_of!(self), &self.history, id, &live, cause);
        self.config.drop_spec(id);
        let refusals = self.gpus.refusals(&live);
        self.tell(Fact::Ended { refusals });
        let launches = live.past_launches.saturating_add(self.gpus.launches(&live));
        let record = live.record.clone();
        self.journal
            .put_end(Ended::new(record, cause, live.peak, launches));
        self.policy.over.forget(id);
        limits::unlimit_memory(&self.world(), &self.observer, &live);
        if let (Some(tree), Some(cgroup)) = (&self.host.fences.tree, live.cgroup) {
            if tree.remove(&cgroup).is_ok() {
                if cgroup.is_lodged() {
                    give_back_lodging(&self.world(), cgroup.dir());
                }
            } else {
                let rules = gpus::rules(&self.world(), None, []);
                (self.claims).linger(&mut self.host.fences, &rules, cgroup);
            }
        } else if let (Some(tree), Some(behalf)) = (&self.host.fences.tree, &live.record.behalf) {
            let (uid, claim) = (live.record.uid, id.0);
            tree.leave(ClaimPlace { uid, claim }, &behalf.cgroup);
        }
        if live.record.hold || cause != "command exited" {
            let text = format!(
                "{id} of {} ended: {cause}",
                self.host.names.user(live.record.uid)
            );
            self.notice_for(Some(live.record.uid), Some(id), text);
        } else {
            self.journal
                .note(live.record.uid, id, &format!("ended: {cause}"));
        }
        // Before the core gives its part to another user.
        if live.record.slices.iter().any(|s| s.held == Held::Mps) {
            self.execute(vec![Command::RenewMps]);
        }
        self.screens.touch();
    }
}

impl Claims {
    /// Removes the cgroups of ended claims whose last process has gone. Those of services among them.
    pub(crate) fn tidy_lingering(&mut self, tree: Option<&Tree>) -> Vec<PathBuf> {
        let gone = (self.lingering).extract_if(.., |c| tree.is_some_and(|t| t.remove(c).is_ok()));
        let lodged = gone.filter(ClaimCgroup::is_lodged);
        lodged.map(|cgroup| cgroup.dir().to_owned()).collect()
    }
}

fn ask_all_to_end(world: &World<'_>, id: ClaimId) {
    let members = tell::members_now(world, id);
    signal(world, &members, libc::SIGTERM);
    // One that is stopped could not act on it.
    signal(world, &members, libc::SIGCONT);
}

/// The cgroup of a service without its claim: what runs there next is no member.
pub(crate) fn give_back_lodging(world: &World<'_>, dir: &std::path::Path) {
    let mut lodged = world.claims.values().filter_map(|l| l.cgroup.as_ref());
    let taken = lodged.any(|c| c.dir() == dir);
    if let (Some(filters), false) = (&world.host.fences.filters, taken)
        && let Err(error) = filters.clear_dir(dir)
    {
        tracing::debug!(%error, "cannot remove the device filter from the cgroup of a service");
    }
}

/// SIGKILL to everything in the claim, also to what is started meanwhile.
fn kill_members(world: &World<'_>, id: ClaimId, members: &[ProcessKey]) {
    let live = world.claims.get(&id);
    let Some(cgroup) = live.and_then(|live| live.cgroup.as_ref()) else {
        return signal(world, members, libc::SIGKILL);
    };
    let inside = cgroup.procs().unwrap_or_default();
    if let Err(error) = cgroup.kill() {
        tracing::warn!(%id, %error, "cannot kill the whole cgroup at once");
        return signal(world, members, libc::SIGKILL);
    }
    let outside = members.iter().filter(|p| !inside.contains(&p.pid));
    let moved = outside.filter(|p| members::claim_of(world, p.pid) == Some(id));
    signal(world, &moved.copied().collect::<Vec<_>>(), libc::SIGKILL);
}

/// Whether a member has launched anything within the grace time.
fn launched_lately(world: &World<'_>, live: &Live) -> bool {
    let grace = world.config.claims.leftover_grace;
    let now = gshare_abi::monotonic_ns();
    live.seats.iter().any(|seat| {
        seat.usage
            .read_slots(world.gpus[seat.gpu].total)
            .iter()
            .any(|s| {
                s.last_launch_ns.is_some_and(|at| {
                    now.saturating_sub(at) < u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)
                })
            })
    })
}

/// Whether a program that the command left behind may still come to use the GPU.
fn may_begin(world: &World<'_>, id: ClaimId) -> bool {
    let ending = world.claims.get(&id).and_then(|l| l.ending.as_ref());
    ending.is_some_and(|e| e.since.elapsed() < world.config.claims.leftover_grace)
        && !tell::members_now(world, id).is_empty()
}

pub(crate) fn may(
    world: &World<'_>,
    peer: &Peer,
    id: ClaimId,
    verb: &str,
) -> Result<(), WireError> {
    let owner = world
        .claims
        .get(&id)
        .map(|l| l.record.uid)
        .or_else(|| world.claims.waiting.get(&id).map(|a| a.record.uid));
    if peer.is_root() {
        return Ok(());
    }
    if world.claims.is_on_behalf(id) {
        let text = format!("root made {id} for the programs of a cgroup; only root can {verb} it");
        return Err(
            WireError::new(ErrorCode::NotPermitted, text).with_hint("ask your administrator")
        );
    }
    if owner == Some(peer.uid) {
        return Ok(());
    }
    let whose = owner.map_or_else(
        || "somebody else".to_owned(),
        |uid| world.host.names.user(uid),
    );
    Err(WireError::new(
        ErrorCode::NotPermitted,
        format!("{id} belongs to {whose}; only {whose} and root can {verb} it"),
    )
    .with_hint(format!("ask {whose}")))
}

/// Sends a signal to processes, each checked to be still the same. Those of a claim on behalf are not gshare's to
/// signal.
pub(crate) fn signal(world: &World<'_>, processes: &[ProcessKey], signal: i32) {
    for process in processes {
        if claim_for::behalf_of(world, process.pid).is_some() {
            continue;
        }
        let fd = PidFd::open(process.pid).ok().flatten();
        if let Some(fd) = fd
            && proc::key(process.pid) == Some(*process)
            && let Err(error) = fd.signal(signal)
        {
            tracing::warn!(pid = process.pid, %error, "cannot signal a process of a claim");
        }
    }
}
