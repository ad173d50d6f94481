//! What can be done to each claim, with the reason if it cannot: for the core, and for the screen from the start.

use gshare_abi::{
    CHOSE_DEVICES, HAS_CROWD, SHARES_MEMORY, USES_FOREIGN, USES_MANAGED, USES_MULTICAST,
};
use gshare_config::Stage;
use gshare_core::machine::lever::Levers;
use gshare_core::units::many;
use gshare_core::{ClaimId, Held};
use gshare_proto::{Check, LeversView, PlaceView, messages};

use crate::daemon::doctor::row::check;
use crate::daemon::engine::LeverState;
use crate::daemon::features::Features;
use crate::daemon::gpu::Gpus;
use crate::daemon::journal::{HoldingRecord, SliceRecord};
use crate::daemon::live::Live;
use crate::daemon::msg::Unable;
use crate::daemon::reasons;
use crate::daemon::slurm;
use crate::daemon::whose;
use crate::daemon::world::World;
use crate::release::{MOVES_SINCE, Release};

/// Flags of all members of a claim.
fn flags(live: &Live) -> u64 {
    let seats = live.seats.iter();
    seats.fold(0, |all, seat| all | seat.usage.flags())
}

fn is_member(live: &Live, pid: i32) -> bool {
    live.members.keys().any(|m| m.pid == pid)
}

/// Members of a claim whose memory cannot leave the GPU, and why.
fn unable<'a>(
    levers: &'a LeverState,
    id: ClaimId,
    live: &'a Live,
) -> impl Iterator<Item = (i32, Unable)> + 'a {
    let lever = levers.claims.get(&id).into_iter();
    let unable = lever.flat_map(|lever| &lever.unable);
    let unable = unable.map(|(pid, why)| (*pid, *why));
    unable.filter(|(pid, _)| is_member(live, *pid))
}

/// Whether other GPUs are hidden from a claim without `CUDA_VISIBLE_DEVICES`: by the device filter, or by the library
/// if the administrator wants that. A claim that may be moved must not start with a subset of GPUs in that variable.
pub(crate) fn hides_without_variable(world: &World<'_>, live: &Live) -> bool {
    let record = &live.record;
    let plain = |s: &SliceRecord| s.uuid.starts_with("GPU-") && s.held == Held::Timeslice;
    let filtered = world.host.fences.filters.is_some() && live.cgroup.is_some();
    (filtered || world.config.claims.hide_by_library)
        && world.host.driver.libcuda.is_ok()
        && !record.terms.no_move
        && record.slices.iter().all(plain)
}

fn may_move(world: &World<'_>, live: &Live, flags: u64) -> Result<(), String> {
    if live.record.terms.no_move {
        return Err("it was claimed with --no-movable".to_owned());
    }
    if world
        .gpus
        .driver_release()
        .is_some_and(|r| r.0 < MOVES_SINCE)
    {
        return Err(format!(
            "this driver cannot move programs between GPUs (release {MOVES_SINCE} or later can)"
        ));
    }
    if flags & CHOSE_DEVICES != 0 {
        let how = if world.host.fences.filters.is_none() && !world.config.claims.hide_by_library {
            "; gshare itself set it to hide the other GPUs, because there is no device filter here (hide-gpus in [claims])"
        } else {
            ""
        };
        return Err(format!(
            "one of its processes was started with CUDA_VISIBLE_DEVICES{how}"
        ));
    }
    Ok(())
}

/// Adds a claim's GPUs to the environment, or lists the variables that must not be in it.
pub(crate) fn show_devices(
    world: &World<'_>,
    live: &Live,
    env: &mut Vec<(String, String)>,
) -> Vec<String> {
    let name = "CUDA_VISIBLE_DEVICES".to_owned();
    let slices = &live.record.slices;
    // Until a claim has GPUs, other choices do not count either: its own value is filled in later.
    if hides_without_variable(world, live) || slices.is_empty() {
        return vec![name];
    }
    let uuids: Vec<&str> = slices.iter().map(|s| s.uuid.as_str()).collect();
    env.push((name, uuids.join(",")));
    Vec::new()
}

impl Gpus {
    fn driver_release(&self) -> Option<Release> {
        self.driver_version().parse().ok()
    }

    /// Whether this driver's checkpoints refuse even simple programs: then gshare tries them only on a user's
    /// request.
    pub(super) fn refuses_pytorch(&self) -> bool {
        self.driver_release().is_some_and(Release::refuses_pytorch)
    }
}

/// Rows of `gshare doctor`.
pub(crate) fn lever_rows(
    world: &World<'_>,
    features: &Features,
    levers: &LeverState,
) -> Vec<Check> {
    let row = |name: &str, result: Result<String, String>| {
        let (state, detail) = match result {
            Ok(detail) => ("ok", detail),
            Err(why) => ("missing", why),
        };
        check(name, state, detail)
    };
    let usable = match &levers.usable {
        Some(usable) => usable.clone(),
        None => Err("the checkpoint engine is starting".to_owned()),
    };
    let able = |pick: fn(&Levers) -> bool| {
        let claims = world
            .claims
            .keys()
            .map(|id| levers_of(world, features, levers, *id));
        let (can, cannot): (Vec<Levers>, Vec<Levers>) = claims.partition(pick);
        let (can, cannot) = (many(can.len(), "claim"), cannot.len());
        format!("possible for {can}, impossible for {cannot} (gshare ps says why)")
    };
    let release = world.gpus.driver_release();
    let moves = match release {
        Some(r) if r.0 < MOVES_SINCE => Err(messages::needs_driver(MOVES_SINCE)),
        _ if world.host.fences.filters.is_none() => Ok("without a device filter: ".to_owned()),
        _ => Ok(String::new()),
    };
    vec![
        row(
            "offload and restore",
            usable.clone().map(|()| able(|l| l.park.is_ok())),
        ),
        row(
            "moving between GPUs",
            usable.and(moves).map(|how| {
                let able = able(|l| l.movable.is_ok());
                format!("{how}{able}; not tested on hardware with two GPUs")
            }),
        ),
    ]
}

/// What can be done to a claim now.
pub(crate) fn levers_of(
    world: &World<'_>,
    features: &Features,
    levers: &LeverState,
    id: ClaimId,
) -> Levers {
    let Some(live) = world.claims.get(&id) else {
        return Levers::default();
    };
    let flags = flags(live);
    let park = may_park_now(world, levers, id, live).and_then(|()| {
        let silent = unable(levers, id, live).find(|u| u.1 == Unable::Silent);
        silent.map_or(Ok(()), |(pid, _)| {
            Err(format!(
                "{}, so gshare offloads the claim only on request (gshare offload)",
                messages::driver_is_silent(pid)
            ))
        })
    });
    let movable = park.clone().and_then(|()| may_move(world, live, flags));
    // A user's request is tried.
    let park = park.and_then(|()| match world.gpus.refuses_pytorch() {
        false => Ok(()),
        true => Err(messages::cannot_checkpoint(world.gpus.driver_version())),
    });
    Levers {
        park,
        movable,
        requeue: live.record.terms.requeue,
        left_alone: live.record.runs.stage < Stage::Reclaim,
        idle: features.idle.is_idle(id),
    }
}

/// Whether a claim can be offloaded, and why not.
pub(crate) fn may_park(world: &World<'_>, levers: &LeverState, id: ClaimId) -> Result<(), String> {
    let Some(live) = world.claims.get(&id) else {
        return Levers::default().park;
    };
    may_park_now(world, levers, id, live)
}

fn may_park_now(
    world: &World<'_>,
    levers: &LeverState,
    id: ClaimId,
    live: &Live,
) -> Result<(), String> {
    if live.record.origin.behalf.is_some() {
        let stopped = levers.claims.get(&id).and_then(|l| l.stopped.as_ref());
        let plain = match slurm::job_of(&live.record) {
            Some(_) => gshare_proto::MOVED_BY_SLURM,
            None => "root made it for the programs of a cgroup, which gshare does not move",
        };
        let stays = stopped.and_then(|s| s.stays.clone());
        return Err(stays.unwrap_or_else(|| plain.to_owned()));
    }
    is_able(world, levers, id, live)
}

/// Whether the memory of a claim can be moved, whoever wants it.
pub(crate) fn is_able(
    world: &World<'_>,
    levers: &LeverState,
    id: ClaimId,
    live: &Live,
) -> Result<(), String> {
    let flags = flags(live);
    if live.record.runs.plain {
        return Err("gshare only counts it, and leaves its programs alone".to_owned());
    }
    match &levers.usable {
        Some(Ok(())) => {}
        Some(Err(why)) => return Err(why.clone()),
        None => return Err("the checkpoint engine is starting".to_owned()),
    }
    if live.record.has_no_library() {
        return Err("its processes run without gshare's library".to_owned());
    }
    let held = |held| live.record.slices.iter().any(|s| s.held == held);
    if held(Held::Mps) {
        return Err(
            "it shares its GPU through MPS, whose clients the driver cannot checkpoint".to_owned(),
        );
    }
    if live
        .record
        .slices
        .iter()
        .any(|s| !s.uuid.starts_with("GPU-"))
    {
        return Err("it has a MIG instance, which the driver cannot checkpoint".to_owned());
    }
    let uses = [
        (USES_MANAGED, "managed memory"),
        (USES_MULTICAST, "multicast between GPUs (NCCL)"),
        (USES_FOREIGN, "memory of graphics or of other drivers"),
        (SHARES_MEMORY, "memory or events that processes share (IPC)"),
    ];
    if let Some((_, what)) = uses.iter().find(|(bit, _)| flags & bit != 0) {
        return Err(format!(
            "it uses {what}, which the driver cannot checkpoint"
        ));
    }
    if flags & HAS_CROWD != 0 {
        return Err(format!(
            "one of its processes calls the driver from more than {} threads",
            gshare_abi::MARKS - 1
        ));
    }
    for (pid, why) in unable(levers, id, live) {
        match why {
            Unable::Silent => {}
            Unable::Nccl => {
                return Err(format!(
                    "process {pid} has NCCL loaded and several GPUs; the driver cannot checkpoint NCCL's communicators"
                ));
            }
            Unable::Lost(_) => {
                return Err(format!(
                    "a checkpoint of process {pid} failed and broke the process; the claim can be offloaded again once this process has ended"
                ));
            }
        }
    }
    if let Some(pid) = whose::processes_of(world, id).find(|pid| !is_member(live, *pid)) {
        return Err(format!(
            "process {pid} uses the GPU without gshare's library"
        ));
    }
    Ok(())
}

/// Whether claims that can burst are spread over idle GPUs, from which they may have to be moved later.
pub(crate) fn moves_work(world: &World<'_>, levers: &LeverState) -> bool {
    let able = world
        .gpus
        .driver_release()
        .is_none_or(|r| r.0 >= MOVES_SINCE);
    matches!(levers.usable, Some(Ok(()))) && able
}

/// A claim's place for the screen, and what can be done to it.
pub(crate) fn place_view(
    world: &World<'_>,
    features: &Features,
    levers: &LeverState,
    id: ClaimId,
    live: &Live,
) -> PlaceView {
    let levers = levers_of(world, features, levers, id);
    let mut view = PlaceView {
        word: None,
        on_its_way: Some(live.record.holding.is_on_its_way()),
        host_bytes: None,
        since_ms: None,
        to: Vec::new(),
        waits: None,
        levers: LeversView {
            not_detachable: levers.park.err(),
            not_movable: levers.movable.err(),
        },
    };
    let mut to = |slices: &[SliceRecord]| {
        let gpus = slices.iter().filter_map(|s| world.gpus.gpu_index(&s.uuid));
        view.to = gpus.filter_map(|g| u32::try_from(g).ok()).collect();
    };
    let word = match &live.record.holding {
        HoldingRecord::Here | HoldingRecord::Counted => return view,
        HoldingRecord::Parking { freeze: false, .. } => "offloading",
        HoldingRecord::Parking { freeze: true, .. } => "suspending",
        HoldingRecord::Parked(parked) => {
            view.host_bytes = Some(parked.host);
            view.since_ms = Some(parked.since_ms);
            let reason = world.machine.reason(id);
            view.waits = reason.map(|reason| reasons::waits_text(world, features, id, reason));
            if parked.frozen {
                "suspended"
            } else {
                "offloaded"
            }
        }
        HoldingRecord::Unparking { to: slices, parked } => {
            to(slices);
            view.host_bytes = Some(parked.host);
            "restoring"
        }
        HoldingRecord::Moving { to: slices } => {
            to(slices);
            "moving"
        }
    };
    view.word = Some(word.to_owned());
    view
}
