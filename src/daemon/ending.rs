//! The end of a claim: by its owner, its time limit or the exit of its command; and its final entry in the journal.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gshare_abi::State;
use gshare_core::machine::Event;
use gshare_core::{ClaimId, Held};
use gshare_enforcer::cgroup::{ClaimCgroup, ClaimPlace, ClaimTree};
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{ErrorCode, Reply, WireError, messages};

use super::claims;
use super::claims::Claims;
use super::die;
use super::effects::Effects;
use super::fact::Fact;
use super::find::find;
use super::journal::{ClaimRecord, Ended, HoldingRecord, Journal};
use super::live::{Ending, Live, TERM_GRACE};
use super::order::Order;
use super::peer::Peer;
use super::policy::limits;
use super::world::World;
use super::{gpus, mps, signal, tell, whose};
use crate::daemon::command::{Command, EndCommand, GpuCommand};
use gshare_core::units::show_duration;

/// Time between SIGTERM and SIGKILL for a claim that is ended for others.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// Beginning of the cause of the end of a claim whose command will be started again.
pub(crate) const REQUEUED: &str = "requeued";

/// Longest wait for an answer of MPS's control program.
const MPS_ANSWERS: Duration = Duration::from_secs(4);

/// Carries out a command about the end of a claim.
pub(crate) fn carry_out(with: &mut Effects, command: EndCommand) -> Vec<Command> {
    let gone = |id| vec![Command::Core(Event::Gone { id })];
    match command {
        EndCommand::Withdraw { id, text } => {
            if let Some(asked) = with.claims.waiting.remove(&id) {
                asked.out.error(WireError::new(ErrorCode::Ended, text));
                return gone(id);
            }
        }
        EndCommand::End { id, cause } => return end(&with.world(), id, &cause),
        EndCommand::EndAll { id, cause, grace } => {
            return end_all(&with.world(), id, &cause, grace);
        }
        EndCommand::SetStates(id, state) => with.claims.set_states(id, state),
        EndCommand::BeginEnd(id, ending) => {
            if with.claims.begin_end(&with.journal, id, *ending) {
                with.core.then(Event::Ending { id });
            }
        }
        EndCommand::AskToEnd(id) => ask_to_end(&with.world(), id),
        // MPS ends the work of its clients first; the signals follow, with this time between them.
        EndCommand::AskAllToEnd(id, grace) => {
            if ask_all_to_end(&with.world(), id)
                && let Some(ending) = with.claims.ending_of(id)
            {
                ending.by_mps = Some(grace);
                ending.kill_at = Some(Instant::now() + grace + MPS_ANSWERS);
            }
        }
        EndCommand::SettleEnd(id) => {
            if end_saving(&mut with.claims, id) {
                // Clients of MPS are ended on the GPU first; the signals follow.
                mps::terminate_clients(&with.world(), id);
            }
            return settle(&with.world(), id);
        }
        EndCommand::KeepGpu(id) => keep_gpu(&mut with.claims, id),
        EndCommand::KillMembers(id, members) => kill_members(&with.world(), id, &members),
        EndCommand::Killed(id) => with.claims.killed(id),
        EndCommand::Dismantle { id, cause } => return dismantle(with, id, &cause),
        EndCommand::EndBehalf { id, cause } => return end_behalf(with, id, &cause),
        EndCommand::RefuseWanting(id) => {
            let error = WireError::new(ErrorCode::Ended, format!("{id} was released"));
            claims::refuse_wanting(&mut with.claims, id, &error);
            if with.claims.waiting.remove(&id).is_some() {
                return gone(id);
            }
        }
        EndCommand::Requeue { id, why } => return requeue(&with.world(), id, &why),
        EndCommand::Requeued(id) => {
            if let Some(live) = with.claims.get_mut(&id) {
                live.record.end.requeued = true;
            }
        }
        EndCommand::MoveLease(id, ends_ms) => {
            if let Some(live) = with.claims.get_mut(&id) {
                live.record.terms.ends_ms = ends_ms;
                let what = "the new time limit of a claim";
                with.journal.keep(&live.record, what);
            }
        }
        EndCommand::LeaseEnded { id, stopped, told } => {
            if let Some(live) = with.claims.get_mut(&id) {
                (live.record.end.stopped, live.record.end.told) = (stopped, told);
            }
        }
        EndCommand::Signalled { id, due, again } => {
            if let Some(live) = with.claims.get_mut(&id) {
                signal::signalled(&mut live.record, due, again);
                let what = "that a claim's programs got their signal";
                with.journal.keep(&live.record, what);
            }
        }
        EndCommand::Signal(processes, signal) => send(&with.world(), &processes, signal),
        EndCommand::SignalEnd(id) => {
            let ending = with.claims.ending_of(id).filter(|ending| ending.all);
            if let Some(ending) = ending
                && let Some(grace) = ending.by_mps.take()
            {
                ending.kill_at = Some(Instant::now() + grace);
            }
            clients_ended(&with.world(), id);
            return carry_out(with, EndCommand::SettleEnd(id));
        }
        EndCommand::Hold(id) => {
            if let Some(live) = with.claims.get_mut(&id) {
                live.record.terms.hold = true;
                with.journal.keep(&live.record, "that a claim is held");
            }
        }
    }
    Vec::new()
}

/// `gshare release`.
pub(crate) fn release(world: &World<'_>, peer: &Peer, word: &str) -> Result<Order, WireError> {
    let id = find(world, peer, word)?;
    may(world, peer, id, "release")?;
    Ok(let_go(world, peer, vec![id]))
}

/// `gshare release --all`.
pub(crate) fn release_all(world: &World<'_>, peer: &Peer) -> Result<Order, WireError> {
    let own = |record: &ClaimRecord| record.uid == peer.uid && record.origin.behalf.is_none();
    let held = world.claims.iter().filter(|(_, l)| own(&l.record));
    let waiting = world.claims.waiting.iter().filter(|(_, a)| own(&a.record));
    let mine: BTreeSet<ClaimId> = (held.map(|(id, _)| *id))
        .chain(waiting.map(|(id, _)| *id))
        .collect();
    if mine.is_empty() {
        return Err(WireError::new(ErrorCode::NoClaim, "you hold no claims"));
    }
    Ok(let_go(world, peer, mine.into_iter().collect()))
}

/// Ends these claims, and withdraws the waiting ones first, so that none of them starts on room that the others
/// leave.
fn let_go(world: &World<'_>, peer: &Peer, ids: Vec<ClaimId>) -> Order {
    let (held, waiting): (Vec<ClaimId>, Vec<ClaimId>) = ids
        .into_iter()
        .partition(|id| world.claims.contains_key(id));
    let withdraw = |id: &ClaimId| {
        Command::Ends(EndCommand::Withdraw {
            id: *id,
            text: format!("{id} was withdrawn while it waited"),
        })
    };
    let mut then: Vec<Command> = waiting.iter().map(withdraw).collect();
    for &id in &held {
        let record = world.claims.get(&id).map(|l| &l.record);
        let record = record.filter(|_| peer.is_root());
        let cause = match record {
            Some(record) if super::slurm::job_of(record).is_some() => {
                "its Slurm job ended, or root released it"
            }
            Some(record) if record.uid != 0 => "released by root",
            _ => "released",
        };
        let cause = cause.into();
        then.extend([
            Command::Ends(EndCommand::RefuseWanting(id)),
            Command::Ends(EndCommand::End { id, cause }),
        ]);
    }
    Order::then(then, move |world, _| {
        let ended = |id: ClaimId| match world.claims.get(&id) {
            None => format!("{id} released"),
            Some(_) => format!(
                "{id} is being released: its processes on the GPU got SIGTERM; those that still run in {} s get SIGKILL",
                TERM_GRACE.as_secs()
            ),
        };
        let withdrawn = waiting.into_iter().map(|id| format!("{id} withdrawn"));
        let lines: Vec<String> = held.into_iter().map(ended).chain(withdrawn).collect();
        let message = lines.join("\n");
        Ok(Reply::Done { message })
    })
}

/// Ends a claim whose processes may still hold GPU memory: nothing more is granted to them, and processes on the GPU
/// are asked to end, later killed. The others lose the GPU only.
fn end(world: &World<'_>, id: ClaimId, cause: &str) -> Vec<Command> {
    let Some(live) = world.claims.get(&id) else {
        return Vec::new();
    };
    if live.record.origin.behalf.is_some() || live.record.runs.plain {
        let cause = cause.to_owned();
        return vec![Command::Ends(EndCommand::EndBehalf { id, cause })];
    }
    let begins = live.ending.as_ref().is_none_or(|e| e.kill_at.is_none());
    let ending = begins.then(|| Ending::killing(cause, false));
    let mut out = vec![Command::Ends(EndCommand::SetStates(id, State::NotGranted))];
    out.extend(ending.map(|ending| Command::Ends(EndCommand::BeginEnd(id, Box::new(ending)))));
    out.extend([
        Command::Ends(EndCommand::AskToEnd(id)),
        Command::Ends(EndCommand::SettleEnd(id)),
        Command::Publish,
    ]);
    out
}

/// Ends a claim with all its processes: SIGTERM now, SIGKILL after `grace`. A claim that is ending already switches
/// to this way.
pub(crate) fn end_all(
    world: &World<'_>,
    id: ClaimId,
    cause: &str,
    grace: Duration,
) -> Vec<Command> {
    let Some(live) = world.claims.get(&id) else {
        return Vec::new();
    };
    if live.record.origin.behalf.is_some() {
        let cause = cause.to_owned();
        return vec![Command::Ends(EndCommand::EndBehalf { id, cause })];
    }
    let kill_at = Some(Instant::now() + grace);
    let ending = Ending {
        kill_at,
        ..Ending::killing(cause, true)
    };
    vec![
        Command::Ends(EndCommand::SetStates(id, State::NotGranted)),
        Command::Ends(EndCommand::BeginEnd(id, Box::new(ending))),
        Command::Ends(EndCommand::AskAllToEnd(id, grace)),
        Command::Ends(EndCommand::SettleEnd(id)),
        Command::Publish,
    ]
}

/// Asks the processes of a claim that hold the GPU to end. Clients of MPS are ended on the GPU first; the signals
/// follow.
fn ask_to_end(world: &World<'_>, id: ClaimId) {
    if !mps::terminate_clients(world, id) {
        send(world, &whose::holders(world, id), libc::SIGTERM);
    }
}

/// Asks all processes of a claim to end. True if MPS ends the work of its clients first: a client that is killed with
/// work in flight harms its neighbours.
fn ask_all_to_end(world: &World<'_>, id: ClaimId) -> bool {
    let by_mps = mps::terminate_clients(world, id);
    if !by_mps {
        signal_all(world, id);
    }
    by_mps
}

/// MPS has ended the work of a claim's clients: send the signals.
fn clients_ended(world: &World<'_>, id: ClaimId) {
    let ending = world.claims.get(&id).and_then(|l| l.ending.as_ref());
    if ending.is_some_and(|ending| ending.all) {
        signal_all(world, id);
    } else {
        send(world, &whose::holders(world, id), libc::SIGTERM);
    }
}

/// Commands for an ending claim: it is dismantled once nothing of it is on the GPU; processes that did not end in
/// time are killed.
fn settle(world: &World<'_>, id: ClaimId) -> Vec<Command> {
    let live = world.claims.get(&id);
    let Some((live, ending)) = live.and_then(|live| Some((live, live.ending.as_ref()?))) else {
        return Vec::new();
    };
    let (released, cause) = (ending.kill_at.is_some(), &ending.cause);
    let holders = if ending.all {
        tell::members_now(world, id)
    } else {
        whose::holders(world, id)
    };
    if holders.is_empty() && (released || !launched_lately(world, live) && !may_begin(world, id)) {
        let cause = cause.clone();
        return vec![
            Command::Ends(EndCommand::Dismantle { id, cause }),
            Command::Core(Event::Gone { id }),
        ];
    }
    if ending.kill_at.is_none_or(|at| at > Instant::now()) {
        return Vec::new();
    }
    let mut out = vec![match ending.all {
        true => Command::Ends(EndCommand::KillMembers(id, holders)),
        false => Command::Ends(EndCommand::Signal(holders, libc::SIGKILL)),
    }];
    out.push(Command::Ends(EndCommand::Killed(id)));
    if !ending.told {
        let text = format!("{id}: processes that did not end were killed ({cause})");
        out.push(Command::NoticeOf { id, text });
    }
    out
}

/// Dismantles a claim: pages, filter, cgroup, journal. The caller tells the core.
pub(crate) fn dismantle(with: &mut Effects, id: ClaimId, cause: &str) -> Vec<Command> {
    let Some(mut live) = with.claims.remove(&id) else {
        return Vec::new();
    };
    for seat in &live.seats {
        seat.limits.set_state(State::NotGranted);
    }
    // Use the record's slices: a grant that failed half-way has pages that are no seats yet.
    for slice in &live.record.slices {
        if let Some(gpu) = with.gpus.gpu_index(&slice.uuid) {
            let _ = std::fs::remove_file(with.host.limits_path(&with.gpus, id, gpu));
        }
    }
    with.config.drop_spec(id);
    let refusals = with.gpus.refusals(&live);
    let launches = live.past.launches.saturating_add(with.gpus.launches(&live));
    let record = live.record.clone();
    with.journal
        .put_end(Ended::new(record, cause, live.peak, launches));
    with.policy.over.forget(id);
    limits::unlimit_memory(&with.world(), &with.observer, &live);
    if let (Some(tree), Some(cgroup)) = (&with.host.fences.tree, live.cgroup.take()) {
        if tree.remove(&cgroup).is_ok() {
            if cgroup.is_lodged() {
                give_back_lodging(&with.world(), cgroup.dir());
            }
        } else {
            let rules = gpus::remains(&with.world(), &cgroup);
            (with.claims).linger(&mut with.host.fences, &rules, cgroup);
        }
    } else if let (Some(tree), Some(behalf)) = (&with.host.fences.tree, &live.record.origin.behalf)
    {
        let (uid, claim) = (live.record.uid, id.0);
        tree.leave(ClaimPlace { uid, claim }, &behalf.cgroup);
    }
    let uid = live.record.uid;
    let mut out = vec![Command::Tell(Fact::Ended { refusals })];
    if live.record.terms.hold || cause != "command exited" {
        let text = format!("{id} of {} ended: {cause}", with.host.names.user(uid));
        out.push(Command::TellUser(uid, Some(id), text));
    } else {
        with.journal.note(uid, id, &format!("ended: {cause}"));
    }
    // Before the core grants its part to another user.
    if live.record.slices.iter().any(|s| s.held == Held::Mps) {
        out.push(Command::Gpus(GpuCommand::RenewMps));
    }
    out.push(Command::RunEnded(Box::new(live), cause.to_owned()));
    out.push(Command::Publish);
    out
}

impl Claims {
    /// Begins the end of a claim; a restarted service continues it. False if there is no such claim.
    fn begin_end(&mut self, journal: &Journal, id: ClaimId, ending: Ending) -> bool {
        let Some(live) = self.get_mut(&id) else {
            return false;
        };
        live.record.end.ending = Some(ending.cause.clone());
        live.record.end.kill_all |= ending.all;
        live.ending = Some(ending);
        journal.keep(&live.record, "that a claim is ending");
        // A suspended process can neither handle a signal nor end.
        self.set_frozen(id, false);
        true
    }

    fn ending_of(&mut self, id: ClaimId) -> Option<&mut Ending> {
        self.get_mut(&id)?.ending.as_mut()
    }

    /// Processes that did not end were killed; those that remain are killed again.
    fn killed(&mut self, id: ClaimId) {
        if let Some(ending) = self.ending_of(id) {
            ending.kill_at = Some(Instant::now() + Duration::from_secs(1));
            ending.told = true;
        }
    }
}

/// A claim that is ended for others keeps the GPU until it is killed, so that its programs can save their state.
fn keep_gpu(claims: &mut Claims, id: ClaimId) {
    let Some(live) = claims.get_mut(&id) else {
        return;
    };
    if let Some(ending) = live.ending.as_mut().filter(|e| e.by_mps.is_none()) {
        ending.saving = true;
        if matches!(live.record.holding, HoldingRecord::Here) {
            claims.set_states(id, State::Granted);
        }
    }
}

/// The grace time is over: from now on the claim ends like any other. False if it is not saving.
fn end_saving(claims: &mut Claims, id: ClaimId) -> bool {
    let due = |ending: &Ending| ending.kill_at.is_some_and(|at| at <= Instant::now());
    let ending = claims.ending_of(id).filter(|e| e.saving && due(e));
    let over = ending.is_some_and(|ending| std::mem::take(&mut ending.saving));
    if over {
        claims.set_states(id, State::NotGranted);
    }
    over
}

/// Removes the cgroups of ended claims whose last process has gone.
pub(crate) fn tidy_lingering(with: &mut Effects) {
    let tree = with.host.fences.tree.as_ref();
    let lingering = &mut with.claims.lingering;
    let gone = lingering.extract_if(.., |c| tree.is_some_and(|t| t.remove(c).is_ok()));
    let lodged: Vec<ClaimCgroup> = gone.filter(ClaimCgroup::is_lodged).collect();
    for cgroup in lodged {
        give_back_lodging(&with.world(), cgroup.dir());
    }
}

fn signal_all(world: &World<'_>, id: ClaimId) {
    let members = tell::members_now(world, id);
    send(world, &members, libc::SIGTERM);
    // A stopped process cannot handle the signal.
    send(world, &members, libc::SIGCONT);
}

/// Removes the claim's filter and settings from the cgroup of a service; later processes there are no members.
fn give_back_lodging(world: &World<'_>, dir: &std::path::Path) {
    let mut lodged = world.claims.values().filter_map(|l| l.cgroup.as_ref());
    let taken = lodged.any(|c| c.dir() == dir);
    if let (Some(filters), false) = (&world.host.fences.filters, taken)
        && let Err(error) = filters.clear_dir(dir)
    {
        tracing::debug!(%error, "cannot remove the device filter from the cgroup of a service");
    }
}

/// Sends SIGKILL to everything in the claim, including processes that start meanwhile.
fn kill_members(world: &World<'_>, id: ClaimId, members: &[ProcessKey]) {
    let live = world.claims.get(&id);
    let Some(cgroup) = live.and_then(|live| live.cgroup.as_ref()) else {
        return send(world, members, libc::SIGKILL);
    };
    let inside = cgroup.procs().unwrap_or_default();
    if let Err(error) = cgroup.kill() {
        tracing::warn!(%id, %error, "cannot kill the whole cgroup at once");
        return send(world, members, libc::SIGKILL);
    }
    let outside = members.iter().filter(|p| !inside.contains(&p.pid));
    let moved = outside.filter(|p| whose::claim_of(world, p.pid) == Some(id));
    send(world, &moved.copied().collect::<Vec<_>>(), libc::SIGKILL);
}

/// Whether a member has launched work within the grace time.
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

/// Whether a program that outlives the command may still start to use the GPU.
fn may_begin(world: &World<'_>, id: ClaimId) -> bool {
    let ending = world.claims.get(&id).and_then(|l| l.ending.as_ref());
    ending.is_some_and(|e| e.since.elapsed() < world.config.claims.leftover_grace)
        && !tell::members_now(world, id).is_empty()
}

/// Ends a claim so that its command can start again later: SIGTERM, a grace time, SIGKILL. `gshare claim --requeue`
/// restarts it.
pub(crate) fn requeue(world: &World<'_>, id: ClaimId, why: &str) -> Vec<Command> {
    let text = format!(
        "{id} is ended and queued again: {why}. Its programs have {} to save their work",
        show_duration(GRACE)
    );
    let mut out = vec![
        Command::Ends(EndCommand::Requeued(id)),
        Command::TellOwner { id, text },
    ];
    out.extend(end_claim(world, id, &format!("{REQUEUED}: {why}")));
    out
}

/// Ends a claim with all its processes: SIGTERM now, SIGKILL after a grace time. Its programs keep the GPU until
/// then, so that they can save their state.
pub(crate) fn end_claim(world: &World<'_>, id: ClaimId, cause: &str) -> Vec<Command> {
    let mut out = end_all(world, id, cause, GRACE);
    out.push(Command::Ends(EndCommand::KeepGpu(id)));
    out
}

/// Ends a claim on behalf. Its processes get no signal and continue without the claim.
fn end_behalf(with: &mut Effects, id: ClaimId, cause: &str) -> Vec<Command> {
    let Some(live) = with.claims.get(&id) else {
        return Vec::new();
    };
    for seat in &live.seats {
        seat.limits.set_state(State::NotGranted);
    }
    // Take the filter off before the journal forgets the claim: nothing else would find it.
    if let (Some(filters), Some(cgroup)) = (&with.host.fences.filters, &live.cgroup)
        && let Err(error) = filters.clear_dir(cgroup.dir())
    {
        tracing::warn!(%id, %error, "cannot remove the device filter from the cgroup of a claim made with claim-for");
    }
    die::at("behalf-open");
    let mut done = dismantle(with, id, cause);
    die::at("behalf-ended");
    done.extend([
        Command::Gpus(GpuCommand::DoubtOwners),
        // What its processes still hold must count as use without a claim before others get its part.
        Command::Gpus(GpuCommand::LookUpOwners),
        Command::Refresh,
        Command::Core(Event::Gone { id }),
        Command::Publish,
    ]);
    done
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
        let record = world.claims.get(&id).map(|l| &l.record);
        let (of, hint) = match record.and_then(super::slurm::job_of) {
            Some(job) => (
                format!("{id} is the claim of Slurm job {job}"),
                format!("to end the job: scancel {job}"),
            ),
            None => (
                format!("root made {id} for the programs of a cgroup"),
                "ask your administrator".to_owned(),
            ),
        };
        let text = format!("{of}; only root can {verb} it");
        return Err(WireError::new(ErrorCode::NotPermitted, text).with_hint(hint));
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
        messages::only_owner(id, &whose, verb),
    )
    .with_hint(format!("ask {whose}")))
}

/// Signals processes after checking that each is still the same one. Processes of a claim on behalf are not
/// signalled.
fn send(world: &World<'_>, processes: &[ProcessKey], signal: i32) {
    for process in processes {
        if whose::behalf_of(world, process.pid).is_some() {
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

#[cfg(test)]
mod tests {
    use gshare_enforcer::proc::ProcessKey;

    use super::*;
    use crate::daemon::world::scene::Scene;

    /// Claim 1 while it ends; its command is this test's own process.
    fn ends(all: bool, kill_in: Option<Duration>) -> (Scene, ProcessKey) {
        let mut scene = Scene::of(1);
        let own = proc::key(std::process::id().cast_signed()).expect("it lives");
        let live = scene.claim(1, 0);
        live.record.process = Some(own);
        live.ending = Some(Ending {
            kill_at: kill_in.map(|time| Instant::now() + time),
            ..Ending::killing("released", all)
        });
        (scene, own)
    }

    #[test]
    fn a_claim_goes_when_nothing_of_it_holds_the_gpu() {
        let (scene, _) = ends(false, Some(TERM_GRACE));
        let id = ClaimId(1);
        let done = settle(&scene.world(), id);
        assert!(
            matches!(&done[..], [Command::Ends(EndCommand::Dismantle { cause, .. }), Command::Core(Event::Gone { .. })]
                if cause == "released"),
            "{done:?}"
        );
        assert!(
            settle(&scene.world(), ClaimId(2)).is_empty(),
            "there is none"
        );
    }

    #[test]
    fn one_that_ends_with_all_its_processes_waits_for_them_and_then_kills_them_again_and_again() {
        let id = ClaimId(1);
        let (scene, _) = ends(true, Some(TERM_GRACE));
        assert!(settle(&scene.world(), id).is_empty(), "they have time");
        let (mut scene, own) = ends(true, Some(Duration::ZERO));
        let done = settle(&scene.world(), id);
        assert!(
            matches!(&done[..], [Command::Ends(EndCommand::KillMembers(_, who)), Command::Ends(EndCommand::Killed(_)), Command::NoticeOf { .. }]
                if who.contains(&own)),
            "{done:?}"
        );
        scene.claims.killed(id);
        assert!(settle(&scene.world(), id).is_empty(), "a second passes");
        let ending = scene.claim(1, 0).ending.as_mut().expect("it ends");
        ending.kill_at = Some(Instant::now());
        let again = settle(&scene.world(), id);
        assert!(
            matches!(again[..], [_, Command::Ends(EndCommand::Killed(_))]),
            "told once: {again:?}"
        );
    }

    #[test]
    fn the_cgroup_of_others_loses_its_claim_and_no_process() {
        let mut scene = Scene::of(1);
        scene.claim(1, 0).record.runs.plain = true;
        let done = end(&scene.world(), ClaimId(1), "released");
        assert!(
            matches!(done[..], [Command::Ends(EndCommand::EndBehalf { .. })]),
            "{done:?}"
        );
        scene.claim(2, 0);
        let done = end(&scene.world(), ClaimId(2), "released");
        assert!(
            matches!(
                done[..],
                [
                    Command::Ends(EndCommand::SetStates(_, State::NotGranted)),
                    Command::Ends(EndCommand::BeginEnd(..)),
                    Command::Ends(EndCommand::AskToEnd(_)),
                    Command::Ends(EndCommand::SettleEnd(_)),
                    _
                ]
            ),
            "{done:?}"
        );
    }
}
