//! The snapshot: all displayed data, from the ledger, the pages and the driver's figures. Unknown values are absent.

use std::collections::BTreeMap;

use gshare_abi::host::SlotView;
use gshare_config::SlurmGpus;
use gshare_core::machine::ModelRoom;
use gshare_core::place::candidates;
use gshare_core::{Bytes, ClaimId, GpuFacts, Request, Share};
use gshare_enforcer::proc;
use gshare_proto::{
    ClaimGpu, ClaimState, ClaimView, ClaimableView, ExpectedView, Figure, GpuState, GpuView,
    InstanceView, ModelRoomView, PlaceView, QueueView, ServiceView, Snapshot, Source,
    UnclaimedView, UserView, totals,
};

use super::admin::drain;
use super::effects::Effects;
use super::features::Features;
use super::gpu::DriverUse;
use super::history::History;
use super::journal::{HoldingRecord, SliceRecord};
use super::levers::facts;
use super::live::Live;
use super::metrics::About;
use super::policy::{adopt, auto, overuse};
use super::reasons;
use super::tracks::Sizes;
use super::world::World;
use super::{convert, doctor, gpus, modes, mps, reclaim, rules, sizes, slurm, stage, turns, whose};
use crate::clock::{millis, unix_ms};
use crate::daemon::viewer::Viewer;
use crate::figures::{self, what};
use crate::identity;

/// The state behind a snapshot.
pub(crate) struct State<'a> {
    pub(crate) effects: &'a Effects,
    pub(crate) features: &'a Features,
    pub(crate) history: &'a History,
    pub(crate) sizes: &'a Sizes,
}

impl<'a> State<'a> {
    fn world(&self) -> World<'a> {
        self.effects.world()
    }
}

/// Inputs of the claims' figures.
#[derive(Debug)]
pub(crate) struct Shown {
    uses: Vec<BTreeMap<ClaimId, DriverUse>>,
    gpus: Vec<GpuView>,
}

/// A claim's parts of GPUs.
#[derive(Debug)]
pub(crate) struct Parts {
    /// By GPU.
    pub(crate) gpus: Vec<ClaimGpu>,
    /// Time of the last launch, by the monotonic clock.
    last_launch: Option<u64>,
    /// Refusals at the cap.
    refusals: u64,
}

impl Parts {
    /// Seconds since the last launch.
    pub(crate) fn idle_s(&self) -> Option<u64> {
        let at = self.last_launch?;
        Some(gshare_abi::monotonic_ns().saturating_sub(at) / 1_000_000_000)
    }
}

/// Shorter idleness is not mentioned.
const IDLE_SHOWN_S: u64 = 60;
/// A claim is shown as stopped only after this idle time.
const STOPPED_SHOWN_S: u64 = 2;
/// A process without launches and GPU time for this long is idle.
const QUIET_NS: u64 = 3_000_000_000;
/// Whether the claim's processes are known to be idle: the library counts the launches of all of them and has seen
/// none for a while, and the driver has seen none of their kernels.
fn no_launches(used: &DriverUse, slots: &[SlotView]) -> bool {
    let now = gshare_abi::monotonic_ns();
    let quiet = |s: &SlotView| {
        s.last_launch_ns
            .is_none_or(|at| now.saturating_sub(at) > QUIET_NS)
    };
    used.processes <= slots.len()
        && used.busy.is_none_or(|busy| busy <= 0.0)
        && slots.iter().all(quiet)
        && slots
            .iter()
            .all(|s| s.work.is_some_and(|w| w.flight.is_none()))
}

/// Bytes charged above the size: burst, or left from before the claim was made smaller.
fn over_request(part: &ClaimGpu) -> u64 {
    part.mem_charge
        .unwrap_or(0)
        .saturating_sub(part.mem_request)
}

/// `offloaded, 4.0 GiB in host RAM`, `moving to GPUs 1,3`.
fn place_text(place: &PlaceView) -> String {
    let word = place.word.clone().unwrap_or_default();
    match (place.host_bytes, place.to.is_empty()) {
        (_, false) => format!("{word} to {}", figures::gpus(&place.to)),
        (Some(bytes), true) => format!("{word}, {} in host RAM", Bytes(bytes)),
        (None, true) => word,
    }
}

/// Whether a signal has stopped the command, as Ctrl-Z does. A working claim is not checked.
fn is_stopped(live: &Live) -> bool {
    let process = live.record.process.filter(|_| live.command_alive);
    process.is_some_and(|p| proc::stat(p.pid).is_some_and(|s| s.state == 'T'))
}

fn state_text(live: &Live, state: ClaimState, idle_s: Option<u64>, parts: &[ClaimGpu]) -> String {
    if let (ClaimState::Ending, Some(ending)) = (state, &live.ending) {
        return format!("ending: {}", ending.cause);
    }
    if live.record.is_observed() && live.command_alive {
        return "only counted".to_owned();
    }
    if idle_s.is_some_and(|s| s >= STOPPED_SHOWN_S) && is_stopped(live) {
        return "stopped".to_owned();
    }
    if parts.iter().any(super::advice::near_cap) {
        return "at limit".to_owned();
    }
    let over = parts
        .iter()
        .fold(0, |sum: u64, p| sum.saturating_add(over_request(p)));
    if over > 0 {
        return format!("{} over its size", Bytes(over));
    }
    if let Some(idle) = idle_s.filter(|s| *s >= IDLE_SHOWN_S) {
        // With seconds the row would change constantly.
        let minutes = std::time::Duration::from_secs(idle / 60 * 60);
        return format!("idle {}", gshare_core::units::show_duration(minutes));
    }
    match (state, live.members.is_empty()) {
        // Slurm's users know the word for a job that does not start.
        (ClaimState::Held, _) if slurm::job_of(&live.record).is_none() => "held".to_owned(),
        // Its next step may be a program that uses CUDA again.
        (ClaimState::Held, true) => "no CUDA now".to_owned(),
        (_, true) => "no CUDA yet".to_owned(),
        (_, false) => "run".to_owned(),
    }
}

/// What users hold and use, in GPUs: an instance counts as its fraction of its GPU.
pub(crate) fn users(
    claims: &[ClaimView],
    queue: &[QueueView],
    unclaimed: &[UnclaimedView],
    gpus: &[GpuView],
) -> Vec<UserView> {
    let of_a_gpu = |index: u32| {
        let gpu = gpus.iter().find(|g| g.index == index);
        gpu.map_or(1.0, GpuView::part_of_a_gpu)
    };
    let mut users: BTreeMap<u32, UserView> = BTreeMap::new();
    let entry = |users: &mut BTreeMap<u32, UserView>, uid: u32, name: &str| {
        users.entry(uid).or_insert_with(|| UserView {
            uid,
            user: name.to_owned(),
            // A user without a claim.
            mem_used: Some(0),
            ..UserView::default()
        });
    };
    for claim in claims {
        entry(&mut users, claim.uid, &claim.user);
        let Some(user) = users.get_mut(&claim.uid) else {
            continue;
        };
        // An adopted program is not a program without a claim.
        user.claims += u32::from(!claim.adopted);
        let here = !claim.place.in_host();
        for part in &claim.gpus {
            if here {
                user.claimed += part.sm_request * of_a_gpu(part.gpu);
                user.mem_claimed = user.mem_claimed.saturating_add(part.mem_request);
            }
        }
    }
    // A sum is known only if every part is.
    for user in users.values_mut() {
        let own = claims.iter().filter(|c| c.uid == user.uid);
        let own = own.filter(|c| !c.place.in_host());
        user.mem_used = own.clone().map(totals::mem_used).sum();
        let parts: Vec<&ClaimGpu> = own.flat_map(|c| &c.gpus).collect();
        super::attribution::sum_up(user, &parts, &of_a_gpu);
    }
    for waiting in queue {
        entry(&mut users, waiting.uid, &waiting.user);
        if let Some(user) = users.get_mut(&waiting.uid) {
            user.waiting += waiting.share * f64::from(waiting.gpus);
        }
    }
    for process in unclaimed.iter().filter(|p| !p.graphics) {
        if let (Some(uid), Some(name)) = (process.uid, &process.user) {
            entry(&mut users, uid, name);
            if let Some(user) = users.get_mut(&uid) {
                user.mem_used = user.mem_used.zip(process.mem_used).map(|(a, b)| a + b);
            }
        }
    }
    users.into_values().collect()
}

fn index(g: usize) -> u32 {
    u32::try_from(g).unwrap_or(u32::MAX)
}

/// A claim's part of one GPU.
fn claim_part(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    slice: &SliceRecord,
    (shown, g): (&Shown, usize),
    slots: &[SlotView],
) -> ClaimGpu {
    // The driver's figures for its processes there.
    let (gpu, used) = (&shown.gpus[g], shown.uses[g].get(&id).copied());
    // Alone on a GPU with counters, its activity is the GPU's.
    let alone = shown.uses[g].keys().all(|other| *other == id)
        && features
            .identity
            .outside()
            .iter()
            .all(|u| u.gpu != index(g))
        && !world.policy.auto.any_on(g)
        && !features.attribution.counts_who_left(g);
    let listed = world.gpus.reading(g).is_some_and(|r| r.processes.is_some());
    let idle = listed && used.is_none_or(|used| no_launches(&used, slots));
    let nothing = Figure {
        value: 0.0,
        source: Source::Shim,
        estimate: false,
    };
    let measured = |figure: Option<Figure>| figure.filter(|f| alone && f.source == Source::Gpm);
    let beside_mps = mps::beside_mps(world.gpus, id, g);
    let [past_library, cannot_tell] = overuse::uncounted(world, id, g);
    let mut part = ClaimGpu {
        gpu: gpu.index,
        uuid: slice.uuid.clone(),
        sm_request: f64::from(slice.sm_milli) / 1000.0,
        sm_limit: f64::from(slice.sm_limit_milli) / 1000.0,
        mps_sms: world
            .mps_figure(slice, slots)
            // The SMs of a process that is no client are not set by the claim.
            .filter(|sms| !sms.estimate || beside_mps.is_empty()),
        beside_mps,
        past_library,
        cannot_tell,
        mem_request: slice.mem,
        mem_limit: slice.mem_limit,
        mem_charge: Some(
            slots
                .iter()
                .fold(0, |sum: u64, s| sum.saturating_add(s.charge_bytes)),
        ),
        mem_driver: Some(world.policy.driver_bytes(id, g)).filter(|bytes| *bytes > 0),
        // A GPU without a process of the claim has a known use of 0.
        mem_used: used.map_or(listed.then_some(0), |used| used.bytes),
        time_busy: used.and_then(|used| used.busy).map(|value| Figure {
            value,
            source: Source::TimeBusy,
            estimate: false,
        }),
        ..ClaimGpu::default()
    };
    features
        .attribution
        .show_part(world, id, g, slots, &mut part);
    for (own, gpu) in [
        (&mut part.sm_active, gpu.sm_active),
        (&mut part.sm_occupancy, gpu.sm_occupancy),
    ] {
        *own = if idle {
            Some(nothing)
        } else {
            measured(gpu).or(*own)
        };
    }
    part
}

/// Where a claim stands: until it has arrived, one that moves is where it was, and one that returns from the host is
/// where it returns to.
fn slices_of(live: &Live) -> &[SliceRecord] {
    match &live.record.holding {
        HoldingRecord::Unparking { to, .. } => to,
        _ => &live.record.slices,
    }
}

/// What it holds of GPUs there.
fn held_slices(live: &Live) -> &[SliceRecord] {
    match live.record.holding {
        HoldingRecord::Parked(_) => &[],
        _ => slices_of(live),
    }
}

/// A claim's parts of GPUs.
pub(crate) fn claim_parts(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    live: &Live,
    shown: &Shown,
) -> Parts {
    let mut last_launch = live.past.launch_ns;
    let mut refusals = live.past.refusals;
    let mut parts = Vec::new();
    for slice in slices_of(live) {
        let Some(g) = world.gpus.gpu_index(&slice.uuid) else {
            continue;
        };
        let slots = live
            .seats
            .iter()
            .find(|s| s.gpu == g)
            .map(|s| s.usage.read_slots(world.gpus[g].total))
            .unwrap_or_default();
        for slot in &slots {
            last_launch = last_launch.max(slot.last_launch_ns);
            refusals = refusals.saturating_add(slot.refusals);
        }
        let part = claim_part(world, features, id, slice, (shown, g), &slots);
        parts.push(part);
    }
    if live.record.has_no_library() || live.record.runs.plain {
        // Its programs run without the library: only the driver reports their use.
        for part in &mut parts {
            part.mem_charge = None;
        }
    }
    Parts {
        gpus: parts,
        last_launch,
        refusals,
    }
}

fn claim_view(known: &State<'_>, id: ClaimId, live: &Live, shown: &Shown) -> ClaimView {
    let record = &live.record;
    let found = claim_parts(&known.world(), known.features, id, live, shown);
    let idle_s = found.idle_s();
    let (parts, refusals) = (found.gpus, found.refusals);
    let state = match (&live.ending, live.command_alive, record.terms.hold) {
        (Some(_), _, _) => ClaimState::Ending,
        (None, true, _) => ClaimState::Running,
        (None, false, _) => ClaimState::Held,
    };
    let over = overuse::overuse_of(&known.world(), id).or_else(|| {
        let text = adopt::over_limit(&known.world(), id)?;
        Some(("over its limit".to_owned(), text))
    });
    let members = whose::pids_of(live, known.effects.host.fences.tree.as_ref())
        .unwrap_or_else(|| live.members.keys().map(|m| m.pid).collect());
    let containers = known.features.identity.containers(id, live);
    let identity = known.features.identity_of(id, live);
    let place = facts::place_view(
        &known.world(),
        known.features,
        &known.effects.levers,
        id,
        live,
    );
    ClaimView {
        id: id.to_string(),
        name: record.name.clone(),
        uid: record.uid,
        user: known.effects.host.names.user(record.uid),
        project: record.project.clone(),
        class: record.class.clone(),
        what: convert::what_in(
            &containers,
            record
                .name
                .as_deref()
                .or(identity::notebook_name(&identity)),
            &record.command,
        ),
        containers,
        command: record.command.to_vec(),
        pid: record
            .process
            .filter(|_| live.command_alive)
            .map(|p| p.pid.cast_unsigned()),
        caps: known.effects.host.driver.caps_of(&live.record),
        cgroup: (record.origin.behalf.as_ref()).map(|b| b.cgroup.display().to_string()),
        slurm_job: slurm::job_of(record),
        private: record.is_private(),
        adopted: false,
        state,
        state_text: match &over {
            _ if place.word.is_some() && live.ending.is_none() => place_text(&place),
            Some((short, _)) => short.clone(),
            None if record.origin.adopted && live.ending.is_none() => "no limits yet".to_owned(),
            None if record.terms.no_library && live.ending.is_none() => "not limited".to_owned(),
            None => match reclaim::announced_text(&known.world(), id) {
                Some(text) if live.ending.is_none() => text,
                _ => state_text(live, state, idle_s, &parts),
            },
        },
        overuse: over.map(|(_, text)| text),
        announced: reclaim::announced_text(&known.world(), id),
        since_ms: record.granted_ms,
        // While its memory is offloaded for others, the time limit is paused.
        ends_ms: record
            .terms
            .ends_ms
            .map(|ms| ms.saturating_add(millis(known.effects.core.stood_still(id)))),
        gpus: parts,
        members: members.into_iter().map(i32::cast_unsigned).collect(),
        processes: known.features.identity.members(&known.world(), id),
        launches: (!record.runs.plain).then(|| {
            live.past
                .launches
                .saturating_add(known.effects.gpus.launches(live))
        }),
        idle_s,
        refusals,
        turns: turns::turns_view(&known.world(), id, live),
        identity,
        place,
        idle: known.features.idle.show(&known.world(), id),
        usage: known.history.usage_of(id),
    }
}

pub(crate) fn gpu_view(world: &World<'_>, features: &Features, g: usize) -> GpuView {
    let gpu = &world.gpus[g];
    let ledger = world.machine.ledger();
    let charged = world
        .claims
        .values()
        .flat_map(|l| &l.seats)
        .filter(|s| s.gpu == g && s.limits.page().state() != gshare_abi::State::Detached);
    let claimed = world.claims.values().flat_map(held_slices);
    let claimed = claimed.filter(|s| s.uuid == gpu.uuid);
    let (mem_claimed, sm_claimed) = claimed.fold((0, 0), |(mem, sm): (u64, u32), s| {
        (mem.saturating_add(s.mem), sm.saturating_add(s.sm_milli))
    });
    let mut measured = world
        .gpus
        .last_reading(g)
        .map(|r| figures::gpu_view(r, world.gpus.reading(g).is_some()))
        .unwrap_or_else(|| GpuView {
            model: gpu.model.clone(),
            short: figures::short_name(&gpu.model),
            mode: "timeslice".to_owned(),
            state: match gpu.gone {
                true => GpuState::Released,
                false => GpuState::Lost,
            },
            ..GpuView::default()
        });
    // Also before the next look at the driver, which leaves it out.
    if world.gpus.is_released(g) {
        measured.state = GpuState::Released;
        measured.mem_used = None;
    }
    let mut view = GpuView {
        index: index(g),
        uuid: gpu.uuid.clone(),
        drain: drain::drain_view(world.gpus, g),
        mode: modes::mode_text(world.gpus, g),
        instance: gpu.parent.map(|parent| InstanceView {
            of: world.gpus[parent].uuid.clone(),
            sm: world.gpus.part_of(g),
        }),
        mode_wanted: world.gpus[g].modes.next.map(|m| m.name().to_owned()),
        mem_allocatable: ledger
            .gpus()
            .get(g)
            .and_then(GpuFacts::allocatable)
            .map(|b| b.0),
        mem_claimed,
        mem_charged: Some(charged.fold(0, |sum: u64, s| {
            sum.saturating_add(s.usage.charged_bytes(gpu.total))
        })),
        mem_unclaimed: gpus::unclaimed_bytes(world, g),
        sm_claimed: f64::from(sm_claimed) / 1000.0,
        history: gpu.history.iter().copied().collect(),
        health: doctor::health_view(world, features, g),
        ..measured
    };
    let attribution = &features.attribution;
    attribution.show_gpu(world, g, &mut view);
    view
}

/// The metrics for Prometheus.
pub(crate) fn metrics_page(known: &State<'_>) -> String {
    let about = About {
        simulated: known.effects.host.driver.simulated,
        started_ms: known.effects.host.started_ms,
        epoch: known.effects.host.epoch,
        unwritten: known.effects.journal.unwritten(),
        quotas: known.effects.config.quotas(),
    };
    let snapshot = with_room(&known.world(), known.sizes, u32::MAX, snapshot(known));
    let viewer = Viewer::stranger(known.world().config.privacy.names_of_all);
    let snapshot = viewer.sees(without_private(viewer, snapshot));
    known
        .features
        .metrics
        .page(&known.world(), &snapshot, &about)
}

fn queue_views(world: &World<'_>, features: &Features, sizes: &Sizes) -> Vec<QueueView> {
    let queue = world.machine.queue().enumerate();
    let expected = sizes::expected_starts(world, sizes);
    let alone = world.machine.left_alone(world.now.core);
    let view = |(i, (id, request)): (usize, (ClaimId, &Request))| {
        let asked = world.claims.waiting.get(&id)?;
        let live = world.claims.get(&id);
        let identity = live.map(|live| features.identity_of(id, live));
        let notebook = identity.as_ref().and_then(identity::notebook_name);
        let reason = world.machine.reason(id);
        let hours = reason.and_then(rules::hours_start);
        let ledger = world.machine.ledger();
        let part = || {
            let open = candidates(ledger, request);
            let facts = |g: &usize| &ledger.gpus()[*g];
            // A share of GPUs of several models is not one number of bytes.
            let alike = open.iter().all(|g| facts(g).model == facts(&open[0]).model);
            let most = open.iter().filter_map(|g| facts(g).allocatable()).max()?;
            alike.then(|| most.times(request.share))
        };
        Some(QueueView {
            id: id.to_string(),
            name: asked.record.name.clone(),
            uid: asked.record.uid,
            user: world.host.names.user(asked.record.uid),
            project: asked.record.project.clone(),
            class: asked.record.class.clone(),
            what: what(
                asked.record.name.as_deref().or(notebook),
                &asked.record.command,
            ),
            gpus: asked.request.gpus,
            share: asked.request.share.as_f64(),
            sm_limit: asked.request.sm_limit.as_f64(),
            mem_request: request.mem.or_else(part).map(|Bytes(b)| b),
            since_ms: asked.since_ms,
            position: index(i + 1),
            reason: reason
                .map(|r| reasons::waits_text(world, features, id, r))
                .unwrap_or_default(),
            would_start: reason
                .and_then(gshare_core::Reason::would_start)
                .map(|s| format!("-g {}", s.short())),
            expected: expected.get(&id).map(|e| {
                let view = sizes::expected_view(world, *e);
                let kept = world.machine.is_reserved(id);
                let kept = if kept { "reservation: " } else { "" };
                ExpectedView {
                    cause: format!("{kept}{}", view.cause),
                    ..view
                }
            }),
            plan: reclaim::plan_text(world, id),
            alone: reclaim::alone_texts(world, &alone.by(world.machine, id)),
            entitled: world.machine.is_entitled(id),
            party: reclaim::party_of(world, id),
            expected_ms: world
                .machine
                .expected_start(id)
                .map(|at| world.now.unix_at(at))
                .or(hours),
            by_hours: hours.is_some(),
        })
    };
    queue.filter_map(view).collect()
}

/// Inputs of the claims' figures.
pub(crate) fn shown(world: &World<'_>, features: &Features) -> Shown {
    Shown {
        uses: (0..world.gpus.len()).map(|g| world.driver_use(g)).collect(),
        gpus: (0..world.gpus.len())
            .map(|g| gpu_view(world, features, g))
            .collect(),
    }
}

/// All data at this moment.
pub(crate) fn snapshot(known: &State<'_>) -> Snapshot {
    let shown = shown(&known.world(), known.features);
    let unclaimed = known.features.identity.outside().to_vec();
    let mut claims: Vec<ClaimView> = known
        .effects
        .claims
        .iter()
        // A claim that waits for its first grant is in the queue.
        .filter(|(id, _)| !known.effects.claims.waiting.contains_key(id))
        .map(|(id, live)| claim_view(known, *id, live, &shown))
        .collect();
    turns::name_stuck(&known.world(), &mut claims);
    claims.extend(auto::auto_views(&known.world(), known.features));
    let queue = queue_views(&known.world(), known.features, known.sizes);
    let mut gpus = shown.gpus;
    // Removed instances keep their numbers for reuse, and are not shown.
    while gpus
        .last()
        .is_some_and(|g| known.effects.gpus[g.index as usize].gone)
    {
        gpus.pop();
    }
    let mut users = users(&claims, &queue, &unclaimed, &gpus);
    for user in &mut users {
        user.day = known.history.day_of(user.uid);
    }
    let mps = || known.effects.config.mps_program().is_ok();
    let features = known.features;
    let advice = (features.advice).show(&known.world(), mps, (&gpus, &claims, &unclaimed));
    Snapshot {
        taken_ms: unix_ms(),
        host: figures::host(),
        driver: known
            .effects
            .gpus
            .sample
            .as_ref()
            .and_then(|s| s.driver_version.clone()),
        simulated: known.effects.host.driver.simulated,
        caps: known.effects.host.driver.caps(),
        service: Some(ServiceView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: known.effects.host.mode.name().to_owned(),
            started_ms: known.effects.host.started_ms,
            cgroups: known.effects.host.fences.tree.is_some(),
            device_filter: known.effects.host.fences.filters.is_some(),
            shim: known.effects.host.driver.libcuda.is_ok(),
            looks: known.effects.policy.looks,
            off: known.effects.config.off.line.clone(),
            slurm: known.effects.config.slurm.gpus != SlurmGpus::None,
            stage: Some(stage::stage_view(&known.world())),
            uid: nix::unistd::Uid::effective().as_raw(),
        }),
        claimable_now: None,
        gpus,
        claims,
        hidden: 0,
        queue,
        users,
        unclaimed,
        notices: Vec::new(),
        advice,
    }
}

/// Without private Slurm jobs of others, and what is said about them.
fn without_private(viewer: Viewer, mut snapshot: Snapshot) -> Snapshot {
    let Some(uid) = viewer.only() else {
        return snapshot;
    };
    let claims = std::mem::take(&mut snapshot.claims).into_iter();
    let (hidden, seen): (Vec<_>, Vec<_>) = claims.partition(|c| c.private && c.uid != uid);
    (snapshot.claims, snapshot.hidden) = (seen, hidden.len());
    if hidden.is_empty() {
        return snapshot;
    }
    let mut day = snapshot.users.iter().find(|u| u.uid == uid);
    let day = day.take().and_then(|own| own.day);
    let Snapshot {
        claims,
        queue,
        unclaimed,
        gpus,
        ..
    } = &snapshot;
    snapshot.users = users(claims, queue, unclaimed, gpus);
    if let Some(own) = snapshot.users.iter_mut().find(|u| u.uid == uid) {
        own.day = day;
    }
    let names = |text: &str| {
        let mut words = text.split([' ', ',', ';', '\'']);
        words.any(|word| hidden.iter().any(|c| c.id == word || c.user == word))
    };
    snapshot.advice.retain(|advice| !names(&advice.text));
    snapshot
}

pub(crate) fn seen_by(known: &State<'_>, viewer: Viewer, snapshot: Snapshot) -> Snapshot {
    let room = with_room(&known.world(), known.sizes, viewer.uid(), snapshot);
    let mut seen = viewer.sees(without_private(viewer, room));
    let may_read = |owner: Option<u32>| owner.is_none_or(|uid| viewer.may_read(uid));
    seen.notices = known.features.notices.show(may_read);
    seen
}

/// Adds what this user could claim now with a plain `gshare claim`.
pub(crate) fn with_room(
    world: &World<'_>,
    sizes: &Sizes,
    uid: u32,
    mut snapshot: Snapshot,
) -> Snapshot {
    if world.config.is_off() {
        // No room is planned for a claim.
        return snapshot;
    }
    let room = sizes::room_of(world, sizes, uid);
    for (g, gpu) in snapshot.gpus.iter_mut().enumerate() {
        let part = room.by_gpu.get(g).copied();
        gpu.claimable = part.unwrap_or_default().as_f64();
        let planned = room.planned.get(g).copied().flatten();
        let planned = planned.map(|id| (id, world.uid_of(id)));
        gpu.planned_for = planned.map(|(id, uid)| match uid {
            Some(uid) => format!("{id} {}", world.host.names.user(uid)),
            None => id.to_string(),
        });
    }
    let untouched = |model: &str| {
        let gpus = world.machine.ledger().gpus().iter().zip(&room.by_gpu);
        let whole = |(g, part): &(&GpuFacts, &Share)| {
            g.model == model && **part == Share::ONE && g.outside() == 0
        };
        u32::try_from(gpus.filter(whole).count()).unwrap_or(u32::MAX)
    };
    let model = |m: &ModelRoom| ModelRoomView {
        model: figures::short_name(&m.model),
        largest: m.largest.as_f64(),
        whole: m.whole.min(untouched(&m.model)),
    };
    snapshot.claimable_now = Some(ClaimableView {
        sum: room.by_gpu.iter().map(|part| part.as_f64()).sum(),
        models: room.models.iter().map(model).collect(),
    });
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_an_unknown_part_has_no_sum() {
        let part = |active: Option<f64>, used: Option<u64>| ClaimGpu {
            sm_active: active.map(|value| Figure {
                value,
                source: Source::Gpm,
                estimate: false,
            }),
            mem_used: used,
            ..ClaimGpu::default()
        };
        let claim = |parts| ClaimView {
            uid: 7,
            gpus: parts,
            ..ClaimView::default()
        };
        let used = |claims: &[ClaimView]| users(claims, &[], &[], &[])[0].sm_used.map(|f| f.value);
        assert_eq!(used(&[claim(vec![part(Some(50.0), Some(1))])]), Some(0.5));
        assert_eq!(
            used(&[claim(vec![part(Some(50.0), Some(1)), part(None, Some(1))])]),
            None
        );
        assert_eq!(used(&[claim(vec![part(None, Some(0))])]), Some(0.0));
        assert_eq!(used(&[claim(vec![part(None, None)])]), None);
        let mem = |claims: &[ClaimView]| users(claims, &[], &[], &[])[0].mem_used;
        let [known, unknown] = [5, 0].map(|b| claim(vec![part(None, Some(b).filter(|b| *b > 0))]));
        assert_eq!(mem(&[known.clone(), known.clone()]), Some(10));
        assert_eq!(mem(&[known.clone(), unknown.clone()]), None);
        assert_eq!(mem(&[unknown, known]), None, "whichever comes first");
    }

    #[test]
    fn a_private_job_is_seen_by_its_owner_and_administrators() {
        let claim = |id: &str, uid, private| ClaimView {
            id: id.to_owned(),
            uid,
            user: format!("u{uid}"),
            private,
            ..ClaimView::default()
        };
        let claims = vec![
            claim("c1", 1, true),
            claim("c2", 2, true),
            claim("c3", 1, false),
        ];
        let advice = |text: &str| gshare_proto::Advice {
            text: text.to_owned(),
            command: None,
        };
        let snapshot = Snapshot {
            users: users(&claims, &[], &[], &[]),
            claims,
            advice: vec![
                advice("c1 idles"),
                advice("all are u1's"),
                advice("c3 idles"),
            ],
            ..Snapshot::default()
        };
        let seen = |viewer| {
            let seen = without_private(viewer, snapshot.clone());
            let ids = seen.claims.iter().map(|c| c.id.clone()).collect::<Vec<_>>();
            let counts = seen.users.iter().map(|u| u.claims).collect::<Vec<_>>();
            (ids.join(" "), seen.hidden, counts, seen.advice.len())
        };
        let user = |uid| Viewer::User { uid, names: true };
        assert_eq!(
            seen(Viewer::All(0)),
            ("c1 c2 c3".to_owned(), 0, vec![2, 1], 3)
        );
        assert_eq!(seen(user(1)), ("c1 c3".to_owned(), 1, vec![2], 3));
        assert_eq!(seen(user(2)), ("c2 c3".to_owned(), 1, vec![1, 1], 1));
        assert_eq!(seen(user(3)), ("c3".to_owned(), 2, vec![1], 1));
    }

    #[test]
    fn an_instance_counts_for_its_part_of_a_gpu() {
        let part = |gpu| ClaimGpu {
            gpu,
            sm_request: 1.0,
            ..ClaimGpu::default()
        };
        let claim = ClaimView {
            gpus: vec![part(0), part(1)],
            ..ClaimView::default()
        };
        let instance = GpuView {
            index: 1,
            instance: Some(InstanceView {
                of: "GPU-0".to_owned(),
                sm: 0.25,
            }),
            ..GpuView::default()
        };
        assert_eq!(users(&[claim], &[], &[], &[instance])[0].claimed, 1.25);
    }
}
