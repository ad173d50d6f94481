//! The end of a claim: asked for by its owner, by its lease or by the exit of its command; and its last
//! entry in the journal.

use std::time::{Duration, Instant};

use gshare_core::machine::Event;
use gshare_core::{ClaimId, Held};
use gshare_enforcer::cgroup::{ClaimPlace, ClaimTree};
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{ErrorCode, Reply, WireError};

use super::fact::Fact;
use super::live::{Ended, TERM_GRACE};
use super::peer::Peer;
use super::service::{Ending, Live, Service};

/// Ends that the journal does not take are kept for a later try, at most this many.
const UNWRITTEN: usize = 10_000;
/// A control program of MPS that has not answered by then is not waited for.
const MPS_ANSWERS: Duration = Duration::from_secs(4);

impl Service {
    /// Writes the ends that the journal does not have. The claims are gone all the same; but a restarted
    /// service would take them up again, so this is tried until the disk has room.
    pub(crate) fn write_ends(&mut self) {
        let mut ends = std::mem::take(&mut self.unwritten);
        while let Some(end) = ends.first() {
            let (peak, launches) = (Some(end.peak), Some(end.launches));
            let done = self
                .journal
                .end(&end.record, end.ended_ms, &end.cause, peak, launches);
            if let Err(error) = done {
                tracing::error!(claim = end.record.id, %error, "could not journal the end of a claim yet");
                break;
            }
            ends.remove(0);
        }
        ends.truncate(UNWRITTEN);
        self.unwritten = ends;
    }

    pub(crate) fn may(&self, peer: &Peer, id: ClaimId, verb: &str) -> Result<(), WireError> {
        let owner = self
            .claims
            .get(&id)
            .map(|l| l.record.uid)
            .or_else(|| self.waiting.get(&id).map(|a| a.record.uid));
        if peer.is_root() {
            return Ok(());
        }
        if self.is_on_behalf(id) {
            let text =
                format!("root made {id} for the programs of a cgroup; only root can {verb} it");
            return Err(
                WireError::new(ErrorCode::NotPermitted, text).with_hint("ask your administrator")
            );
        }
        if owner == Some(peer.uid) {
            return Ok(());
        }
        let whose = owner.map_or_else(|| "somebody else".to_owned(), |uid| self.names.user(uid));
        Err(WireError::new(
            ErrorCode::NotPermitted,
            format!("{id} belongs to {whose}; only {whose} and root can {verb} it"),
        )
        .with_hint(format!("ask {whose}")))
    }

    pub(crate) fn release(&mut self, peer: &Peer, word: &str) -> Result<Reply, WireError> {
        let id = self.find(peer, word)?;
        self.may(peer, id, "release")?;
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
                self.waiting
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
            self.refuse_wanting(
                id,
                &WireError::new(ErrorCode::Ended, format!("{id} was released")),
            );
            if self.waiting.remove(&id).is_some() {
                self.drive(Event::Gone { id });
            }
        } else if let Some(asked) = self.waiting.remove(&id) {
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
        if !self.terminate_clients(id) {
            let holders = self.holders(id);
            self.signal(&holders, libc::SIGTERM);
        }
        self.settle_ending(id);
        self.dirty = true;
    }

    /// From now on a claim ends; a restarted service goes on with it.
    pub(crate) fn begin_end(&mut self, id: ClaimId, ending: Ending) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        live.record.ending = Some(ending.cause.clone());
        live.record.kill_all |= ending.all;
        live.ending = Some(ending);
        if let Err(error) = self.journal.put(&live.record) {
            tracing::error!(%id, %error, "could not record in the journal that a claim is ending");
        }
        self.todo.push_back(Event::Ending { id });
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
        if self.terminate_clients(id) {
            if let Some(ending) = self.claims.get_mut(&id).and_then(|l| l.ending.as_mut()) {
                ending.by_mps = Some(grace);
                ending.kill_at = Some(Instant::now() + grace + MPS_ANSWERS);
            }
        } else {
            self.ask_all_to_end(id);
        }
        self.settle_ending(id);
        self.dirty = true;
    }

    fn ask_all_to_end(&self, id: ClaimId) {
        let members = self.members_now(id);
        self.signal(&members, libc::SIGTERM);
        // One that is stopped could not act on it.
        self.signal(&members, libc::SIGCONT);
    }

    /// The work of a claim's clients has been ended by MPS: now the signals.
    pub(crate) fn clients_terminated(&mut self, id: ClaimId) {
        let ending = self.claims.get_mut(&id).and_then(|l| l.ending.as_mut());
        match ending {
            Some(ending) if ending.all => {
                if let Some(grace) = ending.by_mps.take() {
                    ending.kill_at = Some(Instant::now() + grace);
                }
                self.ask_all_to_end(id);
            }
            _ => {
                let holders = self.holders(id);
                self.signal(&holders, libc::SIGTERM);
            }
        }
        self.settle_ending(id);
    }

    /// SIGKILL to everything in the claim, also to what is started meanwhile.
    fn kill_members(&self, id: ClaimId, members: &[ProcessKey]) {
        let live = self.claims.get(&id);
        let Some(cgroup) = live.and_then(|live| live.cgroup.as_ref()) else {
            return self.signal(members, libc::SIGKILL);
        };
        let inside = cgroup.procs().unwrap_or_default();
        if let Err(error) = cgroup.kill() {
            tracing::warn!(%id, %error, "cannot kill the whole cgroup at once");
            return self.signal(members, libc::SIGKILL);
        }
        let outside = members.iter().filter(|p| !inside.contains(&p.pid));
        let moved = outside.filter(|p| self.claim_of(p.pid) == Some(id));
        self.signal(&moved.copied().collect::<Vec<_>>(), libc::SIGKILL);
    }

    /// Sends a signal to processes, each checked to be still the same. Those of a claim on behalf are not gshare's to
    /// signal.
    pub(crate) fn signal(&self, processes: &[ProcessKey], signal: i32) {
        for process in processes {
            if self.behalf_of(process.pid).is_some() {
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

    /// Whether a member has launched anything within the grace time.
    fn launched_lately(&self, live: &Live) -> bool {
        let grace = self.config.claims.leftover_grace;
        let now = gshare_abi::monotonic_ns();
        live.seats.iter().any(|seat| {
            seat.usage
                .read_slots(self.gpus[seat.gpu].total)
                .iter()
                .any(|s| {
                    s.last_launch_ns.is_some_and(|at| {
                        now.saturating_sub(at) < u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)
                    })
                })
        })
    }

    /// Ends the claim if nothing of it is left on the GPU.
    pub(crate) fn settle_ending(&mut self, id: ClaimId) {
        self.end_saving(id);
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let Some(ending) = &live.ending else { return };
        let released = ending.kill_at.is_some();
        let (cause, all) = (ending.cause.clone(), ending.all);
        let holders = if all {
            self.members_now(id)
        } else {
            self.holders(id)
        };
        if holders.is_empty() && (released || !self.launched_lately(live)) {
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
                self.kill_members(id, &holders);
            } else {
                self.signal(&holders, libc::SIGKILL);
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
            if let Some(gpu) = self.gpu_index(&slice.uuid) {
                let _ = std::fs::remove_file(self.limits_path(id, gpu));
            }
        }
        self.end_run(id, &live, cause);
        self.drop_spec(id);
        let refusals = self.refusals(&live);
        self.tell(Fact::Ended { refusals });
        let launches = live.past_launches.saturating_add(self.launches(&live));
        let record = live.record.clone();
        self.unwritten
            .push(Ended::new(record, cause, live.peak, launches));
        self.policy.over.forget(id);
        self.write_ends();
        self.unlimit_memory(&live);
        if let (Some(tree), Some(cgroup)) = (&self.tree, live.cgroup) {
            if tree.remove(&cgroup).is_ok() {
                if cgroup.is_lodged() {
                    self.give_back_lodging(cgroup.dir());
                }
            } else {
                let rules = self.rules(None, []);
                if let Some(filters) = &mut self.filters
                    && let Err(error) = filters.set(&cgroup, &rules)
                {
                    tracing::error!(%id, %error, "cannot deny GPU access to what is left of an ended claim");
                }
                self.lingering.push(cgroup);
            }
        } else if let (Some(tree), Some(behalf)) = (&self.tree, &live.record.behalf) {
            let (uid, claim) = (live.record.uid, id.0);
            tree.leave(ClaimPlace { uid, claim }, &behalf.cgroup);
        }
        if live.record.hold || cause != "command exited" {
            let text = format!(
                "{id} of {} ended: {cause}",
                self.names.user(live.record.uid)
            );
            self.notice_for(Some(live.record.uid), Some(id), text);
        } else {
            self.write_down_for(live.record.uid, id, &format!("ended: {cause}"));
        }
        // Before the core gives its part to another user.
        if live.record.slices.iter().any(|s| s.held == Held::Mps) {
            self.renew_mps();
        }
        self.touch();
    }

    /// Removes the cgroups of ended claims whose last process has gone.
    pub(crate) fn tidy_lingering(&mut self) {
        let Some(tree) = &self.tree else { return };
        let mut gone = Vec::new();
        self.lingering.retain(|cgroup| {
            let kept = tree.remove(cgroup).is_err();
            if !kept && cgroup.is_lodged() {
                gone.push(cgroup.dir().to_owned());
            }
            kept
        });
        for dir in gone {
            self.give_back_lodging(&dir);
        }
    }

    /// The cgroup of a service without its claim: what runs there next is no member.
    pub(crate) fn give_back_lodging(&self, dir: &std::path::Path) {
        let mut lodged = self.claims.values().filter_map(|l| l.cgroup.as_ref());
        let taken = lodged.any(|c| c.dir() == dir);
        if let (Some(filters), false) = (&self.filters, taken)
            && let Err(error) = filters.clear_dir(dir)
        {
            tracing::debug!(%error, "cannot remove the device filter from the cgroup of a service");
        }
    }
}
