//! The snapshot: everything that is shown, from the ledger, the pages and the driver's figures. What is
//! not known is absent.

use std::collections::BTreeMap;

use gshare_abi::host::SlotView;
use gshare_core::machine::{Caller, Claimable, ModelRoom};
use gshare_core::place::candidates;
use gshare_core::{Bytes, ClaimId, GpuFacts, Request, Share, Size};
use gshare_proto::{
    Caps, ClaimGpu, ClaimState, ClaimView, ClaimableView, ExpectedView, Figure, GpuState, GpuView,
    Identity, ModelRoomView, PlaceView, QueueView, ServiceView, Snapshot, Source, UnclaimedView,
    UserView, totals,
};

use super::gpus::DriverUse;
use super::journal::SliceRecord;
use super::metrics::About;
use super::service::{Live, Service};
use super::{convert, restore, rules};
use crate::clock::{millis, unix_ms};
use crate::figures::{self, what};
use crate::identity;

/// What claims' figures are made from.
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
    /// When a kernel was launched last, by the monotonic clock.
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

/// Idle for less than this is not worth a word.
const IDLE_SHOWN_S: u64 = 60;
/// Without a launch for this long, and without GPU time, a process runs nothing.
const QUIET_NS: u64 = 3_000_000_000;
impl Service {
    /// Everything at this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let shown = self.shown();
        let unclaimed = self.features.identity.outside().to_vec();
        let mut claims: Vec<ClaimView> = self
            .claims
            .iter()
            // One that waits for its first grant is in the queue.
            .filter(|(id, _)| !self.waiting.contains_key(id))
            .map(|(id, live)| self.claim_view(*id, live, &shown))
            .collect();
        claims.extend(self.auto_views());
        let queue = self.queue_views();
        let mut gpus = shown.gpus;
        // Instances that were removed keep their numbers for others, and are not shown.
        while gpus
            .last()
            .is_some_and(|g| self.gpus[g.index as usize].gone)
        {
            gpus.pop();
        }
        let of_a_gpu = |g: u32| self.part_of(g as usize);
        let mut users = users(&claims, &queue, &unclaimed, of_a_gpu);
        for user in &mut users {
            user.day = self.day_of(user.uid);
        }
        let mps = || self.mps_program().is_ok();
        let features = &self.features;
        let advice = (features.advice).show(&self.world(), mps, (&gpus, &claims, &unclaimed));
        Snapshot {
            taken_ms: unix_ms(),
            host: figures::host(),
            driver: self.sample.as_ref().and_then(|s| s.driver_version.clone()),
            simulated: self.simulated,
            caps: self.caps(),
            service: Some(ServiceView {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                mode: self.mode.name().to_owned(),
                started_ms: self.started_ms,
                cgroups: self.tree.is_some(),
                device_filter: self.filters.is_some(),
                shim: self.libcuda.is_ok(),
                looks: self.policy.looks,
                off: self.off_view(),
                stage: Some(self.stage_view()),
                uid: nix::unistd::Uid::effective().as_raw(),
            }),
            claimable_now: None,
            gpus,
            claims,
            queue,
            users,
            unclaimed,
            notices: features.notices.show(),
            advice,
        }
    }

    /// With what this user could claim now, by a plain `gshare claim`.
    pub(crate) fn with_room(&self, uid: u32, mut snapshot: Snapshot) -> Snapshot {
        let room = self.room_of(uid);
        for (g, gpu) in snapshot.gpus.iter_mut().enumerate() {
            let part = room.by_gpu.get(g).copied();
            gpu.claimable = part.unwrap_or_default().as_f64();
            let planned = room.planned.get(g).copied().flatten();
            let planned = planned.map(|id| (id, self.uid_of(id)));
            gpu.planned_for = planned.map(|(id, uid)| match uid {
                Some(uid) => format!("{id} {}", self.names.user(uid)),
                None => id.to_string(),
            });
        }
        let model = |m: &ModelRoom| ModelRoomView {
            model: figures::short_name(&m.model),
            largest: m.largest.as_f64(),
            whole: m.whole,
        };
        snapshot.claimable_now = Some(ClaimableView {
            sum: room.by_gpu.iter().map(|part| part.as_f64()).sum(),
            models: room.models.iter().map(model).collect(),
        });
        snapshot
    }

    /// What somebody could claim now.
    pub(crate) fn claimable_by(&self, caller: &Caller) -> Claimable {
        self.machine
            .claimable_now(self.now(), caller, &self.measure())
    }

    pub(crate) fn plain_caller(&self, uid: u32) -> Caller {
        let defaults = &self.config.defaults;
        let size = Size {
            gpus: 1,
            each: Share::ONE,
        };
        let mut request = Request::of_size(size, defaults.sm_limit, defaults.class);
        request.uid = uid;
        let project = convert::project(&self.world(), &self.names, uid, None).unwrap_or_default();
        Caller {
            request,
            parties: self.parties_of(uid, &project),
        }
    }

    fn caps(&self) -> Caps {
        if self.strict.on {
            Caps::Strict
        } else if self.libcuda.is_ok() {
            Caps::Cooperative
        } else {
            Caps::None
        }
    }

    /// What the claims' figures are made from.
    pub(crate) fn shown(&self) -> Shown {
        Shown {
            uses: (0..self.gpus.len())
                .map(|g| self.world().driver_use(g))
                .collect(),
            gpus: (0..self.gpus.len()).map(|g| self.gpu_view(g)).collect(),
        }
    }

    pub(crate) fn gpu_view(&self, g: usize) -> GpuView {
        let gpu = &self.gpus[g];
        let ledger = self.machine.ledger();
        let charged = self
            .claims
            .values()
            .flat_map(|l| &l.seats)
            .filter(|s| s.gpu == g && s.limits.page().state() != gshare_abi::State::Detached);
        let mut measured = self
            .last_reading(g)
            .map(|r| figures::gpu_view(r, self.reading(g).is_some()))
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
        if self.is_released(g) {
            measured.state = GpuState::Released;
            measured.mem_used = None;
        }
        let mut view = GpuView {
            index: index(g),
            uuid: gpu.uuid.clone(),
            drain: self.drain_view(g),
            mode: self.mode_text(g),
            mode_wanted: self.gpus[g].modes.next.map(|m| m.name().to_owned()),
            mem_allocatable: ledger
                .gpus()
                .get(g)
                .and_then(GpuFacts::allocatable)
                .map(|b| b.0),
            mem_claimed: ledger.mem_requested(g).0,
            mem_charged: Some(charged.fold(0, |sum: u64, s| {
                sum.saturating_add(s.usage.charged_bytes(gpu.total))
            })),
            mem_unclaimed: self.unclaimed_bytes(g),
            sm_claimed: ledger.sm_requested(g).as_f64(),
            history: gpu.history.iter().copied().collect(),
            health: self.health_view(g),
            ..measured
        };
        let attribution = &self.features.attribution;
        attribution.show_gpu(&self.world(), g, &mut view);
        view
    }

    /// A claim's parts of GPUs.
    pub(crate) fn claim_parts(&self, id: ClaimId, live: &Live, shown: &Shown) -> Parts {
        let mut last_launch = live.past_launch_ns;
        let mut refusals = live.past_refusals;
        let mut parts = Vec::new();
        for slice in &live.record.slices {
            let Some(g) = self.gpu_index(&slice.uuid) else {
                continue;
            };
            let used = shown.uses[g].get(&id).copied();
            let slots = live
                .seats
                .iter()
                .find(|s| s.gpu == g)
                .map(|s| s.usage.read_slots(self.gpus[g].total))
                .unwrap_or_default();
            for slot in &slots {
                last_launch = last_launch.max(slot.last_launch_ns);
                refusals = refusals.saturating_add(slot.refusals);
            }
            // Alone on a GPU with counters, a claim's activity is the GPU's.
            let alone = shown.uses[g].keys().all(|other| *other == id)
                && self
                    .features
                    .identity
                    .outside()
                    .iter()
                    .all(|u| u.gpu != index(g))
                && !self.auto_on(g)
                && !self.features.attribution.counts_who_left(g);
            parts.push(self.claim_part(id, slice, &shown.gpus[g], used, &slots, alone));
        }
        if live.record.has_no_library() || live.record.plain {
            // Nobody counts in it: the driver's word is all there is.
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

    fn claim_view(&self, id: ClaimId, live: &Live, shown: &Shown) -> ClaimView {
        let record = &live.record;
        let found = self.claim_parts(id, live, shown);
        let idle_s = found.idle_s();
        let (parts, refusals) = (found.gpus, found.refusals);
        let state = match (&live.ending, live.command_alive, record.hold) {
            (Some(_), _, _) => ClaimState::Ending,
            (None, true, _) => ClaimState::Running,
            (None, false, _) => ClaimState::Held,
        };
        let over = self.overuse_of(id);
        let members = restore::pids_of(live, self.tree.as_ref())
            .unwrap_or_else(|| live.members.keys().map(|m| m.pid).collect());
        let containers = self.features.identity.containers(id, live);
        let identity = self.identity_of(id, live);
        let place = self.place_view(id, live);
        ClaimView {
            id: id.to_string(),
            name: record.name.clone(),
            uid: record.uid,
            user: self.names.user(record.uid),
            project: record.project.clone(),
            class: record.class.clone(),
            what: what_in(
                &containers,
                record
                    .name
                    .as_deref()
                    .or(identity::notebook_name(&identity)),
                &record.command,
            ),
            containers,
            command: record.command.clone(),
            pid: record
                .process
                .filter(|_| live.command_alive)
                .map(|p| p.pid.cast_unsigned()),
            caps: self.caps_of(live),
            cgroup: (record.behalf.as_ref()).map(|b| b.cgroup.display().to_string()),
            adopted: false,
            state,
            state_text: match &over {
                _ if place.word.is_some() && live.ending.is_none() => place_text(&place),
                Some((short, _)) => short.clone(),
                None if record.adopted && live.ending.is_none() => "no cap yet".to_owned(),
                None if record.no_library && live.ending.is_none() => "not limited".to_owned(),
                None => match self.announced_text(id) {
                    Some(text) if live.ending.is_none() => text,
                    _ => state_text(live, state, idle_s, &parts),
                },
            },
            overuse: over.map(|(_, text)| text),
            announced: self.announced_text(id),
            since_ms: record.granted_ms,
            // While its memory is away for others the limit stands still.
            ends_ms: record
                .ends_ms
                .map(|ms| ms.saturating_add(millis(self.machine.stood_still(id)))),
            gpus: parts,
            members: members.into_iter().map(i32::cast_unsigned).collect(),
            processes: self.features.identity.members(&self.world(), id),
            launches: (!record.plain)
                .then(|| live.past_launches.saturating_add(self.launches(live))),
            idle_s,
            refusals,
            turns: self.turns_view(id, live),
            identity,
            place,
            idle: self.features.idle.show(&self.world(), id),
            usage: self.usage_of(id),
        }
    }

    /// The figures for Prometheus.
    pub(crate) fn metrics_page(&self) -> String {
        let about = About {
            simulated: self.simulated,
            started_ms: self.started_ms,
            epoch: self.epoch,
            unwritten: self.unwritten.len(),
            quotas: self.quotas(),
        };
        let snapshot = self.with_room(u32::MAX, self.snapshot());
        self.features.metrics.page(&self.world(), &snapshot, &about)
    }

    /// What a claim is beside its command line. The environment has the name that a notebook had when its kernel was
    /// started.
    pub(crate) fn identity_of(&self, id: ClaimId, live: &Live) -> Identity {
        let mut found = self.features.identity.show(id, live);
        let now = self.features.notebooks.notebook_of(id);
        found.notebook = now.or(found.notebook);
        found
    }

    /// A claim's part of one GPU. `used` is what the driver says of its processes there, `alone` that no
    /// process of anybody else is on the GPU.
    fn claim_part(
        &self,
        id: ClaimId,
        slice: &SliceRecord,
        gpu: &GpuView,
        used: Option<DriverUse>,
        slots: &[SlotView],
        alone: bool,
    ) -> ClaimGpu {
        let listed = self
            .reading(gpu.index as usize)
            .is_some_and(|r| r.processes.is_some());
        let idle = listed && used.is_none_or(|used| no_launches(&used, slots));
        let nothing = Figure {
            value: 0.0,
            source: Source::Shim,
            estimate: false,
        };
        let measured = |figure: Option<Figure>| figure.filter(|f| alone && f.source == Source::Gpm);
        let beside_mps = self.beside_mps(id, gpu.index as usize);
        let [past_library, cannot_tell] = self.uncounted(id, gpu.index as usize);
        let mut part = ClaimGpu {
            gpu: gpu.index,
            uuid: slice.uuid.clone(),
            sm_request: f64::from(slice.sm_milli) / 1000.0,
            sm_limit: f64::from(slice.sm_limit_milli) / 1000.0,
            mps_sms: self
                .world()
                .mps_figure(slice, slots)
                // A process that is no client has the SMs of nobody's choice.
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
            mem_driver: Some(self.driver_bytes(id, gpu.index as usize)).filter(|bytes| *bytes > 0),
            // Without a process on the GPU nothing is used, and that is known.
            mem_used: used.map_or(listed.then_some(0), |used| used.bytes),
            time_busy: used.and_then(|used| used.busy).map(|value| Figure {
                value,
                source: Source::TimeBusy,
                estimate: false,
            }),
            ..ClaimGpu::default()
        };
        let (attribution, g) = (&self.features.attribution, gpu.index as usize);
        attribution.show_part(&self.world(), id, g, slots, &mut part);
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

    fn queue_views(&self) -> Vec<QueueView> {
        let queue = self.machine.queue().enumerate();
        let expected = self.expected_starts();
        let alone = self.machine.left_alone(self.now());
        let view = |(i, (id, request)): (usize, (ClaimId, &Request))| {
            let asked = self.waiting.get(&id)?;
            let live = self.claims.get(&id);
            let identity = live.map(|live| self.identity_of(id, live));
            let notebook = identity.as_ref().and_then(identity::notebook_name);
            let reason = self.machine.reason(id);
            let hours = reason.and_then(rules::hours_start);
            let ledger = self.machine.ledger();
            let open = candidates(ledger, request).into_iter();
            let wanted = open.filter_map(|g| ledger.gpus()[g].allocatable()).max();
            Some(QueueView {
                id: id.to_string(),
                name: asked.record.name.clone(),
                uid: asked.record.uid,
                user: self.names.user(asked.record.uid),
                project: asked.record.project.clone(),
                class: asked.record.class.clone(),
                what: what(
                    asked.record.name.as_deref().or(notebook),
                    &asked.record.command,
                ),
                gpus: asked.request.gpus,
                share: asked.request.share.as_f64(),
                sm_limit: asked.request.sm_limit.as_f64(),
                mem_request: request
                    .mem
                    .or(wanted.map(|w| w.times(request.share)))
                    .map(|Bytes(b)| b),
                since_ms: asked.since_ms,
                position: index(i + 1),
                reason: reason.map(|r| self.waits_text(id, r)).unwrap_or_default(),
                would_start: reason
                    .and_then(gshare_core::Reason::would_start)
                    .map(|s| format!("-g {}", s.short())),
                expected: expected.get(&id).map(|e| {
                    let view = self.expected_view(*e);
                    let kept = self.machine.is_reserved(id);
                    let kept = if kept { "reservation: " } else { "" };
                    ExpectedView {
                        cause: format!("{kept}{}", view.cause),
                        ..view
                    }
                }),
                plan: self.plan_text(id),
                alone: self.alone_texts(&alone.by(&self.machine, id)),
                entitled: self.machine.is_entitled(id),
                party: self.party_of(id),
                expected_ms: self
                    .machine
                    .expected_start(id)
                    .map(|at| self.unix_at(at))
                    .or(hours),
                by_hours: hours.is_some(),
            })
        };
        queue.filter_map(view).collect()
    }
}

/// Whether the claim's processes are known to run nothing: the shim counts the launches of all of them, has
/// seen none for a while, and the driver has seen none of their kernels either.
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

/// `[trainer] podman run ...` where containers run.
fn what_in(containers: &[String], name: Option<&str>, command: &[String]) -> String {
    let what = what(name, command);
    if containers.is_empty() {
        what
    } else {
        format!("[{}] {what}", containers.join(", "))
    }
}

/// Bytes charged above what is guaranteed: borrowed, or left from before the claim was made smaller.
fn over_request(part: &ClaimGpu) -> u64 {
    part.mem_charge
        .unwrap_or(0)
        .saturating_sub(part.mem_request)
}

/// `offloaded, 4.0 GiB in host RAM`, `moving to GPU 1`.
fn place_text(place: &PlaceView) -> String {
    let word = place.word.clone().unwrap_or_default();
    let to: Vec<String> = place.to.iter().map(u32::to_string).collect();
    match (place.host_bytes, to.is_empty()) {
        (_, false) => format!("{word} to GPU {}", to.join(",")),
        (Some(bytes), true) => format!("{word}, {} in host RAM", Bytes(bytes)),
        (None, true) => word,
    }
}

fn state_text(live: &Live, state: ClaimState, idle_s: Option<u64>, parts: &[ClaimGpu]) -> String {
    if let (ClaimState::Ending, Some(ending)) = (state, &live.ending) {
        return format!("ending: {}", ending.cause);
    }
    if live.record.is_observed() && live.command_alive {
        return "only counted".to_owned();
    }
    if parts.iter().any(super::advice::near_cap) {
        return "at cap".to_owned();
    }
    let over = parts
        .iter()
        .fold(0, |sum: u64, p| sum.saturating_add(over_request(p)));
    if over > 0 {
        return format!("{} over its request", Bytes(over));
    }
    if let Some(idle) = idle_s.filter(|s| *s >= IDLE_SHOWN_S) {
        // With seconds the row would look different each time.
        let minutes = std::time::Duration::from_secs(idle / 60 * 60);
        return format!("idle {}", gshare_core::units::show_duration(minutes));
    }
    match (state, live.members.is_empty()) {
        (ClaimState::Held, _) => "held".to_owned(),
        (_, true) => "no CUDA yet".to_owned(),
        (_, false) => "run".to_owned(),
    }
}

/// What users hold and use, in GPUs: a part of an instance is that part of what the instance is of its GPU, which
/// `of_a_gpu` says of each GPU or instance.
pub(crate) fn users(
    claims: &[ClaimView],
    queue: &[QueueView],
    unclaimed: &[UnclaimedView],
    of_a_gpu: impl Fn(u32) -> f64,
) -> Vec<UserView> {
    let mut users: BTreeMap<u32, UserView> = BTreeMap::new();
    let entry = |users: &mut BTreeMap<u32, UserView>, uid: u32, name: &str| {
        users.entry(uid).or_insert_with(|| UserView {
            uid,
            user: name.to_owned(),
            // Of somebody without a claim.
            mem_used: Some(0),
            ..UserView::default()
        });
    };
    for claim in claims {
        entry(&mut users, claim.uid, &claim.user);
        let Some(user) = users.get_mut(&claim.uid) else {
            continue;
        };
        // A program that was adopted is none.
        user.claims += u32::from(!claim.adopted);
        let here = !claim.place.in_host();
        for part in &claim.gpus {
            if here {
                user.claimed += part.sm_request * of_a_gpu(part.gpu);
                user.mem_claimed = user.mem_claimed.saturating_add(part.mem_request);
            }
        }
    }
    // Only where every part of a user's claims is known, the sum is.
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
        let used =
            |claims: &[ClaimView]| users(claims, &[], &[], |_| 1.0)[0].sm_used.map(|f| f.value);
        assert_eq!(used(&[claim(vec![part(Some(50.0), Some(1))])]), Some(0.5));
        assert_eq!(
            used(&[claim(vec![part(Some(50.0), Some(1)), part(None, Some(1))])]),
            None
        );
        assert_eq!(used(&[claim(vec![part(None, Some(0))])]), Some(0.0));
        assert_eq!(used(&[claim(vec![part(None, None)])]), None);
        let mem = |claims: &[ClaimView]| users(claims, &[], &[], |_| 1.0)[0].mem_used;
        let [known, unknown] = [5, 0].map(|b| claim(vec![part(None, Some(b).filter(|b| *b > 0))]));
        assert_eq!(mem(&[known.clone(), known.clone()]), Some(10));
        assert_eq!(mem(&[known.clone(), unknown.clone()]), None);
        assert_eq!(mem(&[unknown, known]), None, "whichever comes first");
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
        let of_a_gpu = |g| if g == 1 { 0.25 } else { 1.0 };
        assert_eq!(users(&[claim], &[], &[], of_a_gpu)[0].claimed, 1.25);
    }
}
