//! Carries out a grant, and joins processes to claims.
//!
//! Order of a grant: journal, cgroup, filter, pages, move of the command, answer. The journal comes first so that a
//! restarted service finds everything that exists; the move comes last so that no process is in a cgroup without its
//! filter.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_abi::GpuUuid;
use gshare_abi::host::{LimitsFile, LimitsInit, UsageMemfd};
use gshare_config::Stage;
use gshare_core::machine::Now;
use gshare_core::{Bytes, ClaimId, Held, Slice};
use gshare_enforcer::cgroup::{CgroupError, ClaimCgroup, ClaimPlace, ClaimTree, Tree};
use gshare_enforcer::proc::{self, PidFd};
use gshare_proto::{ErrorCode, Granted, Reply, WireError, messages};

use super::claims::Asked;
use super::claims::Claims;
use super::command::GpuCommand;
use super::command::{Command, LimitCommand};
use super::effects::Effects;
use super::fact::Fact;
use super::find::find;
use super::gpu::Gpus;
use super::host::Host;
use super::journal::{ClaimRecord, JournalError, SliceRecord};
use super::lazy::places;
use super::levers::facts;
use super::live::{Live, Seat};
use super::mps::doctor;
use super::peer::Peer;
use super::policy::adopt;
use super::reasons;
use super::world::World;
use super::{bound, die, ending, gpus, mps, off, policy, slurm, stage, turns, whose};
use crate::clock::{millis, unix_ms};
use crate::figures;

/// Time spent in each phase, in microseconds.
#[derive(Debug)]
struct Phases {
    started: Instant,
    done: Vec<(String, u64)>,
}

impl Phases {
    fn start() -> Self {
        Self {
            started: Instant::now(),
            done: Vec::new(),
        }
    }

    fn end(&mut self, name: &str) {
        let took = self.started.elapsed();
        self.done.push((
            name.to_owned(),
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        ));
        self.started = Instant::now();
    }
}

/// A random number that ties a usage page to its grant.
fn token() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(unix_ms())
}

/// The ledger now has room for a claim that was only counted.
pub(crate) fn booked(with: &Effects, id: ClaimId) -> Vec<Command> {
    if let Some(live) = with.claims.get(&id) {
        with.journal.keep(&live.record, "that a claim is booked");
    }
    vec![
        Command::Limits(LimitCommand::LimitsAnew(id)),
        Command::Limits(LimitCommand::Account),
        Command::Refresh,
    ]
}

pub(crate) fn grant_asked(
    with: &mut Effects,
    id: ClaimId,
    asked: &Asked,
    slices: &[Slice],
    ends: Option<Now>,
) -> Result<Vec<Command>, Vec<Command>> {
    // Its caller has left: nobody would use the claim.
    if asked.out.gone() {
        return Err(Vec::new());
    }
    let mut done = Vec::new();
    match try_grant(with, id, asked, slices, ends, &mut done) {
        Ok(phases) => {
            let waited = unix_ms().saturating_sub(asked.since_ms);
            let waited = Duration::from_millis(waited);
            done.push(Command::Tell(Fact::Granted { waited }));
            let twice = slurm::given_twice(&with.world(), id);
            done.extend(twice.map(|text| Command::NoticeOf { id, text }));
            let mut reply = granted(&with.world(), id);
            if let Reply::Granted(granted) = &mut reply {
                granted.phases_us = phases.into();
            }
            asked.out.reply(&reply);
            die::at("grant-told");
            die::after_answer("grant-heard");
            Ok(done)
        }
        Err(error) => {
            let text = messages::not_granted(id, format_args!("{error:#}"));
            let mut told = WireError::new(ErrorCode::Internal, text.clone());
            if let Some(error @ CgroupError::Bound { .. }) = error.downcast_ref() {
                told = bound::not_moved(error);
            }
            if error.is::<NoRoom>() {
                told.code = ErrorCode::Storage;
            }
            if error.is::<JournalError>() {
                told.code = ErrorCode::Storage;
                let state = with.host.paths.state_dir.display();
                told = told.with_hint(messages::disk_room(state));
            }
            asked.out.error(told);
            done.push(Command::TellUser(asked.record.uid, Some(id), text));
            done.extend(ending::dismantle(with, id, "could not be granted"));
            Err(done)
        }
    }
}

fn try_grant(
    with: &mut Effects,
    id: ClaimId,
    asked: &Asked,
    slices: &[Slice],
    ends: Option<Now>,
    done: &mut Vec<Command>,
) -> anyhow::Result<Vec<(String, u64)>> {
    let mut phases = Phases::start();
    if with.host.fences.read_majors(&with.config, true) {
        done.extend(policy::carry_out(with, LimitCommand::FiltersAnew));
    }
    let mut record = asked.record.clone();
    record.granted_ms = unix_ms();
    let behalf = record.origin.behalf.is_some();
    let uuids = slices.iter().map(|s| with.gpus[s.gpu].uuid.as_str());
    record.runs.stage = stage::stage_of(&with.world(), record.uid, uuids);
    record.runs.plain = record.is_observed() && !behalf && record.terms.lazy.is_none();
    // An adopted command runs already and has no launcher; programs that join the claim later have one.
    record.runs.strict =
        has_launcher(&with.world(), &record) && !record.runs.plain && !record.origin.adopted;
    record.terms.ends_ms = ends.map(|at| {
        record
            .granted_ms
            .saturating_add(millis(at.saturating_sub(with.core.now())))
    });
    record.slices = with.gpus.slice_records(slices);
    record.runs.lodging = lodging(&with.world(), &record);
    let (plain, lodges) = (record.runs.plain, record.runs.lodging.is_some());
    die::at("grant-decided");
    with.journal.put(&record)?;
    die::at("grant-journaled");
    phases.end("journal");
    with.claims.insert(id, Live::new(record));

    if behalf {
        done.extend(enter(with, id)?);
    } else if !plain {
        make_cgroup(with, id)?;
    }
    die::at("grant-cgroup");
    phases.end("cgroup");
    let record = with.claims.get(&id).map(|live| &live.record);
    let rules = gpus::rules(&with.world(), record, slices.iter().map(|s| s.gpu));
    if let (Some(filters), Some(live)) = (&mut with.host.fences.filters, with.claims.get(&id))
        && let Some(cgroup) = live.cgroup.as_ref().filter(|_| !behalf)
    {
        if cgroup.is_lodged() {
            filters.set(cgroup, &rules)?;
        } else {
            filters.set_on_new(cgroup, &rules)?;
        }
    }
    if lodges {
        // The cgroup is outside the tree, so its own id exempts it from `deny`.
        done.extend(policy::carry_out(with, LimitCommand::Deny));
    }
    die::at("grant-filter");
    phases.end("filter");
    if !plain {
        make_seats(with, id, slices)?;
    }
    done.extend(policy::carry_out(with, LimitCommand::LimitMemory(id)));
    die::at("grant-memory-limit");
    phases.end("pages");
    if asked.record.process.is_some() {
        adopt_command(with, id, &asked.peer)?;
    }
    die::at("grant-moved");
    phases.end("move");
    Ok(phases.done)
}

/// Opens the cgroup of a claim on behalf if it exists, and closes it to GPUs that the claim does not have. If the
/// cgroup has a filter that allows no second one, that filter must do.
pub(crate) fn enter(with: &mut Effects, id: ClaimId) -> anyhow::Result<Vec<Command>> {
    let mut done = Vec::new();
    make_cgroup(with, id)?;
    let gpus = with.claims.get(&id).into_iter();
    let gpus = gpus.flat_map(|live| live.record.slices.iter());
    let gpus: Vec<usize> = gpus.filter_map(|s| with.gpus.gpu_index(&s.uuid)).collect();
    let rules = gpus::rules(&with.world(), with.claims.get(&id).map(|l| &l.record), gpus);
    let Some(live) = with.claims.get_mut(&id) else {
        return Ok(done);
    };
    let (Some(cgroup), Some(behalf)) = (&live.cgroup, &mut live.record.origin.behalf) else {
        return Ok(done);
    };
    let filtered = match &mut with.host.fences.filters {
        Some(filters) => filters.set(cgroup, &rules).map_err(|error| {
            let all = filters.attached(cgroup).unwrap_or_default();
            (error, all.iter().any(|filter| !filter.ours))
        }),
        None => Ok(()),
    };
    die::at("behalf-filter");
    if !std::mem::replace(&mut behalf.seen, true) {
        with.journal.put(&live.record)?;
    }
    die::at("behalf-seen");
    match filtered {
        Ok(()) => {}
        Err((error, true)) => {
            tracing::info!(%id, %error, "gshare cannot set a device filter on the cgroup of a claim made with \
                claim-for; the filter that the cgroup already had stays");
        }
        Err((error, false)) => {
            let text = format!("{id}: its programs can still open other GPUs: {error}");
            done.push(Command::NoticeOf { id, text });
        }
    }
    // The cgroup is outside the tree, so its own id exempts it from `deny`.
    done.extend(policy::carry_out(with, LimitCommand::Deny));
    done.extend(policy::carry_out(with, LimitCommand::LimitMemory(id)));
    done.push(Command::Gpus(GpuCommand::DoubtOwners));
    Ok(done)
}

/// The error for a program outside the cgroup of a claim on behalf.
pub(crate) fn not_below(claims: &Claims, id: ClaimId) -> WireError {
    let record = claims.get(&id).map(|l| &l.record);
    let cgroup = record
        .and_then(|r| r.origin.behalf.as_ref())
        .map(|b| &b.cgroup);
    let cgroup = cgroup.map_or_else(String::new, |c| c.display().to_string());
    let text = format!("{id} is for the programs below {cgroup}; no other can join it");
    WireError::new(ErrorCode::NotPermitted, text).with_hint(messages::claim_your_own())
}

pub(crate) fn make_cgroup(with: &mut Effects, id: ClaimId) -> Result<(), CgroupError> {
    if let (Some(tree), Some(live)) = (&with.host.fences.tree, with.claims.get_mut(&id)) {
        live.cgroup = claim_cgroup(tree, &live.record)?;
    }
    Ok(())
}

pub(crate) fn make_seats(with: &mut Effects, id: ClaimId, slices: &[Slice]) -> anyhow::Result<()> {
    let world = with.world();
    let seats = slices.iter().map(|s| make_seat(&world, id, s));
    let seats = seats.collect::<anyhow::Result<_>>()?;
    if let Some(live) = with.claims.get_mut(&id) {
        live.seats = seats;
    }
    Ok(())
}

/// Moves the process that asked for a claim into it, as its command.
pub(crate) fn adopt_command(with: &mut Effects, id: ClaimId, peer: &Peer) -> anyhow::Result<()> {
    let (Some(process), Some(pidfd)) = (peer.process, &peer.pidfd) else {
        anyhow::bail!(messages::unknown_peer());
    };
    let Some(live) = with.claims.get_mut(&id) else {
        return Ok(());
    };
    // A strict launcher is moved when it asks, not earlier.
    if let (Some(cgroup), false) = (&live.cgroup, live.record.runs.strict) {
        cgroup.move_process(process.pid, Some(pidfd))?;
    }
    live.command_alive = true;
    with.host.watch_exit(id, process, Arc::clone(pidfd));
    Ok(())
}

/// Moves the caller, or the process that started it, into a claim.
pub(crate) fn join(
    with: &mut Effects,
    peer: &Peer,
    word: &str,
    parent: bool,
) -> Result<Reply, WireError> {
    let id = find(&with.world(), peer, word)?;
    let owner = with.claims.get(&id).map(|l| l.record.uid);
    let Some(owner) = owner else {
        return Err(WireError::new(
            ErrorCode::NotAvailable,
            format!("{id} still waits"),
        ));
    };
    if peer.uid != owner {
        let whose = with.host.names.user(owner);
        return Err(WireError::new(
            ErrorCode::NotPermitted,
            messages::only_owner_runs(id, whose, "programs"),
        )
        .with_hint(messages::claim_your_own()));
    }
    if with.claims.is_on_behalf(id) {
        let inside = peer
            .process
            .and_then(|p| whose::claim_of(&with.world(), p.pid))
            == Some(id);
        return match inside {
            true => Ok(granted(&with.world(), id)),
            false => Err(not_below(&with.claims, id)),
        };
    }
    let record = with.claims.get(&id).map(|l| &l.record);
    if record.is_some_and(|r| has_launcher(&with.world(), r) && !r.runs.plain) {
        with.host.driver.strict.may_launch(peer)?;
        if parent {
            return Err(WireError::new(
                ErrorCode::NotPermitted,
                "this machine enforces strict limits, so a running shell cannot be moved into a claim",
            )
            .with_hint(format!("to start a new shell in it: gshare join {id}")));
        }
        // The caller becomes the launcher, which is then moved.
        if let Some(process) = peer.process {
            with.host.fences.may_leave(process.pid, owner)?;
        }
        return Ok(granted(&with.world(), id));
    }
    let internal = |text: String| WireError::new(ErrorCode::Internal, text);
    let mut process = peer
        .process
        .ok_or_else(|| internal(messages::unknown_peer()))?;
    if parent {
        let up = proc::stat(process.pid).map(|s| s.ppid).and_then(proc::key);
        let own = up
            .filter(|p| proc::uids(p.pid).is_some_and(|u| u.real == owner && u.effective == owner));
        process = own.ok_or_else(|| {
            WireError::new(
                ErrorCode::NotPermitted,
                "the calling shell cannot be moved: it is not a process of yours",
            )
        })?;
    }
    let pidfd = PidFd::open(process.pid)
        .ok()
        .flatten()
        .filter(|_| proc::key(process.pid) == Some(process))
        .ok_or_else(|| internal("the process ended".to_owned()))?;
    let Some(live) = with.claims.get_mut(&id) else {
        return Err(internal(format!("{id} has ended")));
    };
    if live.ending.is_some() {
        return Err(WireError::new(ErrorCode::Ended, format!("{id} is ending")));
    }
    match &live.cgroup {
        Some(cgroup) => cgroup
            .move_process(process.pid, Some(&pidfd))
            .map_err(|e| bound::not_moved(&e))?,
        // The journal must know the process only if descent determines membership.
        None => {
            let mut record = live.record.clone();
            let joined = &mut record.runs.joined;
            joined.retain(|p| proc::key(p.pid) == Some(*p));
            if !joined.contains(&process) {
                joined.push(process);
            }
            with.journal
                .put(&record)
                .map_err(|e| internal(format!("{:#}", anyhow::Error::from(e))))?;
            live.record = record;
        }
    }
    Ok(granted(&with.world(), id))
}

impl Host {
    /// Path of a claim's limits page on a GPU.
    pub(crate) fn limits_path(&self, gpus: &Gpus, id: ClaimId, gpu: usize) -> PathBuf {
        let name = format!("{id}-{}.limits", gpus[gpu].uuid);
        self.paths.runtime_dir.join("claims").join(name)
    }
}

/// The cgroup of the service that starts with this claim, unless it already belongs to another claim.
fn lodging(world: &World<'_>, record: &ClaimRecord) -> Option<PathBuf> {
    let units = world.host.fences.tree.as_ref()?.units()?;
    let process = record.process.filter(|_| !record.runs.plain)?;
    let found = units.lodging(process.pid.cast_unsigned())?;
    let mut lodged = world.claims.values().map(|l| &l.record.runs.lodging);
    let taken = lodged.any(|l| l.as_ref() == Some(&found.cgroup));
    (!taken).then_some(found.cgroup)
}

/// `0.50 of GPU 1 (11.8 GiB, 50 % of its time, up to 100 %)`, through MPS `(11.8 GiB, 66 of 132 SMs)`, which are
/// fixed; `None` for a claim without GPUs.
pub(crate) fn size_text(world: &World<'_>, record: &ClaimRecord) -> Option<String> {
    let on = |s: &SliceRecord| world.gpus.gpu_index(&s.uuid);
    let gpus: Vec<usize> = record.slices.iter().filter_map(on).collect();
    let first = record.slices.first()?;
    let g = world.gpus.gpu_index(&first.uuid);
    let instance = g.filter(|g| world.gpus[*g].parent.is_some());
    if let (Some(g), Some((_, profile))) = (
        instance,
        instance.and_then(|g| world.gpus[g].model.rsplit_once(' ')),
    ) {
        let sms = world.gpus.last_reading(g).and_then(|r| r.sm_count);
        let sms = sms.map_or_else(String::new, |n| format!(", {n} SMs"));
        return Some(format!(
            "GPU {g}, a MIG instance {profile} ({}{sms})",
            Bytes(first.mem)
        ));
    }
    let limit = if first.mem_limit > first.mem {
        format!(
            ", up to {} while others leave it free",
            Bytes(first.mem_limit)
        )
    } else {
        String::new()
    };
    // As in the request: `2x0.50`, and `2.00` for whole GPUs.
    let share = match (reasons::share_of(world, first), gpus.len()) {
        (share, 1) => format!("{share:.2}"),
        (0.995.., count) => format!("{count}.00"),
        (share, count) => format!("{count}x{share:.2}"),
    };
    let each = if gpus.len() == 1 { "" } else { " each" };
    let of = figures::gpus(&gpus);
    let sms = match world.mps_sms_of(first) {
        Some((given, all)) => format!("{given} of {all} SMs"),
        None => format!(
            "{} % of its time, up to {} %",
            first.sm_milli / 10,
            first.sm_limit_milli / 10
        ),
    };
    Some(format!(
        "{share} of {of} ({}{each}{limit}, {sms})",
        Bytes(first.mem)
    ))
}

/// Makes, or opens, the cgroup of a claim. A claim on behalf has none until the cgroup that it stands for exists.
pub(crate) fn claim_cgroup(
    tree: &Tree,
    record: &ClaimRecord,
) -> Result<Option<ClaimCgroup>, CgroupError> {
    let place = ClaimPlace {
        uid: record.uid,
        claim: record.id,
    };
    match (&record.origin.behalf, &record.runs.lodging) {
        (Some(behalf), _) => tree.stand_for(place, &behalf.cgroup, behalf.filtered),
        (None, Some(cgroup)) if tree.units().is_some() => tree.lodge(place, cgroup).map(Some),
        _ => tree.create(place).map(Some),
    }
}

/// The file system of pages is full.
#[derive(Debug, thiserror::Error)]
#[error("no room left in {}", .0.display())]
struct NoRoom(PathBuf);

/// A page is written through a mapping, where a full disk kills the process instead of giving an error.
fn room_for_page(path: &std::path::Path) -> anyhow::Result<()> {
    let dir = path.parent().unwrap_or(path);
    let stat = nix::sys::statvfs::statvfs(dir)?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    // A file system that does not report its size has no limit of its own.
    anyhow::ensure!(
        stat.blocks() == 0 || free >= 64 * 1024,
        NoRoom(dir.to_owned())
    );
    Ok(())
}

impl Gpus {
    /// Launches of the live members.
    pub(crate) fn launches(&self, live: &Live) -> u64 {
        let slots = |seat: &Seat| seat.usage.read_slots(self[seat.gpu].total);
        live.seats
            .iter()
            .flat_map(slots)
            .fold(0, |sum: u64, s| sum.saturating_add(s.launches))
    }

    /// Allocations refused to the claim so far.
    pub(crate) fn refusals(&self, live: &Live) -> u64 {
        let slots = |seat: &Seat| seat.usage.read_slots(self[seat.gpu].total);
        let seen = live.seats.iter().flat_map(slots);
        seen.fold(live.past.refusals, |sum, s| sum.saturating_add(s.refusals))
    }

    /// The journaled form of slices.
    pub(crate) fn slice_records(&self, slices: &[Slice]) -> Vec<SliceRecord> {
        let record = |s: &Slice| SliceRecord {
            uuid: self[s.gpu].uuid.clone(),
            token: token(),
            mem: s.mem.0,
            mem_limit: s.mem_limit.0,
            sm_milli: s.sm.milli(),
            sm_limit_milli: s.sm_limit.milli(),
            held: s.held,
        };
        slices.iter().map(record).collect()
    }
}

/// The environment of a claim.
pub(crate) fn env(world: &World<'_>, peer: &Peer, word: &str) -> Result<Reply, WireError> {
    let id = find(world, peer, word)?;
    if world.claims.waiting.contains_key(&id) {
        let message = format!("{id} still waits");
        return Err(WireError::new(ErrorCode::NotAvailable, message));
    }
    Ok(granted(world, id))
}

fn grant_text(world: &World<'_>, id: ClaimId, live: &Live) -> String {
    let record = &live.record;
    let Some(size) = size_text(world, record) else {
        return match live.record.terms.lazy {
            Some(_) => format!("{id}: holds no GPU until its first CUDA call"),
            None => format!("{id}: granted"),
        };
    };
    if record.origin.adopted {
        return adopt::adopted_text(world, record, &size);
    }
    let way = if live.record.runs.strict {
        "strict"
    } else {
        "cooperative"
    };
    let side_by_side = record.slices.iter().all(|s| s.held == Held::Mps);
    let uuids = record.slices.iter().map(|s| &s.uuid);
    let gpus: Vec<usize> = uuids.filter_map(|u| world.gpus.gpu_index(u)).collect();
    let mixed = gpus.iter().any(|g| doctor::is_mixed(world, *g));
    // A pause on one of its GPUs holds up the work on the others.
    let pauses = gpus
        .iter()
        .filter(|g| gpus.len() > 1 && turns::take_turns(world, **g));
    let pauses: Vec<&usize> = pauses.collect();
    let caps = match turns::gate_in_force(world) {
        _ if record.terms.no_library => "counted, not limited (no library)".to_owned(),
        Ok(()) if mixed => {
            format!("{way} (SM share not enforced between MPS claims and other claims there)")
        }
        Ok(()) if !pauses.is_empty() => {
            format!(
                "{way} (takes turns with other claims on {})",
                figures::gpus(pauses)
            )
        }
        Ok(()) => way.to_owned(),
        Err(_) if side_by_side && world.host.driver.libcuda.is_ok() => way.to_owned(),
        Err(_) if world.host.driver.libcuda.is_ok() => format!("{way} (SM share not enforced)"),
        Err(_) => "not enforced (no libcuda was found)".to_owned(),
    };
    let ends = match (record.terms.ends_ms, record.terms.hold) {
        (None, _) if record.origin.behalf.is_some() => {
            let cgroup = record.origin.behalf.as_ref().map(|b| b.cgroup.display());
            let cgroup = cgroup.map_or_else(String::new, |c| c.to_string());
            format!(
                "for all programs below {cgroup}; ends with that cgroup, or when root releases {id}"
            )
        }
        (Some(ends), true) if record.command.is_empty() => {
            let left = reasons::show_until(ends);
            format!("ends in {left}, or with gshare release {id}; longer: gshare extend {id}")
        }
        (Some(ends), _) => {
            format!("ends in {}", reasons::show_until(ends))
        }
        (None, true) => format!("held until gshare release {id}"),
        (None, false) => "ends with this command".to_owned(),
    };
    format!("{id}: {size}, {caps}; {ends}")
}

/// Whether programs of this claim start through the launcher.
fn has_launcher(world: &World<'_>, record: &ClaimRecord) -> bool {
    world.host.driver.strict.on && record.origin.behalf.is_none() && !record.terms.no_library
}

/// The answer with a claim's environment.
pub(crate) fn granted(world: &World<'_>, id: ClaimId) -> Reply {
    let Some(live) = world.claims.get(&id) else {
        return Reply::Error(WireError::new(
            ErrorCode::NoClaim,
            format!("{id} has ended"),
        ));
    };
    let record = &live.record;
    if record.runs.plain {
        return Reply::Granted(Granted {
            id: id.to_string(),
            message: granted_text(world, id, live),
            ..Granted::default()
        });
    }
    let mem = record.slices.iter().map(|s| s.mem).min().unwrap_or(0);
    let sm = record.slices.iter().map(|s| s.sm_milli).min().unwrap_or(0);
    let var = |name: &str, value: String| (name.to_owned(), value);
    let mut env = vec![
        var("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        var("GSHARE_CLAIM_ID", id.0.to_string()),
        var("GSHARE_GPU_MEM", mem.to_string()),
        var("GSHARE_SM", (sm / 10).to_string()),
        var(
            "GSHARE_SOCKET",
            world.host.paths.socket.display().to_string(),
        ),
    ];
    // A claim without GPUs cannot name them; the device filter and the library show the later ones.
    if record.slices.is_empty() {
        env.retain(|(name, _)| !matches!(name.as_str(), "GSHARE_GPU_MEM" | "GSHARE_SM"));
        env.extend(places::places_for_later(world, live));
    }
    let mut env_remove = facts::show_devices(world, live, &mut env);
    if record.slices.is_empty() {
        // Variables of a claim in which this one was made.
        env_remove.extend(["GSHARE_GPU_MEM", "GSHARE_SM"].map(str::to_owned));
    }
    env.extend(mps::mps_env(world, record));
    let mut env_prepend = Vec::new();
    let strict = has_launcher(world, record);
    let launcher = strict
        .then(|| world.host.driver.strict.launcher().ok())
        .flatten();
    let strictly = &world.host.driver.strict;
    let is_job = slurm::job_of(record).is_some();
    let binds = (strictly.binds().iter()).filter(|_| is_job && strictly.on);
    let binds: Box<[_]> = binds.map(|b| (b.from.clone(), b.on.clone())).collect();
    let node = |slice: &SliceRecord| {
        let minor = world.gpus[world.gpus.gpu_index(&slice.uuid)?].minor?;
        let node = world.config.devices.dir.join(format!("nvidia{minor}"));
        Some(node.display().to_string())
    };
    let nodes = record.slices.iter().filter(|_| is_job).map(node);
    if world.host.driver.libcuda.is_ok() && !strict && binds.is_empty() {
        env_prepend.push(var(
            "LD_LIBRARY_PATH",
            world.host.driver.dirs.preload.display().to_string(),
        ));
    }
    Reply::Granted(Granted {
        id: id.to_string(),
        message: granted_text(world, id, live),
        env,
        env_prepend,
        env_remove,
        mps_dir: Some(world.host.mps_dir().display().to_string()),
        launcher: launcher.map(|path| path.display().to_string()),
        binds,
        nodes: nodes.collect::<Option<_>>().unwrap_or_default(),
        ..Granted::default()
    })
}

/// Text for a new claim: its size, and what does not apply to it.
fn granted_text(world: &World<'_>, id: ClaimId, live: &Live) -> String {
    let record = &live.record;
    let over = adopt::over_limit(world, id);
    let off = messages::off_holds_nothing();
    let but = match (world.config.is_off(), record.runs.stage) {
        _ if over.is_some() => over.as_deref().unwrap_or_default(),
        (true, _) => &off,
        (_, Stage::Observe) if record.runs.plain => {
            "stage 1 (observe): gshare only counts this claim; its programs see all GPUs, without limits, protection \
             or variables set by gshare"
        }
        (_, Stage::Observe) => {
            "stage 1 (observe): gshare only counts this claim; nothing limits or protects it"
        }
        _ if world.claims.is_counted(id) => {
            "made while gshare was off: nothing limits or protects it until it ends"
        }
        (_, Stage::OptIn) => {
            "stage 2 (opt-in): gshare does not reclaim it, and does not protect it from programs without a claim"
        }
        (_, Stage::Reclaim | Stage::Require) => return grant_text(world, id, live),
    };
    format!("{}\n  {but}", grant_text(world, id, live))
}

fn limits_init(
    world: &World<'_>,
    id: ClaimId,
    slice: &Slice,
    token: u64,
) -> anyhow::Result<LimitsInit> {
    let gpu = &world.gpus[slice.gpu];
    Ok(LimitsInit {
        claim: id.0,
        uuid: gpu
            .uuid
            .parse::<GpuUuid>()
            .map_err(|e| anyhow::anyhow!("{e:?}"))?,
        token,
        epoch: world.host.epoch,
        memory_cap_bytes: off::cap_now(world, id, slice.gpu, slice.mem_cap.0),
        memory_request_bytes: slice.mem.0,
        context_overhead_bytes: gpu.context_cost(slice.held),
        sm_request_permille: slice.sm.milli(),
        sm_limit_permille: slice.sm_limit.milli(),
        ..LimitsInit::default()
    })
}

fn make_seat(world: &World<'_>, id: ClaimId, slice: &Slice) -> anyhow::Result<Seat> {
    let uuid = &world.gpus[slice.gpu].uuid;
    let record = world.claims.get(&id).map(|l| &l.record);
    let token = record
        .and_then(|r| r.slices.iter().find(|s| &s.uuid == uuid))
        .map_or_else(token, |s| s.token);
    let limits = new_limits(world, id, slice, token)?;
    die::at("grant-limits-page");
    if let Some(record) = record {
        mps::write_mps_part(world, record, slice.gpu, &limits);
    }
    let usage = UsageMemfd::create(id.0, limits.page().uuid(), token)?;
    die::at("grant-usage-page");
    Ok(Seat::new(slice.gpu, limits, usage))
}

/// A new limits page that replaces whatever was there.
pub(crate) fn new_limits(
    world: &World<'_>,
    id: ClaimId,
    slice: &Slice,
    token: u64,
) -> anyhow::Result<LimitsFile> {
    let path = world.host.limits_path(world.gpus, id, slice.gpu);
    let _ = std::fs::remove_file(&path);
    room_for_page(&path)?;
    let limits = LimitsFile::create(&path, &limits_init(world, id, slice, token)?)?;
    limits.set_gpu_index(u32::try_from(slice.gpu).ok());
    let free = world.machine.ledger().mem_free(slice.gpu);
    let record = world.claims.get(&id).map(|live| &live.record);
    limits.beat(record.map_or(Some(free.0), |record| record.may_grow_by(free)));
    Ok(limits)
}
