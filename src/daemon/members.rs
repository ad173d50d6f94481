//! Members: registration of processes with the library, membership of processes, and their ends.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_abi::wire::{Answer, Register, Seat as WireSeat};
use gshare_config::Unclaimed;
use gshare_core::machine::Event;
use gshare_core::units::show_duration;
use gshare_core::{Bytes, ClaimId, Ledger};
use gshare_enforcer::cgroup::ClaimTree as _;
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{WireError, messages};

use super::claims::Claims;
use super::command::{Command, EndCommand};
use super::connection::Sender;
use super::effects::Effects;
use super::fact::Fact;
use super::gpu::Gpus;
use super::host::Host;
use super::journal::Journal;
use super::lazy::places;
use super::live::{Ending, Live};
use super::msg::Msg;
use super::peer::Peer;
use super::world::World;
use super::{bound, die, lazy, mps, stage, whose};
use crate::clock::unix_ms;

/// Time between two looks at a process whose end cannot be awaited.
const UNWATCHED_LOOK: Duration = Duration::from_millis(500);
/// Shortest time between two notices about a claim's refusals; some programs ask again and again.
const REFUSALS_TOLD: Duration = Duration::from_secs(30);

/// Gives a process its pages.
pub(crate) fn register(
    with: &mut Effects,
    peer: &Peer,
    register: &Register,
    out: &Sender,
) -> Vec<Command> {
    die::at("member-asked");
    if let Some(id) = lacking(&with.world(), peer, register) {
        if register.looks {
            out.member(&lazy::later(&with.claims, id));
            return Vec::new();
        }
        return lazy::want(with, id, peer, register, out);
    }
    match seat(with, peer, register) {
        Ok((answer, fds)) => {
            die::at("member-seated");
            out.member_with(&answer, fds);
            die::at("member-told");
            die::after_answer("member-heard");
            vec![Command::Publish]
        }
        Err((code, message)) => {
            tracing::debug!(
                uid = peer.uid,
                pid = register.pid,
                "registration refused: {message}"
            );
            out.refuse_member(code, message);
            Vec::new()
        }
    }
}

fn seat(
    with: &mut Effects,
    peer: &Peer,
    register: &Register,
) -> Result<(Answer, Vec<OwnedFd>), (&'static str, String)> {
    if register.abi != gshare_abi::ABI_VERSION {
        let known = gshare_abi::ABI_VERSION;
        return Err((
            "abi",
            format!(
                "versions differ: the service has {known}, but this program has loaded gshare's library {}; start the program again",
                register.abi
            ),
        ));
    }
    let gone = || ("gone", "the process is gone".to_owned());
    let process = peer.process.ok_or_else(gone)?;
    let pidfd = peer.pidfd.clone().ok_or_else(gone)?;
    let id = whose::claim_of(&with.world(), process.pid)
        .or_else(|| claim_by_hint(&with.world(), peer, register.hint))
        .ok_or_else(|| {
            why_without(
                &with.world(),
                &with.journal,
                peer,
                process.pid,
                register.hint,
            )
        })?;
    // If it has ended, the pid may have been another process's at the lookup.
    if pidfd.has_exited() {
        return Err(gone());
    }
    let live = with.claims.get_mut(&id).ok_or_else(gone)?;
    if live.record.slices.len() > 1 {
        with.levers.look_for_nccl(id, process.pid);
    }
    // Watch it before it has a slot, so that no slot stays behind.
    if live.members.insert(process, Arc::clone(&pidfd)).is_none() {
        with.host.watch_exit(id, process, pidfd);
    }
    let live = with.claims.get_mut(&id).ok_or_else(gone)?;
    let internal = |e: &dyn std::fmt::Display| ("internal", e.to_string());
    let mut fds = Vec::new();
    let mut gpus = Vec::new();
    let mut bells = Vec::new();
    for seat in &mut live.seats {
        let pid = process.pid.cast_unsigned();
        let assigned = seat
            .usage
            .assign_slot(pid, process.start_ticks)
            .map_err(|_| {
                (
                    "full",
                    format!(
                        "{id} has {} processes on one GPU, more than gshare can count",
                        gshare_abi::SLOTS
                    ),
                )
            })?;
        fds.push(seat.limits.member_fd().map_err(|e| internal(&e))?);
        fds.push(
            seat.usage
                .fd()
                .try_clone_to_owned()
                .map_err(|e| internal(&e))?,
        );
        if let Some(turning) = &seat.turning {
            let bell = turning.member_fd().try_clone_to_owned();
            bells.push(bell.map_err(|e| internal(&e))?);
        }
        let uuid = with.gpus[seat.gpu]
            .uuid
            .parse()
            .map_err(|_| internal(&"a GPU has a malformed UUID"))?;
        gpus.push(WireSeat {
            uuid,
            slot: assigned.slot,
            generation: assigned.generation,
        });
    }
    // All pages, then all doorbells or none.
    if bells.len() == gpus.len() {
        fds.append(&mut bells);
    }
    let name = live.record.name.clone().unwrap_or_else(|| id.to_string());
    mps::poke_mps(&with.world(), id);
    Ok((
        Answer::Member {
            claim: id.0,
            name,
            gpus,
            env: places::in_places(&with.world(), id),
        },
        fds,
    ))
}

/// Once per tick: peaks and new refusals of all claims, and progress of those that are ending.
pub(crate) fn watch(with: &mut Effects) -> Vec<Command> {
    let used = programs_use(&with.world());
    let mut out = Vec::new();
    for id in with.claims.keys().copied().collect::<Vec<_>>() {
        let used = used.get(&id).copied().unwrap_or(0);
        let text = (with.claims).watch(with.core.ledger(), &with.gpus, id, used);
        out.extend(text.map(|text| Command::NoticeOf { id, text }));
        out.push(Command::Ends(EndCommand::SettleEnd(id)));
    }
    out
}

/// Use of programs that run without the library, by the driver alone.
fn programs_use(world: &World<'_>) -> BTreeMap<ClaimId, u64> {
    let by_gpu = (0..world.gpus.len()).map(|g| world.driver_use(g));
    let by_gpu: Vec<_> = by_gpu.collect();
    let plain = world
        .claims
        .iter()
        .filter(|(_, live)| live.record.runs.plain);
    let used = |id: &ClaimId| {
        let used = by_gpu.iter().filter_map(|of| of.get(id)?.bytes);
        used.fold(0, u64::saturating_add)
    };
    plain.map(|(id, _)| (*id, used(id))).collect()
}

/// Without cgroups a daemonized child has no ancestor that identifies its claim; then the number in its environment
/// counts, among the user's own claims.
pub(crate) fn claim_by_hint(world: &World<'_>, peer: &Peer, hint: Option<u64>) -> Option<ClaimId> {
    if world.host.fences.tree.is_some() {
        return None;
    }
    let id = ClaimId(hint?);
    world
        .claims
        .get(&id)
        .filter(|live| live.record.uid == peer.uid)
        .map(|_| id)
}

/// The claim of a registering process, if it has no GPU yet.
fn lacking(world: &World<'_>, peer: &Peer, register: &Register) -> Option<ClaimId> {
    let id = whose::claim_of(world, peer.process?.pid)
        .or_else(|| claim_by_hint(world, peer, register.hint))?;
    (register.abi == gshare_abi::ABI_VERSION && world.claims.is_without(id)).then_some(id)
}

/// Makes sure that the command of a restored claim is in it.
pub(crate) fn adopt_again(live: &Live, peer: &Peer) -> Result<(), WireError> {
    let cgroup = live.cgroup.as_ref().filter(|_| !live.record.runs.strict);
    let (Some(cgroup), Some(process)) = (cgroup, peer.process) else {
        return Ok(());
    };
    let moved = cgroup.move_process(process.pid, peer.pidfd.as_deref());
    moved.map_err(|e| bound::not_moved(&e))
}

/// `AsyncFd` wants the descriptor itself.
struct Shared(Arc<PidFd>);

impl AsRawFd for Shared {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Claims {
    /// A watched process has ended: its bytes are freed at once.
    pub(crate) fn exited(
        &mut self,
        gpus: &Gpus,
        id: ClaimId,
        process: ProcessKey,
        status: Option<ExitStatus>,
    ) -> Vec<Command> {
        let Some(live) = self.get_mut(&id) else {
            return Vec::new();
        };
        live.members.remove(&process);
        let mut out = Vec::new();
        for seat in &mut live.seats {
            let total = gpus[seat.gpu].total;
            let dead: Vec<_> = seat
                .usage
                .owners()
                .filter(|(_, pid, start)| {
                    pid.cast_signed() == process.pid && *start == process.start_ticks
                })
                .map(|(assigned, ..)| assigned)
                .collect();
            for slot in seat.usage.read_slots(total) {
                if dead.iter().any(|d| d.slot == slot.slot) {
                    live.past.launch_ns = live.past.launch_ns.max(slot.last_launch_ns);
                    live.past.launches = live.past.launches.saturating_add(slot.launches);
                    live.past.refusals = live.past.refusals.saturating_add(slot.refusals);
                    out.push(Command::Tell(Fact::Departed {
                        claim: id,
                        gpu: seat.gpu,
                        slot: Box::new(slot),
                    }));
                }
            }
            for assigned in dead {
                seat.usage.reclaim(assigned.slot, assigned.generation);
            }
        }
        if live.record.process == Some(process) {
            live.command_alive = false;
            live.exit = live.exit.or(status);
            if live.ending.is_none() && !live.stays_without_command() {
                live.ending = Some(Ending::waiting());
                self.set_frozen(id, false);
            }
        }
        out.push(Command::Ends(EndCommand::SettleEnd(id)));
        // A claim may wait for the bytes that were freed.
        if !self.waiting.is_empty() {
            out.push(Command::Core(Event::Tick));
        }
        out.push(Command::Publish);
        out
    }

    /// Looks at the pages of a claim whose programs without the library use this much. Returns the notice, if any.
    fn watch(&mut self, ledger: &Ledger, gpus: &Gpus, id: ClaimId, used: u64) -> Option<String> {
        let live = self.get_mut(&id)?;
        let (mut charge, mut refusals, mut last) = (used, live.past.refusals, None);
        live.last_launch_ns = None;
        for seat in &live.seats {
            // For the message to a refused member.
            let free = live.record.may_grow_by(ledger.mem_free(seat.gpu));
            seat.limits.beat(free);
            let slots = seat.usage.read_slots(gpus[seat.gpu].total);
            for slot in slots {
                live.last_launch_ns = live.last_launch_ns.max(slot.last_launch_ns);
                charge = charge.saturating_add(slot.charge_bytes);
                refusals = refusals.saturating_add(slot.refusals);
                if slot.refusals > 0 {
                    last = last.max(
                        slot.last_refusal_ns
                            .zip(slot.last_refused_bytes)
                            .map(|(at, b)| (at, b, seat.gpu)),
                    );
                }
            }
        }
        live.peak = live.peak.max(charge);
        let new = refusals > live.told.refusals
            && live.told.at.is_none_or(|at| at.elapsed() >= REFUSALS_TOLD);
        if new {
            live.told.refusals = refusals;
            live.told.at = Some(Instant::now());
        }
        let (_, bytes, gpu) = last.filter(|_| new)?;
        let part = ledger.slices(id)?.iter().find(|s| s.gpu == gpu)?;
        let (what, free) = (Bytes(bytes), ledger.mem_free(gpu));
        Some(messages::refused(id, what, part.mem_limit, free, gpu))
    }

    pub(super) fn claim_by_registration(&self, pid: i32) -> Option<ClaimId> {
        let key = proc::key(pid)?;
        let found = self.iter().rev();
        let mut found = found.filter(|(_, live)| live.members.contains_key(&key));
        found.next().map(|(id, _)| *id)
    }
}

/// The answer to a user's program that names a claim in its environment and is in none: when and why that claim
/// ended, and how to start again. Nothing about others' claims. A device filter keeps it from the GPUs if it is still in
/// the claim's cgroup; without filters the code has the library do so.
fn why_without(
    world: &World<'_>,
    journal: &Journal,
    peer: &Peer,
    pid: i32,
    hint: Option<u64>,
) -> (&'static str, String) {
    let end = hint.and_then(|id| {
        let (at_ms, cause) = journal.end_of(ClaimId(id), peer.uid).ok()??;
        let ago = unix_ms().saturating_sub(at_ms) / 1000;
        let ago = show_duration(Duration::from_secs(ago));
        Some(format!("{} ended {ago} ago ({cause})", ClaimId(id)))
    });
    let open = world.config.is_off() || stage::observed(world, peer.uid).next().is_some();
    let fences = &world.host.fences;
    let (code, shut) = match (&fences.filters, &fences.tree) {
        _ if open => ("no_claim", false),
        (None, _) if end.is_some() => ("not_available", true),
        (Some(_), Some(tree)) => {
            let denied = stage::unclaimed_policy(world) == Unclaimed::Deny;
            ("no_claim", denied || tree.claim_of_pid(pid).is_some())
        }
        _ => ("no_claim", false),
    };
    let next = match shut {
        true => "this program has no GPU. Start it with: gshare claim -- CMD",
        false => "this program runs without a claim",
    };
    let end = end.unwrap_or_else(|| "its environment names a claim that does not exist".to_owned());
    (code, format!("{end}; {next}"))
}

impl Host {
    /// Notifies the state's task when a process ends.
    pub(crate) fn watch_exit(&self, claim: ClaimId, process: ProcessKey, pidfd: Arc<PidFd>) {
        let events = self.events.clone();
        tokio::spawn(async move {
            #[allow(
                deprecated,
                reason = "the function that replaces it is unsafe; this descriptor is owned and never changes"
            )]
            let watched = tokio::io::unix::AsyncFd::with_interest(
                Shared(Arc::clone(&pidfd)),
                tokio::io::Interest::READABLE,
            );
            match watched {
                Ok(fd) => {
                    let _ = fd.readable().await;
                }
                Err(error) => {
                    // Already watched through the same handle, or the kernel has no room: look from time to time.
                    tracing::debug!(pid = process.pid, %error, "no event for the end of a process");
                    while !pidfd.has_exited() {
                        tokio::time::sleep(UNWATCHED_LOOK).await;
                    }
                }
            }
            let status = pidfd.exit_status(process);
            let _ = events.send(Msg::Exited {
                claim,
                process,
                status,
            });
        });
    }
}
