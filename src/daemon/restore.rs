//! Restores claims after a restart of the service: from the journal, the cgroup tree, the limits files and the pages
//! that live on in the members.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_abi::GpuUuid;
use gshare_abi::host::{LimitsFile, UsageMemfd};
use gshare_core::machine::Event;
use gshare_core::machine::Phase;
use gshare_core::machine::lever::{Holding, Parked};
use gshare_core::{Bytes, ClaimId, Request, Share, Slice};
use gshare_enforcer::cgroup::{ClaimCgroup, ClaimTree};
use gshare_enforcer::device::DeviceRules;
use gshare_enforcer::proc::{self, PidFd, ProcessKey};

use super::admin::quota;
use super::claims::Claims;
use super::command::{Command, LeverCommand};
use super::effects::Effects;
use super::fences::Fences;
use super::gpu::Gpus;
use super::grant::claim_cgroup;
use super::health::boot_id;
use super::host::Host;
use super::journal::{ClaimRecord, Ended, HoldingRecord};
use super::lease::{LEASE_ENDED, LEASE_ENDED_BEFORE};
use super::live::{Ending, Live, Seat};
use super::outside::AutoClaim;
use super::policy::auto;
use super::whose::{members_of, moved_out, roots};
use super::world::World;
use super::{container, convert, gpus, grant, mps, off};
use crate::clock::unix_ms;
use crate::kernel::connection_file;

/// Longest search for a claim's page in its members, which may be slow on purpose; for one claim, for all claims of
/// one user, and for all: the service starts in time whatever the members do.
const PAGE_SEARCH: Duration = Duration::from_millis(250);
const OWNER_SEARCH: Duration = Duration::from_secs(2);
const WHOLE_SEARCH: Duration = Duration::from_secs(10);

/// Remaining time for searches.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    by_owner: HashMap<u32, Duration>,
    all: Duration,
}

impl Searches {
    /// Longest next search for a page of this user's.
    fn left(&self, uid: u32) -> Duration {
        let own = self.by_owner.get(&uid).copied().unwrap_or_default();
        let owners = OWNER_SEARCH.saturating_sub(own);
        let all = WHOLE_SEARCH.saturating_sub(self.all);
        PAGE_SEARCH.min(owners).min(all)
    }

    fn took(&mut self, uid: u32, time: Duration) {
        *self.by_owner.entry(uid).or_default() += time;
        self.all += time;
    }
}

/// The journal's claims at the start.
pub(crate) struct Journaled {
    /// Notices.
    pub(crate) told: Vec<Command>,
    pub(crate) held: Vec<ClaimRecord>,
    waiting: Vec<ClaimRecord>,
    rebooted: bool,
    boot: String,
}

/// Reads the journal's claims. After a boot those that were held have ended.
pub(crate) fn read(with: &mut Effects) -> anyhow::Result<Journaled> {
    let mut found = with.journal.claims(unix_ms())?;
    found.held.iter_mut().for_each(read_again);
    found.waiting.iter_mut().for_each(read_again);
    let mut told = Vec::new();
    for id in &found.unread {
        let id = ClaimId(*id);
        let text = format!(
            "{id} could not be restored and has ended, because its record in the journal cannot be read; the record is kept"
        );
        tracing::error!("{text}");
        told.push(Command::NoticeOf { id, text });
    }
    if let Some(why) = with.journal.newer() {
        tracing::error!("{why}; start the version of gshared that wrote the journal");
        told.push(Command::Notice(why));
    }
    let boot = boot_id();
    let rebooted = with.journal.meta("boot")?.is_some_and(|b| b != boot);
    let mut held = Vec::new();
    for record in found.held {
        if record.origin.uncapped && !rebooted {
            match auto::restored(&record) {
                Some((process, pidfd)) => {
                    let id = ClaimId(record.id);
                    with.policy.auto.enter(AutoClaim::new(record, process));
                    with.host.watch_exit(id, process, Arc::new(pidfd));
                }
                None => (with.journal).put_end(Ended::new(record, auto::EXITED, 0, 0)),
            }
        } else if rebooted {
            let cause = "the machine was restarted";
            with.journal.end(&record, unix_ms(), cause, None, None)?;
            let (id, text) = (ClaimId(record.id), format!("ended: {cause}"));
            with.journal.note(record.uid, id, &text);
        } else {
            held.push(record);
        }
    }
    Ok(Journaled {
        told,
        held,
        waiting: found.waiting,
        rebooted,
        boot,
    })
}

/// The journal has neither the command line nor the path of a kernel: a claim's living process has them.
fn read_again(record: &mut ClaimRecord) {
    let Some(process) = record.process else {
        return;
    };
    let words = convert::command_line(process.pid);
    let dir = std::fs::read_link(format!("/proc/{}/cwd", process.pid)).unwrap_or_default();
    if proc::key(process.pid) != Some(process) {
        return;
    }
    record.command.read_again(&words);
    if let Some(kernel) = &mut record.origin.kernel
        && let Some(path) = connection_file(&words)
    {
        kernel.connection = dir.join(path);
    }
}

/// Restores the queue in the core, once all held claims are restored.
pub(crate) fn recall(with: &mut Effects, found: &mut Journaled) -> anyhow::Result<Vec<Event>> {
    let (core, gpus) = (&with.core, &with.gpus);
    let waiting = std::mem::take(&mut found.waiting);
    let memory = (with.claims).recall(core, gpus, &with.journal, found.rebooted, waiting)?;
    let mut events = Vec::new();
    if let Some(memory) = memory {
        let absent = with.claims.remembered.absent.iter();
        let parties = absent.map(|(id, (record, _))| quota::parties(&with.world(), *id, record));
        events.extend(parties);
        events.push(Event::Recall(Box::new(memory)));
    }
    Ok(events)
}

/// Removes what ended claims left.
pub(crate) fn tidy(with: &mut Effects, found: &Journaled) -> anyhow::Result<()> {
    // Written last: after a kill before this, everything is repeated.
    with.journal.set_meta("boot", &found.boot)?;
    keep_orphans(with);
    drop_old_pages(&with.world());
    container::drop_old_specs(&with.world());
    Ok(())
}

/// Restores one claim. Errors are logged, so that other claims and its own room do not suffer.
pub(crate) fn restore(
    with: &mut Effects,
    record: ClaimRecord,
    searches: &mut Searches,
) -> Vec<Command> {
    let id = ClaimId(record.id);
    let mut slices = restored_slices(&with.gpus, &record);
    let mut live = Live::new(record);
    if !live.record.runs.plain {
        let gpus = slices.iter().map(|s| s.gpu);
        let rules = gpus::rules(&with.world(), Some(&live.record), gpus);
        live.cgroup = with.host.fences.restored_cgroup(&live.record, &rules);
    }
    let mut members = members_of(
        &live,
        &with.host.paths.socket,
        with.host.fences.tree.as_ref(),
    );
    let tree = with.host.fences.tree.as_ref();
    if let Some(tree) = tree.filter(|_| live.cgroup.is_some()) {
        members.extend(moved_out(roots(&live), tree));
    }
    for slice in slices.iter_mut().filter(|_| !live.record.runs.plain) {
        match restored_seat(&with.world(), &live.record, slice, &members, searches) {
            Ok(seat) => live.seats.push(seat),
            Err(error) => {
                tracing::error!(%id, "cannot recreate the memory that it shares with its programs: {error:#}");
            }
        }
    }
    let watched = find_processes(&mut live, &members);
    reclaim_strangers(&mut live, &members);
    for slice in &mut slices {
        if let Some(seat) = live.seats.iter().find(|s| s.gpu == slice.gpu) {
            let charge = seat.usage.charged_bytes(with.gpus[slice.gpu].total);
            slice.charge = Bytes(charge).min(slice.mem_limit);
        }
    }
    live.ending = match &live.record.end.ending {
        Some(cause)
            if [LEASE_ENDED, LEASE_ENDED_BEFORE].contains(&cause.as_str())
                && !live.record.end.kill_all =>
        {
            let left = with.config.grace_left(live.record.terms.ends_ms);
            Some(left.map_or_else(|| Ending::killing(cause, false), Ending::lease))
        }
        Some(cause) => Some(Ending::killing(cause, live.record.end.kill_all)),
        None => {
            let ends = !live.command_alive && !live.stays_without_command();
            ends.then(Ending::waiting)
        }
    };
    if live.record.end.ending.is_some() && live.ending.as_ref().is_none_or(|e| !e.saving) {
        for seat in &live.seats {
            seat.limits.set_state(gshare_abi::State::NotGranted);
        }
    }
    let ends = live
        .record
        .terms
        .ends_ms
        .map(|ms| with.core.moment().at_unix(ms));
    let parties = quota::parties(&with.world(), id, &live.record);
    with.claims.insert(id, live);
    for (process, fd) in watched {
        with.host.watch_exit(id, process, fd);
    }
    let mut events = vec![parties];
    if with.claims.is_without(id) {
        return vec![Command::Events(events)];
    }
    events.push(Event::Restore {
        id,
        request: restored_request(&with.world(), id, &slices).map(Box::new),
        holding: restored_holding(&with.world(), id, slices),
        ends,
    });
    vec![
        Command::Events(events),
        Command::Levers(LeverCommand::Relabel(id)),
        Command::Levers(LeverCommand::Resume(id)),
    ]
}

impl Fences {
    fn restored_cgroup(
        &mut self,
        record: &ClaimRecord,
        rules: &DeviceRules,
    ) -> Option<ClaimCgroup> {
        let cgroup = claim_cgroup(self.tree.as_ref()?, record);
        let cgroup = cgroup.unwrap_or_else(|error| {
            tracing::error!(claim = record.id, %error, "cannot find the cgroup of a claim");
            None
        })?;
        if let Err(error) = self.set(Some(&cgroup), rules) {
            // The previous service's filter is still attached.
            tracing::error!(claim = record.id, %error, "cannot set the device filter of a claim again");
        }
        Some(cgroup)
    }
}

impl Claims {
    /// Sets the device rules of the cgroup of an ended claim with living processes.
    pub(crate) fn linger(&mut self, fences: &mut Fences, rules: &DeviceRules, cgroup: ClaimCgroup) {
        if let Err(error) = fences.set(Some(&cgroup), rules) {
            let place = cgroup.dir().display();
            tracing::error!(%place, %error, "programs of an ended claim may still open GPUs: its device filter cannot be set");
        }
        self.lingering.push(cgroup);
    }
}

/// Cgroups without a journaled claim: their processes live on without a GPU.
fn keep_orphans(with: &mut Effects) {
    let Some(tree) = &with.host.fences.tree else {
        return;
    };
    let mut found = match tree.claims() {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot list the cgroups of claims");
            return;
        }
    };
    // After the loss of a journal, no new claim may get an old cgroup.
    let highest = found.iter().map(|c| c.place().claim).max();
    with.journal.take_ids_to(ClaimId(highest.unwrap_or(0)));
    let known = |c: &ClaimCgroup| with.claims.contains_key(&ClaimId(c.place().claim));
    found.retain(|c| !known(c) && tree.remove(c).is_err());
    for cgroup in found {
        let rules = gpus::remains(&with.world(), &cgroup);
        (with.claims).linger(&mut with.host.fences, &rules, cgroup);
    }
}

/// Pages of ended claims: a process that still maps one loses the GPU.
fn drop_old_pages(world: &World<'_>) {
    let dir = world.host.paths.runtime_dir.join("claims");
    let known: Vec<&Path> = world
        .claims
        .values()
        .flat_map(|l| &l.seats)
        .map(|s| s.limits.path())
        .collect();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if known.contains(&path.as_path()) {
            continue;
        }
        if let Ok(page) = LimitsFile::open(&path) {
            page.set_state(gshare_abi::State::NotGranted);
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// A claim's place, or where it was moving, for the core.
fn restored_holding(world: &World<'_>, id: ClaimId, slices: Vec<Slice>) -> Holding {
    let Some(record) = world.claims.get(&id).map(|l| &l.record) else {
        return Holding::here(slices);
    };
    let elsewhere = |to: &[super::journal::SliceRecord]| {
        let gpus = to.iter().filter_map(|s| world.gpus.gpu_index(&s.uuid));
        let on = |(slice, gpu): (&Slice, usize)| Slice {
            gpu,
            ..slice.clone()
        };
        slices.iter().zip(gpus).map(on).collect::<Vec<_>>()
    };
    let parked = |record: &super::journal::ParkedRecord| Parked {
        slices: slices.clone(),
        host: Bytes(record.host),
        frozen: record.frozen,
        by: record.by,
        since: world.now.core,
        back: record.back,
    };
    let phase = match &record.holding {
        HoldingRecord::Here => Phase::Granted,
        HoldingRecord::Parking { freeze, by, .. } => Phase::Offloading {
            freeze: *freeze,
            by: *by,
            wanted: false,
        },
        HoldingRecord::Parked(record) => Phase::Offloaded(parked(record)),
        HoldingRecord::Unparking { parked: record, .. } => Phase::Restoring(parked(record)),
        HoldingRecord::Moving { .. } => Phase::Moving,
        HoldingRecord::Counted => Phase::Counted(slices.clone()),
    };
    let (at, to) = match &record.holding {
        HoldingRecord::Unparking { to, .. } => (elsewhere(to), Vec::new()),
        HoldingRecord::Moving { to } => (slices.clone(), elsewhere(to)),
        _ => (slices, Vec::new()),
    };
    Holding { phase, at, to }
}

/// A claim's request, as far as it is journaled.
fn restored_request(world: &World<'_>, id: ClaimId, slices: &[Slice]) -> Option<Request> {
    let record = &world.claims.get(&id)?.record;
    let first = slices.first()?;
    let class = record.class.parse().unwrap_or_default();
    let mut request = Request::from_gpus(first.sm, first.sm_limit, class).ok()?;
    request.gpus = u32::try_from(slices.len()).ok()?;
    request.mem = Some(first.mem);
    request.mem_limit = Some(first.mem_limit);
    request.sm = Some(record.runs.sm_full.map_or(first.sm, Share::from_milli));
    request.uid = record.uid;
    let only = record
        .terms
        .only
        .iter()
        .filter_map(|uuid| world.gpus.gpu_index(uuid));
    request.movable = !record.terms.no_move;
    request.mode = record.terms.mode.as_deref().and_then(|m| m.parse().ok());
    request.only_gpus = only.filter_map(|g| u32::try_from(g).ok()).collect();
    Some(request)
}

/// Handles on a claim's living processes: the command, and possible members.
fn find_processes(live: &mut Live, members: &[ProcessKey]) -> Vec<(ProcessKey, Arc<PidFd>)> {
    let command = live.record.process;
    let mut found: Vec<(ProcessKey, Arc<PidFd>)> = Vec::new();
    for process in members.iter().copied().chain(command) {
        if found.iter().any(|(p, _)| *p == process) {
            continue;
        }
        let fd = PidFd::open(process.pid)
            .ok()
            .flatten()
            .filter(|fd| proc::key(process.pid) == Some(process) && !fd.has_exited());
        let Some(fd) = fd.map(Arc::new) else {
            continue;
        };
        live.command_alive |= Some(process) == command;
        let seated = live.seats.iter().any(|s| {
            s.usage.owners().any(|(_, pid, start)| {
                pid.cast_signed() == process.pid && start == process.start_ticks
            })
        });
        if seated && members.contains(&process) {
            live.members.insert(process, Arc::clone(&fd));
        }
        found.push((process, fd));
    }
    found
}

/// Whether a process still runs: a zombie does not, and its memory is free.
fn alive(pid: i32, start_ticks: u64) -> bool {
    proc::stat(pid).is_some_and(|s| s.start_ticks == start_ticks && !matches!(s.state, 'Z' | 'X'))
}

/// Frees the slots of members that ended without a service. The page is untrusted: a slot that names a process
/// outside the claim is freed too.
fn reclaim_strangers(live: &mut Live, members: &[ProcessKey]) {
    for seat in &mut live.seats {
        let member = |pid: i32, start_ticks| members.contains(&ProcessKey { pid, start_ticks });
        let strange: Vec<_> = seat
            .usage
            .owners()
            .filter(|(_, pid, start)| {
                let pid = pid.cast_signed();
                !member(pid, *start) || !alive(pid, *start)
            })
            .map(|(assigned, ..)| assigned)
            .collect();
        for assigned in strange {
            seat.usage.reclaim(assigned.slot, assigned.generation);
        }
    }
}

fn restored_slices(gpus: &Gpus, record: &ClaimRecord) -> Vec<Slice> {
    let slice = |s: &super::journal::SliceRecord| {
        let Some(gpu) = gpus.gpu_index(&s.uuid) else {
            tracing::error!(
                "claim c{} holds a part of {}, which is no longer in this machine",
                record.id,
                s.uuid
            );
            return None;
        };
        Some(Slice {
            gpu,
            mem: Bytes(s.mem),
            mem_limit: Bytes(s.mem_limit),
            mem_cap: Bytes(s.mem),
            charge: Bytes::ZERO,
            sm: Share::from_milli(s.sm_milli),
            sm_limit: Share::from_milli(s.sm_limit_milli),
            uid: record.uid,
            held: s.held,
        })
    };
    record.slices.iter().filter_map(slice).collect()
}

impl Host {
    /// A page of the claim under the name of another GPU.
    fn page_elsewhere(&self, id: ClaimId, token: u64) -> Option<LimitsFile> {
        let dir = std::fs::read_dir(self.paths.runtime_dir.join("claims")).ok()?;
        let own = format!("{id}-");
        let named = dir.flatten().filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(&own))
        });
        let mut pages = named.filter_map(|entry| LimitsFile::open(&entry.path()).ok());
        pages.find(|l| l.page().claim() == id.0 && l.page().token() == token)
    }
}

/// The limits file is found by its path, the usage page in a member. What is missing is made again; the changed epoch
/// makes members register again.
fn restored_seat(
    world: &World<'_>,
    record: &ClaimRecord,
    slice: &mut Slice,
    members: &[ProcessKey],
    searches: &mut Searches,
) -> anyhow::Result<Seat> {
    let id = ClaimId(record.id);
    let uuid = &world.gpus[slice.gpu].uuid;
    let token = record
        .slices
        .iter()
        .find(|s| &s.uuid == uuid)
        .map_or(0, |s| s.token);
    let gpu_uuid: GpuUuid = uuid.parse().map_err(|e| anyhow::anyhow!("{e:?}"))?;
    let path = world.host.limits_path(world.gpus, id, slice.gpu);
    let own = |l: &LimitsFile| l.page().claim() == id.0 && l.page().token() == token;
    let mut limits = LimitsFile::open(&path).ok();
    if let Some(mut other) = limits.take_if(|l| !own(l)) {
        // The claim's page for another GPU: it may move there, and must not be overwritten.
        other.set_aside()?;
    }
    let limits = limits.or_else(|| world.host.page_elsewhere(id, token));
    let limits = match limits {
        Some(mut limits) => {
            // The previous service may have ended between the journal entry of a move and the page's new name.
            LimitsFile::relabel(&mut [(&mut limits, gpu_uuid, path)])?;
            // Burst memory stays: only a lowered cap in the page is a lower cap. A cap above the limit was opened
            // while gshare was off.
            let lent = Some(Bytes(limits.memory_cap())).filter(|cap| *cap <= slice.mem_limit);
            slice.mem_cap = lent.unwrap_or_default().clamp(slice.mem, slice.mem_limit);
            limits
        }
        None => grant::new_limits(world, id, slice, token)?,
    };
    // A page that is not found in time is made again.
    let begun = Instant::now();
    let until = begun + searches.left(record.uid);
    let found = members
        .iter()
        .take_while(|_| Instant::now() < until)
        .filter_map(|m| {
            UsageMemfd::find(m.pid.cast_unsigned(), id.0, gpu_uuid, token, until)
                .ok()
                .flatten()
        })
        .next();
    searches.took(record.uid, begun.elapsed());
    let usage = match found {
        Some(usage) => usage,
        None => UsageMemfd::create(id.0, gpu_uuid, token)?,
    };
    let counted = record.holding == HoldingRecord::Counted;
    limits.set_memory_cap(match counted || record.is_observed() {
        true => world.gpus[slice.gpu].total,
        false => off::cap_now(world, id, slice.gpu, slice.mem_cap.0),
    });
    // The previous service may have ended between the journal and the pages of a resize.
    limits.set_memory_request(slice.mem.0);
    limits.set_sm_permille(slice.sm.milli(), slice.sm_limit.milli());
    mps::write_mps_part(world, record, slice.gpu, &limits);
    limits.set_gpu_index(u32::try_from(slice.gpu).ok());
    limits.set_epoch(world.host.epoch);
    Ok(Seat::new(slice.gpu, limits, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_user_do_not_use_up_the_time_of_the_start() {
        let mut searches = Searches::default();
        let mut spend = |uid: u32, times: u32| {
            let mut all = Duration::ZERO;
            for _ in 0..times {
                // A search takes slightly longer than its limit.
                let left = searches.left(uid);
                let took = if left.is_zero() {
                    left
                } else {
                    left + Duration::from_millis(1)
                };
                searches.took(uid, took);
                all += took;
            }
            all
        };
        // 512 claims on four GPUs, all slowed on purpose.
        let hostile = spend(1, 2048);
        assert!(hostile < Duration::from_millis(2100), "{hostile:?}");
        assert!(spend(2, 1) >= PAGE_SEARCH, "others are searched as before");
        let everybody: Duration = (3..60).map(|uid| spend(uid, 2048)).sum();
        let whole = hostile + everybody;
        assert!(whole < Duration::from_millis(10_500), "{whole:?}");
    }
}
